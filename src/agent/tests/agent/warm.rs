//! Functions as forks of a warm parent: they end as in a fresh interpreter, whatever is killed. All of it needs root,
//! since work that has the agent's own user is never forked.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};
use skyward_agent::{
    log,
    protocol::{Fact, Finished, LeaseRequest, RunSpec, fact, finished::Ending},
};

use crate::machine::{Machine, PATIENCE, function, is_alive, processes_with, until};

/// A function that says who started its process.
const STARTED_BY: &str = r#"
import os
def main():
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        return file.read().split("\0")[1]
"#;

/// Waits for a file, which the work's user can see.
const WAIT: &str = r#"
import os, time
def main(path, code):
    print("there", flush=True)
    while not os.path.exists(path):
        time.sleep(0.005)
    os._exit(code)
"#;

struct Warm {
    machine: Machine,
    runs: u32,
}

/// A machine whose functions are forked; `None` where we are not root.
async fn warm() -> Option<Warm> {
    let mut warm = cold(&[]).await?;
    warm.until_forked(&[]).await;
    Some(warm)
}

async fn cold(modules: &[(&str, &str)]) -> Option<Warm> {
    if !Uid::effective().is_root() {
        return None;
    }
    let machine = Machine::start_supervised(&["--user", "nobody"]).await;
    for (name, source) in modules {
        std::fs::write(machine.home().join(format!("python/{name}.py")), source).unwrap();
    }
    Some(Warm { machine, runs: 0 })
}

impl Warm {
    fn next(&mut self) -> String {
        self.runs += 1;
        format!("r-{}", self.runs)
    }

    async fn call(&mut self, source: &str, args: &str) -> Finished {
        let run_id = self.next();
        self.machine.run(function(&run_id, source, args)).await
    }

    async fn started_by(&mut self, preload: &[&str]) -> String {
        let spec = RunSpec {
            preload: preload.iter().map(|&name| name.to_owned()).collect(),
            ..function(&self.next(), STARTED_BY, "[]")
        };
        let finished = self.machine.run(spec).await;
        assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
        String::from_utf8(finished.result).unwrap().replace('"', "")
    }

    /// Runs functions until one is forked: the first start the parent, and do not wait for it.
    async fn until_forked(&mut self, preload: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while self.started_by(preload).await != "keeper" {
            assert!(Instant::now() < deadline, "no function is forked: {}", self.log());
        }
    }

    /// Starts a function that waits for the file.
    async fn begin_waiting(&mut self, name: &str, code: i32) -> (String, i32) {
        let run_id = self.next();
        let path = self.machine.home().join(name);
        let args = format!("[{:?}, {code}]", path.display().to_string());
        self.machine.begin(function(&run_id, WAIT, &args)).await;
        let pid = self.machine.started(&run_id).await.pid as i32;
        self.machine.printed(&run_id).await;
        (run_id, pid)
    }

    /// How a run ends whose watcher was killed by nobody of the run's. The kernel may not count its kills for want
    /// of memory; then that cannot be known.
    fn lost(&self, run_id: &str) -> Ending {
        let begun = std::fs::read(self.machine.run_folder(run_id).join("begun")).unwrap();
        let begun: serde_json::Value = serde_json::from_slice(&begun).unwrap();
        if begun["kills"].is_null() {
            Ending::ShimLost
        } else {
            Ending::Interrupted
        }
    }

    fn release(&self, name: &str) {
        std::fs::write(self.machine.home().join(name), "").unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.machine.home().join("agent.log")).unwrap_or_default()
    }

    /// Processes of this machine's agent in a role.
    fn role(&self, role: &str) -> BTreeSet<i32> {
        let home = self.machine.home().to_string_lossy().into_owned();
        let is_role = |pid: &i32| arguments(*pid).get(1).is_some_and(|word| word == role);
        processes_with(&home).into_iter().filter(is_role).collect()
    }

    fn shim_of(&self, run_id: &str) -> i32 {
        let is_its = |pid: &i32| arguments(*pid).get(3).is_some_and(|word| word == run_id);
        self.role("shim").into_iter().find(is_its).expect("it has a shim")
    }

    fn keeper(&self) -> i32 {
        let keepers = self.role("keeper");
        assert_eq!(keepers.len(), 1, "{keepers:?}");
        *keepers.first().unwrap()
    }

    fn parent(&self) -> i32 {
        self.parent_of(self.keeper())
    }

    /// The Python that runs are forked from: forks have its arguments, but sessions of their own.
    fn parent_of(&self, keeper: i32) -> i32 {
        let home = self.machine.home().to_string_lossy().into_owned();
        let is_parent = |pid: &i32| {
            arguments(*pid).iter().any(|word| word.ends_with("_warm.py")) && session_of(*pid) == keeper
        };
        processes_with(&home)
            .into_iter()
            .find(is_parent)
            .expect("there is a parent")
    }
}

fn arguments(pid: i32) -> Vec<String> {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = arguments.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn session_of(pid: i32) -> i32 {
    nix::unistd::getsid(Some(Pid::from_raw(pid))).map_or(0, Pid::as_raw)
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

#[tokio::test]
async fn a_forked_function_ends_as_one_in_a_fresh_interpreter() {
    let Some(mut warm) = warm().await else { return };
    let cases = [
        ("def main(): return {'a': 1}", Ending::Exited, ""),
        (
            "def main(): raise ValueError('no')",
            Ending::FunctionRaised,
            "ValueError: no",
        ),
        ("def main(:", Ending::BadSource, "SyntaxError in line 1"),
        (
            "def main(): return lambda: 1",
            Ending::ResultNotJson,
            "value is a function",
        ),
        (
            "import sys\ndef main(): sys.exit(3)",
            Ending::Exited,
            "it exited with code 3",
        ),
        (
            "import os\ndef main(): os._exit(0)",
            Ending::Exited,
            "before the function returned",
        ),
        (
            "import os\ndef main(): os.kill(os.getpid(), 11)",
            Ending::Signaled,
            "it was killed by SIGSEGV",
        ),
        (
            "import os\ndef main(): os.kill(os.getpid(), 9)",
            Ending::Signaled,
            "it was killed by SIGKILL",
        ),
    ];
    for (source, ending, message) in cases {
        let finished = warm.call(source, "[]").await;
        assert_eq!(finished.ending(), ending, "{source}: {}", finished.message);
        assert!(
            finished.message.contains(message),
            "{source}: {}",
            finished.message
        );
    }
    let finished = warm
        .call(
            "import sys\ndef main(a): print('out'); print('err', file=sys.stderr); return a",
            "[7]",
        )
        .await;
    assert_eq!(
        (finished.result.as_slice(), finished.forked),
        (&b"7"[..], Some(true))
    );
    let lines = String::from_utf8(log::decode(&finished.log, None)).unwrap();
    assert!(lines.contains("out\n") && lines.contains("err\n"), "{lines}");
    assert_eq!(warm.started_by(&[]).await, "keeper", "the parent is still there");
}

#[tokio::test]
async fn a_fork_has_what_its_run_has_and_nothing_of_the_run_before_it() {
    let Some(mut warm) = warm().await else { return };
    let source = r"
import builtins, os, sys, tempfile
def main():
    seen = [sorted(os.environ), os.getuid(), os.path.basename(os.getcwd()), os.umask(0o22),
        getattr(builtins, 'left', None), sorted(map(int, os.listdir('/proc/self/fd')))[:3],
        open('/proc/self/oom_score_adj').read().strip(), os.getsid(0) == os.getpid(),
        tempfile.gettempdir() == os.environ['TMPDIR']]
    builtins.left = os.environ['TOKEN']
    os.environ['LEFT'] = 'x'
    os.umask(0)
    return seen
";
    for token in ["first", "second"] {
        let spec = RunSpec {
            env: [("TOKEN".to_owned(), token.to_owned())].into(),
            ..function(&warm.next(), source, "[]")
        };
        let finished = warm.machine.run(spec).await;
        let seen: serde_json::Value = serde_json::from_slice(&finished.result).unwrap();
        let expected = serde_json::json!([
            [
                "HOME",
                "LANG",
                "LOGNAME",
                "PATH",
                "PYTHONPATH",
                "PYTHONUNBUFFERED",
                "SKYWARD_PROGRESS_FILE",
                "SKYWARD_RUN_FOLDER",
                "TMPDIR",
                "TOKEN",
                "USER"
            ],
            65534,
            "work",
            0o22,
            null,
            [0, 1, 2],
            "1000",
            true,
            true
        ]);
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn an_exit_code_of_a_fork_survives_its_parent_and_the_daemon() {
    let Some(mut warm) = warm().await else { return };
    let (first, _) = warm.begin_waiting("go", 41).await;
    let (second, _) = warm.begin_waiting("go", 42).await;
    send(warm.parent(), Signal::SIGKILL);
    let daemon = *warm.role("daemon").first().unwrap();
    send(daemon, Signal::SIGKILL);
    let folders = [&first, &second].map(|run_id| warm.machine.run_folder(run_id));
    warm.release("go");
    until("the shims record the ends", || {
        folders.iter().all(|folder| folder.join("exit").exists())
    })
    .await;
    warm.machine.reconnect().await;
    for (run_id, code) in [(first, 41), (second, 42)] {
        let finished = warm.machine.ended(&run_id).await;
        assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, code));
    }
    until("the keeper goes with its last fork", || {
        warm.role("keeper").is_empty()
    })
    .await;
    warm.until_forked(&[]).await;
}

#[tokio::test]
async fn a_fork_whose_shim_was_killed_is_ended_before_the_run_counts_as_interrupted() {
    let Some(mut warm) = warm().await else { return };
    let (neighbour, _) = warm.begin_waiting("go", 0).await;
    let (run_id, pid) = warm.begin_waiting("never", 0).await;
    let expected = warm.lost(&run_id);
    send(warm.shim_of(&run_id), Signal::SIGKILL);
    let finished = warm.machine.ended(&run_id).await;
    assert!(!is_alive(pid));
    assert_eq!(finished.ending(), expected, "{}", finished.message);
    warm.release("go");
    let finished = warm.machine.ended(&neighbour).await;
    assert_eq!((finished.ending(), finished.exit_code), (Ending::Exited, 0));
    assert_eq!(warm.started_by(&[]).await, "keeper");
}

#[tokio::test]
async fn forks_whose_keeper_was_killed_are_ended_and_interrupted() {
    let Some(mut warm) = warm().await else { return };
    let runs = [
        warm.begin_waiting("never", 0).await,
        warm.begin_waiting("never", 0).await,
    ];
    send(warm.keeper(), Signal::SIGKILL);
    for (run_id, pid) in runs {
        let finished = warm.machine.ended(&run_id).await;
        assert_eq!(finished.ending(), warm.lost(&run_id), "{}", finished.message);
        assert!(!is_alive(pid));
    }
    assert_eq!(
        warm.started_by(&[]).await,
        "shim",
        "a fresh interpreter takes the next run"
    );
}

#[tokio::test]
async fn nothing_outlives_a_fork_and_its_neighbours_do() {
    let Some(mut warm) = warm().await else { return };
    let (neighbour, _) = warm.begin_waiting("go", 5).await;
    let source = r"
import os, time
def main(setsid):
    reading, writing = os.pipe()
    if os.fork() == 0:
        if setsid:
            os.setsid()
        if os.fork():
            os._exit(0)
        os.write(writing, b'%d' % os.getpid())
        time.sleep(1000)
    os.wait()
    return int(os.read(reading, 32))
";
    for setsid in ["true", "false"] {
        let finished = warm.call(source, &format!("[{setsid}]")).await;
        let left: i32 = String::from_utf8(finished.result).unwrap().parse().unwrap();
        assert!(!is_alive(left), "it is dead when the end is told");
    }
    warm.release("go");
    assert_eq!(warm.machine.ended(&neighbour).await.exit_code, 5);
}

#[tokio::test]
async fn a_fork_is_stopped_and_times_out_like_other_work() {
    let Some(mut warm) = warm().await else { return };
    let stubborn = "import signal\ndef main():\n    signal.signal(15, signal.SIG_IGN)\n    print('there', flush=True)\n    while True: pass";
    let run_id = warm.next();
    warm.machine.begin(function(&run_id, stubborn, "[]")).await;
    warm.machine.printed(&run_id).await;
    warm.machine.stop(&run_id, 1).await.unwrap();
    let finished = warm.machine.ended(&run_id).await;
    assert_eq!(
        (finished.ending(), finished.signal),
        (Ending::Stopped, 9),
        "{}",
        finished.message
    );
    let spec = RunSpec {
        timeout_ms: 50,
        grace_ms: 60_000,
        ..function(&warm.next(), "import time\ndef main(): time.sleep(1000)", "[]")
    };
    let finished = warm.machine.run(spec).await;
    assert_eq!((finished.ending(), finished.signal), (Ending::TimedOut, 15));
    assert_eq!(warm.started_by(&[]).await, "keeper");
}

#[tokio::test]
async fn a_function_runs_once_at_whatever_frame_its_parent_is_killed() {
    let source = "def main(path, line):\n    with open(path, 'a') as file: print(line, file=file)";
    for frame in ["spec", "begun", "forked", "exit"] {
        let Some(mut warm) = warm().await else { return };
        let ledger = warm.machine.home().join("ledger");
        std::fs::write(&ledger, "").unwrap();
        std::os::unix::fs::chown(&ledger, Some(65534), None).unwrap();
        let run_id = warm.next();
        let args = format!("[{:?}, {run_id:?}]", ledger.display().to_string());
        warm.machine.begin(function(&run_id, source, &args)).await;
        let folder = warm.machine.run_folder(&run_id);
        let reached = || folder.join(frame).exists() || folder.join("exit").exists();
        until("that frame is reached", reached).await;
        for keeper in warm.role("keeper") {
            for process in children_named(keeper, "_warm.py") {
                if session_of(process) == keeper {
                    let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
                }
            }
        }
        let finished = warm.machine.ended(&run_id).await;
        let text = std::fs::read_to_string(ledger).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        // A fork that had not begun is killed with its parent, by us.
        let expected = if finished.ending() == Ending::Exited {
            vec![run_id.as_str()]
        } else {
            assert_eq!(
                (finished.ending(), finished.signal),
                (Ending::Signaled, 9),
                "{frame}"
            );
            vec![]
        };
        assert_eq!(lines, expected, "{frame}: {}", finished.message);
    }
}

fn children_named(parent: i32, name: &str) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| arguments(*pid).iter().any(|word| word.ends_with(name)))
        .collect()
}

#[tokio::test]
async fn a_module_that_starts_a_thread_costs_nothing_but_the_saving() {
    let modules = [
        (
            "threads",
            "import threading, time\nthreading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n",
        ),
        ("fine", "value = 1\n"),
    ];
    let Some(mut warm) = cold(&modules).await else {
        return;
    };
    assert_eq!(warm.started_by(&["threads"]).await, "shim");
    let said = |fact: &Fact| match &fact.fact {
        Some(fact::Fact::NotForked(told)) => told.why.contains("start threads when they are imported"),
        _ => false,
    };
    warm.machine.fact(said).await;
    assert_eq!(warm.started_by(&["threads"]).await, "shim");
    until("the parent is gone", || warm.role("keeper").is_empty()).await;
    warm.until_forked(&["fine"]).await;
    let spec = RunSpec {
        preload: vec!["fine".to_owned()],
        ..function(
            &warm.next(),
            "import sys\ndef main(): return 'fine' in sys.modules",
            "[]",
        )
    };
    assert_eq!(warm.machine.run(spec).await.result, b"true");
}

#[tokio::test]
async fn a_module_that_ends_the_parent_is_named_and_not_imported_again() {
    let modules = [("ends", "import os\nos._exit(3)\n")];
    let Some(mut warm) = cold(&modules).await else {
        return;
    };
    assert_eq!(warm.started_by(&["ends"]).await, "shim");
    let said = |fact: &Fact| match &fact.fact {
        Some(fact::Fact::NotForked(told)) => told.why.contains("exited with code 3 while it imported"),
        _ => false,
    };
    warm.machine.fact(said).await;
    until("the keeper is gone", || warm.role("keeper").is_empty()).await;
}

#[tokio::test]
async fn a_parent_ends_with_its_environment_although_no_function_runs() {
    let Some(mut warm) = warm().await else { return };
    std::fs::create_dir_all(warm.machine.home().join("venv/lib/python3/site-packages")).unwrap();
    let lease = LeaseRequest {
        epoch: 1,
        ..LeaseRequest::default()
    };
    warm.machine.agent.renew_lease(lease).await.unwrap();
    until("the keeper is gone", || warm.role("keeper").is_empty()).await;
}

#[tokio::test]
async fn no_run_waits_for_a_parent_that_hangs() {
    let modules = [("endless", "import time\ntime.sleep(1000)\n")];
    let Some(mut warm) = cold(&modules).await else {
        return;
    };
    for _ in 0..3 {
        assert_eq!(warm.started_by(&["endless"]).await, "shim");
    }
    // A parent that hangs later is given up.
    warm.until_forked(&[]).await;
    let keepers = warm.role("keeper");
    let parents = keepers
        .iter()
        .flat_map(|keeper| children_named(*keeper, "_warm.py"));
    for parent in parents {
        send(parent, Signal::SIGSTOP);
    }
    assert_eq!(warm.started_by(&[]).await, "shim");
    until("its keeper goes", || warm.role("keeper").len() < keepers.len()).await;
}

#[tokio::test]
async fn work_reaches_neither_the_keeper_nor_into_the_parent() {
    let Some(mut warm) = warm().await else { return };
    let parent = warm.parent();
    let socket = std::fs::read_dir(warm.machine.home().join("warm"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .next()
        .unwrap();
    let source = r#"
import os, socket
def main(path, parent):
    refused = []
    for attempt in (
        lambda: socket.socket(socket.AF_UNIX).connect(path),
        lambda: os.listdir(os.path.dirname(path)),
        lambda: open(f"/proc/{parent}/environ").read(),
        lambda: open(f"/proc/{parent}/mem").read(),
        lambda: os.listdir(f"/proc/{parent}/fd"),
        lambda: os.kill(os.getppid(), 9),
    ):
        try:
            attempt()
            refused.append(False)
        except PermissionError:
            refused.append(True)
    return refused
"#;
    let args = format!("[{:?}, {parent}]", socket.display().to_string());
    let finished = warm.call(source, &args).await;
    assert_eq!(
        finished.result, b"[true,true,true,true,true,true]",
        "{}",
        finished.message
    );
}

/// Holds a Python that is to be forked from where it has not protected itself yet. Other ones go on.
const HELD: &str = r#"
import os, time
with open("/proc/self/cmdline") as file:
    is_parent = "_warm.py" in file.read()
home = os.path.dirname(os.path.dirname(__file__))
while is_parent and not os.path.exists(home + "/go"):
    time.sleep(0.005)
"#;

#[tokio::test]
async fn work_cannot_look_into_a_parent_whose_interpreter_starts() {
    let Some(mut warm) = cold(&[("sitecustomize", HELD)]).await else {
        return;
    };
    assert_eq!(warm.started_by(&[]).await, "shim");
    until("a parent starts", || {
        let keepers = warm.role("keeper");
        keepers
            .iter()
            .any(|keeper| !children_named(*keeper, "_warm.py").is_empty())
    })
    .await;
    let parent = warm.parent();
    let source = r#"
import os
def main(parent):
    refused = []
    for attempt in (
        lambda: open(f"/proc/{parent}/mem", "rb+"),
        lambda: open(f"/proc/{parent}/environ").read(),
        lambda: os.readlink(f"/proc/{parent}/exe"),
        lambda: os.readlink(f"/proc/{parent}/fd/0"),
    ):
        try:
            attempt()
            refused.append(False)
        except PermissionError:
            refused.append(True)
    return refused
"#;
    let finished = warm.call(source, &format!("[{parent}]")).await;
    assert_eq!(finished.result, b"[true,true,true,true]", "{}", finished.message);

    // What guarded it is gone when the first process is forked from it.
    warm.release("go");
    warm.until_forked(&[]).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", warm.parent())).unwrap();
    let sets: Vec<&str> = status
        .lines()
        .filter(|line| line.starts_with("Cap") && !line.starts_with("CapBnd"))
        .collect();
    assert_eq!(sets.len(), 4, "{status}");
    assert!(
        sets.iter().all(|set| set.ends_with("\t0000000000000000")),
        "{sets:?}"
    );
}

/// Parents of one machine, each with a package of its own: as many as a machine has at most.
const PRELOADED: [&str; 4] = ["one", "two", "three", "four"];
/// How long idle processes are watched.
const WATCHED: Duration = Duration::from_secs(3);
/// How often an idle process may be given the processor in that time. Each takes some microseconds.
const SWITCHES: u64 = 3;

#[tokio::test]
async fn eight_idle_parents_are_no_runs_and_take_no_time() {
    let modules = PRELOADED.map(|name| (name, ""));
    let (mut machines, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let Some(mut warm) = cold(&modules).await else {
            return;
        };
        for name in PRELOADED {
            warm.until_forked(&[name]).await;
        }
        let lease = LeaseRequest {
            epoch: 1,
            ..LeaseRequest::default()
        };
        let reply = warm.machine.agent.renew_lease(lease).await.unwrap();
        assert_eq!(reply.into_inner().running, 0);
        for keeper in warm.role("keeper") {
            idle.extend([keeper, warm.parent_of(keeper)]);
        }
        machines.push(warm);
    }
    assert_eq!(idle.len(), 16, "eight parents and their keepers");
    // What the last run left to do is over after some time.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before: Vec<Taken> = idle.iter().map(|pid| taken(*pid)).collect();
        tokio::time::sleep(WATCHED).await;
        let after: Vec<Taken> = idle.iter().map(|pid| taken(*pid)).collect();
        let each: Vec<u64> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| after.switches - before.switches)
            .collect();
        let ticks = |taken: &[Taken]| taken.iter().map(|taken| taken.ticks).sum::<u64>();
        let ticks = ticks(&after) - ticks(&before);
        println!(
            "eight idle parents and their keepers, in {} s: {ticks} hundredths of a second of the processor, given to them {each:?} times",
            WATCHED.as_secs()
        );
        if ticks == 0 && each.iter().all(|switches| *switches <= SWITCHES) {
            break;
        }
        assert!(Instant::now() < deadline, "they never stand still");
    }
}

/// What a process has taken of the processor.
struct Taken {
    /// How often it was given to the process.
    switches: u64,
    /// In hundredths of a second, as Linux counts: `utime` and `stime`.
    ticks: u64,
}

fn taken(pid: i32) -> Taken {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let (status, stat) = (read("status"), read("stat"));
    let number = |text: &str| text.trim().parse::<u64>().unwrap();
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let switches = lines.filter(|(name, _)| name.ends_with("ctxt_switches"));
    // The name, in parentheses, may have spaces; `utime` and `stime` are the 12th and 13th word behind it.
    let (_, words) = stat.rsplit_once(')').unwrap();
    let times = words.split_whitespace().skip(11).take(2);
    Taken {
        switches: switches.map(|(_, count)| number(count)).sum(),
        ticks: times.map(number).sum(),
    }
}
