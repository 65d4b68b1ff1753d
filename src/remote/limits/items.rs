//! What an agent says of the workers of a map and their items.

use super::{Broken, at_most, end, ensure, number_of};
use crate::protocol::{FromWorkers, ItemEnded, VALUE_BYTES, from_workers, is_run_id};

/// Ranges of items that one worker holds.
const RANGES: usize = 4096;

/// What is told of a worker of a map.
pub(crate) fn worker(told: &FromWorkers, task_uid: &str) -> Result<(), Broken> {
    let rest = told
        .run_id
        .strip_prefix(task_uid)
        .and_then(|rest| rest.strip_prefix('-'));
    ensure(rest.is_some() && is_run_id(&told.run_id), || {
        "news of a run of another map than the one that was asked for".to_owned()
    })?;
    let items = |first: u32, count: u32| {
        ensure(first.checked_add(count).is_some(), || {
            "items with numbers of more than 32 bits".to_owned()
        })
    };
    match &told.message {
        Some(from_workers::Message::Holds(from_workers::Holds { ranges })) => {
            number_of("ranges of items", ranges.len(), RANGES)?;
            ranges
                .iter()
                .try_for_each(|range| items(range.first, range.count))
        }
        Some(from_workers::Message::Released(released)) => items(released.first, released.count),
        Some(from_workers::Message::Ended(ended)) => {
            let ItemEnded {
                position: _,
                index,
                attempt: _,
                ending: _,
                exit_code: _,
                signal,
                message,
                exception,
                microseconds: _,
                value,
            } = ended;
            items(*index, 1)?;
            end(*signal, message, exception)?;
            at_most("the value of an item", value.len(), VALUE_BYTES)
        }
        // None: news of a newer agent, which it may not tell before it is asked to.
        Some(from_workers::Message::Told(_)) | None => Ok(()),
    }
}
