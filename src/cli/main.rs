//! kubectl skyward.
fn main() {}
