//! Nothing is written in the name of a leadership that may be over.
//!
//! A process that was paused (a stopped container, a machine without processor time) goes
//! on where it stopped, in the middle of a reconcile, while another one leads. The Lease's
//! renewal notices within moments; this notices before the first write: every request of
//! the controllers that changes something is refused once the Lease, as last renewed, has
//! run out by our own clock. Reads go through. The Lease itself is written with a client
//! that is not fenced. Agents refuse an older epoch by themselves.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use axum::http::{Method, Request};
use futures::{
    TryFutureExt,
    future::{Either, MapErr, Ready, ready},
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// Open while the Lease is ours for certain. Closed at first.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// Opens it until the Lease runs out, unless it is renewed again.
    pub fn open_until(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Closes it: the Lease is released or lost.
    pub fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether something may be written now.
    pub fn is_open(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|end| Instant::now() < end)
    }
}

/// Why a request was not even sent.
#[derive(Debug, thiserror::Error)]
#[error("this process does not hold the Lease any more, so it changes nothing")]
pub struct NotLeading;

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced {
            inner,
            fence: self.clone(),
        }
    }
}

/// A client of the API server behind the fence.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S, B> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<MapErr<S::Future, fn(S::Error) -> BoxError>, Ready<Result<S::Response, BoxError>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if reads || self.fence.is_open() {
            Either::Left(self.inner.call(request).map_err(Into::into))
        } else {
            Either::Right(ready(Err(NotLeading.into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn passes(fence: &Fence, method: Method) -> bool {
        let server = service_fn(async |_: Request<()>| Ok::<_, Infallible>(()));
        let request = Request::builder().method(method).body(()).unwrap();
        fence.layer(server).oneshot(request).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_lease_ran_out_whatever_was_in_progress() {
        let fence = Fence::default();
        assert!(!passes(&fence, Method::POST).await, "nobody leads yet");
        fence.open_until(Instant::now() + Duration::from_secs(15));
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(passes(&fence, method).await);
        }
        // The process was paused, and no renewal has been tried since.
        tokio::time::advance(Duration::from_secs(15)).await;
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(!passes(&fence, method).await);
        }
        assert!(passes(&fence, Method::GET).await, "reading does no harm");
    }

    #[tokio::test]
    async fn a_released_lease_writes_nothing() {
        let fence = Fence::default();
        fence.open_until(Instant::now() + Duration::from_secs(60));
        fence.close();
        assert!(!passes(&fence, Method::PATCH).await);
    }
}
