//! Large return values.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;

use crate::{
    measure::{Bench, figure, ms, percentile},
    ssh_server::SshServer,
};

const POOL: &str = "results";
/// Characters of the large value.
const LARGE: usize = 10_000_000;
/// Samples of each.
const SAMPLES: usize = 7;
/// Longest time of a no-op function beyond that of a no-op command.
const PYTHON: Duration = Duration::from_millis(8);
/// Longest time of the large value, as a multiple of its bare way.
const WAY: f64 = 1.3;

/// A command that does nothing, a function that returns nothing, and one that returns 10 MB.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    bench.create_pool(POOL, 1, 1).await?;
    bench.wait_ready(POOL, 1).await?;
    let server = SshServer::start()?;
    let (mut commands, mut small, mut large, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in 0..SAMPLES {
        let command = Bench::task(&format!("result-none-{i}"), POOL, json!({"command": ["true"]}))?;
        commands.push(bench.run_task(&command).await?.0);
        for (size, samples) in [(0, &mut small), (LARGE, &mut large)] {
            let source = format!("def main():\n    return 'x' * {size}\n");
            let task = Bench::task(
                &format!("result-{size}-{i}"),
                POOL,
                json!({"function": {"source": source}}),
            )?;
            samples.push(bench.run_task(&task).await?.0);
        }
        if let Some(server) = &server {
            bare.push(bare_way(server)?);
        }
    }
    let command = percentile(&mut commands, 0.5);
    let base = percentile(&mut small, 0.5);
    figure(
        "function_noop_p50",
        ms(base),
        "ms",
        &format!("{:.1}", ms(command + PYTHON)),
        &format!("no-op command on the same Pool {:.1} ms", ms(command)),
    );
    let whole = percentile(&mut large, 0.5);
    let transfer = whole.saturating_sub(base).max(Duration::from_micros(1));
    let rate = |time: Duration| LARGE as f64 / 1e6 / time.as_secs_f64();
    let bare = percentile(&mut bare, 0.5);
    figure(
        "result_10mb",
        rate(transfer),
        "MB/s",
        &format!("{:.0}", rate(bare) / WAY),
        &format!("json.dumps, `ssh cat`, write and fsync {:.0} MB/s", rate(bare)),
    );
    bench.delete_pool(POOL).await
}

/// Time that the same value needs without us: Python encodes it, an open connection of OpenSSH
/// carries it, and it is on the disk.
fn bare_way(server: &SshServer) -> anyhow::Result<Duration> {
    let at = |name: &str| server.directory.path().join(name);
    let program = format!(
        "import json, sys, time\nvalue = 'x' * {LARGE}\nbegun = time.perf_counter()\ntext = json.dumps(value)\n\
         print(time.perf_counter() - begun)\nopen(sys.argv[1], 'w').write(text)"
    );
    let python = Command::new("python3")
        .args(["-c", &program])
        .arg(at("value"))
        .output()?;
    let encoding: f64 = String::from_utf8(python.stdout)?
        .trim()
        .parse()
        .context("python3 did not encode the value")?;
    let open = server.client(true, "true").stdout(Stdio::null()).status()?;
    anyhow::ensure!(open.success(), "OpenSSH's client does not connect");
    let begun = Instant::now();
    let text = server
        .client(true, &format!("cat {}", at("value").display()))
        .stdin(Stdio::null())
        .output()?;
    anyhow::ensure!(text.stdout.len() > LARGE, "the value did not arrive");
    let mut file = fs::File::create(at("copy"))?;
    file.write_all(&text.stdout)?;
    file.sync_all()?;
    Ok(Duration::from_secs_f64(encoding) + begun.elapsed())
}
