//! Functions, their values, and the ways they fail.

use skyward_agent::{
    log::{self, Stream},
    protocol::{Function, Pickle, ReadResultRequest, RunSpec, finished::Ending, run_spec::Work},
};

use crate::machine::{Machine, function};

#[tokio::test]
async fn a_return_value_comes_with_the_end() {
    let mut machine = Machine::start().await;
    let source = "import skyward\ndef main(a, b):\n    print('adding')\n    return {'sum': a + b, 'node': skyward.instance_info().node}";
    let spec = RunSpec {
        instance_info: r#"{"node": 3, "total_nodes": 4}"#.into(),
        ..function("r", source, "[1, 2]")
    };
    let finished = machine.run(spec).await;
    assert_eq!(
        (finished.ending(), finished.message.as_str()),
        (Ending::Exited, "")
    );
    assert!(finished.has_result);
    assert_eq!(finished.result, br#"{"sum":3,"node":3}"#);
    assert_eq!(finished.log_tail, b"adding\n");
}

#[tokio::test]
async fn a_pickle_of_another_python_is_refused_with_both_versions() {
    let mut machine = Machine::start().await;
    let pickle = Pickle {
        data: "no Base64".into(),
        python: "3.1.7".into(),
        cloudpickle: "3.1.1".into(),
    };
    let spec = RunSpec {
        work: Some(Work::Function(Function {
            pickle: Some(pickle),
            ..Function::default()
        })),
        ..function("r", "", "[]")
    };
    let finished = machine.run(spec).await;
    assert_eq!(finished.ending(), Ending::BadSource, "{}", finished.message);
    let expected = "the function was pickled with Python 3.1.7 and the machine has 3.";
    assert!(finished.message.contains(expected), "{}", finished.message);
}

#[tokio::test]
async fn a_long_description_of_the_cluster_gets_through() {
    let mut machine = Machine::start().await;
    let peers: Vec<String> = (0..2000)
        .map(|n| format!(r#"{{"node": {n}, "private_ip": "10.0.0.{n}", "public_ip": ""}}"#))
        .collect();
    let info = format!(
        r#"{{"node": 0, "total_nodes": 2000, "peers": [{}]}}"#,
        peers.join(",")
    );
    assert!(info.len() > 100_000);
    let source = "import skyward\ndef main(): return len(skyward.instance_info().peers)";
    let finished = machine
        .run(RunSpec {
            instance_info: info,
            ..function("r", source, "[]")
        })
        .await;
    assert_eq!(finished.result, b"2000", "{}", finished.message);
}

#[tokio::test]
async fn a_large_value_is_read_in_pieces() {
    let mut machine = Machine::start().await;
    let finished = machine
        .run(function("r", "def main(): return 'x' * 5_000_000", "[]"))
        .await;
    assert!(finished.has_result && finished.result.is_empty());
    assert_eq!(finished.result_bytes, 5_000_002);
    let request = ReadResultRequest {
        run_id: "r".into(),
        offset: 2_000_000,
    };
    let mut chunks = machine.agent.read_result(request).await.unwrap().into_inner();
    let mut length = 2_000_000;
    while let Some(chunk) = chunks.message().await.unwrap() {
        assert_eq!(chunk.offset, length);
        length += chunk.data.len() as u64;
    }
    assert_eq!(length, 5_000_002);
}

#[tokio::test]
async fn a_value_that_is_no_json_comes_with_a_header_that_says_what_it_is() {
    let mut machine = Machine::start().await;
    let finished = machine
        .run(function("r", "def main(): return {1, 2}", "[]"))
        .await;
    assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
    let value: serde_json::Value = serde_json::from_slice(&finished.result).unwrap();
    let header = &value["skyward.dev/value"];
    assert_eq!(
        (&header["codec"], &header["type"]),
        (&"pickle".into(), &"set".into())
    );
    assert!(value["skyward.dev/value.data"].is_string());
}

#[tokio::test]
async fn the_class_of_an_exception_is_told_and_of_no_other_end() {
    let mut machine = Machine::start().await;
    let cases = [
        (
            "json",
            "import json\ndef main(): json.loads('{')",
            "json.decoder.JSONDecodeError",
        ),
        (
            "own",
            "class Busy(Exception): pass\ndef main(): raise Busy()",
            "Busy",
        ),
        ("exits", "import sys\ndef main(): sys.exit(3)", ""),
    ];
    for (id, source, exception) in cases {
        let finished = machine.run(function(id, source, "[]")).await;
        assert_eq!(finished.exception, exception, "{}", finished.message);
    }
}

#[tokio::test]
async fn each_way_a_function_ends_without_a_value_has_its_name() {
    let mut machine = Machine::start().await;
    let cases = [
        (
            "def main(): raise ValueError('no')",
            Ending::FunctionRaised,
            "ValueError: no",
        ),
        ("def main(:", Ending::BadSource, "SyntaxError in line 1"),
        (
            "def other(): pass",
            Ending::BadSource,
            "no function main; it has other",
        ),
        (
            "def main(x): pass",
            Ending::BadSource,
            "missing a required argument: 'x'",
        ),
        (
            "def main(): return lambda: 1",
            Ending::ResultNotJson,
            "value is a function",
        ),
        (
            "def main(): return 'x' * 2000",
            Ending::ResultTooLarge,
            "more than the limit of 1000",
        ),
        (
            "import sys\ndef main(): sys.exit(3)",
            Ending::Exited,
            "it exited with code 3",
        ),
        (
            "import sys\ndef main(): sys.exit(0)",
            Ending::Exited,
            "before the function returned",
        ),
        (
            "import os\ndef main(): os.kill(os.getpid(), 11)",
            Ending::Signaled,
            "it was killed by SIGSEGV",
        ),
        (
            "def main(): raise OSError(28, 'No space left on device')",
            Ending::DiskFull,
            "No space left",
        ),
    ];
    for (index, (source, ending, message)) in cases.into_iter().enumerate() {
        let spec = RunSpec {
            result_limit: 1000,
            ..function(&format!("r-{index}"), source, "[]")
        };
        let finished = machine.run(spec).await;
        assert_eq!(finished.ending(), ending, "{source}: {}", finished.message);
        assert!(
            finished.message.contains(message),
            "{source}: {}",
            finished.message
        );
        assert!(!finished.has_result);
    }
}

/// What a run yielded, as its log has it.
async fn yielded(machine: &mut Machine, run_id: &str) -> String {
    let mut chunks = machine.read_log(run_id, 0, true).await;
    let mut encoded = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        encoded.extend_from_slice(&chunk.data);
    }
    String::from_utf8(log::decode(&encoded, Some(Stream::Values))).unwrap()
}

#[tokio::test]
async fn a_value_that_is_yielded_can_be_read_before_the_next_one_is_and_the_daemon_may_die_between_them() {
    let mut machine = Machine::start().await;
    let go = machine.home().join("go");
    let source = format!(
        "import os, time\ndef main():\n    yield 'one'\n    while not os.path.exists({:?}): time.sleep(0.01)\n    print('between')\n    yield {{'two': 2}}",
        go.to_str().unwrap()
    );
    machine.begin(function("r", &source, "[]")).await;
    machine.started("r").await;
    let mut chunks = machine.read_log("r", 0, true).await;
    let first = chunks.message().await.unwrap().unwrap();
    assert_eq!(log::decode(&first.data, Some(Stream::Values)), b"0 5 \"one\"\n");
    machine.kill_daemon();
    std::fs::write(&go, "").unwrap();
    machine.start_daemon().await;
    let finished = machine.ended("r").await;
    assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
    assert_eq!(
        finished.result,
        br#"{"skyward.dev/values":{"count":2,"bytes":14}}"#
    );
    assert_eq!(finished.log_tail, b"between\n", "values are no output");
    assert_eq!(yielded(&mut machine, "r").await, "0 5 \"one\"\n1 9 {\"two\":2}\n");
}

#[tokio::test]
async fn values_come_also_where_output_is_not_kept() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        stdout: "none".into(),
        stderr: "none".into(),
        ..function("r", "def main():\n    print('x')\n    yield 7", "[]")
    };
    let finished = machine.run(spec).await;
    assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
    assert_eq!(yielded(&mut machine, "r").await, "0 1 7\n");
    assert!(finished.log_tail.is_empty());
}

#[tokio::test]
async fn a_value_that_takes_more_than_its_part_of_the_log_ends_the_run_by_name() {
    let mut machine = Machine::start().await;
    let spec = RunSpec {
        log_limit: 8000,
        ..function("r", "def main():\n    yield 1\n    yield 'x' * 1000", "[]")
    };
    let finished = machine.run(spec).await;
    assert_eq!(finished.ending(), Ending::ResultTooLarge);
    let expected = "value 1 of the generator is 1002 bytes of JSON, more than the limit of 1000";
    assert!(finished.message.starts_with(expected), "{}", finished.message);
    assert_eq!(yielded(&mut machine, "r").await, "0 1 1\n");
}
