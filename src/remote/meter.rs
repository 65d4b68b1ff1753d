//! Counts the bytes of messages that one connection holds, and decides whether it may read on.
//!
//! `budget.rs` says how much room there is, and why no connections wait for each other: here each
//! connection takes at once the room that its open calls can fill.

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::{FutureExt as _, future::BoxFuture};
use h2::FlowControl;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Sleep, sleep},
};

use crate::{
    budget::{Account, Charge, FREE, MOST, PATIENCE, UNIT},
    connector::STREAM_WINDOW,
};

/// An answer up to this size is small: a connection may hold some of these without asking.
const SMALL: usize = 2 * 1024;

/// Counts the bytes of messages that one connection holds, and decides whether it may read on.
///
/// HTTP/2 knows exactly how much is held: bytes that came on a stream and were not given back to
/// its window. `wire.rs` gives them back when a message was taken and the next one is asked for.
pub(crate) struct Meter {
    account: Account,
    state: Mutex<State>,
    /// Notified when nothing is charged any more.
    settled: Notify,
}

/// A call that is open: the room that its answer may fill is counted until this is dropped.
pub(crate) struct Call {
    meter: Arc<Meter>,
    id: u64,
}

impl Call {
    /// The bytes of the answer are counted from here on.
    pub(crate) fn answered(&self, flow: FlowControl) {
        self.fills(Box::new(flow));
    }

    fn fills(&self, flow: Box<dyn Used>) {
        if let Some(call) = self.meter.state.lock().calls.get_mut(&self.id) {
            call.flow = Some(flow);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let call = self.meter.state.lock().calls.remove(&self.id);
        // A stream lives as long as a handle to its flow control exists.
        drop(call);
        self.meter.given_back();
    }
}

struct Open {
    may_fill: usize,
    flow: Option<Box<dyn Used>>,
}

/// How much of a stream's window is used.
trait Used: Send {
    fn used(&self) -> usize;
}

impl Used for FlowControl {
    fn used(&self) -> usize {
        self.used_capacity()
    }
}

#[derive(Default)]
struct State {
    calls: HashMap<u64, Open>,
    opened: u64,
    charges: Vec<Charge>,
    asked: Option<BoxFuture<'static, Charge>>,
    waits: Option<Pin<Box<Sleep>>>,
    waker: Option<Waker>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

impl State {
    /// Bytes that came and are not taken yet.
    fn held(&self) -> usize {
        let flows = self.calls.values().filter_map(|call| call.flow.as_ref());
        flows.map(|flow| flow.used()).sum()
    }

    /// Bytes that the open calls can fill.
    fn can_hold(&self) -> usize {
        let answers: usize = self.calls.values().map(|call| call.may_fill).sum();
        (answers + FREE).min(MOST)
    }

    fn charged(&self) -> usize {
        self.charges.iter().map(Charge::bytes).sum()
    }

    /// Whether there is room for the held bytes. Gives back room that is not needed any more.
    fn settle(&mut self) -> bool {
        let held = self.held();
        if held > FREE && held > self.charged() {
            return false;
        }
        if held <= FREE {
            self.charges.clear();
        }
        (self.asked, self.waits) = (None, None);
        true
    }
}

/// Bytes that the answer to a call can fill: its whole window if more messages may follow, else one
/// message.
fn may_fill(most: usize, streams: bool) -> usize {
    match () {
        () if streams => STREAM_WINDOW as usize,
        () if most <= SMALL => 0,
        () => (most + SMALL).min(STREAM_WINDOW as usize),
    }
}

impl Meter {
    pub(crate) fn new(account: Account) -> Arc<Self> {
        Arc::new(Self {
            account,
            state: Mutex::default(),
            settled: Notify::new(),
        })
    }

    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Opens a call whose answer has messages of so many bytes at most, and several of them if it
    /// `streams`. Where the connection has taken room for the calls that are open already, the call
    /// waits until there is room for it, too, or until the connection needs none any more.
    pub(crate) async fn open(self: &Arc<Self>, most: usize, streams: bool) -> Call {
        let may_fill = may_fill(most, streams);
        let mut more: Option<(usize, BoxFuture<'static, Charge>)> = None;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Enabled before the look, so that no notice is missed.
            settled.as_mut().enable();
            let missing = {
                let mut state = self.state.lock();
                let wanted = (state.can_hold() + may_fill).min(MOST);
                let missing = wanted.saturating_sub(state.charged());
                if may_fill == 0 || state.charges.is_empty() || missing == 0 {
                    return self.opened(&mut state, may_fill);
                }
                missing
            };
            if more.as_ref().is_none_or(|(asked, _)| *asked != missing) {
                more = Some((missing, self.account.take_for_messages(missing)));
            }
            let Some((_, taking)) = &mut more else { continue };
            tokio::select! {
                () = &mut settled => {}
                charge = taking => {
                    more = None;
                    let mut state = self.state.lock();
                    // Nothing is held without charges: room for this is asked for with the rest.
                    if !state.charges.is_empty() {
                        state.charges.push(charge);
                    }
                }
            }
        }
    }

    fn opened(self: &Arc<Self>, state: &mut State, may_fill: usize) -> Call {
        state.opened += 1;
        let id = state.opened;
        state.calls.insert(id, Open { may_fill, flow: None });
        // The requested room is too small now.
        if may_fill > 0
            && state.asked.take().is_some()
            && let Some(waker) = state.waker.take()
        {
            waker.wake();
        }
        Call {
            meter: self.clone(),
            id,
        }
    }

    /// A message was taken.
    pub(crate) fn given_back(&self) {
        let mut state = self.state.lock();
        if !state.settle() {
            return;
        }
        if state.charges.is_empty() {
            self.settled.notify_waiters();
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Whether there is room for the bytes that the machine sends next.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        loop {
            if state.settle() {
                return Poll::Ready(Ok(()));
            }
            // A connection that got more bytes than it asked room for waits with the bytes it has.
            let missing = state.can_hold().max(state.held()).saturating_sub(state.charged());
            let asked = state
                .asked
                .get_or_insert_with(|| self.account.take_for_messages(missing.max(UNIT)));
            if let Poll::Ready(charge) = asked.poll_unpin(cx) {
                state.asked = None;
                state.charges.push(charge);
                continue;
            }
            let waits = state.waits.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
            if waits.poll_unpin(cx).is_ready() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the machines of its namespace have filled all memory that there is for what they say",
                )));
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::{budget::Budget, limits::LARGEST_MESSAGE};

    impl Used for Arc<AtomicUsize> {
        fn used(&self) -> usize {
            self.load(Ordering::Relaxed)
        }
    }

    /// A stream of large messages as HTTP/2 has it.
    struct Bulk {
        used: Arc<AtomicUsize>,
        begun: usize,
        left: usize,
        _call: Call,
    }

    /// A connection that is read frame by frame, as its machine sends them.
    struct Line {
        meter: Arc<Meter>,
        streams: Vec<Bulk>,
    }

    const FRAME: usize = 16 * 1024;

    impl Line {
        fn new(account: Account, streams: usize) -> Self {
            let meter = Meter::new(account);
            let open = |_| {
                let call = meter.open(LARGEST_MESSAGE, true).now_or_never();
                let call = call.expect("nothing is held yet");
                let used = Arc::<AtomicUsize>::default();
                call.fills(Box::new(used.clone()));
                Bulk {
                    used,
                    begun: 0,
                    left: 3,
                    _call: call,
                }
            };
            let streams = (0..streams).map(open).collect();
            Self { meter, streams }
        }

        /// One frame of one of its streams comes, if there is room; returns whether one came.
        async fn read(&mut self, which: usize) -> bool {
            let going: Vec<usize> = (0..self.streams.len())
                .filter(|at| self.streams[*at].left > 0)
                .collect();
            if going.is_empty() {
                return false;
            }
            let ready = std::future::poll_fn(|cx| match self.meter.poll_room(cx) {
                Poll::Ready(result) => Poll::Ready(result.is_ok()),
                Poll::Pending => Poll::Ready(false),
            });
            if !ready.await {
                return false;
            }
            let stream = &mut self.streams[going[which % going.len()]];
            let size = FRAME.min(LARGEST_MESSAGE - stream.begun);
            stream.used.fetch_add(size, Ordering::Relaxed);
            stream.begun += size;
            if stream.begun == LARGEST_MESSAGE {
                // Its reader takes it.
                (stream.begun, stream.left) = (0, stream.left - 1);
                stream.used.store(0, Ordering::Relaxed);
                self.meter.given_back();
            }
            true
        }

        fn is_done(&self) -> bool {
            self.streams.iter().all(|stream| stream.left == 0)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn honest_machines_of_a_namespace_never_wait_for_each_other_in_a_circle(
            streams in proptest::collection::vec(1_usize..4, 1..40),
            choices in proptest::collection::vec(any::<usize>(), 50),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let budget = Budget::default();
                let mut lines: Vec<Line> = streams.iter().map(|n| Line::new(budget.account("a"), *n)).collect();
                let mut turn = 0_usize;
                while !lines.iter().all(Line::is_done) {
                    let mut came = false;
                    for line in &mut lines {
                        turn += 1;
                        came |= line.read(choices[turn % choices.len()].wrapping_add(turn)).await;
                    }
                    prop_assert!(came, "all that are not done wait");
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_needs_more_room_than_its_connection_took_waits_and_the_others_go_on() {
        let budget = Budget::default();
        let account = budget.account("a");
        let mut line = Line::new(account.clone(), 1);
        for _ in 0..4 {
            assert!(line.read(0).await);
        }
        // Others of its namespace have the rest.
        let rest: Vec<_> = std::iter::from_fn(|| account.try_take_for_script(UNIT)).collect();
        let second = line.meter.clone();
        let mut second = Box::pin(second.open(LARGEST_MESSAGE, true));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(
            line.meter.open(1024, false).now_or_never().is_some(),
            "a lease is renewed"
        );
        let begun = line.streams[0].left;
        while line.streams[0].left == begun {
            assert!(line.read(0).await, "what is open goes on");
        }
        assert!(second.as_mut().now_or_never().is_some(), "nothing is held now");
        while !line.is_done() {
            assert!(line.read(0).await, "what is open goes on");
        }
        drop(rest);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_finds_no_room_for_long_is_given_up() {
        let budget = Budget::default();
        let account = budget.account("a");
        let mut line = Line::new(account.clone(), 1);
        let all: Vec<_> = std::iter::from_fn(|| account.try_take_for_script(UNIT)).collect();
        while line.read(0).await {}
        assert!(line.streams[0].used.used() <= FREE + FRAME);
        tokio::time::advance(PATIENCE).await;
        let given_up = std::future::poll_fn(|cx| line.meter.poll_room(cx)).await;
        assert!(given_up.is_err());
        drop(all);
    }
}
