//! Tests of the core by its public interfaces: the world, and the controls for another process.

mod controls;
mod worlds;
