//! HTTP servers with an accept loop of our own: each bounds its connections, and its handlers know
//! the client at the other end.
//!
//! Used by the aggregated API, and by all that the controller serves. The TLS configuration
//! is read anew for each connection, so that rotated certificates are used without a restart.
//! A client has time limits for its handshake and for the head of a request. The connection of an
//! anonymous client ([`connections`]) that asks for nothing is closed after a while, and earlier
//! where there are too many.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
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
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::connections::{Connections, Limits, Seat, Standing};

/// How long a client may take for its handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an anonymous client may ask for nothing.
const IDLE: Duration = Duration::from_secs(30);
/// How long open streams may go on after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(5);
/// Most streams of one HTTP/2 connection.
const STREAMS: u32 = 256;
/// The same where the client showed no certificate: such a client gets answers of a few lines.
const ANONYMOUS_STREAMS: u32 = 8;
/// Bytes that a client may send ahead in one HTTP/2 stream. All streams of a connection together may send
/// as much each, so that a body which is taken slowly does not hold up the others of its connection.
const AHEAD: u32 = 64 * 1024;

/// The client at the other end; an extension of each request.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its certificate (DER), which the TLS handshake has verified; `None` = it showed none.
    pub certificate: Option<Arc<[u8]>>,
    /// Its address.
    pub address: Option<IpAddr>,
    /// Whether the client is known; a handler that identifies the client says so there.
    pub standing: Option<Standing>,
}

/// The protocol of connections.
#[derive(Clone, Debug)]
pub enum Transport {
    /// HTTP/1.1 without TLS.
    Plain,
    /// HTTP/2 and HTTP/1.1 over TLS with this configuration.
    Tls(watch::Receiver<Arc<ServerConfig>>),
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

/// The IPv4 address to listen at instead, if this machine may have no IPv6.
fn without_ipv6(address: SocketAddr, error: io::ErrorKind) -> Option<SocketAddr> {
    use io::ErrorKind::{AddrInUse, PermissionDenied};
    let all = address.is_ipv6() && address.ip().is_unspecified();
    (all && !matches!(error, AddrInUse | PermissionDenied))
        .then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Serves until shutdown, within these limits.
pub async fn serve(
    listener: TcpListener,
    transport: Transport,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let connections = Connections::new(limits);
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
        let seat = connections.admit(address.ip());
        let given_up = seat.given_up.clone();
        let tls = match &transport {
            Transport::Plain => None,
            Transport::Tls(config) => Some(config.borrow().clone()),
        };
        let client = Client {
            address: address.ip(),
            router: router.clone(),
            shutdown: shutdown.clone(),
        };
        open.spawn(async move {
            tokio::select! {
                ended = client.converse(stream, tls, &seat) => if let Err(error) = ended {
                    tracing::debug!(%address, error, "a connection ended");
                },
                () = given_up.cancelled() => {
                    tracing::debug!(%address, "a connection of a client that is not known made room for another");
                }
            }
        });
    }
    drop(listener);
    let _ = timeout(DRAIN, async { while open.join_next().await.is_some() {} }).await;
    open.shutdown().await;
}

/// The state of a connection.
struct Client {
    address: IpAddr,
    router: Router,
    shutdown: CancellationToken,
}

impl Client {
    async fn converse(
        self,
        stream: TcpStream,
        tls: Option<Arc<ServerConfig>>,
        seat: &Seat,
    ) -> Result<(), String> {
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
            return self
                .exchange(stream, None, seat, bounded(&mut builder, false))
                .await;
        };
        let stream = timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream))
            .await
            .map_err(|_| "the TLS handshake took too long".to_owned())?
            .map_err(|error| error.to_string())?;
        let certificate: Option<Arc<[u8]>> = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|list| list.first())
            .map(|der| Arc::from(der.as_ref()));
        let is_known = certificate.is_some();
        if is_known && !seat.standing.vouch() {
            tracing::warn!(address = %self.address, "too many connections with a certificate; this one is closed");
            return Ok(());
        }
        let mut builder = auto::Builder::new(TokioExecutor::new());
        self.exchange(stream, certificate, seat, bounded(&mut builder, is_known))
            .await
    }

    /// Answers requests until the connection ends.
    async fn exchange<S>(
        self,
        stream: S,
        certificate: Option<Arc<[u8]>>,
        seat: &Seat,
        builder: &auto::Builder<TokioExecutor>,
    ) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peer = Peer {
            certificate,
            address: Some(self.address),
            standing: Some(seat.standing.clone()),
        };
        // from each request --how many are being answered--> to `asks_nothing`
        let (asked, asked_now) = watch::channel(0_usize);
        let router = self.router;
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let router = router.clone();
            let asking = Asking::begin(&asked);
            async move {
                let answer = router
                    .oneshot(request)
                    .await
                    .unwrap_or_else(|never| match never {});
                drop(asking);
                Ok::<_, Infallible>(answer)
            }
        });
        let serving = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(serving);
        tokio::select! {
            done = &mut serving => return done.map_err(|error| error.to_string()),
            () = asks_nothing(asked_now, &seat.standing) => {
                serving.as_mut().graceful_shutdown();
                // Its last answer may be on its way; whether it is read is up to the client.
                return match timeout(DRAIN, serving).await {
                    Ok(done) => done.map_err(|error| error.to_string()),
                    Err(_) => Err("it asked for nothing, and did not read to the end".to_owned()),
                };
            }
            () = self.shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
        }
        serving.await.map_err(|error| error.to_string())
    }
}

/// Limits of time and streams.
fn bounded(builder: &mut auto::Builder<TokioExecutor>, is_known: bool) -> &auto::Builder<TokioExecutor> {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE);
    let streams = if is_known { STREAMS } else { ANONYMOUS_STREAMS };
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(AHEAD)
        .initial_connection_window_size(AHEAD * streams)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// A request that is being answered.
struct Asking(watch::Sender<usize>);

impl Asking {
    fn begin(asked: &watch::Sender<usize>) -> Self {
        asked.send_modify(|now| *now += 1);
        Self(asked.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.send_modify(|now| *now = now.saturating_sub(1));
    }
}

/// Ends when a client that is not known has had no request for a while.
async fn asks_nothing(mut asked: watch::Receiver<usize>, standing: &Standing) {
    loop {
        if asked.wait_for(|now| *now == 0).await.is_err() {
            return std::future::pending().await;
        }
        match timeout(IDLE, asked.changed()).await {
            Err(_) if !standing.is_known() => return,
            // Known clients keep their connections, and HTTP/2 asks whether they are there.
            Err(_) | Ok(Err(_)) => return std::future::pending().await,
            Ok(Ok(())) => {}
        }
    }
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

    /// A server for one connection; what it says at its end comes back.
    fn one(
        is_known: bool,
    ) -> (
        tokio::io::DuplexStream,
        tokio::task::JoinHandle<Result<(), String>>,
    ) {
        let (client, stream) = tokio::io::duplex(4096);
        let seat = Connections::new(Limits {
            known: 1,
            anonymous: 1,
        })
        .admit(Ipv4Addr::LOCALHOST.into());
        assert!(!is_known || seat.standing.vouch());
        let answers = Client {
            address: Ipv4Addr::LOCALHOST.into(),
            router: Router::new().route("/", axum::routing::get(|| async { "ok" })),
            shutdown: CancellationToken::new(),
        };
        let serving = tokio::spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            answers
                .exchange(stream, None, &seat, bounded(&mut builder, is_known))
                .await
        });
        (client, serving)
    }

    /// Speaks HTTP/2 and asks once.
    async fn ask(client: tokio::io::DuplexStream) -> hyper::client::conn::http2::SendRequest<Body> {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(client))
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://localhost/").body(Body::empty()).unwrap();
        assert!(sender.send_request(request).await.unwrap().status().is_success());
        sender
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_not_known_and_asks_for_nothing_is_closed_after_half_a_minute() {
        // It says nothing at all, or speaks HTTP/2 and keeps quiet from then on.
        let (silent, serving) = one(false);
        let before = tokio::time::Instant::now();
        let _ = timeout(IDLE * 4, serving).await.expect("it is closed").unwrap();
        assert!(before.elapsed() >= IDLE && before.elapsed() <= IDLE + DRAIN * 2);
        drop(silent);

        let (client, serving) = one(false);
        let sender = ask(client).await;
        let _ = timeout(IDLE * 4, serving).await.expect("it is closed").unwrap();
        assert!(sender.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_client_may_keep_its_connection() {
        let (client, serving) = one(true);
        let mut sender = ask(client).await;
        sleep(IDLE * 10).await;
        assert!(!serving.is_finished());
        let request = Request::get("http://localhost/").body(Body::empty()).unwrap();
        assert!(sender.send_request(request).await.unwrap().status().is_success());
    }
}
