//! The output of one bootstrap's steps, for people to read afterwards.
//!
//! A transcript keeps the newest output, at most [`MOST`] bytes and as far as the budget of
//! machines' memory allows (`budget.rs`), and begins with a whole line: no line is cut at its
//! beginning, where a secret could be cut with it. Secrets are masked when the text is read, so
//! that each is looked for in the whole text.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    bootstrap::printable,
    budget::{Account, Charge},
    mask::Mask,
};

/// Most bytes that are kept of one bootstrap.
pub const MOST: usize = 128 * 1024;
/// Bytes kept without asking for room.
const FREE: usize = 8 * 1024;
/// Room is asked for in these steps.
const STEP: usize = 24 * 1024;
/// Most steps whose times are kept: a bootstrap that is tried again begins with the first one.
const TIMED: usize = 16;

/// A bootstrap's output so far. Clones share it.
#[derive(Clone)]
pub struct Transcript(Arc<Shared>);

struct Shared {
    account: Account,
    mask: Mask,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    room: Vec<Charge>,
    /// Bytes that were left out at its beginning.
    left_out: u64,
    /// Whether the next bytes belong to a line whose beginning was left out.
    in_line: bool,
    /// The newest steps, and when each began.
    began: VecDeque<(String, Instant)>,
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its content is not masked.
        write!(f, "Transcript({} bytes)", self.0.state.lock().bytes.len())
    }
}

impl Transcript {
    pub(crate) fn new(account: Account, mask: Mask) -> Self {
        Self(Arc::new(Shared {
            account,
            mask,
            state: Mutex::default(),
        }))
    }

    pub(crate) fn mask(&self) -> &Mask {
        &self.0.mask
    }

    /// A step begins.
    pub(crate) fn begin(&self, step: &str) {
        let mut state = self.0.state.lock();
        let is_in_line = state.bytes.last().is_some_and(|last| *last != b'\n');
        let end = if is_in_line || state.in_line { "\n" } else { "" };
        state.add(format!("{end}--- {step} ---\n").as_bytes(), &self.0.account);
        if state.began.len() == TIMED {
            state.began.pop_front();
        }
        state.began.push_back((step.to_owned(), Instant::now()));
    }

    /// How long each step took, the last one until now, as `packages 3.2 s, shell_vars 0.1 s`.
    pub(crate) fn times(&self) -> String {
        let state = self.0.state.lock();
        let ends = state.began.iter().skip(1).map(|(_, began)| *began);
        let ends = ends.chain([Instant::now()]);
        let took = state.began.iter().zip(ends).map(|((step, began), end)| {
            // Without its number, which is about what was not done as well.
            let name = step.split_once(' ').map_or(step.as_str(), |(_, name)| name);
            format!("{name} {:.1} s", end.duration_since(*began).as_secs_f64())
        });
        took.collect::<Vec<_>>().join(", ")
    }

    /// Adds output.
    pub(crate) fn push(&self, bytes: &[u8]) {
        self.0.state.lock().add(bytes, &self.0.account);
    }

    /// The kept output, masked, as a terminal shows it. Slow: not for an async worker thread.
    pub fn text(&self) -> String {
        let (bytes, left_out) = {
            let state = self.0.state.lock();
            (state.bytes.clone(), state.left_out)
        };
        let text = self.0.mask.apply(&printable(&String::from_utf8_lossy(&bytes)));
        match left_out {
            0 => text,
            bytes => format!("--- the first {bytes} bytes are left out ---\n{text}"),
        }
    }
}

/// Appends bytes to a buffer that never needs room for more than `most`: it grows by doubling as any does, but not beyond that.
pub(crate) fn extend(buffer: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let needed = buffer.len() + bytes.len();
    if needed > buffer.capacity() {
        let room = (2 * buffer.capacity()).min(most).max(needed);
        buffer.reserve_exact(room - buffer.len());
    }
    buffer.extend_from_slice(bytes);
}

impl State {
    fn add(&mut self, bytes: &[u8], account: &Account) {
        for piece in bytes.chunks(STEP / 4) {
            self.make_room(piece.len(), account);
            let whole = self.behind_the_line(piece);
            let most = (FREE + self.room.len() * STEP).min(MOST);
            extend(&mut self.bytes, whole, most);
        }
    }

    /// The part of a piece behind a line whose beginning was left out.
    fn behind_the_line<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        if !self.in_line {
            return piece;
        }
        let end = piece.iter().position(|b| *b == b'\n');
        self.in_line = end.is_none();
        let (rest, whole) = piece.split_at(end.map_or(piece.len(), |end| end + 1));
        self.left_out += rest.len() as u64;
        whole
    }

    /// Drops the oldest output where there is no more room: a quarter at once, so that this is
    /// rare.
    fn make_room(&mut self, more: usize, account: &Account) {
        let wanted = self.bytes.len() + more;
        let has = FREE + self.room.len() * STEP;
        if wanted <= has.min(MOST) {
            return;
        }
        if wanted <= MOST
            && let Some(room) = account.try_take_for_script(STEP)
        {
            self.room.push(room);
            return;
        }
        let least = (wanted - has.min(MOST))
            .max(has.min(MOST) / 4)
            .min(self.bytes.len());
        let end = self.bytes[least.saturating_sub(1)..]
            .iter()
            .position(|b| *b == b'\n');
        let gone = if let Some(end) = end {
            least.saturating_sub(1) + end + 1
        } else {
            self.in_line = !self.bytes.is_empty();
            self.bytes.len()
        };
        self.bytes.drain(..gone);
        self.left_out += gone as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn transcript() -> Transcript {
        Transcript::new(
            Budget::default().account("tests"),
            Mask::of(&["canary", "two\nlines-of-it"]),
        )
    }

    #[test]
    fn steps_and_what_they_printed_are_there_masked_and_as_a_terminal_shows_them() {
        let transcript = transcript();
        transcript.begin("1/2 apt");
        transcript.push(b"10%\r100% can");
        transcript.push(b"ary\nwithout end");
        transcript.begin("2/2 packages");
        transcript.push(b"lines-of-it at https://me:hunter2@index.example/x\n");
        assert_eq!(
            transcript.text(),
            "--- 1/2 apt ---\n100% ***\nwithout end\n--- 2/2 packages ---\n*** at https://***@index.example/x\n"
        );
        assert!(!format!("{transcript:?}").contains("canary"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_tells_how_long_it_took() {
        let transcript = transcript();
        assert_eq!(transcript.times(), "");
        for (step, seconds) in [("1/3 apt", 2.0), ("3/3 packages", 0.3)] {
            transcript.begin(step);
            tokio::time::advance(std::time::Duration::from_secs_f64(seconds)).await;
        }
        assert_eq!(transcript.times(), "apt 2.0 s, packages 0.3 s");
        for _ in 0..100 {
            transcript.begin("1/1 probe");
        }
        assert_eq!(transcript.times().split(", ").count(), TIMED);
    }

    #[test]
    fn of_a_long_output_the_newest_lines_are_kept_whole_and_what_is_left_out_is_counted() {
        let transcript = transcript();
        let line = format!("canary {}\n", "x".repeat(90));
        for _ in 0..20_000 {
            // Values are masked however they are cut on the way.
            let (a, b) = line.split_at(3);
            transcript.push(a.as_bytes());
            transcript.push(b.as_bytes());
        }
        transcript.push(b"error: the end");
        let text = transcript.text();
        let (first, rest) = text.split_once('\n').unwrap();
        let (held, room) = {
            let bytes = &transcript.0.state.lock().bytes;
            (bytes.len(), bytes.capacity())
        };
        assert!(held <= MOST && held > MOST / 2, "{held}");
        assert!(room <= MOST, "{room} bytes for what may have {MOST}");
        let left_out = 20_000 * line.len() + "error: the end".len() - held;
        assert_eq!(first, format!("--- the first {left_out} bytes are left out ---"));
        assert!(rest.starts_with("*** x") && rest.ends_with("error: the end"));
        assert!(!text.contains("ary"), "no secret is cut in two");
    }

    #[test]
    fn a_line_without_end_fills_no_memory_and_what_comes_behind_it_is_kept() {
        let transcript = transcript();
        for _ in 0..100 {
            transcript.push(&[b'x'; 10_000]);
        }
        assert!(transcript.0.state.lock().bytes.len() <= MOST);
        transcript.push(b"\nthe next line\n");
        assert!(transcript.text().ends_with("the next line\n"));
    }

    #[test]
    fn machines_of_one_namespace_share_what_there_is_and_each_keeps_a_little() {
        let budget = Budget::default();
        let all: Vec<Transcript> = (0..500)
            .map(|_| Transcript::new(budget.account("tests"), Mask::of(&[])))
            .collect();
        for transcript in &all {
            for n in 0..1_000 {
                transcript
                    .push(format!("line {n} of what this machine printed in its bootstrap\n").as_bytes());
            }
        }
        let held = |transcript: &Transcript| transcript.0.state.lock().bytes.len();
        let sum: usize = all.iter().map(held).sum();
        assert!(sum <= 24 << 20, "{sum}");
        assert!(
            all.iter()
                .all(|t| held(t) > FREE / 2 && t.text().contains("line 999"))
        );
    }
}
