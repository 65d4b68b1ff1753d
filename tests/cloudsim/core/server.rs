//! The socket: HTTP/1.1 without TLS, one address for each cloud, controls under `/_sim/`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::core::control;
use crate::core::http::{Answer, Request, decode_form};
use crate::core::sim::{Outcome, Sim};

/// Largest body of a request: our clients send no more.
const BODY: usize = 16 << 20;

/// The connection is to be cut without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was cut on purpose")
    }
}

impl std::error::Error for Cut {}

/// Serves a cloud until the task is dropped.
pub async fn serve(listener: TcpListener, sim: Arc<Sim>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, peer)) = accepted else {
                    // Out of file descriptors: let some connections end.
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                };
                connections.spawn(connection(stream, peer, sim.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: tokio::net::TcpStream, peer: SocketAddr, sim: Arc<Sim>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, sim.clone()));
    if let Err(error) = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}

async fn answer(request: http::Request<Incoming>, sim: Arc<Sim>) -> Result<Response<Full<Bytes>>, Cut> {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(response(Answer::empty(413))),
    };
    let request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: decode_form(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body,
    };
    if request.path.starts_with("/_sim/") {
        return Ok(response(control::answer(&sim, &request)));
    }
    match sim.handle(request).await {
        Outcome::Answer(answer) => Ok(response(answer)),
        Outcome::Cut => Err(Cut),
    }
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut builder = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        builder = builder.header(name, value);
    }
    builder.body(Full::new(answer.body)).unwrap_or_else(|error| {
        let mut broken = Response::new(Full::new(Bytes::from(format!("cloudsim: {error}"))));
        *broken.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        broken
    })
}
