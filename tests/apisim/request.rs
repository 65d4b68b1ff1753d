//! A request's path and query, read.

use http::{HeaderMap, Method, Uri, header};
use percent_encoding::percent_decode_str;

use crate::resources::{RESOURCES, Resource};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object.
    Get,
    /// Objects.
    List,
    /// Changes.
    Watch,
    /// A new object.
    Create,
    /// The whole object anew.
    Replace,
    /// A change of the object.
    Patch(PatchKind),
    /// The object goes.
    Delete,
}

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Server-side apply.
    Apply,
}

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is asked.
    pub verb: Verb,
    /// Of which resource.
    pub resource: &'static Resource,
    /// In which namespace; `""` = in all, or the resource has none.
    pub namespace: String,
    /// Of which object; `""` = of the list.
    pub name: String,
    /// Whether only the status is read or written.
    pub status: bool,
    /// Whether the answer has metadata alone.
    pub metadata: bool,
    pub(crate) query: Query,
}

/// Options of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) limit: usize,
    pub(crate) from: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) seconds: Option<u64>,
    pub(crate) manager: String,
    pub(crate) force: bool,
    pub(crate) dry: bool,
}

impl Call {
    /// Reads a request; `None` = no such path.
    pub fn read(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let mut parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let group = match *parts.first()? {
            "api" => "",
            "apis" if parts.len() > 2 => parts.remove(1),
            _ => return None,
        };
        let version = *parts.get(1)?;
        let mut rest = parts.split_off(2);
        let namespace = if rest.len() > 2 && rest[0] == "namespaces" {
            rest.drain(..2).nth(1)?
        } else {
            ""
        };
        let plural = *rest.first()?;
        let is_it =
            |known: &&Resource| known.group == group && known.version == version && known.plural == plural;
        let resource = RESOURCES.iter().find(is_it)?;
        let name = rest.get(1).copied().unwrap_or_default();
        let status = match rest.get(2) {
            None => false,
            Some(&"status") if resource.status => true,
            Some(_) => return None,
        };
        let (query, watch) = Query::read(uri.query().unwrap_or_default())?;
        let kind = |name: &header::HeaderName| headers.get(name)?.to_str().ok();
        let patch = match kind(&header::CONTENT_TYPE) {
            Some("application/json-patch+json") => PatchKind::Json,
            Some("application/apply-patch+yaml") => PatchKind::Apply,
            _ => PatchKind::Merge,
        };
        Some(Self {
            verb: match *method {
                Method::GET if watch => Verb::Watch,
                Method::GET if name.is_empty() => Verb::List,
                Method::GET => Verb::Get,
                Method::POST => Verb::Create,
                Method::PUT => Verb::Replace,
                Method::PATCH => Verb::Patch(patch),
                Method::DELETE if !name.is_empty() => Verb::Delete,
                _ => return None,
            },
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status,
            metadata: kind(&header::ACCEPT)
                .is_some_and(|accepted| accepted.contains("as=PartialObjectMetadata")),
            query,
        })
    }

    /// Whether the request changes nothing.
    pub const fn reads(&self) -> bool {
        matches!(self.verb, Verb::Get | Verb::List | Verb::Watch)
    }
}

impl Query {
    fn read(text: &str) -> Option<(Self, bool)> {
        let (mut query, mut watch) = (Self::default(), false);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8().ok()?.into_owned();
            let some = Some(value.clone()).filter(|value| !value.is_empty());
            match name {
                "limit" => query.limit = value.parse().ok()?,
                "continue" => query.from = some,
                "resourceVersion" => query.version = some,
                "labelSelector" => query.labels = some,
                "fieldSelector" => query.fields = some,
                "timeoutSeconds" => query.seconds = value.parse().ok(),
                "fieldManager" => query.manager = value,
                "force" => query.force = value == "true",
                "dryRun" => query.dry = value == "All",
                "watch" => watch = value == "true" || value == "1",
                _ => {}
            }
        }
        Some((query, watch))
    }
}
