//! `maxLifetime`: a Pool that has lived so long ends its runs and returns its machines, until its spec changes.
//!
//! It counts from the first plan that sees the field. What ended it is the digest of the spec without `nodes` and
//! `suspend`: an autoscaler that moves `nodes.desired` begins no other life.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    Duration as Lasting,
    condition::reason,
    pool::{PoolLifetime, PoolSpec},
};

use super::{
    bootstraps::tried_with,
    draft::{Block, Draft, Why},
};
use crate::base::time::{after, elapsed};

/// Finds whether the Pool has lived long enough.
pub(crate) fn plan(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let most = seen.pool.spec.max_lifetime.as_ref().and_then(Lasting::parse);
    let Some(most) = most else {
        draft.status.lifetime = None;
        return;
    };
    let begin = || PoolLifetime {
        since: Time(draft.now),
        ended_with: String::new(),
    };
    let mut life = seen.pool.status.lifetime.clone().unwrap_or_else(begin);
    // The clock of the leader that wrote it may have been ahead: no Pool lives longer for that.
    life.since.0 = life.since.0.min(draft.now);
    let digest = digest(&seen.pool.spec);
    if !life.ended_with.is_empty() && life.ended_with != digest {
        draft.because("the spec changed after maxLifetime: the Pool begins another life");
        life = PoolLifetime {
            since: Time(draft.now),
            ended_with: String::new(),
        };
    }
    let ends = after(life.since.0, most);
    if draft.now >= ends {
        life.ended_with = digest;
        draft.expired = true;
    } else {
        draft.requeue_after(elapsed(draft.now, ends));
    }
    draft.status.lifetime = Some(life);
}

fn digest(spec: &PoolSpec) -> String {
    tried_with(spec, Some(""), &BTreeMap::new()).unwrap_or_default()
}

/// Returns all machines of a Pool that has lived long enough.
pub(crate) fn end(draft: &mut Draft<'_>) {
    if !draft.expired {
        return;
    }
    let live: Vec<_> = draft.live().collect();
    for machine in live {
        draft.give_up(machine, Why::LifetimeExceeded, false);
    }
    let most = draft.seen.pool.spec.max_lifetime.as_ref();
    let most = most.map_or_else(String::new, ToString::to_string);
    let message = format!(
        "The Pool has lived for its maxLifetime of {most}; machines are returned and Tasks wait. Change its spec, such as maxLifetime, to go on, or delete it."
    );
    draft.block(Block::stalled(reason::LIFETIME_EXCEEDED, message));
}
