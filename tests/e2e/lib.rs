//! Stories of users on a real cluster; they are tests, in `main.rs`. Stories that nothing else can
//! run beside are in `chart.rs`, `leadership.rs` and `operator.rs`.
