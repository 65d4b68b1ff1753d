//! The errors of the store.

use std::{fmt, io::ErrorKind};

use object_store::client::{HttpError, HttpErrorKind};

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
        "the result store is full but for the tenth that is kept for ends of runs; enlarge its volume (for a bucket raise store.size), or delete Tasks that are no longer needed"
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
    /// Another process writes the same log or value all the time.
    #[error(
        "another process writes to the same place in the result store; give each installation a bucket or an installationId of its own"
    )]
    Contended,
    /// An object that no version of this program wrote so.
    #[error("the object \"{0}\" of the result store has another size than it was given")]
    Strange(String),
    /// The bucket cannot be opened as it is described.
    #[error("{0}")]
    Misnamed(String),
    /// Anything else.
    #[error("the result store does not answer as it should")]
    Other(#[source] Cause),
}

/// Why the place of a store failed, in words that anybody may read: a bucket's own answer may show names of keys.
#[derive(Debug)]
pub struct Cause(object_store::Error);

impl std::error::Error for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use object_store::Error as Answer;
        if let Some(io) = find::<std::io::Error>(&self.0) {
            return write!(f, "{io}");
        }
        if is_elsewhere(&self.0) {
            return f.write_str(
                "the bucket is in another region or at another address; set store.bucket.region or store.bucket.endpoint",
            );
        }
        if let Some(status) = status(&self.0) {
            write!(f, "the bucket answers with HTTP status {status}")?;
            return match code(&self.0) {
                Some(code) => write!(f, " ({code})"),
                None => Ok(()),
            };
        }
        let kind = find::<HttpError>(&self.0).map(HttpError::kind);
        f.write_str(match (&self.0, kind) {
            (_, Some(HttpErrorKind::Timeout)) => "the bucket does not answer in time",
            (_, Some(HttpErrorKind::Connect)) => "the bucket cannot be reached",
            (_, Some(_)) => "the connection to the bucket broke",
            (Answer::NotFound { .. }, None) => "there is no such object",
            (Answer::JoinError { .. }, None) => "the call was ended",
            (Answer::NotImplemented { .. }, None) => "the bucket does not know this call",
            (Answer::PermissionDenied { .. } | Answer::Unauthenticated { .. }, None) => {
                "the bucket refuses the operator's credentials"
            }
            _ => "the call failed; the operator's own log may say more",
        })
    }
}

/// The first cause of this kind.
fn find<T: std::error::Error + 'static>(error: &object_store::Error) -> Option<&T> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(found) = current.downcast_ref() {
            return Some(found);
        }
        cause = current.source();
    }
    None
}

/// The status of a bucket's answer. The error that has it is none that can be named, so its text is read.
pub(crate) fn status(error: &object_store::Error) -> Option<u16> {
    let text = error.to_string();
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The code in the body of an answer of S3's kind, such as `NoSuchBucket`.
fn code(error: &object_store::Error) -> Option<String> {
    let text = error.to_string();
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// Whether an answer says that the bucket itself is not there.
pub(crate) fn lacks_bucket(error: &object_store::Error) -> bool {
    matches!(code(error).as_deref(), Some("NoSuchBucket" | "ContainerNotFound"))
}

/// Whether the bucket's server sends its client elsewhere: a bucket of S3 does so in another region.
fn is_elsewhere(error: &object_store::Error) -> bool {
    matches!(status(error), Some(301 | 307 | 308)) || error.to_string().contains("redirect without LOCATION")
}

/// Whether the place has no more room: of a directory the system says so, of a bucket its answer.
fn is_full(error: &object_store::Error) -> bool {
    let kind = find::<std::io::Error>(error).map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
        || status(error) == Some(507)
        || matches!(
            code(error).as_deref(),
            Some("QuotaExceeded" | "XMinioStorageFull")
        )
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        if is_full(&error) {
            Self::Full(error)
        } else {
            Self::Other(Cause(error))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer as the client of a bucket puts it into words.
    fn answer(text: &'static str) -> object_store::Error {
        let source = text.into();
        object_store::Error::Generic { store: "S3", source }
    }

    #[test]
    fn what_a_bucket_answers_is_shown_by_its_status_and_code_alone() {
        let refused = Error::from(answer(
            "Error performing PUT http://s3/b/k - Server returned non-2xx status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId></Error>",
        ));
        let Error::Other(cause) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(
            cause.to_string(),
            "the bucket answers with HTTP status 403 (InvalidAccessKeyId)"
        );
        let odd = Cause(answer("status code: 500 x: <Code>a b&lt;</Code>"));
        assert_eq!(odd.to_string(), "the bucket answers with HTTP status 500");
        let without = Cause(answer("no status code: at all, and a key AKIAEXAMPLE"));
        assert!(!without.to_string().contains("AKIA"), "{without}");
    }

    #[test]
    fn what_the_system_says_of_a_directory_is_shown() {
        let io = std::io::Error::from(ErrorKind::PermissionDenied);
        let Error::Other(cause) = Error::from(io) else {
            panic!("it is not full")
        };
        assert_eq!(cause.to_string(), "permission denied");
    }

    #[test]
    fn a_bucket_of_another_region_is_said_with_the_setting() {
        for text in [
            "Error performing PUT http://s3/b/k - Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            "status code: 301 Moved Permanently: ",
        ] {
            let said = Cause(answer(text)).to_string();
            assert!(said.contains("store.bucket.region"), "{said}");
        }
    }

    #[test]
    fn an_object_of_a_bucket_that_is_not_there_is_not_missing() {
        let missing = |body: &str| object_store::Error::NotFound {
            path: "a".to_owned(),
            source: format!("status code: 404 Not Found: {body}").into(),
        };
        assert!(matches!(
            crate::if_there::<()>(Err(missing("<Code>NoSuchKey</Code>"))),
            Ok(None)
        ));
        let refused = crate::if_there::<()>(Err(missing("<Code>NoSuchBucket</Code>"))).unwrap_err();
        let Error::Other(cause) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(
            cause.to_string(),
            "the bucket answers with HTTP status 404 (NoSuchBucket)"
        );
    }

    #[test]
    fn a_bucket_without_room_is_full() {
        for text in [
            "status code: 507 Insufficient Storage: ",
            "status code: 403 Forbidden: <Code>QuotaExceeded</Code>",
        ] {
            assert!(matches!(Error::from(answer(text)), Error::Full(_)), "{text}");
        }
    }
}
