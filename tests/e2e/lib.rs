//! The tests of this crate are in main.rs.
