//! The limits of size, number and form for everything that a machine's agent sends, in one place.
//!
//! A user with root on a machine may exchange its agent, so every byte of it is hostile. Our own
//! agent keeps to the same limits (`protocol/mod.rs`), so the first breach proves that the agent
//! is not ours: it ends the connection, and the machine is given up
//! ([`FailureKind::ProtocolViolation`](crate::sessions::FailureKind)). Fields that this build
//! does not know are skipped when a message is decoded, so a newer agent breaks no limit.
//! A new field gets its limit in the function of its message.

use std::{
    fmt,
    net::Ipv4Addr,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;

use crate::{
    agent::{PROTOCOL_MAX, PROTOCOL_MIN},
    protocol::{
        ACCELERATORS, ACCEPTED, ADDRESSES, CHUNK_BYTES, Chunk, EXCEPTION_BYTES, Fact, FetchGitReply,
        Finished, FromWorkers, HelloReply, ID_BYTES, INLINE_BYTES, ItemEnded, LAST_MS, LAST_SIGNAL, LONGEST,
        MESSAGE_BYTES, NAME_BYTES, NotForked, Progress, PutBundleReply, Reclaim, Replayed, RunState, Started,
        TAIL_BYTES, VALUE_BYTES, WHY_BYTES, fact, from_workers, is_exception, is_run_id,
    },
};

/// Bytes of a status message, or of another reason that a machine gives, that are kept.
const REASON_BYTES: usize = 512;
/// `namespace/name` of a Machine.
const MACHINE_BYTES: usize = 2 * 253 + 1;
/// SHA-256 in hexadecimal.
const DIGEST_BYTES: usize = 64;
/// Name of a Linux user, or of a directory service's user.
const USER_BYTES: usize = 256;
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
/// Ranges of items that one worker holds.
const RANGES: usize = 4096;

/// A limit that was broken, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Broken {
    /// A breach; the words must not repeat the machine's.
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

/// Whether the machine at the other end of a connection broke a limit. Shared by all readers of
/// the connection; the first breach counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breach {
    first: Arc<OnceLock<String>>,
    found: CancellationToken,
}

impl Breach {
    /// A limit was broken.
    pub(crate) fn report(&self, broken: &Broken) {
        let _ = self.first.set(broken.0.clone());
        self.found.cancel();
    }

    /// The first breach, if there was any.
    pub(crate) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// Waits until a limit is broken; returns which.
    pub(crate) async fn wait(&self) -> String {
        self.found.cancelled().await;
        self.first().unwrap_or_default().to_owned()
    }
}

/// A reason that a machine gives, as it is kept and shown: short, on one line, without control
/// characters. It decides nothing.
pub(crate) fn reason(text: &str) -> String {
    cleaned(text, REASON_BYTES)
}

fn cleaned(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut kept: String = chars
        .by_ref()
        .take(most)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if kept.len() > most || chars.next().is_some() {
        kept.truncate(kept.floor_char_boundary(most - '…'.len_utf8()));
        kept.push('…');
    }
    kept
}

/// Cleans the output of the machine's programs, such as a version: agents of earlier versions
/// repeat all of it, and no machine is ended for that.
pub(crate) fn clean(reply: &mut HelloReply) {
    for text in std::iter::once(&mut reply.python).chain(&mut reply.accelerators) {
        let last = text.trim().lines().last().unwrap_or_default();
        *text = cleaned(last.trim(), NAME_BYTES);
    }
}

/// A breach in these words, unless the limit is kept.
fn ensure(is_kept: bool, words: impl FnOnce() -> String) -> Result<(), Broken> {
    if is_kept { Ok(()) } else { Err(Broken(words())) }
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

/// Checks what an agent says of itself and its machine.
pub(crate) fn hello(reply: &HelloReply) -> Result<(), Broken> {
    let HelloReply {
        protocol,
        agent_version,
        agent_digest,
        machine,
        boot_id,
        last_seq: _,
        // The limit of the message bounds it, and it is cleaned.
        python: _,
        accelerators,
        running: _,
        user,
        marks_replay: _,
        addresses,
        newest_epoch: _,
        epoch_proof,
        takes_bundles: _,
        fetches_git: _,
        takes_pickles: _,
        runs_items: _,
    } = reply;
    ensure((PROTOCOL_MIN..=PROTOCOL_MAX).contains(protocol), || {
        format!("version {protocol} of the protocol, which was not offered")
    })?;
    name("a version", agent_version, NAME_BYTES)?;
    name("a digest", agent_digest, DIGEST_BYTES)?;
    name("a machine's name", machine, MACHINE_BYTES)?;
    name("a boot id", boot_id, NAME_BYTES)?;
    name("a user's name", user, USER_BYTES)?;
    name("the proof of an epoch", epoch_proof, ID_BYTES)?;
    number_of("accelerators", accelerators.len(), ACCELERATORS)?;
    number_of("network interfaces", addresses.len(), ADDRESSES)?;
    for (interface, address) in addresses {
        name("a network interface's name", interface, NAME_BYTES)?;
        ensure(address.parse::<Ipv4Addr>().is_ok(), || {
            "an address of a network interface that is none".to_owned()
        })?;
    }
    Ok(())
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
    ensure((0..=LAST_SIGNAL).contains(signal), || {
        format!("signal {signal}, which there is not")
    })?;
    at_most("a message", message.len(), MESSAGE_BYTES + '…'.len_utf8())?;
    ensure(is_exception(exception), || {
        "the name of an exception that no class has".to_owned()
    })?;
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

/// What is told of a worker of a map.
pub(crate) fn worker(told: &FromWorkers, task_uid: &str) -> Result<(), Broken> {
    let rest = told
        .run_id
        .strip_prefix(task_uid)
        .and_then(|rest| rest.strip_prefix('-'));
    ensure(rest.is_some() && is_run_id(&told.run_id), || {
        "news of a run of another map than the one that was asked for".to_owned()
    })?;
    let items = |first: u32, count: u32| {
        ensure(first.checked_add(count).is_some(), || {
            "items with numbers of more than 32 bits".to_owned()
        })
    };
    match &told.message {
        Some(from_workers::Message::Holds(from_workers::Holds { ranges })) => {
            number_of("ranges of items", ranges.len(), RANGES)?;
            ranges
                .iter()
                .try_for_each(|range| items(range.first, range.count))
        }
        Some(from_workers::Message::Released(released)) => items(released.first, released.count),
        Some(from_workers::Message::Ended(ended)) => {
            let ItemEnded {
                position: _,
                index,
                attempt: _,
                ending: _,
                exit_code: _,
                signal,
                message,
                exception,
                microseconds: _,
                value,
            } = ended;
            items(*index, 1)?;
            ensure((0..=LAST_SIGNAL).contains(signal), || {
                format!("signal {signal}, which there is not")
            })?;
            at_most("a message", message.len(), MESSAGE_BYTES + '…'.len_utf8())?;
            ensure(is_exception(exception), || {
                "the name of an exception that no class has".to_owned()
            })?;
            at_most("the value of an item", value.len(), VALUE_BYTES)
        }
        // None: news of a newer agent, which it may not tell before it is asked to.
        Some(from_workers::Message::Told(_)) | None => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn largest_hello() -> HelloReply {
        HelloReply {
            protocol: PROTOCOL_MAX,
            agent_version: "v".repeat(NAME_BYTES),
            agent_digest: "d".repeat(DIGEST_BYTES),
            machine: "m".repeat(MACHINE_BYTES),
            boot_id: "b".repeat(NAME_BYTES),
            last_seq: u64::MAX,
            python: "p".repeat(NAME_BYTES),
            accelerators: vec!["a".repeat(NAME_BYTES); ACCELERATORS],
            running: u32::MAX,
            user: "u".repeat(USER_BYTES),
            marks_replay: true,
            takes_bundles: true,
            fetches_git: true,
            takes_pickles: true,
            runs_items: true,
            addresses: (0..ADDRESSES)
                .map(|n| (format!("{n:0NAME_BYTES$}"), "255.255.255.255".to_owned()))
                .collect(),
            newest_epoch: u64::MAX,
            epoch_proof: "e".repeat(ID_BYTES),
        }
    }

    fn largest_finished() -> Finished {
        Finished {
            signal: 64,
            message: "m".repeat(MESSAGE_BYTES) + "…",
            started_ms: LAST_MS,
            finished_ms: LAST_MS,
            log_bytes: INLINE_BYTES as u64,
            log_dropped_bytes: LONGEST,
            log: vec![0; INLINE_BYTES],
            log_tail: vec![0; TAIL_BYTES],
            result_bytes: INLINE_BYTES as u64,
            result: vec![0; INLINE_BYTES],
            has_result: true,
            forked: Some(true),
            exception: "e".repeat(EXCEPTION_BYTES),
            ..Finished::default()
        }
    }

    fn of_run(fact: fact::Fact) -> Fact {
        Fact {
            seq: u64::MAX,
            run_id: "r".repeat(128),
            fact: Some(fact),
        }
    }

    fn largest_facts() -> Vec<Fact> {
        vec![
            of_run(fact::Fact::Finished(largest_finished())),
            of_run(fact::Fact::Started(Started {
                at_ms: LAST_MS,
                pid: u32::MAX,
            })),
            of_run(fact::Fact::Reclaim(Reclaim { at_ms: LAST_MS })),
            of_run(fact::Fact::NotForked(NotForked {
                why: "w".repeat(WHY_BYTES),
            })),
            of_run(fact::Fact::Replayed(Replayed {
                accepted: vec!["r".repeat(128); ACCEPTED],
            })),
        ]
    }

    #[test]
    fn the_largest_that_an_agent_may_say_passes_and_fits_into_its_message() {
        use tonic::codegen::Bytes;
        let hello = largest_hello();
        assert_eq!(super::hello(&hello), Ok(()));
        assert!(encoded(&hello) <= message_bytes("/skyward.agent.v1.Agent/Hello"));
        for fact in largest_facts() {
            assert_eq!(super::fact(&fact), Ok(()));
            assert!(
                encoded(&fact) <= message_bytes("/skyward.agent.v1.Agent/Watch"),
                "{}",
                encoded(&fact)
            );
        }
        let state = RunState {
            run_id: "r".repeat(128),
            finished: Some(largest_finished()),
            started_ms: LAST_MS,
            ..RunState::default()
        };
        assert_eq!(super::state(&state, &state.run_id), Ok(()));
        assert!(encoded(&state) <= message_bytes("/skyward.agent.v1.Agent/Start"));
        let reply = PutBundleReply {
            complete: false,
            offset: LONGEST - 1,
        };
        assert_eq!(progress(&reply, LONGEST), Ok(()));
        assert!(encoded(&reply) <= message_bytes("/skyward.agent.v1.Agent/PutBundle"));
        let reply = FetchGitReply {
            commit: "c".repeat(64),
            digest: format!("sha256:{}", "d".repeat(DIGEST_BYTES)),
            bytes: LONGEST,
            message: "m".repeat(MESSAGE_BYTES),
            ..FetchGitReply::default()
        };
        assert_eq!(fetched(&reply), Ok(()));
        assert!(encoded(&reply) <= message_bytes("/skyward.agent.v1.Agent/FetchGit"));
        let chunk = Chunk {
            offset: LONGEST,
            data: Bytes::from(vec![0; CHUNK_BYTES]),
        };
        let mut end = LONGEST;
        assert_eq!(super::chunk(&chunk, &mut end), Ok(()));
        assert_eq!(end, LONGEST + CHUNK_BYTES as u64);
        assert!(encoded(&chunk) <= message_bytes("/skyward.agent.v1.Agent/ReadLog"));
        for call in [
            "Hello",
            "Watch",
            "Start",
            "Stop",
            "ReadLog",
            "ReadResult",
            "Forget",
            "PutBundle",
            "FetchGit",
            "ReadBundle",
            "RenewLease",
        ] {
            assert!(message_bytes(call) <= LARGEST_MESSAGE, "{call}");
        }
    }

    fn encoded(message: &impl prost::Message) -> usize {
        message.encoded_len()
    }

    #[test]
    fn one_more_than_the_limit_of_a_field_of_hello_is_refused() {
        let refused = |change: &dyn Fn(&mut HelloReply), words: &str| {
            let mut reply = largest_hello();
            change(&mut reply);
            let broken = hello(&reply).expect_err(words).to_string();
            assert!(broken.contains(words), "{broken} is not about {words}");
        };
        refused(&|r| r.protocol = PROTOCOL_MAX + 1, "not offered");
        refused(&|r| r.protocol = 0, "not offered");
        refused(&|r| r.agent_version.push('x'), "a version of 129 bytes");
        refused(&|r| r.agent_digest.push('x'), "a digest");
        refused(&|r| r.machine.push('x'), "a machine's name");
        refused(&|r| r.boot_id.push('x'), "a boot id");
        refused(&|r| r.boot_id = "3.11\u{1b}[2J".into(), "control characters");
        refused(&|r| r.user.push('x'), "a user's name");
        refused(&|r| r.accelerators.push("H100".into()), "65 accelerators");
        refused(
            &|r| drop(r.addresses.insert("one-more".into(), "10.0.0.1".into())),
            "257 network interfaces",
        );
        let with = |name: &str, address: &str| {
            let (name, address) = (name.to_owned(), address.to_owned());
            move |r: &mut HelloReply| r.addresses = [(name.clone(), address.clone())].into()
        };
        refused(&with(&"e".repeat(NAME_BYTES + 1), "10.0.0.1"), "interface's name");
        refused(&with("eth0", "10.0.0.1; reboot"), "that is none");
    }

    #[test]
    fn a_bundle_that_is_not_whole_is_shorter_than_the_whole_one() {
        let reply = |complete, offset| PutBundleReply { complete, offset };
        for (reply, is_kept) in [
            (reply(false, 0), true),
            (reply(false, 9), true),
            (reply(false, 10), false),
            (reply(false, u64::MAX), false),
            (reply(true, u64::MAX), true),
        ] {
            assert_eq!(progress(&reply, 10).is_ok(), is_kept, "{reply:?}");
        }
    }

    #[test]
    fn a_fetch_without_a_fault_has_a_commit_and_a_digest() {
        let reply = |commit: &str, digest: &str, fault| FetchGitReply {
            commit: commit.into(),
            digest: digest.into(),
            fault,
            ..FetchGitReply::default()
        };
        let (commit, digest) = ("a".repeat(40), format!("sha256:{}", "b".repeat(64)));
        for (reply, is_kept) in [
            (reply(&commit, &digest, 0), true),
            (reply(&commit, &"b".repeat(64), 0), false),
            (reply(&commit, "", 0), false),
            (reply("", &digest, 0), false),
            (reply(&"A".repeat(40), &digest, 0), false),
            (
                reply("../../../../../../../../../../../../../e", &digest, 0),
                false,
            ),
            (reply("", "", 1), true),
            (reply("", "", 99), true),
        ] {
            assert_eq!(fetched(&reply).is_ok(), is_kept, "{reply:?}");
        }
    }

    #[test]
    fn what_programs_printed_of_themselves_is_cleaned_and_ends_no_machine() {
        let mut reply = HelloReply {
            python: format!("{}\n3.12.1\n", "a warning of site.py\n".repeat(100)),
            accelerators: vec!["H100\u{1b}[2J".into(), "x".repeat(10_000)],
            ..largest_hello()
        };
        assert_eq!(hello(&reply), Ok(()));
        clean(&mut reply);
        assert_eq!(reply.python, "3.12.1");
        assert_eq!(reply.accelerators[0], "H100 [2J");
        assert!(reply.accelerators[1].len() <= NAME_BYTES);
    }

    #[test]
    fn one_more_than_the_limit_of_a_field_of_a_fact_is_refused() {
        let refused = |change: &dyn Fn(&mut Finished), words: &str| {
            let mut end = largest_finished();
            change(&mut end);
            let broken = finished(&end).expect_err(words).to_string();
            assert!(broken.contains(words), "{broken} is not about {words}");
        };
        refused(&|f| f.signal = 65, "signal 65");
        refused(&|f| f.signal = -1, "signal -1");
        refused(&|f| f.message.push('x'), "a message of 1004 bytes");
        refused(&|f| f.exception.push('x'), "the name of an exception");
        refused(
            &|f| f.exception = "two words".to_owned(),
            "the name of an exception",
        );
        refused(&|f| f.started_ms += 1, "a start after the year 9999");
        refused(&|f| f.finished_ms += 1, "an end after the year 9999");
        refused(&|f| f.log_dropped_bytes += 1, "left out");
        refused(&|f| f.log_tail.push(0), "the end of a log of 2049 bytes");
        refused(&|f| f.log.push(0), "a log inside a fact");
        refused(&|f| f.result.push(0), "a result inside a fact");
        refused(&|f| f.log.truncate(INLINE_BYTES - 1), "announces 65536");
        refused(&|f| f.result.truncate(INLINE_BYTES - 1), "announces 65536");
        refused(&|f| (f.log, f.log_bytes) = (Vec::new(), LONGEST + 1), "a log of");
        refused(
            &|f| (f.result, f.result_bytes) = (Vec::new(), LONGEST + 1),
            "a result of",
        );
        refused(&|f| f.has_result = false, "there is not");

        let one = |fact| Fact {
            run_id: "a/b".into(),
            ..of_run(fact)
        };
        assert!(fact(&one(fact::Fact::Finished(Finished::default()))).is_err());
        assert!(fact(&one(fact::Fact::Started(Started::default()))).is_err());
        let promised = |accepted| of_run(fact::Fact::Replayed(Replayed { accepted }));
        assert!(fact(&promised(vec!["r".into(); ACCEPTED + 1])).is_err());
        assert!(fact(&promised(vec!["../r".into()])).is_err());
        let not_forked = |why: &str| of_run(fact::Fact::NotForked(NotForked { why: why.to_owned() }));
        assert!(fact(&not_forked(&"w".repeat(WHY_BYTES + 1))).is_err());
        assert!(fact(&not_forked("two\nlines")).is_err());
        let at_ms = LAST_MS + 1;
        assert!(fact(&of_run(fact::Fact::Reclaim(Reclaim { at_ms }))).is_err());
        assert!(fact(&of_run(fact::Fact::Started(Started { at_ms, pid: 1 }))).is_err());
    }

    #[test]
    fn a_state_is_of_the_run_that_was_asked_for() {
        let of = |run_id: &str| RunState {
            run_id: run_id.into(),
            ..RunState::default()
        };
        assert_eq!(state(&of("r-1-0"), "r-1-0"), Ok(()));
        assert!(state(&of("r-1-1"), "r-1-0").is_err());
        let late = RunState {
            started_ms: LAST_MS + 1,
            ..of("r")
        };
        assert!(state(&late, "r").is_err());
    }

    #[test]
    fn pieces_come_in_order_are_not_empty_and_not_too_large() {
        let piece = |offset, size: usize| Chunk {
            offset,
            data: vec![0; size].into(),
        };
        let mut end = 0;
        assert_eq!(chunk(&piece(7, 3), &mut end), Ok(()));
        assert_eq!(chunk(&piece(10, CHUNK_BYTES), &mut end), Ok(()));
        assert!(chunk(&piece(10, 1), &mut end).is_err(), "told again");
        assert!(chunk(&piece(end, 0), &mut end.clone()).is_err(), "empty");
        assert!(chunk(&piece(end, CHUNK_BYTES + 1), &mut end.clone()).is_err());
        assert!(chunk(&piece(u64::MAX, 1), &mut end).is_err(), "its end overflows");
    }

    #[test]
    fn a_run_that_prints_a_gigabyte_a_second_for_a_year_breaks_no_limit() {
        let printed = Finished {
            log_bytes: 365 * 24 * 3600 * 1_000_000_000,
            ..Finished::default()
        };
        assert_eq!(finished(&printed), Ok(()));
        let piece = Chunk {
            offset: printed.log_bytes,
            data: vec![0].into(),
        };
        assert_eq!(chunk(&piece, &mut 0), Ok(()));
    }

    #[test]
    fn only_a_text_that_was_cut_ends_with_dots() {
        assert_eq!(cleaned("3.12\u{85}", 16), "3.12 ");
        assert_eq!(cleaned("1234567", 6), "123…");
    }

    #[test]
    fn of_several_breaches_the_first_is_told() {
        let breach = Breach::default();
        assert_eq!(breach.first(), None);
        breach.report(&Broken::new("one"));
        breach.clone().report(&Broken::new("two"));
        assert_eq!(breach.first(), Some("one"));
    }

    proptest! {
        #[test]
        fn a_reason_is_short_and_harms_no_terminal(text in "\\PC*|[\\x00-\\x7f]{0,2000}|(ä\u{1b}){0,900}") {
            let kept = reason(&text);
            prop_assert!(kept.len() <= REASON_BYTES);
            prop_assert!(!kept.chars().any(char::is_control));
            if text.len() <= REASON_BYTES && !text.chars().any(char::is_control) {
                prop_assert_eq!(kept, text);
            }
        }

        #[test]
        fn no_chunk_panics_or_moves_backwards(offset: u64, size in 0usize..10, start: u64) {
            let mut end = start;
            let piece = Chunk { offset, data: vec![0; size].into() };
            if chunk(&piece, &mut end).is_ok() {
                prop_assert!(end > start);
            } else {
                prop_assert_eq!(end, start);
            }
        }
    }
}
