//! What becomes of the items of a map: a Task with `forEach`. Pure, as all of the planner: what is on record, what
//! workers told and the time are arguments (`docs/decisions/0024-maps.md` says why).
//!
//! A worker is one run of the Task on one place of a machine, and lives as long as the map has work for it. The
//! dispatcher starts and ends workers as any run; this decides which items they run.
//!
//! - [`indices`]: sets of items. [`record`]: what the log of a map says; nothing else counts.
//! - [`items`]: where each item is, as a fold over the records.
//! - [`pace`]: how many items make a chunk, and how many chunks are on their way to a worker.
//! - [`outcome`]: what is stored of the end of an item.
//! - [`matrix`], [`lines`]: which items there are, where they are written as a matrix or in a file.
//! - [`plan`]: grants, chunks, recalls, and the end. Begin reading there.
//! - [`leader`]: what is kept from one plan to the next, and in which order things are stored, used and acknowledged.

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
