//! gRPC over HTTP/2 over one byte stream: requests go out, and answers are bounded before they are
//! decoded.
//!
//! tonic's own transport gives bytes back to the window as soon as it has handed them on, even
//! within a message, so the memory of a machine's messages is not known. Here bytes are given back
//! when a message was taken: that memory is the used part of the HTTP/2 window, and `budget.rs`
//! counts it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use h2::{RecvStream, SendStream, client::SendRequest};
use http_body::Frame;
use tokio::time::{Sleep, sleep};
use tokio_util::task::AbortOnDropHandle;
use tonic::codegen::{Body, Service, http};

use crate::{
    limits::{self, Breach, Broken},
    meter::{Call, Meter},
};

/// How long a message may take from its first byte to its last, on the slowest line.
const MESSAGE: Duration = Duration::from_mins(1);

/// Why an answer broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Http(#[from] h2::Error),
    #[error("a message did not end within {} s", MESSAGE.as_secs())]
    Slow,
    #[error("{0}")]
    Broken(String),
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

/// A connection to an agent. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wire {
    requests: SendRequest<Bytes>,
    limits: Limits,
}

/// The limits of the answers, and a handle that keeps their connection.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) meter: Arc<Meter>,
    pub(crate) breach: Breach,
    /// The task that drives the connection ends with the last of its users.
    pub(crate) _driver: Arc<AbortOnDropHandle<()>>,
}

impl Wire {
    pub(crate) fn new(requests: SendRequest<Bytes>, limits: Limits) -> Self {
        Self { requests, limits }
    }

    /// Whether the machine broke a limit.
    pub(crate) fn breach(&self) -> &Breach {
        &self.limits.breach
    }

    /// The account that the machine is charged to.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.limits.meter
    }
}

impl Service<http::Request<tonic::body::Body>> for Wire {
    type Response = http::Response<Answer>;
    type Error = WireError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let Self { requests, limits } = self.clone();
        async move {
            let mut requests = requests.ready().await?;
            let (parts, body) = request.into_parts();
            let path = parts.uri.path();
            let most = limits::message_bytes(path);
            let call = limits.meter.open(most, limits::streams(path)).await;
            let goes_on = limits::goes_on(path);
            let (answer, stream) = requests.send_request(http::Request::from_parts(parts, ()), false)?;
            tokio::pin!(answer);
            let mut sending = send(stream, body).boxed();
            let (answer, rest) = tokio::select! {
                biased;
                answer = &mut answer => (answer?, Some(sending).filter(|_| goes_on)),
                sent = &mut sending => {
                    sent?;
                    (answer.await?, None)
                }
            };
            // It ends with the answer.
            let rest = rest.map(|rest| AbortOnDropHandle::new(tokio::spawn(async move { drop(rest.await) })));
            Ok(answer.map(|stream| Answer::new(stream, limits, call, most, rest)))
        }
        .boxed()
    }
}

/// Sends a request's body as fast as the machine takes it.
async fn send(mut stream: SendStream<Bytes>, mut body: tonic::body::Body) -> Result<(), WireError> {
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|status| WireError::Request(status.message().to_owned()))?;
        let Ok(mut data) = frame.into_data() else { continue };
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                return Err(WireError::Request("the machine closed it".into()));
            };
            let piece = data.split_to(room?.min(data.len()));
            stream.send_data(piece, false)?;
        }
    }
    stream.send_data(Bytes::new(), true)?;
    Ok(())
}

/// Finds where messages end in a stream of bytes: each has a byte of flags and four of length in
/// front.
#[derive(Debug, Default)]
struct Framing {
    head: [u8; 5],
    headed: usize,
    missing: usize,
    /// Bytes since the last message ended.
    begun: usize,
}

impl Framing {
    fn feed(&mut self, mut data: &[u8], most: usize) -> Result<(), Broken> {
        while !data.is_empty() {
            if self.headed < self.head.len() {
                let count = data.len().min(self.head.len() - self.headed);
                let (head, rest) = data.split_at(count);
                self.head[self.headed..self.headed + count].copy_from_slice(head);
                (self.headed, self.begun, data) = (self.headed + count, self.begun + count, rest);
                if self.headed < self.head.len() {
                    return Ok(());
                }
                let [_, length @ ..] = self.head;
                self.missing = u32::from_be_bytes(length) as usize;
                if self.missing > most {
                    return Err(Broken::new(format!(
                        "a message of {} bytes; at most {most} are allowed in answer to that call",
                        self.missing
                    )));
                }
            }
            let count = data.len().min(self.missing);
            (self.missing, self.begun, data) = (self.missing - count, self.begun + count, &data[count..]);
            if self.missing == 0 {
                (self.headed, self.begun) = (0, 0);
            }
        }
        Ok(())
    }
}

/// The answer to a request, as it comes.
pub(crate) struct Answer {
    stream: RecvStream,
    limits: Limits,
    /// Declared after the stream, so that it is dropped when no bytes of the stream are held.
    _call: Call,
    /// What is still being asked.
    _rest: Option<AbortOnDropHandle<()>>,
    most: usize,
    framing: Framing,
    /// Bytes that were handed on and not given back to the window.
    handed_on: usize,
    at_trailers: bool,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Answer {
    fn new(
        mut stream: RecvStream,
        limits: Limits,
        call: Call,
        most: usize,
        rest: Option<AbortOnDropHandle<()>>,
    ) -> Self {
        call.answered(stream.flow_control().clone());
        Self {
            stream,
            limits,
            _call: call,
            _rest: rest,
            most,
            framing: Framing::default(),
            handed_on: 0,
            at_trailers: false,
            deadline: None,
        }
    }

    /// A caller that asks for more has taken all complete messages: gives their room back to the
    /// flow control window.
    fn give_back(&mut self) -> Result<(), WireError> {
        let taken = self.handed_on - self.framing.begun;
        if taken > 0 {
            self.handed_on = self.framing.begun;
            self.stream.flow_control().release_capacity(taken)?;
            self.limits.meter.given_back();
        }
        Ok(())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = WireError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        let this = &mut *self;
        this.give_back()?;
        if !this.at_trailers {
            match this.stream.poll_data(cx) {
                Poll::Ready(Some(data)) => {
                    let data = data?;
                    this.handed_on += data.len();
                    if let Err(broken) = this.framing.feed(&data, this.most) {
                        this.limits.breach.report(&broken);
                        return Poll::Ready(Some(Err(WireError::Broken(broken.to_string()))));
                    }
                    if this.framing.begun == 0 {
                        this.deadline = None;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(None) => this.at_trailers = true,
                Poll::Pending => {
                    if this.framing.begun > 0 {
                        let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(MESSAGE)));
                        ready!(deadline.as_mut().poll(cx));
                        return Poll::Ready(Some(Err(WireError::Slow)));
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(match ready!(this.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let framed = messages.iter().flat_map(|message| {
            let length = u32::try_from(message.len()).unwrap().to_be_bytes();
            [&[0], &length[..], message].concat()
        });
        framed.collect()
    }

    #[test]
    fn a_message_is_refused_by_its_announced_length_before_a_byte_of_it() {
        let mut framing = Framing::default();
        assert_eq!(framing.feed(&framed(&[vec![1; 100]]), 100), Ok(()));
        let broken = framing.feed(&[0, 0, 0, 0, 101], 100).unwrap_err().to_string();
        assert!(broken.contains("of 101 bytes; at most 100"), "{broken}");
    }

    proptest! {
        #[test]
        fn the_ends_of_messages_are_found_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10),
            cuts in proptest::collection::vec(1usize..20, 0..200),
            rest in 0usize..45,
        ) {
            let whole = framed(&messages);
            let mut bytes = whole.clone();
            // An incomplete message behind the others.
            bytes.extend(framed(&[vec![0; 40]]).into_iter().take(rest));
            let (mut framing, mut at) = (Framing::default(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let end = (at + cut).min(bytes.len());
                prop_assert_eq!(framing.feed(&bytes[at..end], 40), Ok(()));
                at = end;
            }
            prop_assert_eq!(framing.begun, if rest == 45 { 0 } else { rest });
            prop_assert!(whole.len() + framing.begun == bytes.len());
        }
    }
}
