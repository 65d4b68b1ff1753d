//! A machine as its provider sees it.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;

use crate::{
    order::{Mark, Order},
    secret::Secret,
    usd::Usd,
};

/// Where a machine is in its life at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderPhase {
    /// Accepted, not running yet. The text says what it waits for, if anything is known.
    Starting(Option<String>),
    /// Running.
    Running,
    /// It will never run, or ran and failed; the kind says how to report it.
    Failed(Failure),
    /// Its end was ordered.
    Stopping,
    /// It halted; at some clouds it stays on the bill until it is deleted.
    Stopped(String),
}

impl ProviderPhase {
    /// It will never run, or ran and failed.
    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::Failed(Failure {
            kind,
            message: message.into(),
            quota_region: None,
        })
    }

    /// Accepted, and waits for this.
    pub fn starting(why: impl Into<String>) -> Self {
        Self::Starting(Some(why.into()))
    }
}

/// Why a machine will never run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind of failure.
    pub kind: FailureKind,
    /// What the provider says, with a remedy where one is known.
    pub message: String,
    /// As in [`ProviderError`](crate::ProviderError), where a used-up quota kept it from being made.
    pub quota_region: Option<String>,
}

/// Kinds of failure of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The image cannot be pulled.
    ImagePull,
    /// The image lacks something we need, such as sshd.
    UnusableImage,
    /// It was evicted or halted from outside.
    Lost,
    /// The cloud took a spot machine back.
    Reclaimed,
    /// It was killed as a whole because its work used more memory than it has.
    OutOfMemory,
    /// The order was accepted, but there was no such machine after all.
    NoCapacity,
    /// No node has room for it.
    NoRoom,
    /// Anything else.
    Other,
}

/// A machine as its provider sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderMachine {
    /// The provider's id.
    pub id: String,
    /// Whose it is.
    pub mark: Mark,
    /// Where it is in its life.
    pub phase: ProviderPhase,
    /// What SSH dials, once known.
    pub endpoint: Option<Endpoint>,
    /// Address by which machines of one Pool reach each other.
    pub private_address: Option<String>,
    /// Network interface whose address that is, where only the machine itself knows it.
    pub private_interface: Option<&'static str>,
    /// Host key learnt over a verified channel (OpenSSH form), if the provider has one.
    pub host_key: Option<String>,
    /// What the provider says about its time and price.
    pub rental: Rental,
}

impl ProviderMachine {
    /// A machine of which its provider tells neither a private address nor the host key.
    pub fn public(id: String, mark: Mark, phase: ProviderPhase, endpoint: Option<Endpoint>) -> Self {
        Self {
            id,
            mark,
            phase,
            endpoint,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: Rental::default(),
        }
    }
}

/// What a provider says about the time and price of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rental {
    /// Region that it stands in, where the provider has such.
    pub region: Option<String>,
    /// Price in USD per hour.
    pub hourly_price: Option<Usd>,
    /// Since when it is billed.
    pub billed_since: Option<Timestamp>,
    /// When the cloud will take it back, once it said so.
    pub reclaim_at: Option<Timestamp>,
}

/// How to reach a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where SSH listens.
    pub dial: Dial,
    /// User to log in as.
    pub user: String,
    /// The password of that user, of a cloud that cannot let the Pool's key in itself: it is used where the machine does
    /// not know the key yet, and stands in no record.
    pub password: Option<Secret>,
}

impl Endpoint {
    /// Port 22 of an address, for this user; `None` while the cloud names no address: nothing, or
    /// `0.0.0.0`.
    pub fn ssh(user: &str, address: Option<&str>) -> Option<Self> {
        Self::ssh_at(user, address, 22)
    }

    /// The same at a port that leads to it; `None` for port 0 as well.
    pub fn ssh_at(user: &str, address: Option<&str>, port: u16) -> Option<Self> {
        let address: IpAddr = address?.trim().parse().ok()?;
        (!address.is_unspecified() && port > 0).then(|| Self {
            dial: Dial::Address((address, port).into()),
            user: user.to_owned(),
            password: None,
        })
    }
}

/// Where SSH listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dial {
    /// A network address.
    Address(SocketAddr),
    /// A host name and port.
    Host(String, u16),
    /// A port of a Pod, through the API server, for a controller outside the cluster.
    PodPort {
        /// Namespace of the Pod.
        namespace: String,
        /// Name of the Pod.
        pod: String,
        /// Port in the Pod.
        port: u16,
    },
}

/// What is needed to find or delete a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRef {
    /// The provider's id, if one was ever recorded.
    pub id: Option<String>,
    /// Its mark; enough to find it where marks are listed.
    pub mark: Mark,
    /// Region it was ordered in.
    pub region: String,
    /// Whether it took runs once: then its order is complete, and no step of it is finished, waited
    /// for or judged any more.
    pub started: bool,
}

impl MachineRef {
    /// The machine of an order whose answer is not known.
    pub fn of(order: &Order) -> Self {
        Self {
            id: None,
            mark: order.mark.clone(),
            region: order.region.clone(),
            started: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_yet_is_no_endpoint() {
        let dial = |text| Endpoint::ssh("root", text).map(|endpoint| endpoint.dial);
        assert_eq!(
            dial(Some(" 198.51.100.2\n")),
            Some(Dial::Address("198.51.100.2:22".parse().unwrap()))
        );
        assert_eq!(
            dial(Some("2001:db8::1")),
            Some(Dial::Address("[2001:db8::1]:22".parse().unwrap()))
        );
        for none in [None, Some(""), Some("0.0.0.0"), Some("::"), Some("soon")] {
            assert_eq!(dial(none), None, "{none:?}");
        }
        let at = |port| Endpoint::ssh_at("root", Some("198.51.100.2"), port).map(|endpoint| endpoint.dial);
        assert_eq!(
            at(20_042),
            Some(Dial::Address("198.51.100.2:20042".parse().unwrap()))
        );
        assert_eq!(at(0), None, "no port is chosen yet");
    }
}
