//! Every call of the API server has a deadline, in one place: a layer of the client. The caller of a
//! server that does not answer sees [`NoAnswer`] as the error of its call.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use axum::http::{Request, Response};
use futures::{FutureExt, future::BoxFuture};
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};
use tower_http::timeout::TimeoutBody;

/// Longest wait for the beginning of an answer, and from one piece of it to the next.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest wait from one event of a watch to the next: the API server ends a watch sooner.
const OF_A_WATCH: Duration = Duration::from_mins(6);

/// The API server did not answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", DEADLINE.as_secs())]
pub struct NoAnswer;

/// Puts the deadline before a client of the API server.
#[derive(Clone, Copy, Debug)]
pub struct Deadline;

impl<S> Layer<S> for Deadline {
    type Service = Timed<S>;

    fn layer(&self, inner: S) -> Timed<S> {
        Timed(inner)
    }
}

/// Whether the API server did not answer.
pub(crate) fn is_late(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if cause.is::<NoAnswer>())
}

/// What the API server answered, in its own words; or why it did not answer.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        kube::Error::Service(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

/// A client of the API server whose calls have a deadline.
#[derive(Clone, Debug)]
pub struct Timed<S>(S);

impl<S, A, B> Service<Request<A>> for Timed<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<TimeoutBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let query = request.uri().query().unwrap_or_default();
        let watches = query.split('&').any(|parameter| parameter == "watch=true");
        let gap = if watches { OF_A_WATCH } else { DEADLINE };
        let answer = self.0.call(request);
        async move {
            match timeout(DEADLINE, answer).await {
                Ok(Ok(response)) => Ok(response.map(|body| TimeoutBody::new(gap, body))),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(NoAnswer.into()),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client,
        api::{PostParams, WatchParams},
        client::Body,
    };
    use tokio::time::{Instant, sleep};
    use tower::service_fn;

    use super::*;

    /// ConfigMaps of a server that begins each answer after `first`, and goes on with it after `then`.
    fn maps(first: Duration, then: Duration) -> Api<ConfigMap> {
        let server = service_fn(move |request: Request<Body>| async move {
            sleep(first).await;
            let is_watch = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch=true"));
            let map =
                r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"}}"#;
            let whole = if is_watch {
                format!("{{\"type\":\"ADDED\",\"object\":{map}}}\n")
            } else {
                map.to_owned()
            };
            let (begin, rest) = whole.split_at(20);
            let pieces = [begin.to_owned(), rest.to_owned()];
            let body = stream::iter(pieces)
                .enumerate()
                .then(move |(number, piece)| async move {
                    if number > 0 {
                        sleep(then).await;
                    }
                    Ok::<_, Infallible>(Bytes::from(piece))
                });
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(body)))
        });
        Api::default_namespaced(Client::new(Deadline.layer(server), "default"))
    }

    const SOON: Duration = Duration::from_secs(19);
    const LATE: Duration = Duration::from_secs(21);

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_begin_to_answer_is_waited_for_no_longer() {
        let begun = Instant::now();
        let error = maps(LATE, SOON).get("a").await.unwrap_err();
        assert_eq!(words(&error), "the API server did not answer within 20 s");
        assert_eq!(begun.elapsed(), DEADLINE);
        let error = maps(LATE, SOON)
            .create(&PostParams::default(), &ConfigMap::default())
            .await;
        assert!(is_late(&error.unwrap_err()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_within_an_answer_is_waited_for_no_longer() {
        maps(SOON, SOON).get("a").await.unwrap();
        let begun = Instant::now();
        maps(SOON, Duration::from_hours(1)).get("a").await.unwrap_err();
        assert_eq!(begun.elapsed(), SOON + DEADLINE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_may_say_nothing_for_minutes_but_must_begin() {
        let watch = WatchParams::default();
        let quiet = maps(SOON, Duration::from_mins(5))
            .watch(&watch, "0")
            .await
            .unwrap();
        let events: Vec<_> = quiet.collect().await;
        assert!(matches!(&events[..], [Ok(_)]), "{events:?}");
        assert!(maps(LATE, SOON).watch(&watch, "0").await.is_err());
    }
}
