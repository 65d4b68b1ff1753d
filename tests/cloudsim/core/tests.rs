//! The core through its doors: the world, and the controls of another process.

mod controls;
mod worlds;
