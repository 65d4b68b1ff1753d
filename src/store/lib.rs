//! Where logs and results live after a run: an object store with a small layout of our own.
