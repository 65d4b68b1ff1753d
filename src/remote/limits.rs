//! The limits of size, number and form for everything that a machine's agent sends, in one place.
//!
//! A user with root on a machine may exchange its agent, so every byte of it is hostile. Our own
//! agent keeps to the same limits (`protocol/mod.rs`), so the first breach proves that the agent
//! is not ours: it ends the connection, and the machine is given up
//! ([`FailureKind::ProtocolViolation`](crate::sessions::FailureKind)). Fields that this build
//! does not know are skipped when a message is decoded, so a newer agent breaks no limit.
//! A new field gets its limit in the function of its message.

mod breach;
mod items;
mod machine;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;

pub(crate) use self::{
    breach::{Breach, Broken},
    items::worker,
    machine::{clean, hello},
    words::reason,
};
use crate::protocol::{
    ACCEPTED, CHUNK_BYTES, Chunk, EXCEPTION_BYTES, Fact, FetchGitReply, Finished, INLINE_BYTES, LAST_MS,
    LAST_SIGNAL, LONGEST, MESSAGE_BYTES, NotForked, Progress, PutBundleReply, Reclaim, Replayed, RunState,
    Started, TAIL_BYTES, VALUE_BYTES, WHY_BYTES, fact, is_exception, is_run_id,
};

/// SHA-256 in hexadecimal.
const DIGEST_BYTES: usize = 64;
/// A fact with everything inlined, and room for what surrounds it.
const FACT_BYTES: usize = 2 * INLINE_BYTES + TAIL_BYTES + 8 * 1024;

/// Bytes of one answer to a call, by the path of the call.
pub(crate) fn message_bytes(path: &str) -> usize {
    match path.rsplit('/').next() {
        Some("Hello") => 64 * 1024,
        Some("Watch" | "Start" | "Stop") => FACT_BYTES,
        Some("ReadLog" | "ReadResult" | "ReadBundle") => CHUNK_BYTES + 64,
        Some("Work") => ITEM_BYTES,
        // A message, an id and a digest.
        Some("FetchGit") => MESSAGE_BYTES + 1024,
        // Empty, or two numbers.
        _ => 1024,
    }
}

/// Whether several messages answer a call.
pub(crate) fn streams(path: &str) -> bool {
    matches!(
        path.rsplit('/').next(),
        Some("Watch" | "ReadLog" | "ReadResult" | "ReadBundle" | "Work")
    )
}

/// Whether messages go out after the answer to a call has begun.
pub(crate) fn goes_on(path: &str) -> bool {
    path.rsplit('/').next() == Some("Work")
}

/// The largest answer of all.
pub(crate) const LARGEST_MESSAGE: usize = ITEM_BYTES;
/// The end of an item with its value.
const ITEM_BYTES: usize = VALUE_BYTES + MESSAGE_BYTES + EXCEPTION_BYTES + 8 * 1024;

/// A breach in these words, unless the limit is kept.
fn ensure(is_kept: bool, words: impl FnOnce() -> String) -> Result<(), Broken> {
    if is_kept {
        Ok(())
    } else {
        Err(Broken::new(words()))
    }
}

/// How a run or an item ended.
fn end(signal: i32, message: &str, exception: &str) -> Result<(), Broken> {
    ensure((0..=LAST_SIGNAL).contains(&signal), || {
        format!("signal {signal}, which there is not")
    })?;
    at_most("a message", message.len(), MESSAGE_BYTES + '…'.len_utf8())?;
    ensure(is_exception(exception), || {
        "the name of an exception that no class has".to_owned()
    })
}

fn at_most<N: PartialOrd + fmt::Display>(what: &str, found: N, most: N) -> Result<(), Broken> {
    ensure(found <= most, || {
        format!("{what} of {found} bytes; at most {most} are allowed")
    })
}

fn number_of(what: &str, found: usize, most: usize) -> Result<(), Broken> {
    ensure(found <= most, || {
        format!("{found} {what}; at most {most} are allowed")
    })
}

/// A short text that is shown to people.
fn name(what: &str, text: &str, most: usize) -> Result<(), Broken> {
    at_most(what, text.len(), most)?;
    let is_plain = !text.chars().any(char::is_control);
    ensure(is_plain, || format!("{what} with control characters"))
}

fn run_id(what: &str, id: &str) -> Result<(), Broken> {
    ensure(is_run_id(id), || format!("{what} that is no run's id"))
}

fn time(what: &str, milliseconds: u64) -> Result<(), Broken> {
    ensure(milliseconds <= LAST_MS, || format!("{what} after the year 9999"))
}

fn length(what: &str, bytes: u64) -> Result<(), Broken> {
    at_most(what, bytes, LONGEST)
}

/// Something that happened on a machine.
pub(crate) fn fact(fact: &Fact) -> Result<(), Broken> {
    match &fact.fact {
        Some(fact::Fact::Started(Started { at_ms, pid: _ })) => {
            run_id("a fact", &fact.run_id)?;
            time("a start", *at_ms)
        }
        Some(fact::Fact::Finished(finished)) => {
            run_id("a fact", &fact.run_id)?;
            self::finished(finished)
        }
        Some(fact::Fact::Replayed(Replayed { accepted })) => {
            number_of("runs that were promised", accepted.len(), ACCEPTED)?;
            accepted.iter().try_for_each(|id| run_id("a promised run", id))
        }
        Some(fact::Fact::Reclaim(Reclaim { at_ms })) => time("a reclaim", *at_ms),
        Some(fact::Fact::Progress(Progress { done: _, total: _ })) => run_id("a fact", &fact.run_id),
        Some(fact::Fact::NotForked(NotForked { why })) => name("a reason", why, WHY_BYTES),
        // A fact of a newer agent: it is ignored.
        None => Ok(()),
    }
}

/// The end of a run.
pub(crate) fn finished(finished: &Finished) -> Result<(), Broken> {
    let Finished {
        ending: _,
        exit_code: _,
        signal,
        message,
        started_ms,
        finished_ms,
        log_bytes,
        log_dropped_bytes,
        log,
        log_tail,
        result_bytes,
        result,
        has_result,
        forked: _,
        exception,
    } = finished;
    end(*signal, message, exception)?;
    time("a start", *started_ms)?;
    time("an end", *finished_ms)?;
    length("a log", *log_bytes)?;
    length("a part of a log that was left out", *log_dropped_bytes)?;
    length("a result", *result_bytes)?;
    inlined("log", log.len(), *log_bytes)?;
    inlined("result", result.len(), *result_bytes)?;
    at_most("the end of a log", log_tail.len(), TAIL_BYTES)?;
    ensure(*has_result || *result_bytes == 0, || {
        "the size of a result that there is not".to_owned()
    })
}

/// A log or result that travels inside a fact is whole.
fn inlined(what: &str, bytes: usize, announced: u64) -> Result<(), Broken> {
    at_most(&format!("a {what} inside a fact"), bytes, INLINE_BYTES)?;
    ensure(bytes == 0 || bytes as u64 == announced, || {
        format!("a {what} of {bytes} bytes inside a fact that announces {announced}")
    })
}

/// The state of the run that was asked for.
pub(crate) fn state(state: &RunState, asked: &str) -> Result<(), Broken> {
    let RunState {
        run_id,
        phase: _,
        started_ms,
        finished,
    } = state;
    ensure(run_id == asked, || {
        "the state of another run than the one that was asked for".to_owned()
    })?;
    time("a start", *started_ms)?;
    finished.as_ref().map_or(Ok(()), self::finished)
}

/// How much of a bundle of so many bytes is on the machine.
pub(crate) fn progress(reply: &PutBundleReply, bytes: u64) -> Result<(), Broken> {
    let PutBundleReply { complete, offset } = reply;
    ensure(*complete || *offset < bytes, || {
        format!("{offset} bytes of a bundle of {bytes} that is not whole")
    })
}

/// What came of a fetch from git: a commit and a bundle, or a fault.
pub(crate) fn fetched(reply: &FetchGitReply) -> Result<(), Broken> {
    let FetchGitReply {
        commit,
        digest,
        bytes,
        fault,
        message,
    } = reply;
    at_most("a message", message.len(), MESSAGE_BYTES + '…'.len_utf8())?;
    if *fault != 0 {
        return Ok(());
    }
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    ensure(matches!(commit.len(), 40 | 64) && is_hex(commit), || {
        "a commit that is none".to_owned()
    })?;
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    ensure(hex.len() == DIGEST_BYTES && is_hex(hex), || {
        "a digest of a bundle that is none".to_owned()
    })?;
    length("a bundle", *bytes)
}

/// A piece of a log, result or bundle; `end` is the end of the piece before, and afterwards the end of
/// this one. A gap between the two pieces is allowed here: the reader reports it.
pub(crate) fn chunk(chunk: &Chunk, end: &mut u64) -> Result<(), Broken> {
    let Chunk { offset, data } = chunk;
    at_most("a piece of a log or result", data.len(), CHUNK_BYTES)?;
    ensure(!data.is_empty(), || {
        "an empty piece of a log or result".to_owned()
    })?;
    ensure(*offset >= *end, || {
        "a piece of a log or result that was sent before".to_owned()
    })?;
    length("a log or result", *offset)?;
    *end = *offset + data.len() as u64;
    Ok(())
}
