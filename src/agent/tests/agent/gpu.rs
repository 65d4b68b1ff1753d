//! What a GPU of NVIDIA with PyTorch shows, through the whole agent: a machine without them passes these tests over.

use std::{os::unix::fs::symlink, process::Command};

use nix::unistd::Uid;
use skyward_agent::protocol::{Devices, Fact, HelloRequest, RunSpec, fact, finished::Ending};

use crate::machine::{Machine, function};

/// Holds a part of the GPU until the other run of the machine does so, too.
const MEETS: &str = r#"
import os, time, torch
def main(mine, other):
    ones = torch.ones(1 << 20, device="cuda")
    open(mine, "w").close()
    while not os.path.exists(other):
        time.sleep(0.005)
    assert ones.sum().item() == 1 << 20
    return [os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), os.environ["SKYWARD_WORKER"]]
"#;

/// A machine and the names of its GPUs; `None` where it has none, or no PyTorch, or we are not root.
async fn machine() -> Option<(Machine, Vec<String>)> {
    let asked = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let names = asked("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"])?;
    let prefix = asked("python3", &["-c", "import sys, torch; print(sys.prefix)"])?;
    if !Uid::effective().is_root() {
        return None;
    }
    let [names, prefix] = [names, prefix].map(|text| String::from_utf8(text).unwrap());
    let names = names.lines().map(|name| name.trim().to_owned()).collect();
    let machine = Machine::start_supervised(&["--user", "nobody"]).await;
    // As bootstrap leaves an environment.
    symlink(prefix.trim(), machine.home().join("venv")).unwrap();
    Some((machine, names))
}

#[tokio::test]
async fn the_agent_tells_the_gpus_by_their_names() {
    let Some((mut machine, names)) = machine().await else {
        return;
    };
    let hello = HelloRequest {
        protocol_min: 1,
        protocol_max: u32::MAX,
        ..HelloRequest::default()
    };
    let reply = machine.agent.hello(hello).await.unwrap().into_inner();
    assert_eq!(reply.accelerators, names);
}

#[tokio::test]
async fn places_use_their_share_of_the_gpus_at_the_same_time() {
    let Some((mut machine, names)) = machine().await else {
        return;
    };
    let count = names.len() as u32;
    let places = 2 * count;
    let meeting = machine.home().join("python");
    let file = |place: u32| meeting.join(format!("place-{place}")).display().to_string();
    std::fs::set_permissions(&meeting, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // The last place has the last GPU, and the one in the middle has it as well.
    let pair = [count - 1, places - 1];
    for (place, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        let args = format!("[{:?}, {:?}]", file(place), file(other));
        let spec = RunSpec {
            places,
            place,
            devices: Some(Devices {
                variable: "CUDA_VISIBLE_DEVICES".to_owned(),
                count,
            }),
            ..function(&format!("place-{place}"), MEETS, &args)
        };
        machine.begin(spec).await;
    }
    for place in pair {
        let finished = machine.ended(&format!("place-{place}")).await;
        assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
        let expected = format!(r#"["{}",1,"{place}"]"#, count - 1);
        assert_eq!(String::from_utf8(finished.result).unwrap(), expected);
    }
}

#[tokio::test]
async fn a_module_that_uses_the_gpu_when_it_is_imported_is_told_and_functions_have_fresh_interpreters() {
    let Some((mut machine, _)) = machine().await else {
        return;
    };
    std::fs::write(
        machine.home().join("python/uses.py"),
        "import torch\ntorch.zeros(1, device='cuda')\n",
    )
    .unwrap();
    let sum = "import uses, torch\ndef main(): return torch.ones(8, device='cuda').sum().item()";
    for run_id in ["before", "after"] {
        let spec = RunSpec {
            preload: vec!["uses".to_owned()],
            ..function(run_id, sum, "[]")
        };
        let finished = machine.run(spec).await;
        assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
        assert_eq!(finished.result, b"8.0");
        if run_id == "before" {
            let is_told = |fact: &Fact| match &fact.fact {
                Some(fact::Fact::NotForked(told)) => told.why.contains("its packages "),
                _ => false,
            };
            machine.fact(is_told).await;
        }
    }
}
