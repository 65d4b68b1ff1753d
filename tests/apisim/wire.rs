//! The server as a `kube::Client`, with the network between.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::Value;
use tower::Service;

use crate::{
    list::check_fields,
    refusal,
    request::{Call, PatchKind, Verb},
    server::ApiServer,
};

/// What becomes of a request, or of its answer, on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Arrives,
    /// It is lost: the client sees a broken connection.
    Lost,
    /// Something between answers with this HTTP code, such as 429 or 503.
    Refused(u16),
}

/// What lies between a client and the server. Each method may wait as long as it likes; one that
/// never ends is a process that was killed, or paused.
pub trait Network: Send + Sync + 'static {
    /// Before the server sees a request.
    fn before(&self, call: &Call) -> BoxFuture<'static, Fate>;
    /// After the server did what was asked, before the client sees the answer.
    fn after(&self, call: &Call, code: u16) -> BoxFuture<'static, Fate>;
    /// Before the client sees an event of a watch.
    fn event(&self, call: &Call) -> BoxFuture<'static, ()>;
}

/// A network without faults.
#[derive(Clone, Copy, Debug)]
pub struct Reliable;

impl Network for Reliable {
    fn before(&self, _: &Call) -> BoxFuture<'static, Fate> {
        std::future::ready(Fate::Arrives).boxed()
    }

    fn after(&self, _: &Call, _: u16) -> BoxFuture<'static, Fate> {
        std::future::ready(Fate::Arrives).boxed()
    }

    fn event(&self, _: &Call) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

/// What a request gets.
pub type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

impl ApiServer {
    /// A client of this server.
    pub fn client(self: &Arc<Self>, network: Arc<dyn Network>) -> Client {
        Client::new(self.service(network), "default")
    }

    /// What a client of this server sends its requests to, for clients with layers of their own.
    pub fn service(
        self: &Arc<Self>,
        network: Arc<dyn Network>,
    ) -> impl Service<Request<Body>, Response = Answer, Error = std::io::Error, Future: Send> + Clone + Send + use<>
    {
        let server = self.clone();
        tower::service_fn(move |request: Request<Body>| {
            let (server, network) = (server.clone(), network.clone());
            async move { server.serve(request, network).await }
        })
    }

    async fn serve(
        self: Arc<Self>,
        request: Request<Body>,
        network: Arc<dyn Network>,
    ) -> std::io::Result<Answer> {
        let lost = || {
            std::io::Error::new(
                std::io::ErrorKind::ConnectionReset,
                "the simulation cut the connection",
            )
        };
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let Some(call) = Call::read(&parts.method, &parts.uri, &parts.headers) else {
            return Ok(refused(&refusal::no_such_path()));
        };
        match network.before(&call).await {
            Fate::Arrives => {}
            Fate::Lost => return Err(lost()),
            Fate::Refused(code) => return Ok(refused(&refusal::unavailable(code))),
        }
        if call.verb == Verb::Watch {
            if let Err(refusal) = check_fields(&call) {
                return Ok(refused(&refusal));
            }
            let lines = self
                .watch(call, network)
                .map(|line| line.map(http_body::Frame::data));
            return Ok(answer(200, StreamBody::new(lines).boxed_unsync()));
        }
        let body = if bytes.is_empty() {
            Ok(Value::Null)
        } else if parts
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/apply-patch+yaml")
        {
            serde_yaml::from_slice(&bytes).map_err(|error| error.to_string())
        } else {
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        let result = match body {
            Ok(body) => {
                let before = self.get(call.resource.plural, &call.namespace, &call.name);
                let answer = self.answer(&call, body);
                let applies = call.verb == Verb::Patch(PatchKind::Apply) && before.is_none();
                answer.map(|object| (object, applies || call.verb == Verb::Create))
            }
            Err(why) => Err(refusal::bad_request(&why)),
        };
        let reply = match &result {
            Ok((object, is_new)) => whole(if *is_new { 201 } else { 200 }, object),
            Err(refusal) => refused(refusal),
        };
        match network.after(&call, reply.status().as_u16()).await {
            Fate::Arrives => Ok(reply),
            Fate::Lost => Err(lost()),
            Fate::Refused(code) => Ok(refused(&refusal::unavailable(code))),
        }
    }
}

fn refused(refusal: &refusal::Refusal) -> Answer {
    whole(refusal.code, &refusal.status)
}

fn whole(code: u16, body: &Value) -> Answer {
    let never = |never: Infallible| match never {};
    answer(
        code,
        Full::new(Bytes::from(body.to_string()))
            .map_err(never)
            .boxed_unsync(),
    )
}

fn answer(code: u16, body: UnsyncBoxBody<Bytes, std::io::Error>) -> Answer {
    let answer = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json");
    answer.body(body).expect("a code and a header are a response")
}
