//! What an agent reads: requests of a controller, and what lies in its folder, which work that shares the
//! agent's user may have written.

use std::time::Duration;

use prost::Message;
use skyward_agent::{
    daemon::hostile,
    protocol::{
        Command, FetchGitRequest, ForgetRequest, HelloRequest, LAST_MS, LAST_SIGNAL, LONGEST, LeaseRequest,
        MESSAGE_BYTES, ReadLogRequest, ReadResultRequest, RunSpec, StartRequest, StopRequest, TAIL_BYTES,
        WatchRequest, is_run_id, run_spec, version,
    },
};

use crate::input::{Input, Maker};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 5 {
        0 => request(input),
        1 => journal(input),
        2 => exit(input),
        4 => repository(input),
        _ => {
            let (name, passwd, group) = (input.text(), input.text(), input.text());
            let answer = String::from_utf8_lossy(input.rest()).into_owned();
            let (groups, _) = hostile::files(&name, &passwd, &group, &answer);
            assert!(groups.is_none_or(|groups| groups <= 1 + group.lines().count()));
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let spec = RunSpec {
        run_id: "2f1c0e9a-1-0".into(),
        namespace: "team".into(),
        task: "train".into(),
        work: Some(run_spec::Work::Command(Command {
            argv: vec!["uname".into(), "-a".into()],
        })),
        env: [("TOKEN".to_owned(), "canary".to_owned())].into(),
        timeout_ms: 1000,
        ..RunSpec::default()
    };
    let start = StartRequest {
        epoch: 7,
        spec: Some(spec),
    };
    let lease = LeaseRequest {
        epoch: 7,
        instance_timeout_ms: 300_000,
        orphan_timeout_ms: u64::MAX,
        installation: "here".into(),
    };
    let hello = HelloRequest {
        protocol_min: 1,
        protocol_max: 1,
        epoch: 7,
        epoch_proof: "proof".into(),
        installation: "here".into(),
    };
    // Entries of a journal: opened, accepted, started, finished, forgotten (journal.rs has their numbers).
    let entries: [&[u8]; 5] = [
        b"\x12\x06\x08\x05\x12\x02ab",
        b"\x22\x08\x0a\x02r1\x1a\x02ab",
        b"\x08\x01\x2a\x08\x0a\x02r1\x12\x02\x08\x07",
        b"\x08\x02\x32\x08\x0a\x02r1\x12\x02\x08\x01",
        b"\x3a\x04\x0a\x02r1",
    ];
    let journal = entries.iter().fold(Maker::default().u8(1).u8(5), Maker::sized);
    vec![
        Maker::default().u8(0).u8(0).end(start.encode_to_vec()),
        Maker::default().u8(0).u8(1).end(lease.encode_to_vec()),
        Maker::default().u8(0).u8(2).end(hello.encode_to_vec()),
        journal.end(b"\x01\0\0\0torn"),
        Maker::default().u8(2).end(b"\x08\x01\x18\x09\x22\x03end\x28\x07"),
        Maker::default()
            .u8(3)
            .sized("worker")
            .sized("root:x:0:0:root:/root:/bin/bash\nworker:x:1000:1001:,,,:/home/worker:/bin/sh\n")
            .sized("video:x:44:worker,other\n")
            .end("2026-01-02T03:04:05Z\n"),
        Maker::default()
            .u8(4)
            .sized("exp")
            .sized("data")
            .end("100644 blob 45b983be36b73c0788dc9cbcb76cbb80fc7bb057       3\texp/data\x00120000 blob 45b983be36b73c0788dc9cbcb76cbb80fc7bb057       4\texp/link\0"),
        Maker::default().u8(0).u8(8).end(
            FetchGitRequest {
                url: "ssh://git@git.example:22/a".into(),
                reference: "main".into(),
                known_hosts: "git.example ssh-ed25519 AAAA".into(),
                ..FetchGitRequest::default()
            }
            .encode_to_vec(),
        ),
    ]
}

fn repository(mut input: Input<'_>) {
    let (folder, target) = (input.text(), input.text());
    let list = input.rest();
    match hostile::repository(list, &folder, &target) {
        Ok(files) => assert!(files < list.split(|byte| *byte == 0).count()),
        Err(why) => assert!(why.len() <= 8 * (folder.len() + 1000), "{} bytes", why.len()),
    }
}

fn request(mut input: Input<'_>) {
    let kind = input.u8() % 9;
    let bytes = input.rest();
    match kind {
        0 => {
            let Ok(start) = StartRequest::decode(bytes) else {
                return;
            };
            let shown = format!("{start:?}");
            let Some(spec) = start.spec else { return };
            assert!(
                spec.env.values().all(|value| value.len() < 8
                    || !shown.contains(value.as_str())
                    || spec.run_id.contains(value.as_str())
                    || spec.namespace.contains(value.as_str())
                    || spec.task.contains(value.as_str())),
                "a value of the environment is shown"
            );
            if is_run_id(&spec.run_id) {
                assert!(!spec.run_id.contains(['/', '.', '\0']));
            }
        }
        1 => {
            let Ok(lease) = LeaseRequest::decode(bytes) else {
                return;
            };
            for seconds in [0, 300, u64::MAX] {
                let silence = Duration::from_secs(seconds);
                let (_, pause) = hostile::lease(std::slice::from_ref(&lease), (1, 2), silence);
                assert!(pause >= Duration::from_millis(20) && pause <= Duration::from_secs(5));
            }
        }
        2 => {
            let Ok(hello) = HelloRequest::decode(bytes) else {
                return;
            };
            if let Some(version) = version::negotiate(hello.protocol_min, hello.protocol_max) {
                assert!((hello.protocol_min..=hello.protocol_max).contains(&version));
            }
        }
        3 => drop(StopRequest::decode(bytes)),
        4 => drop(WatchRequest::decode(bytes)),
        5 => drop(ReadLogRequest::decode(bytes)),
        6 => drop(ReadResultRequest::decode(bytes)),
        8 => {
            let Ok(fetch) = FetchGitRequest::decode(bytes) else {
                return;
            };
            let (url, reference) = (fetch.url.clone(), fetch.reference.clone());
            if hostile::fetch(fetch).is_ok() {
                assert!(url.starts_with("https://") || url.starts_with("ssh://"));
                let odd = |text: &str| text.starts_with('-') || text.contains([' ', '\'', '"', '\n', '\\']);
                assert!(
                    !odd(&url) && !odd(&reference) && !url.contains("://-"),
                    "{url} {reference}"
                );
            }
        }
        _ => drop(ForgetRequest::decode(bytes)),
    }
}

fn journal(mut input: Input<'_>) {
    let count = input.u8();
    let entries: Vec<&[u8]> = (0..count).map(|_| input.sized()).collect();
    let (before, after) = hostile::journal(&entries, input.rest());
    assert_eq!(before, after, "the journal that is written anew has other runs");
}

fn exit(mut input: Input<'_>) {
    let Some(end) = hostile::exit(input.rest()) else {
        return;
    };
    assert!((0..=LAST_SIGNAL).contains(&end.signal));
    assert!(end.message.len() <= MESSAGE_BYTES + '…'.len_utf8() && end.log_tail.len() <= TAIL_BYTES);
    assert!(end.started_ms.max(end.finished_ms) <= LAST_MS);
    assert!(end.log_bytes.max(end.result_bytes).max(end.log_dropped_bytes) <= LONGEST);
}
