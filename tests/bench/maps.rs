//! Maps, from `create` to their end: how many items in a second beside what bare processes of this machine do, and what a
//! large one costs the API server and the controller.

use std::{
    fs,
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use skyward_testkit::{PROVIDER, controller_memory};

use crate::{
    cpu::{Snapshot, Spent},
    measure::{Bench, figure, ms, percentile},
    tasks::OWN,
};

/// The Pool with Pythons that run one item after the other, and that with a process for each.
const REUSED: &str = "maps";
const FRESH: &str = "maps-fresh";
/// Places of each, and processes of each raw limit.
const PLACES: u32 = 2;
/// Longest wait for a map.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Pause between two looks at a large map.
const LOOK: Duration = Duration::from_secs(1);

/// Items in a second by `multiprocessing`, one item at a time; values go to a file.
const RAW_REUSED: &str = "
import functools, json, multiprocessing, os, sys, time
def item(wait, index):
    if wait:
        time.sleep(wait)
    return index
count, wait, processes, path = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with multiprocessing.get_context('fork').Pool(processes) as pool, open(path, 'w') as out:
    begun = flushed = time.perf_counter()
    for value in pool.imap_unordered(functools.partial(item, wait), range(count), chunksize=1):
        out.write(json.dumps(value) + '\\n')
        now = time.perf_counter()
        if now - flushed >= 0.1:
            out.flush()
            os.fdatasync(out.fileno())
            flushed = now
    print(count / (time.perf_counter() - begun))
";
/// Forks that are waited for in a second, by so many parents at once that have imported what ours has.
const RAW_FRESH: &str = "
import gc, importlib, os, sys, time
for name in ('inspect', 'json', 'random', 'signal', 'site', 'socket', 'traceback', 'skyward._run', 'skyward._warm'):
    importlib.import_module(name)
count, processes = int(sys.argv[1]), int(sys.argv[2])
gc.collect()
gc.freeze()
begun = time.perf_counter()
parents = []
for _ in range(processes):
    parent = os.fork()
    if parent == 0:
        for _ in range(count // processes):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        os._exit(0)
    parents.append(parent)
for parent in parents:
    os.waitpid(parent, 0)
print(count / (time.perf_counter() - begun))
";
/// Where our library is, for the parents of the raw limit.
const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");

/// One kind of items.
struct Kind {
    name: &'static str,
    pool: &'static str,
    items: u32,
    /// How often raw limit and map take turns.
    rounds: u32,
    work: Value,
    /// The least part of the raw limit.
    part: f64,
    /// So many items without us: how many in a second.
    raw: fn(u32) -> anyhow::Result<f64>,
    words: &'static str,
}

/// A large map.
struct Large {
    name: &'static str,
    items: u32,
    /// Of what each item returns.
    bytes: usize,
}

const LARGE: [Large; 2] = [
    Large {
        name: "100000_of_4kib",
        items: 100_000,
        bytes: 4096,
    },
    Large {
        name: "1000000",
        items: 1_000_000,
        bytes: 100,
    },
];

/// All figures of maps.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    bench.create_pool(REUSED, 1, PLACES).await?;
    let worker = json!({"concurrency": PLACES, "reuseProcesses": false});
    let spec = json!({"provider": PROVIDER, "nodes": {"desired": 1}, "worker": worker});
    bench.create_pool_of(FRESH, spec).await?;
    bench.wait_ready(REUSED, 1).await?;
    bench.wait_ready(FRESH, 1).await?;
    for kind in kinds() {
        rate(bench, kind).await?;
    }
    bench.delete_pool(FRESH).await?;
    for large in &LARGE {
        size(bench, large)
            .await
            .with_context(|| format!("a map of {} items", large.items))?;
    }
    bench.delete_pool(REUSED).await
}

fn kinds() -> [Kind; 4] {
    let function = |source: &str| json!({"function": {"source": source}});
    let noop = "def main(item):\n    return item\n";
    let slow = "import time\n\ndef main(item):\n    time.sleep(0.01)\n    return item\n";
    let pool = "as many processes of multiprocessing, chunk size 1, values appended and flushed each 100 ms";
    [
        Kind {
            name: "python_reused",
            pool: REUSED,
            items: 40_000,
            rounds: 3,
            work: function(noop),
            part: 0.5,
            raw: |items| raw_reused(items, 0.0),
            words: pool,
        },
        Kind {
            name: "python_reused_10ms",
            pool: REUSED,
            items: 6_000,
            rounds: 1,
            work: function(slow),
            part: 0.95,
            raw: |items| raw_reused(items, 0.01),
            words: pool,
        },
        Kind {
            name: "python_fresh",
            pool: FRESH,
            items: 4_000,
            rounds: 5,
            work: function(noop),
            part: 0.6,
            raw: raw_fresh,
            words: "fork and wait by as many parents with the same modules",
        },
        Kind {
            name: "command",
            pool: REUSED,
            items: 6_000,
            rounds: 3,
            work: json!({"command": ["true"]}),
            part: 0.5,
            raw: raw_command,
            words: "the same command in a group of its own, output to a file, as many at once",
        },
    ]
}

/// Items of a map in a second, and what they cost. The speed of this machine may change within seconds, so raw limit and map
/// take turns, and the round whose ratio is the median is told.
async fn rate(bench: &Bench, kind: Kind) -> anyhow::Result<()> {
    let Kind {
        name,
        pool,
        items,
        rounds,
        mut work,
        part,
        raw,
        words,
    } = kind;
    work["forEach"] = json!({"count": items});
    let (mut spent, mut told) = (Spent::default(), Vec::new());
    for round in 0..rounds {
        let raw = raw(items)?;
        let task = format!("items-{}-{round}", name.replace('_', "-"));
        let task = Bench::task(&task, pool, work.clone())?;
        let before = Snapshot::take();
        let (took, _) = bench.run_task(&task).await?;
        spent.add(&before, &Snapshot::take());
        told.push((f64::from(items) / took.as_secs_f64(), raw));
    }
    told.sort_by(|(ours, raw), (others, limit)| (ours / raw).total_cmp(&(others / limit)));
    let ratios: Vec<String> = told
        .iter()
        .map(|(ours, raw)| format!("{:.2}", ours / raw))
        .collect();
    let (ours, raw) = told[told.len() / 2];
    figure(
        &format!("items_{name}"),
        ours,
        "1/s",
        &format!("{:.1}", part * raw),
        &format!("{words} {raw:.1}/s; ratios of all rounds {}", ratios.join(" ")),
    );
    cost(name, &spent, items * rounds);
    Ok(())
}

/// Processor time for an item, by kind of process.
fn cost(name: &str, spent: &Spent, items: u32) {
    for (kind, words, ms) in spent.per(items).filter(|(kind, ..)| OWN.contains(kind)) {
        figure(&format!("cpu_per_item_{name}_{kind}"), ms * 1e3, "us", "-", words);
    }
}

/// What a large map costs.
async fn size(bench: &Bench, large: &Large) -> anyhow::Result<()> {
    let Large { name, items, bytes } = *large;
    // A value is JSON, in quotes.
    let source = format!("def main(item):\n    return 'x' * {}\n", bytes - 2);
    let work = json!({"forEach": {"count": items}, "function": {"source": source}});
    let task_name = format!("map-{}", name.replace('_', "-"));
    let task = Bench::task(&task_name, REUSED, work)?;
    let raw = f64::from(items) / raw_write(u64::from(items) * bytes as u64)?.as_secs_f64();
    let base = format!("namespaces/{}/tasks/{task_name}", bench.namespace);
    let object = format!("/apis/skyward.dev/v1alpha1/{base}");

    let memory_before = controller_memory(&bench.client).await?.anonymous;
    let writes_before = writes(bench).await?;
    let before = Snapshot::take();
    let begun = Instant::now();
    bench.tasks().create(&PostParams::default(), &task).await?;
    let (mut largest, mut memory) = (0, memory_before);
    loop {
        tokio::time::sleep(LOOK).await;
        let text = get(bench, &object).await?;
        largest = largest.max(text.len());
        memory = memory.max(controller_memory(&bench.client).await?.anonymous);
        let found: Value = serde_json::from_str(&text)?;
        match found["status"]["phase"].as_str() {
            Some("Succeeded") => break,
            Some("Failed") => bail!("the map failed: {}", found["status"]),
            _ => anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "the map does not end: {}",
                found["status"]
            ),
        }
    }
    let took = begun.elapsed();
    let mut spent = Spent::default();
    spent.add(&before, &Snapshot::take());
    let written = writes(bench).await? - writes_before;

    figure(
        &format!("map_{name}"),
        f64::from(items) / took.as_secs_f64(),
        "1/s",
        "-",
        &format!("the same bytes in files of 8 MiB, each flushed, {raw:.0}/s"),
    );
    cost(name, &spent, items);
    let (kib, mib) = (1024.0, f64::from(1 << 20));
    let name = format!("map_{name}");
    let object_kib = largest as f64 / kib;
    figure(
        &format!("{name}_object"),
        object_kib,
        "KiB",
        "64",
        "the largest seen",
    );
    figure(
        &format!("{name}_writes"),
        written as f64,
        "writes",
        &format!("{:.0}", 20.0 + took.as_secs_f64() / 30.0),
        &format!("in {:.0} s", took.as_secs_f64()),
    );
    figure(
        &format!("{name}_memory"),
        memory.saturating_sub(memory_before) as f64 / mib,
        "MiB",
        "32",
        &format!("beyond {:.1} MiB before", memory_before as f64 / mib),
    );
    let mut slowest = Duration::ZERO;
    for index in [0, items / 4, items / 2, items / 4 * 3, items - 1] {
        slowest = slowest.max(page(bench, &base, index).await?);
    }
    figure(
        &format!("{name}_page"),
        ms(slowest),
        "ms",
        "50",
        "the slowest of five pages, each the median of five reads",
    );
    bench.tasks().delete(&task_name, &DeleteParams::default()).await?;
    Ok(())
}

/// Time until a page of items is read, from that index on.
async fn page(bench: &Bench, base: &str, index: u32) -> anyhow::Result<Duration> {
    let path = format!("/apis/subresources.skyward.dev/v1alpha1/{base}/result/items?from={index}");
    let mut samples = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let text = get(bench, &path).await?;
        samples.push(begun.elapsed());
        let first: Value = serde_json::from_str(text.lines().next().unwrap_or_default())?;
        anyhow::ensure!(
            first["index"] == index,
            "the page of item {index} begins with {first}"
        );
    }
    Ok(percentile(&mut samples, 0.5))
}

async fn get(bench: &Bench, path: &str) -> anyhow::Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(bench.client.request_text(request).await?)
}

/// Writes to Tasks so far.
async fn writes(bench: &Bench) -> anyhow::Result<u64> {
    let counts = bench.writes().await?;
    let of_tasks = counts.iter().filter(|(key, _)| key.contains(" tasks/"));
    Ok(of_tasks.map(|(_, count)| count).sum())
}

fn python(program: &str, arguments: &[String]) -> anyhow::Result<f64> {
    let output = Command::new("python3")
        .args(["-c", program])
        .args(arguments)
        .env("PYTHONPATH", LIBRARY)
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "the raw limit in Python: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

fn raw_reused(items: u32, wait: f64) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("values").to_string_lossy().into_owned();
    let arguments = [items.to_string(), wait.to_string(), PLACES.to_string(), path];
    python(RAW_REUSED, &arguments)
}

fn raw_fresh(items: u32) -> anyhow::Result<f64> {
    python(RAW_FRESH, &[items.to_string(), PLACES.to_string()])
}

/// Commands in a second that are started and waited for.
fn raw_command(items: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let begun = Instant::now();
    let one = |thread: u32| -> anyhow::Result<()> {
        for _ in 0..items / PLACES {
            let out = fs::File::create(folder.path().join(thread.to_string()))?;
            let status = Command::new("true")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(out.try_clone()?)
                .stderr(out)
                .status()?;
            anyhow::ensure!(status.success(), "`true` failed");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..PLACES)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of the raw limit panicked")))
        })
    })?;
    Ok(f64::from(items) / begun.elapsed().as_secs_f64())
}

/// Time to write so many bytes as the log of a map does.
fn raw_write(bytes: u64) -> anyhow::Result<Duration> {
    const OBJECT: u64 = 8 << 20;
    let folder = tempfile::tempdir()?;
    let object = vec![b'x'; usize::try_from(OBJECT)?];
    let begun = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let count = left.min(OBJECT);
        let mut file = fs::File::create(folder.path().join(left.to_string()))?;
        file.write_all(&object[..usize::try_from(count)?])?;
        file.sync_data()?;
        left -= count;
    }
    Ok(begun.elapsed())
}
