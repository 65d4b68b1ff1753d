//! How clients prove who answers: with the certificates of the public authorities that this machine trusts.
//!
//! These are read once and shared, since each client would otherwise read them for itself and keep its own copy of more
//! than a hundred. What changes in their list counts from the next start of the process.

use std::sync::OnceLock;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;

/// The settings of all clients. A failure is not kept: the next client tries again.
pub(super) fn settings() -> Result<ClientConfig, rustls::Error> {
    static SETTINGS: OnceLock<ClientConfig> = OnceLock::new();
    if let Some(settings) = SETTINGS.get() {
        return Ok(settings.clone());
    }
    let mut settings = ClientConfig::builder()
        .with_platform_verifier()?
        .with_no_client_auth();
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(SETTINGS.get_or_init(|| settings).clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::settings;

    #[test]
    fn all_clients_share_what_is_known_of_authorities() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let [one, other] =
            [settings(), settings()].map(|settings| settings.expect("this machine trusts somebody"));
        // Settings that are made anew have a log of keys of their own.
        assert!(Arc::ptr_eq(&one.key_log, &other.key_log));
    }
}
