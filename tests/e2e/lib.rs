//! Stories of users on a real cluster; they are tests, in `main.rs`, and in `chart.rs`,
//! `leadership.rs` and `operator.rs` those that nothing else can run beside.
