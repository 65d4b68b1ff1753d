//! Functions that take any bytes at all and must neither panic nor take memory without a bound: what
//! machines, clouds, users and the API server's front proxy may send, through the code that reads it.
//!
//! [`TARGETS`] is the list. `hack/fuzz.sh` lets libFuzzer make up the bytes; the test `corpus.rs` replays the
//! seeds of each target and the inputs that once failed (`corpus/`), without any fuzzer
//! (docs/decisions/0018-hostile-bytes.md).

mod agent;
mod aws;
mod bootstrap;
mod bundles;
mod clouds;
mod document;
mod front_proxy;
mod input;
mod logs;
mod machine;
mod plans;
mod tasks;

/// One way for bytes into the operator or the agent.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, on the command line and as a folder of `corpus/`.
    pub name: &'static str,
    /// Takes bytes; panics where a rule is broken.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "agent-requests",
        run: agent::run,
        seeds: agent::seeds,
    },
    Target {
        name: "agent-answers",
        run: machine::run,
        seeds: machine::seeds,
    },
    Target {
        name: "logs",
        run: logs::run,
        seeds: logs::seeds,
    },
    Target {
        name: "bootstrap",
        run: bootstrap::run,
        seeds: bootstrap::seeds,
    },
    Target {
        name: "bundles",
        run: bundles::run,
        seeds: bundles::seeds,
    },
    Target {
        name: "front-proxy",
        run: front_proxy::run,
        seeds: front_proxy::seeds,
    },
    Target {
        name: "aws",
        run: aws::run,
        seeds: aws::seeds,
    },
    Target {
        name: "digitalocean",
        run: clouds::digitalocean::run,
        seeds: clouds::digitalocean::seeds,
    },
    Target {
        name: "gcp",
        run: clouds::gcp::run,
        seeds: clouds::gcp::seeds,
    },
    Target {
        name: "hyperstack",
        run: clouds::hyperstack::run,
        seeds: clouds::hyperstack::seeds,
    },
    Target {
        name: "jarvislabs",
        run: clouds::jarvislabs::run,
        seeds: clouds::jarvislabs::seeds,
    },
    Target {
        name: "lambda",
        run: clouds::lambda::run,
        seeds: clouds::lambda::seeds,
    },
    Target {
        name: "massedcompute",
        run: clouds::massedcompute::run,
        seeds: clouds::massedcompute::seeds,
    },
    Target {
        name: "novita",
        run: clouds::novita::run,
        seeds: clouds::novita::seeds,
    },
    Target {
        name: "runpod",
        run: clouds::runpod::run,
        seeds: clouds::runpod::seeds,
    },
    Target {
        name: "scaleway",
        run: clouds::scaleway::run,
        seeds: clouds::scaleway::seeds,
    },
    Target {
        name: "tensordock",
        run: clouds::tensordock::run,
        seeds: clouds::tensordock::seeds,
    },
    Target {
        name: "vastai",
        run: clouds::vastai::run,
        seeds: clouds::vastai::seeds,
    },
    Target {
        name: "verda",
        run: clouds::verda::run,
        seeds: clouds::verda::seeds,
    },
    Target {
        name: "vultr",
        run: clouds::vultr::run,
        seeds: clouds::vultr::seeds,
    },
    Target {
        name: "plans",
        run: plans::run,
        seeds: plans::seeds,
    },
    Target {
        name: "tasks",
        run: tasks::run,
        seeds: tasks::seeds,
    },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
