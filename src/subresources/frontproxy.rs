//! Identifies the user of a request: the Kubernetes API server names the user in headers, and
//! proves itself with a certificate of its front-proxy authority. Nobody else is believed.
//!
//! The authority, the certificate names and the header names stand in the ConfigMap
//! `kube-system/extension-apiserver-authentication`, which the API server writes.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use thiserror::Error;
use x509_parser::parse_x509_certificate;

/// A person or program, as the API server has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its UID, "" when not told.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Other attributes that an authenticator added.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The content of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The front-proxy authority, PEM.
    pub authority: String,
    /// Common names the proxy's certificate may have; empty = any.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name, the first present one counts.
    pub username_headers: Vec<String>,
    /// Headers with the user's UID.
    pub uid_headers: Vec<String>,
    /// Headers with the user's groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with the other attributes.
    pub extra_prefixes: Vec<String>,
}

/// Why a request is not believed; the reason goes to our log, the client gets 401.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unauthenticated {
    /// No certificate.
    #[error("no client certificate was shown")]
    NoCertificate,
    /// A certificate that cannot be read.
    #[error("the client certificate cannot be read")]
    BadCertificate,
    /// Another certificate of the same authority.
    #[error("the client certificate's common name is not one of the front proxy's")]
    NameNotAllowed,
    /// The proxy told no user.
    #[error("the front proxy named no user")]
    NoUser,
    /// A header of the proxy is not text, so the user's rights cannot be checked exactly.
    #[error("a header of the front proxy about the user is not UTF-8")]
    NotText,
    /// We do not know the front proxy yet.
    #[error("the front proxy's authority is not known yet")]
    NotReady,
}

impl RequestHeader {
    /// From the data of `kube-system/extension-apiserver-authentication`.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let list = |key: &str, default: &[&str]| -> Result<Vec<String>, String> {
            match data.get(key).filter(|text| !text.trim().is_empty()) {
                None => Ok(default.iter().map(|&text| text.to_owned()).collect()),
                Some(text) => serde_json::from_str(text).map_err(|error| format!("{key}: {error}")),
            }
        };
        let authority = data
            .get("requestheader-client-ca-file")
            .filter(|pem| !pem.trim().is_empty())
            .cloned()
            .ok_or("requestheader-client-ca-file is missing: the API server runs without an aggregation layer (its flags --requestheader-client-ca-file and --proxy-client-cert-file)")?;
        Ok(Self {
            authority,
            allowed_names: list("requestheader-allowed-names", &[])?,
            username_headers: list("requestheader-username-headers", &["X-Remote-User"])?,
            uid_headers: list("requestheader-uid-headers", &["X-Remote-Uid"])?,
            group_headers: list("requestheader-group-headers", &["X-Remote-Group"])?,
            extra_prefixes: list("requestheader-extra-headers-prefix", &["X-Remote-Extra-"])?,
        })
    }

    /// The user, if the request comes from the front proxy. The certificate's signature was
    /// verified against [`Self::authority`] in the TLS handshake.
    pub fn identify(&self, certificate: Option<&[u8]>, headers: &HeaderMap) -> Result<User, Unauthenticated> {
        let name = common_name(certificate.ok_or(Unauthenticated::NoCertificate)?)?;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(&name) {
            return Err(Unauthenticated::NameNotAllowed);
        }
        let name = first(headers, &self.username_headers)?.ok_or(Unauthenticated::NoUser)?;
        let groups = self.group_headers.iter().flat_map(|header| all(headers, header));
        let groups = groups.collect::<Result<_, _>>()?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            let prefix = prefix.to_ascii_lowercase();
            for (header, value) in headers {
                if let Some(key) = header.as_str().strip_prefix(&prefix) {
                    extra.entry(unescape(key)).or_default().push(text(value)?);
                }
            }
        }
        Ok(User {
            name,
            uid: first(headers, &self.uid_headers)?.unwrap_or_default(),
            groups,
            extra,
        })
    }
}

fn common_name(certificate: &[u8]) -> Result<String, Unauthenticated> {
    let (_, certificate) =
        parse_x509_certificate(certificate).map_err(|_| Unauthenticated::BadCertificate)?;
    let names = certificate
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok());
    Ok(names.unwrap_or_default().to_owned())
}

/// The API server passes names on as they are, in UTF-8, and not only in ASCII.
fn text(value: &HeaderValue) -> Result<String, Unauthenticated> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| Unauthenticated::NotText)?;
    Ok(text.to_owned())
}

fn all<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = Result<String, Unauthenticated>> + use<'a> {
    headers.get_all(name).into_iter().map(text)
}

/// The first value of the first of these headers that has one.
fn first(headers: &HeaderMap, names: &[String]) -> Result<Option<String>, Unauthenticated> {
    let values = names.iter().filter_map(|name| all(headers, name).next());
    for value in values {
        let value = value?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Keys of extra headers are percent-encoded, since header names are not free text.
fn unescape(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn certificate(name: &str) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
            .self_signed(&rcgen::KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
    }

    fn config() -> RequestHeader {
        let data = [
            ("requestheader-client-ca-file", "PEM"),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ];
        RequestHeader::parse(&data.map(|(k, v)| (k.to_owned(), v.to_owned())).into()).unwrap()
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            let name: HeaderName = name.to_ascii_lowercase().parse().unwrap();
            map.append(name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn the_front_proxy_says_who_asks() {
        let headers = headers(&[
            ("X-Remote-User", "ana"),
            ("X-Remote-Group", "team-a"),
            ("X-Remote-Group", "system:authenticated"),
            ("X-Remote-Extra-Example.org%2Fscopes", "read"),
        ]);
        let user = config()
            .identify(Some(&certificate("front-proxy-client")), &headers)
            .unwrap();
        assert_eq!(user.name, "ana");
        assert_eq!(user.groups, ["team-a", "system:authenticated"]);
        assert_eq!(
            user.extra,
            [("example.org/scopes".to_owned(), vec!["read".to_owned()])].into()
        );
    }

    #[test]
    fn names_and_groups_may_have_any_letters_and_none_is_dropped() {
        let proxy = certificate("front-proxy-client");
        let mut named = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "žofie@příklad.cz"),
            ("x-remote-group", "büro"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-team", "研究"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            named.append(HeaderName::from_static(name), value);
        }
        let user = config().identify(Some(&proxy), &named).unwrap();
        assert_eq!(user.name, "žofie@příklad.cz");
        assert_eq!(user.groups, ["büro", "system:authenticated"]);
        assert_eq!(user.extra, [("team".to_owned(), vec!["研究".to_owned()])].into());
        // Without one of the groups the user would be another.
        let no_text = HeaderValue::from_bytes(b"b\xfcro").unwrap();
        named.append("x-remote-group", no_text.clone());
        assert_eq!(
            config().identify(Some(&proxy), &named),
            Err(Unauthenticated::NotText)
        );
        let named = HeaderMap::from_iter([(HeaderName::from_static("x-remote-user"), no_text)]);
        assert_eq!(
            config().identify(Some(&proxy), &named),
            Err(Unauthenticated::NotText)
        );
    }

    #[test]
    fn nobody_else_is_believed() {
        let named = headers(&[("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")]);
        let config = config();
        assert_eq!(config.identify(None, &named), Err(Unauthenticated::NoCertificate));
        let other = certificate("kubelet");
        assert_eq!(
            config.identify(Some(&other), &named),
            Err(Unauthenticated::NameNotAllowed)
        );
        let proxy = certificate("front-proxy-client");
        assert_eq!(
            config.identify(Some(&proxy), &HeaderMap::new()),
            Err(Unauthenticated::NoUser)
        );
        let empty = headers(&[("X-Remote-User", "")]);
        assert_eq!(
            config.identify(Some(&proxy), &empty),
            Err(Unauthenticated::NoUser)
        );
        assert_eq!(
            config.identify(Some(b"rubbish"), &named),
            Err(Unauthenticated::BadCertificate)
        );
    }

    #[test]
    fn a_cluster_without_aggregation_is_named() {
        assert!(
            RequestHeader::parse(&BTreeMap::new())
                .unwrap_err()
                .contains("aggregation layer")
        );
    }
}
