//! Reads certificates and the front proxy's identity again and again, so that rotations need no
//! restart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::Api;
use rustls::{ClientConfig, ServerConfig};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    frontproxy::RequestHeader,
    tls::{self, Clients, TlsError},
};

/// The Secret with the aggregated API's certificates, in the operator's namespace; the controller
/// makes it.
pub const CERTS_SECRET: &str = "skyward-certs";
/// The Secret with the certificates that the controller itself shows; nobody else reads it.
pub const CONTROLLER_CERTS_SECRET: &str = "skyward-controller-certs";
/// The ConfigMap with the authorities to trust, for clients that read metrics.
pub const AUTHORITIES_CONFIG_MAP: &str = "skyward-authorities";

/// Keys of [`CERTS_SECRET`] and [`CONTROLLER_CERTS_SECRET`].
pub mod key {
    /// Authorities to trust: the present one, and for a while the previous one.
    pub const AUTHORITIES: &str = "ca.crt";
    /// Certificate of the aggregated API.
    pub const API_CERTIFICATE: &str = "apiserver.crt";
    /// Its key.
    pub const API_KEY: &str = "apiserver.key";
    /// Certificate of the controller's data endpoint.
    pub const SERVER_CERTIFICATE: &str = "server.crt";
    /// Its key.
    pub const SERVER_KEY: &str = "server.key";
    /// Certificate under which the controller serves metrics.
    pub const METRICS_CERTIFICATE: &str = "metrics.crt";
    /// Its key.
    pub const METRICS_KEY: &str = "metrics.key";
    /// Client certificate that the aggregated API shows to the controller.
    pub const CLIENT_CERTIFICATE: &str = "client.crt";
    /// Its key.
    pub const CLIENT_KEY: &str = "client.key";
}

/// The ConfigMap in which the API server describes its front proxy.
const AUTHENTICATION: (&str, &str) = ("kube-system", "extension-apiserver-authentication");
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time between two looks.
const AGAIN: Duration = Duration::from_secs(30);
/// Time between two looks while something is missing.
const SOON: Duration = Duration::from_secs(1);

/// The receivers of certificates and identity.
pub(crate) struct Outputs {
    pub(crate) serving: watch::Sender<Arc<ServerConfig>>,
    pub(crate) client: watch::Sender<Option<Arc<ClientConfig>>>,
    pub(crate) front_proxy: watch::Sender<Option<RequestHeader>>,
    pub(crate) ready: watch::Sender<bool>,
}

/// The data of the Secret.
type Certificates = BTreeMap<String, ByteString>;

/// Reads until shutdown.
pub(crate) async fn keep(
    client: kube::Client,
    namespace: String,
    outputs: Outputs,
    shutdown: CancellationToken,
) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(client, AUTHENTICATION.0);
    let mut used: Option<(Certificates, RequestHeader)> = None;
    let mut said = String::new();
    loop {
        let fresh = read(&secrets, &config_maps).await;
        let problem = match fresh {
            Ok(fresh) if Some(&fresh) == used.as_ref() => None,
            Ok(fresh) => match apply(&fresh.0, &fresh.1, &outputs) {
                Ok(()) => {
                    tracing::info!("certificates and the front proxy's authority are in use");
                    used = Some(fresh);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            Err(problem) => Some(problem),
        };
        // A repeated problem is logged once.
        match problem {
            Some(problem) if problem != said => {
                tracing::warn!(
                    problem,
                    serving_on = used.is_some(),
                    "certificates could not be read anew"
                );
                said = problem;
            }
            Some(_) => {}
            None => said.clear(),
        }
        let pause = if used.is_some() { AGAIN } else { SOON };
        tokio::select! {
            () = sleep(pause) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn read(
    secrets: &Api<Secret>,
    config_maps: &Api<ConfigMap>,
) -> Result<(Certificates, RequestHeader), String> {
    let secret = timeout(DEADLINE, secrets.get_opt(CERTS_SECRET))
        .await
        .map_err(|_| format!("reading the Secret {CERTS_SECRET:?} took too long"))?
        .map_err(|error| format!("the Secret {CERTS_SECRET:?} cannot be read: {error}"))?
        .ok_or_else(|| format!("there is no Secret {CERTS_SECRET:?} yet; the controller makes it"))?;
    let name = AUTHENTICATION.1;
    let config_map = timeout(DEADLINE, config_maps.get_opt(name))
        .await
        .map_err(|_| format!("reading the ConfigMap {name:?} took too long"))?
        .map_err(|error| format!("the ConfigMap {name:?} of kube-system cannot be read: {error}"))?
        .ok_or_else(|| format!("there is no ConfigMap {name:?} in kube-system"))?;
    Ok((
        secret.data.unwrap_or_default(),
        RequestHeader::parse(&config_map.data.unwrap_or_default())?,
    ))
}

fn apply(
    certificates: &Certificates,
    front_proxy: &RequestHeader,
    outputs: &Outputs,
) -> Result<(), TlsError> {
    let pem = |key| certificates.get(key).map_or(&[][..], |pem| &pem.0);
    let serving = tls::server(
        pem(key::API_CERTIFICATE),
        pem(key::API_KEY),
        Some(front_proxy.authority.as_bytes()),
        Clients::Optional,
    )?;
    let client = tls::client(
        pem(key::CLIENT_CERTIFICATE),
        pem(key::CLIENT_KEY),
        pem(key::AUTHORITIES),
    )?;
    outputs.serving.send_replace(serving);
    outputs.client.send_replace(Some(client));
    outputs.front_proxy.send_replace(Some(front_proxy.clone()));
    outputs.ready.send_replace(true);
    Ok(())
}
