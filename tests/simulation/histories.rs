//! What is told: a healthy life with one fault, histories from seeds, and a few stories with a point.

use rand::Rng;
use serde_json::json;
use skyward_core::provider::MarkWriters;

use crate::{
    kinds::{ALL, Kind},
    planted::Fault,
    play::Play,
    shortages::Shortage,
    time::{HOUR, MINUTE, Moment, SECOND},
    world::{Odds, TEAM, World, one_of},
};

/// Until each sweep has seen everything twice.
const ALL_SWEEPS: i64 = 1_400 * SECOND;
/// Until what a Pool without a trace left behind is returned.
const A_DAY: i64 = 26 * HOUR;
/// Of so many histories one has a restore.
const RESTORES: u64 = 16;

/// A Pool of two at a cloud of that kind gets its machines and gives them back: told of an operator with that
/// bug.
pub(crate) fn calm(kind: usize, planted: Option<Fault>) -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.truth().planted = planted;
    play.world.add_provider("a", ALL[kind]);
    play.world.truth().add_stranger("a-1");
    play.add_pool("x", &["a"], 2);
    play.add_task_of("All");
    play.settle(0, HOUR / 2, World::unrest);
    if play.is_broken() {
        return play;
    }
    play.add_task_of("One");
    play.pass(5 * SECOND);
    play.delete_all("tasks", TEAM);
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, HOUR, |world| {
        let mut left = world.remains(&accounts);
        left.extend(world.stored_in_vain());
        left
    });
    play.world.meter_agrees();
    play
}

/// A Task with a Pool of two machines of its own, at a cloud of that kind, runs once, and its Pool goes with its end; or a
/// user deletes the Task after that time. No garbage collector helps.
pub(crate) fn whole_job(kind: usize, deleted_after: Option<Moment>) -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.add_provider("a", ALL[kind]);
    play.world.truth().add_stranger("a-1");
    // Each process has a look at the world without the Task, too.
    play.pass(10 * SECOND);
    play.add_whole_job("job", "a", 2);
    if let Some(time) = deleted_after {
        play.pass(time);
        play.delete_all("tasks", TEAM);
    }
    let accounts = play.world.accounts_in_use();
    play.settle(2 * MINUTE, HOUR, |world| {
        let mut left = world.remains(&accounts);
        left.extend(world.task_unrest());
        left.extend(world.books());
        left
    });
    let changes = play.world.server.changes_since(0);
    let made = changes
        .iter()
        .filter(|change| change.plural() == "pools" && change.before.is_none() && !change.gone)
        .count();
    let is_right = if deleted_after.is_some() {
        made <= 1
    } else {
        made == 1
    };
    play.world
        .truth()
        .rule(is_right, || format!("{made} Pools were made for one Task"));
    play.world.meter_agrees();
    play
}

/// The history of a seed.
pub(crate) fn history(seed: u64) -> Play {
    with_fault(seed, None)
}

/// The history of a seed, told of an operator with that bug.
pub(crate) fn with_fault(seed: u64, planted: Option<Fault>) -> Play {
    let mut play = Play::new(seed, Play::some_odds);
    play.world.truth().planted = planted;
    let mut providers = vec!["a"];
    let restores = seed % RESTORES == RESTORES - 1;
    let mut kind = some_kind(&mut play);
    // A restored cluster has its Pods back.
    while restores && kind.capabilities.mark_writers == MarkWriters::Namespaces {
        kind = some_kind(&mut play);
    }
    play.world.add_provider("a", kind);
    if !restores && play.random.random_ratio(1, 4) {
        let kind = some_kind(&mut play);
        play.world.add_provider("b", kind);
        providers.push("b");
    }
    play.world.truth().add_stranger("a-1");
    let pools = one_of(&mut play.random, &["x", "x", "xy"]).chars();
    for pool in pools {
        let desired = play.random.random_range(1..3);
        play.add_pool(&pool.to_string(), &providers, desired);
    }
    for _ in 0..play.random.random_range(0..4) {
        play.add_task();
    }
    if !restores && planted.is_none() {
        play.perhaps_add_map(seed);
    }
    if restores {
        restored(&mut play);
    } else {
        undisturbed(&mut play);
    }
    play
}

fn some_kind(play: &mut Play) -> &'static Kind {
    ALL[play.random.random_range(0..ALL.len())]
}

/// Everything that may happen happens, perhaps something runs short, then all is calm; the Pools go, nothing of
/// them is left, and the Providers go.
fn undisturbed(play: &mut Play) {
    let acts: [fn(&mut Play); 5] = [
        |play| {
            let steps = play.random.random_range(5..20);
            play.turbulence(steps);
        },
        |play| {
            let shortages = [
                Shortage::Stock,
                Shortage::Room,
                Shortage::Credentials,
                Shortage::Money,
            ];
            let shortages = [None, None].into_iter().chain(shortages.map(Some));
            let all: Vec<_> = shortages.collect();
            if let Some(of) = one_of(&mut play.random, &all) {
                play.run_short(of);
            }
        },
        |play| {
            play.put_right_for_good();
            play.settle(0, 4 * HOUR, World::unrest);
        },
        |play| {
            play.delete_all("pools", TEAM);
            play.turbulence(3);
            play.put_right_for_good();
            play.settle(0, 2 * HOUR, |world| world.remains(&world.accounts_in_use()));
            play.delete_all("tasks", TEAM);
        },
        // Orphans at former accounts are found there, and what machines shared. A person decides about machines
        // without a trace.
        |play| {
            play.other_accounts();
            play.settle(0, 2 * ALL_SWEEPS, World::untold_orphans);
            if play.decide("End") {
                play.settle(0, 2 * ALL_SWEEPS, World::orphans);
            }
            play.settle(0, A_DAY, |world| world.left_at(&world.accounts_in_use()));
            play.other_accounts();
            play.settle(0, A_DAY, |world| world.left_at(&world.accounts_in_use()));
        },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        if play.is_broken() {
            return;
        }
        let is_whole = play.world.truth().torn.is_empty();
        if number == 3 && is_whole && play.random.random_ratio(1, 4) {
            return all_at_once(play);
        }
        act(play);
    }
    if !play.is_broken() {
        play.delete_all("providers", "");
        play.settle(0, HOUR, World::providers_left);
        play.world.meter_agrees();
    }
}

/// Pools and Providers go together, as a GitOps tool deletes them: in no helpful order. Orphans at former accounts
/// cannot be found then.
fn all_at_once(play: &mut Play) {
    let accounts = play.world.accounts_in_use();
    play.delete_all("pools", TEAM);
    play.delete_all("providers", "");
    play.settle(0, 2 * HOUR, |world| {
        let mut left = world.remains(&accounts);
        left.extend(world.providers_left());
        left
    });
    play.world.meter_agrees();
}

/// The API server goes back to a backup; a person decides what becomes of the machines that it forgot.
fn restored(play: &mut Play) {
    for act in 0..3 {
        let steps = play.random.random_range(5..15);
        play.turbulence(steps);
        if play.is_broken() {
            return;
        }
        match act {
            0 => {
                play.back_up();
                if play.random.random_ratio(1, 3) {
                    play.add_pool("new", &["a"], 2);
                }
            }
            1 => play.restore(),
            _ => {}
        }
    }
    let what = one_of(&mut play.random, &["End", "Adopt"]);
    for _ in 0..4 {
        play.put_right();
        play.pass(15 * MINUTE);
        if play.is_broken() || !play.decide(what) {
            break;
        }
        play.pass(15 * MINUTE);
        play.stop_adopted();
    }
    if !play.is_broken() {
        play.settle(5 * MINUTE, 4 * HOUR, World::unrest);
    }
}

/// A Pool whose machines shared a key at an account goes while its Provider has the credentials of another
/// account. They come back, and the key is returned.
pub(crate) fn former_account() -> Play {
    let mut kinds = ALL.into_iter();
    let kind = kinds.find(|kind| kind.shares && !kind.is_regional());
    let kind = kind.expect("one of the clouds has keys");
    let mut play = Play::new(0, |_| Odds::default());
    play.world.add_provider("a", kind);
    play.add_pool("x", &["a"], 1);
    play.settle(0, HOUR / 2, World::unrest);
    play.change_pool("x", json!({ "suspend": true }));
    play.settle(0, HOUR / 2, World::unrest);
    play.give_credentials("a", "a-2");
    play.pass(HOUR / 2);
    play.delete_all("pools", TEAM);
    play.settle(0, HOUR / 2, |world| world.remains(&world.accounts_in_use()));
    let left = play.world.left_at(&std::iter::once("a-1".to_owned()).collect());
    play.world
        .truth()
        .rule(left.len() == 1, || format!("at the former account are {left:?}"));
    play.give_credentials("a", "a-1");
    play.settle(0, HOUR / 2, |world| world.left_at(&world.accounts_in_use()));
    play
}
