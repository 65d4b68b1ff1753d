//! All writes of the controllers to the API server pass the [`Fence`]: a request that changes
//! something is refused once the Lease, as last renewed, has run out. Reads go through. The Lease
//! itself is written with a client that is not fenced. Clients of clouds hold the same fence
//! (`skyward_core::fence`); agents refuse an older epoch by themselves.

use axum::http::{Method, Request};
pub use skyward_core::{Fence, NotLeading};
use tower::{
    BoxError, Layer,
    filter::{Filter, Predicate},
};

/// Puts the fence before a client of the API server.
#[derive(Clone, Debug)]
pub struct Fencing(pub Fence);

impl<S> Layer<S> for Fencing {
    type Service = Filter<S, Self>;

    fn layer(&self, inner: S) -> Filter<S, Self> {
        Filter::new(inner, self.clone())
    }
}

impl<B> Predicate<Request<B>> for Fencing {
    type Request = Request<B>;

    fn check(&mut self, request: Request<B>) -> Result<Request<B>, BoxError> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if reads || self.0.is_open() {
            Ok(request)
        } else {
            Err(NotLeading.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use tokio::time::Instant;
    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn passes(fence: &Fence, method: Method) -> bool {
        let server = service_fn(async |_: Request<()>| Ok::<_, Infallible>(()));
        let request = Request::builder().method(method).body(()).unwrap();
        Fencing(fence.clone())
            .layer(server)
            .oneshot(request)
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_lease_ran_out_whatever_was_in_progress() {
        let fence = Fence::with_clock(|| Instant::now().into_std());
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
}
