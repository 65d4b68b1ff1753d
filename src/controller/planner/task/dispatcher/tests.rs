//! A world of Task objects, machines and agents that loses answers, machines and
//! controllers at any moment; whatever happens, each Task ends once and with its result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use skyward_api::{
    Task, TaskPhase, TaskStatus,
    condition::{self, reason},
    task::{RetryScope, RunResult, SourceStatus},
};
use skyward_core::session::AgentError;

use super::*;
use crate::task::{
    dependencies::Found,
    message::{
        CollectError, Collected, FetchKey, FetchOrder, FetchedSource, MapNews, MapTold, PoolError,
        Remembered, StartError, StartOrder, WriteError,
    },
    model::Entry,
    references::Resolved,
    run::{Ending, Fact, Finished, Permit, RunState},
};

mod agents;
mod chaos;
mod costs;
mod demand;
mod depending;
mod faults;
mod git;
mod holds;
mod keeping;
mod maps;
mod order;
mod own_pool;
mod processes;
mod progress;
mod restored;
mod retries;
mod stories;
mod told;
mod waits;
mod world;
