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
    use std::{process::Output, sync::Arc};

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        process::Command,
    };
    use tokio_rustls::TlsAcceptor;

    use super::settings;

    const BELIEVED: &str =
        "http::tls::tests::a_server_is_believed_whose_authority_this_machine_trusts_and_no_other_one";
    /// Set in a process of that test that is only a client.
    const URL: &str = "SKYWARD_TEST_URL";

    fn install_provider() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }

    #[test]
    fn all_clients_share_what_is_known_of_authorities() {
        install_provider();
        let [one, other] =
            [settings(), settings()].map(|settings| settings.expect("this machine trusts somebody"));
        // Settings that are made anew have a log of keys of their own.
        assert!(Arc::ptr_eq(&one.key_log, &other.key_log));
    }

    /// A certificate of an authority of its own, and the authority's as PEM.
    fn certified(authority: &str) -> (ServerConfig, String) {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, authority);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = own.signed_by(&key, &issuer).unwrap().pem();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        (
            config.with_single_cert(vec![certificate], key).unwrap(),
            authority,
        )
    }

    /// Asks this server in a process that trusts these authorities alone: a process reads them once.
    async fn asks(port: u16, authorities: &str) -> Output {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, authorities).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args([BELIEVED, "--exact", "--nocapture"])
            .env("SSL_CERT_FILE", file.path())
            .env_remove("SSL_CERT_DIR")
            .env(URL, format!("https://localhost:{port}"))
            .output()
            .await
            .unwrap()
    }

    async fn is_answered(url: String) {
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_backend_preconfigured(settings().unwrap());
        let answer = client.build().unwrap().get(url).send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_server_is_believed_whose_authority_this_machine_trusts_and_no_other_one() {
        install_provider();
        if let Ok(url) = std::env::var(URL) {
            return is_answered(url).await;
        }
        let (config, authority) = certified("ours");
        let (_, stranger) = certified("another one's");
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not believe us ends the handshake.
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let mut asked = [0; 1024];
                let _ = stream.read(&mut asked).await;
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        let said = asks(port, &authority).await;
        assert!(said.status.success(), "{said:?}");
        assert!(
            String::from_utf8_lossy(&said.stdout).contains("1 passed"),
            "{said:?}"
        );
        let said = asks(port, &stranger).await;
        assert!(!said.status.success(), "{said:?}");
        assert!(
            String::from_utf8_lossy(&said.stderr).contains("UnknownIssuer"),
            "{said:?}"
        );
        server.abort();
    }
}
