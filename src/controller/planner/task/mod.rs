//! What becomes of the Tasks of one Pool. Begin reading at `dispatcher/mod.rs`: a state machine
//! without I/O, whose tests drop it at any moment and build it anew.
//!
//! - [`dispatcher`]: takes [`message`]s in and says what is to be done; [`run`]: what agents tell it.
//! - [`model`]: what it knows of Tasks, the Pool and its Machines; [`references`]: what was read from
//!   Secrets.
//! - [`own_pool`]: the Pool that is made for one Task.
//! - [`git`]: which credential goes to which host; what a failed fetch means.
//! - [`cost`]: what runs cost.
//! - [`dependencies`]: whether the Tasks that a Task depends on let it start.
//! - [`retries`]: what follows when runs fail by themselves; [`kept`]: ranks that do not run again then.
//! - [`placement`]: which machines a Task gets; [`status`]: what users see.

pub mod cost;
pub mod dependencies;
pub mod dispatcher;
pub mod git;
pub mod kept;
pub mod message;
pub mod model;
pub mod own_pool;
pub mod placement;
pub mod references;
pub mod retries;
pub mod run;
pub mod status;
