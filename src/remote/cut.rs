//! The stream beneath SSH: it can be cut, reports its end, and reads no more than there is room
//! for.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    dial::Stream,
    limits::{self, Breach, Broken},
    meter::Meter,
};

/// Largest packet of SSH that every implementation must take (RFC 4253, 6.1), and a little. The
/// library would take seven times as much, and keep as much memory for as long as the
/// connection lives.
const PACKET: usize = 36 * 1024;

/// Facts about the connection: how much was written, and why it ended.
#[derive(Default)]
pub(crate) struct Lost {
    pub(crate) token: CancellationToken,
    reason: Mutex<Option<String>>,
    written: AtomicU64,
    progress: Notify,
}

impl Lost {
    pub(crate) fn because(&self, why: String) {
        self.reason.lock().get_or_insert_with(|| limits::reason(&why));
        self.token.cancel();
    }

    /// Bytes that the network has taken.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Waits until the network has taken so many bytes.
    pub(crate) async fn wait_written(&self, wanted: u64) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            // Enabled before the look, so that no notice is missed.
            progress.as_mut().enable();
            if self.written() >= wanted || self.token.is_cancelled() {
                return;
            }
            progress.await;
        }
    }

    pub(crate) fn reason(&self) -> String {
        let reason = self.reason.lock().clone();
        reason.unwrap_or_else(|| "the machine closed the connection".into())
    }
}

/// A stream that can be cut, and reports its end: the library keeps a connection as long as one of
/// its channels is held.
pub(crate) struct Cuttable {
    stream: Box<dyn Stream>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    lost: Arc<Lost>,
    meter: Arc<Meter>,
    breach: Breach,
}

impl Cuttable {
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        cut: CancellationToken,
        lost: Arc<Lost>,
        meter: Arc<Meter>,
        breach: Breach,
    ) -> Self {
        Self {
            stream,
            cut: Box::pin(cut.cancelled_owned()),
            lost,
            meter,
            breach,
        }
    }

    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(cx).is_ready()
    }
}

impl Drop for Cuttable {
    fn drop(&mut self) {
        self.lost.token.cancel();
        self.lost.progress.notify_waiters();
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        // The library knows the length of a packet and asks for all its missing bytes.
        if buf.remaining() > PACKET {
            let broken = Broken::new(format!(
                "an SSH packet of more than {} bytes; at most {PACKET} are allowed",
                buf.remaining()
            ));
            self.lost.because(broken.to_string());
            self.breach.report(&broken);
            return Poll::Ready(Err(io::Error::other(broken.to_string())));
        }
        if let Err(error) = ready!(self.meter.poll_room(cx)) {
            self.lost.because(error.to_string());
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_cut(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = &written {
            self.lost.written.fetch_add(*count as u64, Ordering::Relaxed);
            self.lost.progress.notify_waiters();
        }
        written
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::budget::Budget;

    #[tokio::test]
    async fn a_packet_that_is_larger_than_ssh_allows_ends_the_connection_before_it_came() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (lost, breach) = (Arc::<Lost>::default(), Breach::default());
        let meter = Meter::new(Budget::default().account("tests"));
        let cut = CancellationToken::new();
        let mut stream = Cuttable::new(Box::new(ours), cut, lost.clone(), meter, breach.clone());
        theirs.write_all(&[7; 100]).await.unwrap();
        let mut packet = vec![0; PACKET];
        assert_eq!(stream.read(&mut packet).await.unwrap(), 100);
        assert_eq!(breach.first(), None);

        theirs.write_all(&[7; 100]).await.unwrap();
        packet.push(0);
        assert!(stream.read(&mut packet).await.is_err());
        assert!(breach.first().is_some_and(|words| words.contains("SSH packet")));
        assert!(lost.reason().contains("at most 36864"), "{}", lost.reason());
    }
}
