//! What happens to the items of a map: a Task with `forEach`. Pure, as all of the planner: the records, the reports of
//! workers and the time are arguments (`docs/decisions/0024-maps.md` says why).
//!
//! A worker is one run of the Task on one place of a machine, and lives as long as the map has work for it. The
//! dispatcher starts and ends workers as any run; this module decides which items they run.
//!
//! - [`indices`]: sets of items. [`record`]: the records of a map's log, the only truth about its items.
//! - [`items`]: where each item is, as a fold over the records; `holders`: the worker of each granted item.
//! - [`pace`]: how many items make a chunk, and how many chunks are on their way to a worker.
//! - [`outcome`]: the stored form of the end of an item.
//! - [`fitness`]: whether an attempt of an item failed, or its machine could not begin it, or no machine could.
//! - [`matrix`], [`lines`]: the items of a matrix and of a file.
//! - [`plan`]: grants, chunks, recalls, and the end. Begin reading there.
//! - [`leader`]: what is kept from one plan to the next, and in which order things are stored, used and acknowledged.

pub mod fitness;
mod holders;
pub mod indices;
pub mod items;
pub mod leader;
pub mod lines;
pub mod matrix;
pub mod outcome;
pub mod pace;
pub mod plan;
pub mod record;
#[cfg(test)]
mod tests;
