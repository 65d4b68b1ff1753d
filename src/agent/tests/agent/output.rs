//! Output of any kind and size gets through, with bounded memory.

use skyward_agent::{
    log::{self, Stream},
    protocol::{RunSpec, finished::Ending},
};

use crate::machine::{Machine, bash, command, parent_of, until};

#[tokio::test]
async fn small_output_comes_with_the_end_in_order_and_by_stream() {
    let mut machine = Machine::start().await;
    let finished = machine
        .run(bash("r", "echo one; echo two >&2; printf three; exit 3"))
        .await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 3));
    assert_eq!(finished.message, "it exited with code 3");
    assert_eq!(log::decode(&finished.log, Some(Stream::Stdout)), b"one\nthree");
    assert_eq!(log::decode(&finished.log, Some(Stream::Stderr)), b"two\n");
    assert_eq!(finished.log.len() as u64, finished.log_bytes);
}

#[tokio::test]
async fn output_that_is_not_text_arrives_as_it_is() {
    let mut machine = Machine::start().await;
    let finished = machine.run(bash("r", r"printf '\xff\x00\xfe\n\r\n'")).await;
    assert_eq!(log::decode(&finished.log, None), b"\xff\x00\xfe\n\r\n");
    assert_eq!(finished.log_tail, b"\xff\x00\xfe\n\r\n");
}

#[tokio::test]
async fn a_line_of_100_mib_takes_little_memory_and_none_of_it_is_lost() {
    const BYTES: usize = 100 << 20;
    let mut machine = Machine::start().await;
    let go = machine.home().join("go");
    let script = format!(
        "head -c {BYTES} /dev/zero; until [ -e {} ]; do sleep 0.01; done",
        go.display()
    );
    machine.begin(bash("r", &script)).await;
    let shim = parent_of(machine.started("r").await.pid as i32);
    let path = machine.run_folder("r").join("log");
    // What is not in the file yet is one unfinished record.
    until("all is written", || {
        std::fs::metadata(&path).is_ok_and(|log| log.len() >= BYTES as u64)
    })
    .await;
    let status = std::fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    let peak: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap()
        .parse()
        .unwrap();
    assert!(peak < 24 * 1024, "the shim used {peak} KiB");
    std::fs::write(go, "").unwrap();
    let finished = machine.ended("r").await;
    assert!(finished.log.is_empty());
    let mut chunks = machine.read_log("r", 0, false).await;
    let (mut encoded, begun) = (Vec::new(), std::time::Instant::now());
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert_eq!(chunk.offset, encoded.len() as u64);
        encoded.extend_from_slice(&chunk.data);
    }
    assert_eq!(encoded.len() as u64, finished.log_bytes);
    println!(
        "reading a log: {:.0} MB/s",
        encoded.len() as f64 / 1e6 / begun.elapsed().as_secs_f64()
    );
    let decoded = log::decode(&encoded, None);
    assert_eq!(decoded.len(), BYTES);
    assert!(decoded.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_reader_that_follows_sees_lines_as_they_come_and_then_the_end() {
    let mut machine = Machine::start().await;
    let go = machine.home().join("go");
    let script = format!(
        "echo one; until [ -e {} ]; do sleep 0.01; done; echo two",
        go.display()
    );
    machine.begin(bash("r", &script)).await;
    let mut chunks = machine.read_log("r", 0, true).await;
    let first = chunks.message().await.unwrap().unwrap();
    assert_eq!(log::decode(&first.data, None), b"one\n");
    std::fs::write(go, "").unwrap();
    let mut encoded = first.data.to_vec();
    while let Some(chunk) = chunks.message().await.unwrap() {
        encoded.extend_from_slice(&chunk.data);
    }
    assert_eq!(log::decode(&encoded, None), b"one\ntwo\n");
    let middle = first.data.len() as u64;
    let mut rest = machine.read_log("r", middle, false).await;
    assert_eq!(
        log::decode(&rest.message().await.unwrap().unwrap().data, None),
        b"two\n"
    );
}

#[tokio::test]
async fn output_beyond_the_limit_is_counted() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: 1000,
        ..bash("r", "for i in $(seq 1000); do echo line $i; done")
    };
    let finished = machine.run(spec).await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 0));
    assert!(finished.log_dropped_bytes > 5000);
    let text = String::from_utf8(log::decode(&finished.log, None)).unwrap();
    assert!(text.starts_with("line 1\nline 2\n") && text.contains("the log reached its limit of 1000 bytes"));
    assert!(finished.log_tail.ends_with(b"line 1000\n"));
}

#[tokio::test]
async fn a_stream_that_is_not_kept_is_not_kept() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        stdout: "none".into(),
        ..bash("r", "echo out; echo err >&2")
    };
    let finished = machine.run(spec).await;
    assert_eq!(log::decode(&finished.log, None), b"err\n");
}

#[tokio::test]
async fn a_forgotten_run_is_gone_with_everything_it_left() {
    let mut machine = Machine::start().await;
    machine
        .run(bash(
            "r",
            "mkdir -p deep/er; touch deep/er/file; chmod 500 deep/er",
        ))
        .await;
    machine.run(command("other", &["true"])).await;
    let folder = machine.run_folder("r");
    assert!(folder.join("work/deep/er/file").exists());
    machine.forget("r").await;
    assert!(!folder.exists());
    let trash = machine.home().join("trash");
    until("its files are deleted", || {
        std::fs::read_dir(&trash).unwrap().next().is_none()
    })
    .await;
    assert_eq!(
        machine.stop("r", 0).await.unwrap_err().code(),
        tonic::Code::NotFound
    );
    assert!(machine.run_folder("other").exists());
}
