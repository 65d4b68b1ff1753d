//! TLS configurations from PEM, for the aggregated API and for the controller's data endpoint.
//!
//! The crypto provider is named explicitly: two of them in one process would panic.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use thiserror::Error;

/// Name in the certificate of the controller's data endpoint. It is reached by the address
/// that the leader publishes, so the name is the same wherever it runs.
pub const DATA_SERVER_NAME: &str = "skyward-controller-data";

/// A certificate or key that cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The input is not PEM, or has other contents than expected.
    #[error("{what} cannot be read: {source}")]
    Pem {
        /// What was read.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// There is none.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// Key and certificate do not fit, or an authority is not one.
    #[error("{what} cannot be used: {source}")]
    Rejected {
        /// What was used.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: rustls::Error,
    },
    /// The authorities of client certificates cannot be used.
    #[error("the authorities of client certificates cannot be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Which clients may connect to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Only clients that show a certificate of the given authorities.
    Required,
    /// Any client; a certificate that is shown must be of the given authorities. The rights of
    /// clients without one are decided for each request.
    Optional,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let list: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if list.is_empty() {
        Err(TlsError::Empty(what))
    } else {
        Ok(list)
    }
}

fn key(pem: &[u8], what: &'static str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::Pem { what, source })
}

fn roots(pem: &[u8], what: &'static str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, what)? {
        store
            .add(certificate)
            .map_err(|source| TlsError::Rejected { what, source })?;
    }
    Ok(Arc::new(store))
}

/// Configuration of a server that asks its clients for certificates of `client_roots`.
pub fn server(
    certificate: &[u8],
    private_key: &[u8],
    client_roots: Option<&[u8]>,
    clients: Clients,
) -> Result<Arc<ServerConfig>, TlsError> {
    let what = "the serving certificate";
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Rejected { what, source })?;
    let builder = match client_roots {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let roots = roots(pem, "the authorities of client certificates")?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = match clients {
                Clients::Required => verifier,
                Clients::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder
        .with_single_cert(
            certificates(certificate, what)?,
            key(private_key, "the serving key")?,
        )
        .map_err(|source| TlsError::Rejected { what, source })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Configuration of a client that shows a certificate and trusts `server_roots` only.
pub fn client(
    certificate: &[u8],
    private_key: &[u8],
    server_roots: &[u8],
) -> Result<Arc<ClientConfig>, TlsError> {
    let what = "the client certificate";
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Rejected { what, source })?
        .with_root_certificates(roots(server_roots, "the authority of the controller")?)
        .with_client_auth_cert(
            certificates(certificate, what)?,
            key(private_key, "the client key")?,
        )
        .map_err(|source| TlsError::Rejected { what, source })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A server without any authority, for the time before the controller has made our
/// certificates: the kubelet's probes get an answer, everybody else a 401.
pub fn provisional() -> Result<Arc<ServerConfig>, TlsError> {
    let what = "the provisional certificate";
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(|error| {
        TlsError::Rejected {
            what,
            source: rustls::Error::General(error.to_string()),
        }
    })?;
    server(
        made.cert.pem().as_bytes(),
        made.signing_key.serialize_pem().as_bytes(),
        None,
        Clients::Optional,
    )
}
