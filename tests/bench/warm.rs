//! Python that is warm: calls for items of a map, and runs that are forked from a Python that is there already. At the agent
//! alone, without cluster and network.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use skyward_agent::protocol::{
    Finished, FromWorkers, Function, RunSpec, Worker,
    finished::Ending,
    from_workers::Message as Told,
    run_spec::Work,
    to_workers::{Chunk, Message as Say},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    agent::Daemon,
    items::{Link, place, run_id},
    measure::{figure, ms, percentile, skipped},
};

/// Runs one after the other.
const RUNS: u32 = 200;
/// Calls one after the other, in a process that is there and in processes of their own.
const REUSED: u32 = 20_000;
const FRESH: u32 = 1000;
/// Calls before the calls that are timed.
const FIRST: u32 = 20;
/// Modules of the second parent, which has to import one that imports them all.
const MODULES: u32 = 100;
/// Longest time until a function is forked.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many times as long as the raw limit a call may take.
const REUSED_BAR: f64 = 5.0;
const FRESH_BAR: f64 = 2.0;

/// Median of a bare fork and the wait for its end, in milliseconds, in a Python that has imported what its arguments name.
const RAW: &str = "
import gc, importlib, os, sys, time
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()
took = []
for _ in range(200):
    begun = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    took.append(time.perf_counter() - begun)
print(sorted(took)[100] * 1e3)
";
/// A Python that answers each line.
const LOOP: &str = "
import sys
for line in sys.stdin:
    sys.stdout.write(line)
    sys.stdout.flush()
";
/// An item that uses the GPU.
const GPU_ITEM: &str = "
import torch
def main(item):
    torch.ones(8, device='cuda').sum().item()
";
/// What such an item takes a bare Python, in milliseconds: one process for all of them, or a fork for each.
const GPU_RAW: &str = "
import os, sys, time, torch
def main():
    torch.ones(8, device='cuda').sum().item()
count = 20
if sys.argv[1] == 'reused':
    main()
    count = 5000
begun = time.perf_counter()
for _ in range(count):
    if sys.argv[1] == 'reused':
        main()
    elif pid := os.fork():
        os.waitpid(pid, 0)
    else:
        main()
        os._exit(0)
print('%.2f' % ((time.perf_counter() - begun) / count * 1e3))
";
/// What every parent has imported.
const IMPORTED: [&str; 8] = [
    "inspect",
    "json",
    "random",
    "signal",
    "site",
    "socket",
    "traceback",
    "skyward._run",
];

/// What a call takes in a process that is there, and in one of its own, and what a run takes that is forked.
pub(crate) async fn run(program: &Path) -> anyhow::Result<()> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        skipped("functions are forked where the agent is root");
        return Ok(());
    }
    let daemon = Daemon::start(program, &["--user", "nobody"]).await?;
    let library = daemon.home().join("python");
    for number in 0..MODULES {
        let functions = (0..50).map(|function| format!("def f{function}(x):\n    return x + {number}\n"));
        fs::write(
            library.join(format!("module_{number}.py")),
            functions.collect::<String>(),
        )?;
    }
    let imports = (0..MODULES).map(|number| format!("import module_{number}\n"));
    fs::write(library.join("hundred.py"), imports.collect::<String>())?;

    measured(&daemon, &[], "").await?;
    measured(&daemon, &["hundred"], "_100_modules").await
}

/// The same where the Python has imported PyTorch, and what an item takes that uses a GPU: in a process that is there, with
/// its context of the GPU, and in one of its own. On machines without them nothing is measured.
pub(crate) async fn gpu(program: &Path) -> anyhow::Result<()> {
    let uses = "import sys, torch; torch.zeros(1, device='cuda'); print(sys.prefix)";
    let used = Command::new("python3").args(["-c", uses]).output()?;
    if !used.status.success() || fs::metadata("/proc/self")?.uid() != 0 {
        skipped("there is no GPU with PyTorch, or the agent is not root");
        return Ok(());
    }
    let daemon = Daemon::start(program, &["--user", "nobody"]).await?;
    symlink(
        String::from_utf8_lossy(&used.stdout).trim(),
        daemon.home().join("venv"),
    )?;
    measured(&daemon, &["torch"], "_torch").await?;
    for (kind, fresh, count) in [("reused", false, 5000), ("fresh", true, 20)] {
        let took = calls(&daemon, &format!("gpu-{kind}"), GPU_ITEM, fresh, count).await?;
        let raw = python(daemon.home(), GPU_RAW, &[kind]).output()?;
        let raw = String::from_utf8_lossy(&raw.stdout).trim().to_owned();
        let raw =
            format!("the same in a bare Python, which is forked for each where they are fresh, {raw} ms");
        figure(&format!("gpu_item_{kind}"), ms(took), "ms", "-", &raw);
    }
    Ok(())
}

/// Calls and runs of a Python with those modules.
async fn measured(daemon: &Daemon, modules: &[&str], more: &str) -> anyhow::Result<()> {
    let library = daemon.home().join("python");
    let source = format!("{}def main(item): pass\n", imports(modules));
    let reused = calls(daemon, &format!("reused{more}"), &source, false, REUSED).await?;
    let raw = round_trip(&library, modules)?;
    figure(
        &format!("warm_call_reused{more}"),
        micros(reused),
        "us",
        &format!("{:.0}", micros(raw) * REUSED_BAR),
        &format!("a line to a Python and back {:.0} us", micros(raw)),
    );
    let fresh = calls(daemon, &format!("fresh{more}"), &source, true, FRESH).await?;
    let raw = bare_fork(&library, modules)?;
    let bare = format!("fork and wait of a Python with the same modules {raw:.1} ms");
    let bar = format!("{:.1}", raw * FRESH_BAR);
    figure(&format!("warm_call_fresh{more}"), ms(fresh), "ms", &bar, &bare);
    let run = forked_runs(daemon, &format!("forked{more}"), modules).await?;
    figure(&format!("forked_run_p50{more}"), ms(run), "ms", "-", &bare);
    Ok(())
}

/// The lines of Python that import them.
fn imports(modules: &[&str]) -> String {
    modules.iter().flat_map(|name| ["import ", name, "\n"]).collect()
}

fn micros(time: Duration) -> f64 {
    ms(time) * 1e3
}

/// What one call takes, of many that follow each other at one place of a map: until the end of the last one is on the disk
/// and known here, for each.
async fn calls(
    daemon: &Daemon,
    name: &str,
    source: &str,
    fresh: bool,
    count: u32,
) -> anyhow::Result<Duration> {
    let map = &name.replace('_', "-");
    let spec = place(map, 0, source);
    let worker = Worker {
        fresh,
        ..spec.worker.context("a place of a map")?
    };
    let worker = Some(worker);
    daemon.begin(RunSpec { worker, ..spec }).await?;
    let (news, mut hears) = mpsc::channel(64);
    let link = Link::open(daemon.home(), map, 0, news).await?;
    // A place takes items once it has said what it holds.
    while !matches!(told(&mut hears).await?, Told::Holds(_)) {}
    let mut took = Duration::ZERO;
    for (first, count) in [(0, FIRST), (FIRST, count)] {
        let begun = Instant::now();
        link.say(Say::Chunk(Chunk {
            run_id: run_id(map, 0),
            first,
            count,
            attempt: 1,
            items: Vec::new(),
        }))?;
        let mut left = count;
        while left > 0 {
            match told(&mut hears).await? {
                Told::Ended(end) => {
                    let is_success = end.ending() == Ending::Exited && end.exit_code == 0;
                    anyhow::ensure!(is_success, "a call failed: {}", end.message);
                    left -= 1;
                }
                Told::Told(told) => anyhow::ensure!(!told.over, "the place has ended early"),
                _ => {}
            }
        }
        took = begun.elapsed() / count;
    }
    drop(link);
    daemon.stop(&run_id(map, 0)).await?;
    Ok(took)
}

async fn told(hears: &mut mpsc::Receiver<(u32, FromWorkers)>) -> anyhow::Result<Told> {
    let heard = timeout(PATIENCE, hears.recv()).await?;
    let (_, told) = heard.context("the agent says no more")?;
    told.message.context("a message that says nothing")
}

/// Median of the time from the call of Start until a function that does nothing is reported as finished, where its process
/// is forked.
async fn forked_runs(daemon: &Daemon, name: &str, preload: &[&str]) -> anyhow::Result<Duration> {
    until_forked(daemon, name, preload).await?;
    let mut took = Vec::new();
    for number in 0..RUNS {
        let (time, finished) = forked(daemon, &format!("{name}-{number}"), preload).await?;
        anyhow::ensure!(finished.forked == Some(true), "{name}: a function was not forked");
        took.push(time);
    }
    Ok(percentile(&mut took, 0.5))
}

async fn forked(daemon: &Daemon, run_id: &str, preload: &[&str]) -> anyhow::Result<(Duration, Finished)> {
    let function = Function {
        source: "def main(): pass".to_owned(),
        args_json: "[]".to_owned(),
        ..Function::default()
    };
    let spec = RunSpec {
        // Figures have `_` in their names, and names of runs have none.
        run_id: run_id.replace('_', "-"),
        work: Some(Work::Function(function)),
        preload: preload.iter().map(|&name| name.to_owned()).collect(),
        grace_ms: 1000,
        ..RunSpec::default()
    };
    daemon.finished(spec).await
}

/// The first functions start the parent, and do not wait for it.
async fn until_forked(daemon: &Daemon, name: &str, preload: &[&str]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for number in 0_u32.. {
        let (_, finished) = forked(daemon, &format!("{name}-first-{number}"), preload).await?;
        if finished.forked == Some(true) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    bail!("{name}: no function is forked")
}

fn python(library: &Path, program: &str, modules: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-c", program])
        .args(modules)
        .env("PYTHONPATH", library);
    command
}

fn bare_fork(library: &Path, modules: &[&str]) -> anyhow::Result<f64> {
    let all = [&IMPORTED[..], modules].concat();
    let output = python(library, RAW, &all).output()?;
    anyhow::ensure!(
        output.status.success(),
        "a bare fork: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// Median of the time until a Python has answered a line.
fn round_trip(library: &Path, modules: &[&str]) -> anyhow::Result<Duration> {
    let imports = imports(modules);
    let mut child = python(library, &format!("{imports}{LOOP}"), &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut to = child.stdin.take().context("its standard input")?;
    let mut from = BufReader::new(child.stdout.take().context("its standard output")?);
    let mut took = Vec::new();
    let mut line = String::new();
    for _ in 0..2000 {
        line.clear();
        let begun = Instant::now();
        to.write_all(b"[1]\n")?;
        from.read_line(&mut line)?;
        took.push(begun.elapsed());
        anyhow::ensure!(line == "[1]\n", "a bare Python answers {line:?}");
    }
    drop(to);
    child.wait()?;
    Ok(percentile(&mut took, 0.5))
}
