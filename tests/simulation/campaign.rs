//! A history from a seed, and thousands of them.

use crate::{
    kinds::ALL,
    play::Play,
    time::{HOUR, MINUTE, now},
    world::{Odds, World},
};

/// A healthy world: a Pool of two gets its machines, and gives them back.
fn healthy(seed: u64) -> Play {
    let mut play = Play::new(seed, |_| Odds::default());
    play.world
        .add_provider("a", ALL[usize::try_from(seed).unwrap_or(0) % ALL.len()]);
    play.add_pool("x", &["a"], 2);
    play.settle(0, HOUR / 2, World::unrest);
    if !play.is_broken() {
        play.delete_all("pools", crate::world::TEAM);
        let accounts = play.world.accounts_in_use();
        play.settle(0, HOUR / 2, |world| world.remains(&accounts));
    }
    play
}

#[test]
fn a_pool_gets_its_machines_and_gives_them_back() {
    for seed in 0..5 {
        let begun = std::time::Instant::now();
        let play = healthy(seed);
        let truth = play.world.truth();
        if std::env::var_os("SKYWARD_TELL").is_some() {
            println!("{}", truth.trace.join("\n"));
        }
        println!(
            "seed {seed}: {} calls, {} s, {:?}",
            truth.boundaries / 2,
            now() / 1000,
            begun.elapsed()
        );
        assert_eq!(truth.broken, Vec::<String>::new());
        let _ = MINUTE;
    }
}
