//! An HTTPS server of our own loop, because the handlers need the client's certificate.
//!
//! Used by the aggregated API and by the controller's data endpoint. The TLS
//! configuration is read anew for each connection, so that rotated certificates are
//! used without a restart.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// How long a client may take for its handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long open streams may go on after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(5);

/// Who is at the other end; an extension of each request.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its certificate (DER), which the TLS handshake has verified; `None` = it showed none.
    pub certificate: Option<Arc<[u8]>>,
}

/// Listens at an address. `[::]` is every address of IPv6 and of IPv4; a machine may have no
/// IPv6 at all.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) => match without_ipv6(address, error.kind()) {
            Some(address) => TcpListener::bind(address).await,
            None => Err(error),
        },
    }
}

/// Where to listen instead, if the address may be of a kind that this machine does not have.
fn without_ipv6(address: SocketAddr, error: io::ErrorKind) -> Option<SocketAddr> {
    use io::ErrorKind::{AddrInUse, PermissionDenied};
    let all = address.is_ipv6() && address.ip().is_unspecified();
    (all && !matches!(error, AddrInUse | PermissionDenied))
        .then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Serves until shutdown, at most `connections` at once: further ones are closed at once,
/// which a client sees and tries again.
pub async fn serve(
    listener: TcpListener,
    tls: watch::Receiver<Arc<ServerConfig>>,
    router: Router,
    connections: usize,
    shutdown: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(connections));
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, mostly: waiting is better than spinning.
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tracing::warn!(%address, connections, "too many connections; this one is closed");
            continue;
        };
        let config = tls.borrow().clone();
        let (router, shutdown) = (router.clone(), shutdown.clone());
        open.spawn(async move {
            if let Err(error) = connection(stream, config, router, shutdown).await {
                tracing::debug!(%address, error, "a connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    let _ = timeout(DRAIN, async { while open.join_next().await.is_some() {} }).await;
    open.shutdown().await;
}

async fn connection(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), String> {
    let _ = stream.set_nodelay(true);
    let stream = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream))
        .await
        .map_err(|_| "the TLS handshake took too long".to_owned())?
        .map_err(|error| error.to_string())?;
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|list| list.first());
    let peer = Peer {
        certificate: certificate.map(|der| Arc::from(der.as_ref())),
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let router = router.clone();
        async move {
            Ok::<_, Infallible>(
                router
                    .oneshot(request)
                    .await
                    .unwrap_or_else(|never| match never {}),
            )
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        done = &mut serving => return done.map_err(|error| error.to_string()),
        () = shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    serving.await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_is_one_of_ipv4_too() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
    }

    #[test]
    fn only_what_lacks_ipv6_listens_elsewhere() {
        let all: SocketAddr = "[::]:8080".parse().unwrap();
        let kind = io::ErrorKind::Unsupported;
        assert_eq!(without_ipv6(all, kind), Some("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(without_ipv6(all, io::ErrorKind::AddrInUse), None);
        assert_eq!(without_ipv6("[::1]:8080".parse().unwrap(), kind), None);
        assert_eq!(without_ipv6("0.0.0.0:8080".parse().unwrap(), kind), None);
    }
}
