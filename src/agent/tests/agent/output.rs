//! Output of any kind and size gets through, with bounded memory.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
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
    // Only one unfinished record may be missing in the file.
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

/// Reads a log from an offset on: pieces with their offsets.
async fn pieces(machine: &mut Machine, offset: u64, follow: bool) -> Vec<(u64, Vec<u8>)> {
    let mut chunks = machine.read_log("r", offset, follow).await;
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        match pieces.last_mut() {
            Some((at, data)) if *at + data.len() as u64 == chunk.offset => data.extend(&chunk.data),
            _ => pieces.push((chunk.offset, chunk.data.to_vec())),
        }
    }
    pieces
}

/// What `seq` printed, by the numbers.
fn numbers(encoded: &[u8]) -> Vec<u64> {
    let text = String::from_utf8(log::decode(encoded, None)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn size_of(folder: &std::path::Path) -> u64 {
    let mut size = 0;
    for path in ["log", "tail"].map(|name| folder.join(name)) {
        if path.is_dir() {
            // Files go while they are listed.
            let files = std::fs::read_dir(path).unwrap().flatten();
            size += files
                .filter_map(|file| file.metadata().ok())
                .map(|file| file.len())
                .sum::<u64>();
        } else {
            size += std::fs::metadata(path).map_or(0, |file| file.len());
        }
    }
    size
}

#[tokio::test]
async fn of_output_beyond_the_limit_the_first_quarter_and_the_newest_rest_are_kept() {
    const LIMIT: u64 = 1 << 20;
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: LIMIT,
        ..bash("r", "seq 1000000 2000000")
    };
    let finished = machine.run(spec).await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 0));
    assert!(finished.log_tail.ends_with(b"2000000\n"));
    assert!(finished.log.is_empty());
    let folder = machine.run_folder("r");
    assert!(
        size_of(&folder) <= LIMIT + LIMIT / 64 + 32 * 1024,
        "{}",
        size_of(&folder)
    );

    let pieces = pieces(&mut machine, 0, false).await;
    let [(0, head), (at, tail)] = &pieces[..] else {
        panic!("{} pieces", pieces.len());
    };
    assert_eq!(at - head.len() as u64, finished.log_dropped_bytes);
    assert_eq!(at + tail.len() as u64, finished.log_bytes);
    assert!(head.len() as u64 > LIMIT / 4 - 32 * 1024);
    assert!(tail.len() as u64 >= LIMIT - LIMIT / 4);
    let (first, last) = (numbers(head), numbers(tail));
    assert!((1_000_000..).zip(&first).all(|(want, got)| want == *got));
    assert!(
        (0..=2_000_000)
            .rev()
            .zip(last.iter().rev())
            .all(|(want, got)| want == *got)
    );

    // From within the gap the log goes on behind it.
    let inside = self::pieces(&mut machine, *at - 5, false).await;
    assert_eq!(inside, pieces[1..]);
    // A controller that knows no gaps gets the part before the gap and an orderly end.
    let mut chunks = machine.read_log_without_gaps("r", 0).await;
    let mut old = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert_eq!(chunk.offset, old.len() as u64);
        old.extend_from_slice(&chunk.data);
    }
    assert_eq!(&old, head);

    machine.kill_daemon();
    machine.start_daemon().await;
    assert_eq!(self::pieces(&mut machine, 0, false).await, pieces);
}

#[tokio::test]
async fn a_run_that_prints_for_ever_is_followed_behind_gaps_and_fills_no_disk() {
    const LIMIT: u64 = 1 << 20;
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: LIMIT,
        ..bash("r", "exec seq 1000000 99000000")
    };
    machine.begin(spec).await;
    let folder = machine.run_folder("r");
    let mut chunks = machine.read_log("r", 0, true).await;
    let (mut next, mut gaps, mut last) = (0, 0, 0);
    while gaps < 5 {
        let chunk = chunks.message().await.unwrap().unwrap();
        assert!(chunk.offset >= next);
        if chunk.offset > next {
            gaps += 1;
            let begin = *numbers(&chunk.data[..=chunk.data.iter().position(|byte| *byte == b'\n').unwrap()])
                .first()
                .unwrap();
            assert!(begin > last, "behind a gap something older came");
            last = begin;
        }
        next = chunk.offset + chunk.data.len() as u64;
        assert!(size_of(&folder) <= LIMIT + LIMIT / 32 + 32 * 1024);
        // A slow reader: the run prints twice the kept size before it reads again.
        let seen = next;
        until("the run prints on", || {
            let names = std::fs::read_dir(folder.join("tail"))
                .into_iter()
                .flatten()
                .flatten();
            let newest = names
                .filter_map(|name| name.file_name().to_str()?.parse::<u64>().ok())
                .max();
            newest.is_some_and(|newest| newest > seen + 2 * LIMIT)
        })
        .await;
    }
    machine.stop("r", 0).await.unwrap();
    machine.ended("r").await;
}

#[tokio::test]
async fn what_a_long_log_had_when_its_shim_was_killed_is_found_again() {
    const LIMIT: u64 = 256 * 1024;
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: LIMIT,
        ..bash("r", "seq 1000000 1100000; sleep 86406")
    };
    machine.begin(spec).await;
    let started = machine.started("r").await;
    let mut chunks = machine.read_log("r", 0, true).await;
    while !chunks
        .message()
        .await
        .unwrap()
        .unwrap()
        .data
        .ends_with(b" 1100000\n")
    {}
    let shim = nix::unistd::Pid::from_raw(parent_of(started.pid as i32));
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).unwrap();
    let finished = machine.ended("r").await;
    assert_eq!(finished.ending(), Ending::ShimLost);
    assert!(finished.log_tail.ends_with(b"1099999\n1100000\n"));
    let pieces = pieces(&mut machine, 0, false).await;
    let (at, tail) = pieces.last().unwrap();
    assert_eq!(at + tail.len() as u64, finished.log_bytes);
    assert!(tail.len() as u64 >= LIMIT - LIMIT / 4);
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
async fn a_reader_that_is_behind_when_a_run_is_forgotten_does_not_take_a_part_for_the_whole() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: 16 << 20,
        ..bash("r", "exec seq 3000000")
    };
    machine.begin(spec).await;
    let mut chunks = machine.read_log("r", 0, true).await;
    chunks.message().await.unwrap().unwrap();
    machine.ended("r").await;
    machine.forget("r").await;
    let mut end = 0;
    let status = loop {
        match chunks.message().await {
            Ok(Some(chunk)) => end = chunk.offset + chunk.data.len() as u64,
            Ok(None) => panic!("the stream ended after {end} bytes as if that were all"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), tonic::Code::NotFound, "{status:?}");
}

#[tokio::test]
async fn a_reader_that_is_behind_when_the_daemon_is_ended_does_not_take_a_part_for_the_whole() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: 16 << 20,
        ..bash("r", "exec seq 3000000")
    };
    machine.begin(spec).await;
    machine.ended("r").await;
    let mut chunks = machine.read_log("r", 0, false).await;
    chunks.message().await.unwrap().unwrap();
    let daemon = i32::try_from(machine.daemon_pid()).unwrap();
    kill(Pid::from_raw(daemon), Signal::SIGTERM).unwrap();
    let mut end = 0;
    let status = loop {
        match chunks.message().await {
            Ok(Some(chunk)) => end = chunk.offset + chunk.data.len() as u64,
            Ok(None) => panic!("the stream ended after {end} bytes as if that were all"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
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
