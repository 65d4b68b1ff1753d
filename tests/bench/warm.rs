//! A function that is forked from a Python that is there already: at the agent alone, without cluster and network.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::bail;
use skyward_agent::protocol::{Finished, Function, RunSpec, run_spec::Work};

use crate::{
    agent::Daemon,
    measure::{figure, ms, percentile, skipped},
};

/// Functions one after the other.
const CALLS: u32 = 200;
/// Modules of the second parent, which has to import one that imports them all.
const MODULES: u32 = 100;
/// Longest time until a function is forked.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many times as long as the raw limit a call may take.
const BAR: f64 = 2.0;

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

/// From the call of Start until a function that does nothing is reported as finished, where its process is forked.
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

    for (name, preload) in [
        ("warm_call_fresh_p50", &[][..]),
        ("warm_call_fresh_p50_100_modules", &["hundred"][..]),
    ] {
        until_forked(&daemon, name, preload).await?;
        let mut took = Vec::new();
        for number in 0..CALLS {
            let (time, finished) = call(&daemon, &format!("{name}-{number}"), preload).await?;
            anyhow::ensure!(finished.forked == Some(true), "{name}: a function was not forked");
            took.push(time);
        }
        let raw = raw(&library, preload)?;
        figure(
            name,
            ms(percentile(&mut took, 0.5)),
            "ms",
            &format!("{:.1}", raw * BAR),
            &format!("fork and wait of a Python with the same modules {raw:.1} ms"),
        );
    }
    Ok(())
}

async fn call(daemon: &Daemon, run_id: &str, preload: &[&str]) -> anyhow::Result<(Duration, Finished)> {
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
        let (_, finished) = call(daemon, &format!("{name}-first-{number}"), preload).await?;
        if finished.forked == Some(true) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    bail!("{name}: no function is forked")
}

fn raw(library: &Path, preload: &[&str]) -> anyhow::Result<f64> {
    let output = Command::new("python3")
        .args(["-c", RAW])
        .args(IMPORTED)
        .args(preload)
        .env("PYTHONPATH", library)
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "a bare fork: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}
