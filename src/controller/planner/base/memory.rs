//! Whether this cluster may have forgotten what it did.

/// What is known of this cluster's own memory: whether it is older than its machines, as after
/// a restore from a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterMemory {
    /// Not known yet: runs that no Task claims are left alone.
    #[default]
    Unproved,
    /// It is older: nothing is started, stopped, forgotten or given up.
    Held,
    /// Nothing says that it is older.
    Whole,
}
