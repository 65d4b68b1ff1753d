//! Large return values.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::measure::{Bench, figure, ms, percentile};

const POOL: &str = "results";

/// A function that returns 10 MB, against one that returns nothing.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    bench.create_pool(POOL, 1, 1).await?;
    bench.wait_ready(POOL, 1).await?;
    let mut small = Vec::new();
    let mut large = Vec::new();
    for i in 0..7 {
        for (size, samples) in [(0_u32, &mut small), (10_000_000, &mut large)] {
            let source = format!("def main():\n    return 'x' * {size}\n");
            let task = Bench::task(
                &format!("result-{size}-{i}"),
                POOL,
                json!({"function": {"source": source}}),
            )?;
            samples.push(bench.run_task(&task).await?.0);
        }
    }
    let base = percentile(&mut small, 0.5);
    let whole = percentile(&mut large, 0.5);
    figure("function_noop_p50", ms(base), "ms", "-", "-");
    let transfer = whole.saturating_sub(base).max(Duration::from_micros(1));
    let raw = raw_copy();
    figure(
        "result_10mb",
        10.0 / transfer.as_secs_f64(),
        "MB/s",
        "150",
        &format!("file copy with fsync {raw:.0} MB/s"),
    );
    bench.delete_pool(POOL).await
}

/// MB/s of writing 10 MB to a file and syncing it: what one durable copy takes on this machine.
fn raw_copy() -> f64 {
    use std::io::Write as _;
    let path = std::env::temp_dir().join(format!("skyward-bench-{}", std::process::id()));
    let data = vec![b'x'; 10_000_000];
    let start = Instant::now();
    let written =
        std::fs::File::create(&path).and_then(|mut f| f.write_all(&data).and_then(|()| f.sync_all()));
    let elapsed = start.elapsed();
    let _ = std::fs::remove_file(&path);
    if written.is_ok() {
        10.0 / elapsed.as_secs_f64()
    } else {
        0.0
    }
}
