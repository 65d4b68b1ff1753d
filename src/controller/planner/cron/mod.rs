//! What a CronTask makes, and when. Begin reading at [`plan`]; [`schedule`] knows the times, [`facts`] what is known
//! of the Tasks that it has made.

pub mod facts;
pub mod plan;
pub mod schedule;
#[cfg(test)]
mod tests;
