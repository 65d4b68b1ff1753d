//! Tests of user stories on a real cluster, in `main.rs`. Stories that cannot run beside others are
//! in `chart.rs`, `leadership.rs` and `operator.rs`.
