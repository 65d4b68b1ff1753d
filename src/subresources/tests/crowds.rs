//! Tests with crowds of anonymous clients that connect and stay.

use std::{net::Ipv4Addr, time::Instant};

use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpSocket;

use super::*;

/// How far such a client goes before it falls idle.
#[derive(Clone, Copy, Debug)]
enum Idle {
    /// It connects.
    Tcp,
    /// It makes its TLS handshake, too.
    Tls,
    /// It speaks HTTP/2, too: its SETTINGS are answered.
    Http2,
}

const CROWD: usize = 512;

/// Connects from that address of this machine.
async fn connect(server: &Server, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(server.address.parse().unwrap()).await
}

/// One such client; it stays for as long as the answer is kept.
async fn idle_client(server: &Server, tls: Arc<ClientConfig>, idle: Idle) -> io::Result<Box<dyn Send>> {
    let stream = connect(server, Ipv4Addr::new(127, 0, 0, 2)).await?;
    if matches!(idle, Idle::Tcp) {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from("localhost").unwrap();
    let mut config = (*tls).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    if matches!(idle, Idle::Tls) {
        return Ok(Box::new(stream));
    }
    let (sender, connection) = http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(Box::new(sender))
}

#[tokio::test]
async fn five_hundred_idle_clients_keep_nobody_from_the_api_server_s_answer() {
    let server = Server::start(World::with("t", ended()).log(1, 0, &["1 o F hello"])).await;
    let path = format!("{BASE}/tasks/t/log");
    for idle in [Idle::Tcp, Idle::Tls, Idle::Http2] {
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            // A connection that was given up already is no failure: the crowd keeps the others.
            crowd.extend(idle_client(&server, server.nobody(), idle).await.ok());
        }
        assert!(crowd.len() > CROWD / 2, "{idle:?}: {}", crowd.len());
        let before = Instant::now();
        for _ in 0..3 {
            let proxy = server.client(&server.proxy, "front-proxy-client");
            let answer = server.ask(proxy, Method::GET, &path, Some("ana")).await;
            assert_eq!(
                answer.unwrap(),
                (StatusCode::OK, "hello\n".to_owned()),
                "{idle:?}"
            );
            // The kubelet's probes have no certificate either.
            let probe = server.ask(server.nobody(), Method::GET, "/readyz", None).await;
            assert_eq!(probe.unwrap().0, StatusCode::OK, "{idle:?}");
        }
        assert!(
            before.elapsed() < Duration::from_secs(5),
            "{idle:?}: {:?}",
            before.elapsed()
        );
    }
}

#[tokio::test]
async fn a_crowd_does_not_end_what_the_api_server_has_open() {
    let server = Server::start(World::with("t", ended()).log(1, 0, &["1 o F hello"])).await;
    let tls = server.client(&server.proxy, "front-proxy-client");
    let stream = TcpStream::connect(&server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(tls).connect(name, stream).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(connect(&server, Ipv4Addr::LOCALHOST).await.unwrap());
    }
    let request = Request::get("/readyz").header(header::HOST, "localhost");
    let answer = sender.send_request(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
}
