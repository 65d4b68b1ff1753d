//! A gRPC channel over one byte stream.
//!
//! The stream is used once: when it ends, the channel is dead and says so, instead of
//! quietly dialling again behind the back of whoever holds facts about that connection.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::dial::Stream;

/// Time for the first bytes of HTTP/2 to go out.
const OPEN: Duration = Duration::from_secs(10);
/// Window of one stream: a long, fast link must not wait for us.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
/// Window of the connection.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// Opens a channel over the stream. The token is cancelled when the stream has ended.
pub async fn open(stream: Box<dyn Stream>) -> io::Result<(Channel, CancellationToken)> {
    let closed = CancellationToken::new();
    let stream = Watched {
        stream,
        _closed: closed.clone().drop_guard(),
    };
    let once = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(
            stream
                .map(TokioIo::new)
                .ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "connection closed")),
        )
    });
    let endpoint = Endpoint::from_static("http://agent")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    match timeout(OPEN, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok((channel, closed)),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A stream whose end can be waited for.
struct Watched {
    stream: Box<dyn Stream>,
    _closed: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
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
