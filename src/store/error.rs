//! The errors of the store.

use std::io::ErrorKind;

use crate::{MOST, quota::amount};

/// Why a call to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No room; the operator's volume must grow or Tasks must be deleted.
    #[error("the result store is full; enlarge its volume or delete Tasks that are no longer needed")]
    Full(#[source] object_store::Error),
    /// The namespace holds as much as it may.
    #[error(
        "namespace \"{namespace}\" holds {} in the result store, and its quota (store.quotaPerNamespace) is {}; delete Tasks of it that are no longer needed, give them a ttlSecondsAfterFinished, or have the quota raised",
        amount(*used),
        amount(*quota)
    )]
    QuotaExceeded {
        /// Which.
        namespace: String,
        /// What it holds, in bytes.
        used: u64,
        /// What it may hold.
        quota: u64,
    },
    /// The namespace holds as many files as it may.
    #[error(
        "namespace \"{namespace}\" holds {used} files and folders in the result store, and its part of the files and folders that the volume can hold (store.quotaPerNamespace) is {quota}; delete Tasks of it that are no longer needed, give them a ttlSecondsAfterFinished, or have the quota raised"
    )]
    TooManyFiles {
        /// Which.
        namespace: String,
        /// How many it holds.
        used: u64,
        /// How many it may hold.
        quota: u64,
    },
    /// The free room, in bytes or in files, is kept for ends of runs and small values.
    #[error(
        "the result store is full but for the tenth that is kept for ends of runs; enlarge its volume or delete Tasks that are no longer needed"
    )]
    Kept,
    /// Not an id of ours.
    #[error("\"{0}\" is not an id of a Task or run")]
    BadId(String),
    /// Bytes between the end of the log and this piece are missing.
    #[error("a piece of log starts at {start}, but must start at {end}")]
    Gap {
        /// Where the piece starts.
        start: u64,
        /// Where the log ends.
        end: u64,
    },
    /// A log or value would be larger than [`MOST`]; the piece was not stored.
    #[error("it is larger than {}", amount(MOST))]
    TooLarge,
    /// Too many uploads of a namespace are not finished.
    #[error(
        "too many uploads of this namespace are under way; wait until one of them has ended, or 15 minutes for one that nobody goes on with"
    )]
    TooManyUploads,
    /// Anything else.
    #[error("the result store does not answer as it should")]
    Other(#[source] object_store::Error),
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(current) = cause {
            if let Some(io) = current.downcast_ref::<std::io::Error>()
                && matches!(io.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            {
                return Self::Full(error);
            }
            cause = current.source();
        }
        Self::Other(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        object_store::Error::Generic {
            store: "directory",
            source: Box::new(error),
        }
        .into()
    }
}
