//! The custom resources on a real API server: what it accepts, what it refuses and with which
//! message, what may change, and what `kubectl` and autoscalers see.

mod admission;
mod changes;
mod exchanges;
mod limits;
mod manifests;
mod records;
mod serving;
mod taken;
mod words;
