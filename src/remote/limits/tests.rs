//! Each limit, and one more than it.

use proptest::prelude::*;

use super::{
    machine::{MACHINE_BYTES, USER_BYTES},
    *,
};
use crate::{
    agent::PROTOCOL_MAX,
    protocol::{ACCELERATORS, ADDRESSES, HelloReply, ID_BYTES, NAME_BYTES},
};

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

proptest! {
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
