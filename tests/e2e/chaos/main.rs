//! Chaos on the local cluster: `make soak ONLY=chaos`. In each round processes are killed and paused,
//! links cut and slowed, disks filled and the clock stepped, at moments that a seed chooses, while Tasks
//! and the items of a map run that tell a ledger outside of the cluster when they begin and end. Then the
//! rules of [`ledger`], and those for items of the testkit, must hold, and nothing of the round may stay.
//!
//! - [`happenings`]: the timetable of a seed.
//! - [`effects`]: carries it out, and undoes it.
//! - [`components`]: the processes of the cluster, and their guard.
//! - [`scene`]: what is seen of the cluster meanwhile.
//! - [`work`]: the Tasks and the map.
//! - [`ledger`]: what must hold.
//!
//! `SKYWARD_SEED` is the seed of the first round, the next round has the next one. `CHAOS_ROUNDS` and
//! `CHAOS_MINUTES` say how many rounds there are: one where both are left out. With `CHAOS_TIMES=2` twice
//! as much happens in each. `CHAOS_CLOCK=1` allows steps of the clock.

#![expect(
    clippy::print_stdout,
    reason = "the timetable and the figures are for the person who runs it"
)]

mod components;
mod effects;
mod happenings;
mod ledger;
mod scene;
mod work;

use std::{
    collections::BTreeMap,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use skyward_api::{Machine, Pool, Task, TaskPhase, TaskStatus};
use skyward_testkit::{Cluster, ItemMark, Ledger, MapRecord, Result, SMALL_DISK, Space};

use crate::{
    effects::Outcome,
    happenings::{Happening, MACHINES, Moment, WORK},
    ledger::{Carried, Expected, Job, Mark},
    scene::{Scene, Shared, copy, with},
};

/// Bound of all that must happen by itself.
const PATIENCE: u64 = 300;

/// Figures, by their names.
type Figures = BTreeMap<String, u64>;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many times more happens than usual.
fn times() -> u64 {
    number("CHAOS_TIMES").unwrap_or(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_each_attempt_runs_once_and_nothing_stays() -> Result {
    let first = number("SKYWARD_SEED").unwrap_or(1);
    let minutes = number("CHAOS_MINUTES").unwrap_or(0);
    let rounds = number("CHAOS_ROUNDS").unwrap_or(if minutes == 0 { 1 } else { u64::MAX });
    effects::undo_leftovers()?;
    let _guard = components::guard();
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    // The program has the cluster to itself: a story of an earlier one ended without its end.
    let leftovers = [
        "delete",
        "namespaces",
        "-l",
        "skyward-test=true",
        "--timeout=300s",
    ];
    cluster.kubectl(&leftovers).await?.ok()?;
    let providers = ["providers.skyward.dev", "-l", "skyward-test-story"];
    let allow = ["--overwrite", "skyward.dev/allow-deletion=true"];
    cluster
        .kubectl(&[&["annotate"], &providers[..], &allow].concat())
        .await?;
    cluster
        .kubectl(&[&["delete", "--wait=false"], &providers[..]].concat())
        .await?
        .ok()?;

    let begun = Instant::now();
    let mut totals = Figures::new();
    for seed in (first..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        if seed > first && minutes > 0 && begun.elapsed().as_secs() >= 60 * minutes {
            break;
        }
        let since = Instant::now();
        let figures = round(&cluster, seed).await.with_context(|| {
            let times = times();
            format!(
                "seed {seed} failed; again: CHAOS_TIMES={times} make soak ONLY=chaos SEED={seed} ROUNDS=1"
            )
        })?;
        let shown: Vec<String> = figures
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!(
            "  seed {seed} passed in {} s: {}",
            since.elapsed().as_secs(),
            shown.join(", ")
        );
        *totals.entry("rounds".to_owned()).or_default() += 1;
        for (name, count) in figures {
            *totals.entry(name).or_default() += count;
        }
    }
    totals.insert("seconds".to_owned(), begun.elapsed().as_secs());
    for (name, count) in totals {
        println!("chaos_{} {count}", name.replace(' ', "_"));
    }
    Ok(())
}

/// Looks until it finds something. An answer that fails or does not come is no answer.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let found = tokio::time::timeout(Duration::from_secs(10), look()).await;
        match found {
            Ok(Ok(Some(found))) => return Ok(found),
            Ok(Err(error)) if Instant::now() >= deadline => {
                return Err(error.context(format!("{what}: not within {PATIENCE} s")));
            }
            _ if Instant::now() >= deadline => bail!("{what}: not within {PATIENCE} s"),
            _ => tokio::time::sleep(Duration::from_millis(250)).await,
        }
    }
}

/// The result store keeps a tenth of its volume for ends of runs and small values. Here the volume is the
/// disk of this machine: on a fuller disk large values wait, and their Tasks do not end.
fn ensure_room() -> Result {
    let store =
        std::env::var("SKYWARD_STORE_DIR").context("SKYWARD_STORE_DIR is not set; run `make soak`")?;
    let output = effects::run(Command::new("df").args(["--output=pcent", &store]))?;
    let used = used_percent(&String::from_utf8_lossy(&output.stdout));
    let used = used.with_context(|| format!("df does not say how full the disk of {store} is"))?;
    anyhow::ensure!(
        used < 89,
        "{used} % of the disk of {store} are used: above 90 % the result store takes no large values; make room"
    );
    Ok(())
}

/// What `df --output=pcent` prints: a headline, and then the percentage.
fn used_percent(printed: &str) -> Option<u64> {
    printed.lines().nth(1)?.trim().strip_suffix('%')?.parse().ok()
}

/// What the parts of a round share.
struct Round {
    space: Space,
    scene: Shared<Scene>,
    marks: Shared<Vec<Mark>>,
    item_marks: Shared<Vec<ItemMark>>,
    map: Shared<MapRecord>,
    carried: Shared<Vec<Carried>>,
}

async fn round(cluster: &Cluster, seed: u64) -> Result<Figures> {
    ensure_room()?;
    let timetable = happenings::timetable(seed, times());
    println!("round with seed {seed}");
    for (part, moments) in [("work", &timetable.work), ("end", &timetable.end)] {
        for moment in moments {
            println!("  {part} {moment}");
        }
    }
    let space = cluster.namespace("chaos").await?;
    let round = Round {
        space,
        scene: Shared::default(),
        marks: Shared::default(),
        item_marks: Shared::default(),
        map: Shared::default(),
        carried: Shared::default(),
    };
    let mut jobs = round.whole(seed, &timetable.work, &timetable.end).await?;
    let (marks, carried) = (copy(&round.marks), copy(&round.carried));
    let ended = copy(&round.scene).ended;
    for job in &mut jobs {
        job.ended = ended.get(&job.name).cloned();
    }
    let mut broken = ledger::broken(&jobs, &marks, &carried);
    let map = round.map(&carried);
    broken.extend(map.broken(|_| false));
    anyhow::ensure!(
        broken.is_empty(),
        "broken rules:\n  {}\ncarried out: {carried:#?}",
        broken.join("\n  ")
    );
    let figures = figures(&jobs, &marks, &map, &carried);
    round.space.finish().await?;
    Ok(figures)
}

impl Round {
    /// All of a round but its rules; returns its Tasks as they are at its end.
    async fn whole(&self, seed: u64, work: &[Moment], end: &[Moment]) -> Result<Vec<Job>> {
        let space = &self.space;
        let ledger = Ledger::start(&space.cluster, self.marks.clone()).await?;
        let items = Ledger::start(&space.cluster, self.item_marks.clone()).await?;
        let provider = space
            .provider("p", json!({"container": {"privileged": true}}))
            .await?;
        let spec = json!({
            "provider": provider,
            "image": {"shellVars": {"DISK": SMALL_DISK}},
            "worker": {"concurrency": 4},
            "timeouts": {"shutdown": "2s"},
        });
        space.pool("p", MACHINES as u32, spec).await?;
        space.pool_ready("p").await?;
        let watch = scene::watch(space, self.scene.clone(), self.marks.clone());
        until("all machines are seen", async || {
            Ok((copy(&self.scene).machines.len() == MACHINES as usize).then_some(()))
        })
        .await?;

        let api = space.api::<Task>();
        let spec = work::map(&items.address);
        until("the map is created", async || {
            work::create(&api, work::MAP, &spec).await.map(Some)
        })
        .await?;
        let item_watch = work::watch_items(space, self.map.clone(), self.item_marks.clone());
        let planned: Vec<(Job, Value)> = (0..work::TASKS)
            .map(|i| work::job(seed, i, &ledger.address))
            .collect();
        tokio::try_join!(self.create(&planned), self.all_happen(work))?;
        until("all Tasks ended", async || {
            let ended = copy(&self.scene).ended.len();
            Ok((ended == planned.len() + 1).then_some(()))
        })
        .await
        .with_context(|| {
            let ended = copy(&self.scene).ended;
            let names = planned.iter().map(|(job, _)| job.name.as_str());
            let open = names.chain([work::MAP]).filter(|name| !ended.contains_key(*name));
            format!("these Tasks did not end: {:?}", open.collect::<Vec<_>>())
        })?;

        tokio::try_join!(self.delete_pool(), self.all_happen(end))?;
        drop((watch, item_watch));
        let mut jobs: Vec<Job> = planned.into_iter().map(|(job, _)| job).collect();
        let tasks = until("Tasks are listed", async || {
            let tasks = space.api::<Task>().list(&ListParams::default()).await?;
            Ok(Some(tasks.items))
        })
        .await?;
        let map = tasks
            .iter()
            .find(|task| task.metadata.name.as_deref() == Some(work::MAP));
        self.end_of_map(map.and_then(|task| task.status.as_ref())).await?;
        for task in tasks {
            let named = |job: &&mut Job| Some(&job.name) == task.metadata.name.as_ref();
            if let Some(job) = jobs.iter_mut().find(named) {
                job.last = task.status;
            }
        }
        self.compare_large(&jobs).await?;
        Ok(jobs)
    }

    /// The map is whole, and stays as it ended; what the operator says of its items is kept.
    async fn end_of_map(&self, last: Option<&TaskStatus>) -> Result {
        let ended = copy(&self.scene).ended;
        let first = ended.get(work::MAP).map(|(status, _)| status);
        anyhow::ensure!(
            first == last,
            "the map changed after its end, from {first:?} to {last:?}"
        );
        let items = last.and_then(|status| status.items.as_ref());
        let is_whole = items.is_some_and(|items| items.succeeded == work::ITEMS);
        let has_succeeded = last.and_then(|status| status.phase) == Some(TaskPhase::Succeeded);
        anyhow::ensure!(is_whole && has_succeeded, "the map did not succeed: {last:#?}");
        let (cluster, namespace) = (&self.space.cluster, &self.space.name);
        let outcomes = until("the items of the map are read", async || {
            cluster.items(namespace, work::MAP).await.map(Some)
        })
        .await?;
        with(&self.map, |map| map.outcomes = outcomes);
        Ok(())
    }

    /// All that is known of the map, for its rules.
    fn map(&self, carried: &[Carried]) -> MapRecord {
        // An item that a full disk makes fail runs again, as one that is interrupted.
        let hits = carried
            .iter()
            .filter(|one| one.what.interrupts() || one.what == Happening::DiskFilled);
        MapRecord {
            total: work::ITEMS,
            marks: copy(&self.item_marks),
            hit: hits.filter_map(|one| one.machine.clone()).collect(),
            ..copy(&self.map)
        }
    }

    async fn create(&self, planned: &[(Job, Value)]) -> Result {
        let api = self.space.api::<Task>();
        let mut ticks = tokio::time::interval(WORK / work::TASKS);
        for (job, spec) in planned {
            ticks.tick().await;
            until("a Task is created", async || {
                work::create(&api, &job.name, spec).await.map(Some)
            })
            .await?;
        }
        Ok(())
    }

    /// Carries out a part of the timetable, and waits until all of it is undone.
    async fn all_happen(&self, moments: &[Moment]) -> Result {
        let begun = Instant::now();
        let each = moments.iter().map(|moment| self.happens(moment, begun));
        futures::future::try_join_all(each).await.map(drop)
    }

    async fn happens(&self, moment: &Moment, begun: Instant) -> Result {
        tokio::time::sleep_until((begun + moment.at).into()).await;
        let outcome = effects::carry_out(moment, &copy(&self.scene))?;
        match outcome {
            Outcome::Missed(why) => println!("    missed: {moment}: {why}"),
            Outcome::Carried(machine, undo) => {
                let name = machine.clone().unwrap_or_default();
                let what = moment.what;
                // For a comparison with the logs of the cluster.
                println!("    {:.3}: {what} {name}", jiff::Timestamp::now());
                with(&self.carried, |carried| carried.push(Carried { what, machine }));
                if what == Happening::PodDeleted {
                    self.delete_pod(&name).await?;
                }
                effects::hold(undo, moment.lasts).await;
            }
        }
        Ok(())
    }

    async fn delete_pod(&self, name: &str) -> Result {
        let api = self.space.api::<Pod>();
        until("the Pod is deleted", async || {
            match api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(())),
                Err(error) => Err(error.into()),
                Ok(_) => Ok(Some(())),
            }
        })
        .await
    }

    /// Deletes the Pool, and waits until nothing of it is there.
    async fn delete_pool(&self) -> Result {
        let api = self.space.api::<Pool>();
        until("the Pool is deleted", async || {
            if api.get_opt("p").await?.is_none() {
                return Ok(Some(()));
            }
            api.delete("p", &DeleteParams::default()).await?;
            Ok(None)
        })
        .await?;
        until("no Machine and no Pod is left", async || {
            let left = self.space.count::<Machine>().await? + self.space.count::<Pod>().await?;
            Ok((left == 0).then_some(()))
        })
        .await
    }

    /// Large return values are stored as they were returned.
    async fn compare_large(&self, jobs: &[Job]) -> Result {
        for job in jobs {
            let Expected::Bytes(bytes) = job.expected else {
                continue;
            };
            let succeeded = |status: &TaskStatus| status.reason == "Succeeded";
            if !job.last.as_ref().is_some_and(succeeded) {
                continue;
            }
            let args = [
                "skyward",
                "results",
                &job.name,
                "-o",
                "raw",
                "-n",
                &self.space.name,
            ];
            let wanted = format!("\"{}\"", "x".repeat(usize::try_from(bytes - 2)?));
            until("a result is read", async || {
                let stored = self.space.cluster.kubectl(&args).await?.ok()?;
                anyhow::ensure!(
                    stored.trim() == wanted,
                    "the result of {} has {} bytes and is not what was returned",
                    job.name,
                    stored.len()
                );
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }
}

fn figures(jobs: &[Job], marks: &[Mark], map: &MapRecord, carried: &[Carried]) -> Figures {
    let mut figures = Figures::new();
    let mut add = |name: &str, count: u64| *figures.entry(name.to_owned()).or_default() += count;
    for (status, _) in jobs.iter().filter_map(|job| job.ended.as_ref()) {
        add("tasks", 1);
        add("attempts", u64::from(status.attempt));
        add(&format!("tasks {}", status.reason), 1);
    }
    add("marks", marks.len() as u64);
    add("items", map.outcomes.len() as u64);
    let attempts = map.outcomes.iter().map(|item| u64::from(item.attempt));
    add("item attempts", attempts.sum());
    add("item marks", map.marks.len() as u64);
    for one in carried {
        let what = match one.what {
            Happening::ClockStepped(_) => "the clock is stepped".to_owned(),
            what => what.to_string(),
        };
        add("happenings", 1);
        add(&format!("happenings: {what}"), 1);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullness_of_a_disk_is_read_from_the_second_line() {
        assert_eq!(used_percent("Use%\n 91%\n"), Some(91));
        assert_eq!(used_percent("Use%\n"), None);
    }
}
