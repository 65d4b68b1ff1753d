//! Files of runs: brought once, there for each run, whole at any kill.

use skyward_agent::{
    log,
    protocol::{
        Function, HelloRequest, PutBundleReply, PutBundleRequest, RunSpec, agent_client::AgentClient,
        finished::Ending, run_spec::Work,
    },
};
use skyward_bundle::{File, LIMITS, Packed, Reader, pack};
use tonic::{Code, Status, transport::Channel};

use crate::machine::{Machine, bash, command, until};

fn code() -> Packed {
    let files = [
        (
            "train.py",
            &b"from exp.data import RATE\ndef run(n): return RATE * n\n"[..],
        ),
        ("exp/data.py", b"RATE = 2\n"),
        ("noise", &[7; 5000]),
    ];
    let files = files.map(|(path, content)| File {
        path,
        executable: false,
        content,
    });
    pack(files, LIMITS).unwrap()
}

async fn put(
    machine: &mut Machine,
    bundle: &Packed,
    range: std::ops::Range<usize>,
) -> Result<PutBundleReply, Status> {
    let request = PutBundleRequest {
        epoch: 1,
        digest: bundle.digest.to_string(),
        bytes: bundle.bytes.len() as u64,
        offset: range.start as u64,
        data: bundle.bytes[range].to_vec().into(),
    };
    machine
        .agent
        .put_bundle(request)
        .await
        .map(tonic::Response::into_inner)
}

fn with(spec: RunSpec, bundle: &Packed) -> RunSpec {
    RunSpec {
        bundle: bundle.digest.to_string(),
        ..spec
    }
}

#[tokio::test]
async fn each_run_has_the_files_of_its_bundle_as_they_were_sent() {
    let (mut machine, code) = (Machine::start().await, code());
    let hello = HelloRequest {
        protocol_min: 1,
        protocol_max: 1,
        ..HelloRequest::default()
    };
    assert!(
        machine
            .agent
            .hello(hello)
            .await
            .unwrap()
            .into_inner()
            .takes_bundles
    );
    let refused = machine
        .try_begin(1, with(command("early", &["true"]), &code))
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    put(&mut machine, &code, 0..code.bytes.len()).await.unwrap();
    let script = "set -e; cat noise | wc -c; stat -c %U train.py; id -un; rm noise; echo changed > exp/data.py; ls; env | grep -c PYTHONPATH=";
    let mut seen = Vec::new();
    for run in ["a", "b"] {
        let finished = machine.run(with(bash(run, script), &code)).await;
        assert_eq!(finished.exit_code, 0, "{finished:?}");
        seen.push(String::from_utf8(log::decode(&finished.log, None)).unwrap());
    }
    assert_eq!(seen[0], seen[1], "a run sees what another one did");
    let lines: Vec<&str> = seen[0].lines().collect();
    assert_eq!((lines[0], &lines[3..]), ("5000", &["exp", "train.py", "1"][..]));
    assert_eq!(lines[1], lines[2], "the files are the user's");
}

#[tokio::test]
async fn a_function_is_found_in_a_module_of_the_bundle() {
    let (mut machine, code) = (Machine::start().await, code());
    put(&mut machine, &code, 0..code.bytes.len()).await.unwrap();
    let work = |module: &str| {
        Some(Work::Function(Function {
            module: module.to_owned(),
            entrypoint: "run".into(),
            args_json: "[21]".into(),
            ..Function::default()
        }))
    };
    let spec = |run: &str, module: &str| {
        with(
            RunSpec {
                work: work(module),
                ..command(run, &[])
            },
            &code,
        )
    };
    let finished = machine.run(spec("a", "train")).await;
    assert_eq!(
        (finished.ending(), &*finished.result),
        (Ending::Exited, &b"42"[..]),
        "{finished:?}"
    );
    let finished = machine.run(spec("b", "exp.trian")).await;
    assert_eq!(finished.ending(), Ending::BadSource, "{finished:?}");
    assert!(finished.message.contains("no module exp.trian"), "{finished:?}");
}

#[tokio::test]
async fn a_bundle_goes_on_over_another_connection_and_begins_anew_after_a_kill() {
    let (mut machine, code) = (Machine::start().await, code());
    let half = code.bytes.len() / 2;
    let upto = |offset| PutBundleReply {
        complete: false,
        offset,
    };
    assert_eq!(
        put(&mut machine, &code, 0..half).await.unwrap(),
        upto(half as u64)
    );
    assert_eq!(put(&mut machine, &code, 0..0).await.unwrap(), upto(half as u64));
    machine.kill_daemon();
    machine.start_daemon().await;
    assert_eq!(
        put(&mut machine, &code, half..code.bytes.len()).await.unwrap(),
        upto(0)
    );
    assert!(
        put(&mut machine, &code, 0..code.bytes.len())
            .await
            .unwrap()
            .complete
    );
    machine.kill_daemon();
    machine.start_daemon().await;
    assert!(put(&mut machine, &code, 0..0).await.unwrap().complete);
    let finished = machine
        .run(with(command("r", &["cat", "exp/data.py"]), &code))
        .await;
    assert_eq!(finished.log_tail, b"RATE = 2\n");
}

#[tokio::test]
async fn parts_that_are_no_bundle_are_refused_and_leave_nothing() {
    let (mut machine, code) = (Machine::start().await, code());
    let mut forged = code.clone();
    *forged.bytes.last_mut().unwrap() ^= 1;
    let whole = 0..code.bytes.len();
    let status = put(&mut machine, &forged, whole.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let request = |digest: &str, data: Vec<u8>| PutBundleRequest {
        epoch: 1,
        digest: digest.to_owned(),
        bytes: 10 << 20,
        offset: 0,
        data: data.into(),
    };
    let digest = code.digest.to_string();
    for request in [
        request("", vec![0]),
        request("sha256:../../etc/passwd", vec![0]),
        request(&digest, vec![0; (1 << 20) + 1]),
        PutBundleRequest {
            bytes: u64::MAX,
            ..request(&digest, vec![0])
        },
    ] {
        let status = machine.agent.put_bundle(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let older = PutBundleRequest {
        epoch: 0,
        ..request(&digest, vec![0])
    };
    machine.try_begin(2, command("newer", &["true"])).await.unwrap();
    let status = machine.agent.put_bundle(older).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let folder = machine.home().join("bundles");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

/// All of it, part by part.
async fn put_all(mut agent: AgentClient<Channel>, bundle: Packed) -> Result<(), Status> {
    let mut at = 0;
    loop {
        let end = bundle.bytes.len().min(at + (1 << 20));
        let request = PutBundleRequest {
            epoch: 1,
            digest: bundle.digest.to_string(),
            bytes: bundle.bytes.len() as u64,
            offset: at as u64,
            data: bundle.bytes[at..end].to_vec().into(),
        };
        let reply = agent.put_bundle(request).await?.into_inner();
        if reply.complete {
            return Ok(());
        }
        at = reply.offset as usize;
    }
}

#[tokio::test]
async fn whenever_the_agent_is_killed_a_file_with_the_name_of_a_digest_is_whole() {
    let mut machine = Machine::start().await;
    let folder = machine.home().join("bundles");
    let check = |expected: usize| {
        let mut whole = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none() {
                let reader = Reader::open(std::fs::File::open(&path).unwrap(), LIMITS).unwrap();
                assert_eq!(reader.digest().hex(), path.file_name().unwrap().to_str().unwrap());
                reader.verify().unwrap();
                whole += 1;
            }
        }
        assert!(whole >= expected, "{whole} of {expected}");
    };
    for round in 0..10_u8 {
        let content = vec![round; 3 << 20];
        let file = File {
            path: "a",
            executable: false,
            content: &content,
        };
        let bundle = pack([file], LIMITS).unwrap();
        let (whole, length) = (folder.join(bundle.digest.hex()), bundle.bytes.len() as u64);
        let sending = tokio::spawn(put_all(machine.agent.clone(), bundle.clone()));
        // Killed at another place each time, also while the last part is looked at.
        let enough = length * u64::from(round) / 9;
        until("some of it is there", || {
            let part = whole.with_extension("part").metadata();
            whole.exists() || part.is_ok_and(|part| part.len() >= enough)
        })
        .await;
        machine.kill_daemon();
        let _ = sending.await.unwrap();
        check(usize::from(round));
        machine.start_daemon().await;
        put_all(machine.agent.clone(), bundle).await.unwrap();
        check(usize::from(round) + 1);
    }
}
