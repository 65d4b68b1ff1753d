//! Every seed, and every input that once failed, through its target: what was mended stays mended.

use std::{fs, panic, path::Path};

use skyward_fuzz::{TARGETS, target};

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

/// Runs an input, and names it where that fails.
fn replay(name: &str, what: &str, bytes: &[u8]) {
    let target = target(name).expect("a target of that name");
    assert!(
        panic::catch_unwind(|| (target.run)(bytes)).is_ok(),
        "target {name} fails with {what}"
    );
}

#[test]
fn every_seed_passes() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for (number, seed) in seeds.iter().enumerate() {
            replay(target.name, &format!("its seed {number}"), seed);
        }
    }
}

#[test]
fn every_input_that_once_failed_passes() {
    let mut replayed = 0;
    for folder in fs::read_dir(corpus()).unwrap().map(Result::unwrap) {
        let name = folder.file_name().into_string().unwrap();
        for input in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            let bytes = fs::read(input.path()).unwrap();
            replay(&name, &input.path().display().to_string(), &bytes);
            replayed += 1;
        }
    }
    assert!(replayed > 0, "there is a corpus");
}

/// Inputs that libFuzzer would find by itself, but not in the few seconds that an ordinary test has: each seed
/// cut short, and with each of its first bytes changed.
#[test]
fn every_seed_that_is_cut_or_changed_passes() {
    for target in TARGETS {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            for cut in (0..seed.len()).step_by(seed.len() / 24 + 1) {
                replay(
                    target.name,
                    &format!("its seed {number} cut at {cut}"),
                    &seed[..cut],
                );
                let mut changed = seed.clone();
                changed[cut] ^= 0x81;
                replay(
                    target.name,
                    &format!("its seed {number} changed at {cut}"),
                    &changed,
                );
            }
        }
    }
}
