//! What a provider may answer instead of what was asked for.

use std::{fmt, time::Duration};

use crate::provider::Marking;

/// What kind of failure it is; the only thing that planning looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Passes by itself.
    Transient,
    /// Too many requests; try again after this long, if the provider said so.
    RateLimited(Option<Duration>),
    /// The answer was lost: the next list decides whether the effect happened.
    Indeterminate,
    /// The provider answered in words that it is under maintenance. Whether this order had its effect all the same the
    /// next look decides, as after a lost answer; another provider may be asked meanwhile.
    Outage,
    /// The offer has no capacity now.
    NoCapacity,
    /// A quota of the account is used up: of one region, market or family of machines.
    Quota(String),
    /// The account cannot pay: nothing at all can be rented with it.
    NoCredit,
    /// There are no credentials: the Secret that should hold them, or a key of it, is not there.
    CredentialsMissing,
    /// The credentials are wrong or revoked.
    Credentials,
    /// The credentials lack a right.
    Permission,
    /// The provider refuses the order as it is, and will again.
    InvalidOrder,
    /// The provider cannot do this at all.
    Unsupported,
    /// This machine is beyond repair.
    MachineFailed,
    /// No such thing: a fact for delete, a loss for get.
    NotFound,
    /// It is there already: a fact for create.
    AlreadyExists,
    /// The call was not sent: this process may not lead any more. The provider knows nothing
    /// of it.
    NotLeading,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// Try the same again, later.
    Retryable,
    /// Try another offer.
    Capacity,
    /// Wait until somebody changes the spec or the Secret.
    Config,
    /// Give up this machine and replace it.
    Terminal,
    /// A fact, not a failure.
    Signal,
}

impl ErrorKind {
    /// What to do about it.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Transient
            | Self::RateLimited(_)
            | Self::Indeterminate
            | Self::Outage
            | Self::NotLeading => ErrorClass::Retryable,
            Self::NoCapacity | Self::Quota(_) | Self::NoCredit => ErrorClass::Capacity,
            Self::CredentialsMissing
            | Self::Credentials
            | Self::Permission
            | Self::InvalidOrder
            | Self::Unsupported => ErrorClass::Config,
            Self::MachineFailed => ErrorClass::Terminal,
            Self::NotFound | Self::AlreadyExists => ErrorClass::Signal,
        }
    }

    /// Whether an order that met it may have had its effect.
    pub const fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Indeterminate | Self::Outage)
    }

    /// Stable name, for metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::RateLimited(_) => "rate_limited",
            Self::Indeterminate => "indeterminate",
            Self::Outage => "outage",
            Self::NoCapacity => "no_capacity",
            Self::Quota(_) => "quota",
            Self::NoCredit => "no_credit",
            Self::CredentialsMissing => "credentials_missing",
            Self::Credentials => "credentials",
            Self::Permission => "permission",
            Self::InvalidOrder => "invalid_order",
            Self::Unsupported => "unsupported",
            Self::MachineFailed => "machine_failed",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::NotLeading => "not_leading",
        }
    }
}

/// A failure of one call to a provider. Never holds credentials (rule P9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// Which call failed, in words: `create the Pod`.
    pub operation: &'static str,
    /// The provider's own code, if it has one.
    pub code: Option<String>,
    /// What the provider said.
    pub message: String,
    /// Of a used-up quota: the region whose zones have the quota in common, where offers are of zones. `None` where
    /// the quota is taken for that of the order's own place.
    pub quota_region: Option<String>,
}

impl ProviderError {
    /// A failure without a code.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            operation,
            code: None,
            message: message.into(),
            quota_region: None,
        }
    }

    /// A machine on record that carries no mark. It exists, so it is not gone (P6): taken for gone,
    /// it would be replaced, forgotten, and billed for ever. It may belong to another user by now,
    /// so it is not ended either (P11). Only a person can decide.
    pub fn nobodys(marking: Marking, id: &str) -> Self {
        let mark = match marking {
            Marking::Tags => "tags",
            Marking::Environment => "environment",
            Marking::Name => "label",
        };
        Self::new(
            ErrorKind::Transient,
            "tell whose the machine is",
            format!(
                "{id} exists, but its {mark} does not say that it is ours, so it is neither replaced nor deleted. Restore its {mark}, as the page of the provider has it, or delete {id} in the console of the cloud"
            ),
        )
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}: {}", self.operation, self.message)?;
        match &self.code {
            Some(code) => write!(f, " ({code})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ProviderError {}
