//! libFuzzer with all targets: `SKYWARD_FUZZ_TARGET` names the one that this process feeds, the arguments are
//! libFuzzer's own. With `SKYWARD_FUZZ_SEEDS` the target's seeds are written into that folder first.
#![no_main]

use std::{env, fs, path::PathBuf, sync::LazyLock};

use skyward_fuzz::{TARGETS, Target, target};

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = env::var("SKYWARD_FUZZ_TARGET").unwrap_or_default();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target(&name).unwrap_or_else(|| {
        eprintln!("SKYWARD_FUZZ_TARGET is {name:?}; it can be {}", names.join(", "));
        std::process::exit(2)
    })
});

fn write_seeds() {
    let Some(folder) = env::var_os("SKYWARD_FUZZ_SEEDS").map(PathBuf::from) else {
        return;
    };
    for (number, seed) in (CHOSEN.seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed)
            .expect("the folder of the seeds can be written");
    }
}

libfuzzer_sys::fuzz_target!(
    init: write_seeds(),
    |bytes: &[u8]| {
        (CHOSEN.run)(bytes);
    }
);
