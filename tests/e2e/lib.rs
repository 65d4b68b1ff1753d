//! Stories of users on a real cluster; they are tests, in `main.rs` and `chart.rs`.
