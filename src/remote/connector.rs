//! A connection to an agent over one byte stream.
//!
//! The stream is used once: when it ends, the connection reports its end instead of dialling again,
//! since callers hold facts about this very connection.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use crate::{
    dial::Stream,
    limits::{Breach, LARGEST_MESSAGE},
    meter::Meter,
    wire::{Limits, Wire},
};

/// Time for the first bytes of HTTP/2 to go out.
const OPEN: Duration = Duration::from_secs(10);
/// Window of one stream: bytes that a machine may send before a reader takes them, and that one
/// round trip may carry. It is given back message by message, so the largest message must fit.
pub(crate) const STREAM_WINDOW: u32 = 288 * 1024;
/// Window of the connection. An unread stream takes only a part of it, so that calls such as
/// renewing the lease still get their answers.
pub(crate) const WINDOW: u32 = 4 * STREAM_WINDOW;
const _: () = assert!(STREAM_WINDOW as usize > LARGEST_MESSAGE);
/// Names and values of one answer's headers, and of its trailers.
const HEADERS: u32 = 8 * 1024;
/// Small frames cost more than their bytes: this many of them may wait to be taken.
const SMALL_FRAMES: usize = 512;
/// Larger frames do not count as small, in the library.
const SMALL_FRAME: usize = 256;
/// Bytes of our requests that wait for the network at once.
const SENDING: usize = 256 * 1024;
/// Bytes that are read before their readers have a turn.
const TURN: usize = 16 * 1024;

/// Opens a connection over the stream. The token is cancelled when the stream has ended.
pub(crate) async fn open(
    stream: Box<dyn Stream>,
    meter: Arc<Meter>,
    breach: Breach,
) -> io::Result<(Wire, CancellationToken)> {
    let closed = CancellationToken::new();
    let stream = Watched {
        stream,
        turn: TURN,
        _closed: closed.clone().drop_guard(),
    };
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS)
        .data_frame_budget(SMALL_FRAMES * SMALL_FRAME)
        .max_send_buffer_size(SENDING);
    let (requests, connection) = match timeout(OPEN, builder.handshake(stream)).await {
        Ok(Ok(open)) => open,
        Ok(Err(error)) => return Err(io::Error::other(error)),
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to an agent ended");
        }
    });
    let limits = Limits {
        meter,
        breach,
        _driver: Arc::new(AbortOnDropHandle::new(driver)),
    };
    Ok((Wire::new(requests, limits), closed))
}

/// A stream whose end can be waited for.
struct Watched {
    stream: Box<dyn Stream>,
    /// Bytes that may still be read in this turn.
    turn: usize,
    _closed: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A machine that sends without pause would be read on and on, without a turn for the
        // readers.
        if self.turn == 0 {
            self.turn = TURN;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.turn = match read {
            Poll::Ready(_) => self.turn.saturating_sub(buf.filled().len() - before),
            Poll::Pending => TURN,
        };
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
