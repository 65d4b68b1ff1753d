//! The full, decided request to a provider: acting on it needs no further choice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{offer::Market, secret::Secret, usd::Usd};

/// Whose a machine is. Providers keep it in tags, labels or the name (rule P5).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mark {
    /// Id of the installation; by default the UID of the namespace kube-system.
    pub cluster: String,
    /// Namespace of the Pool.
    pub namespace: String,
    /// Name of the Pool (for people; the UID counts).
    pub pool: String,
    /// UID of the Pool.
    pub pool_uid: String,
    /// Name of the Machine object.
    pub machine: String,
    /// UID of the Machine object.
    pub machine_uid: String,
    /// Slot in the Pool.
    pub slot: u32,
    /// Attempt to fill the slot.
    pub attempt: u32,
}

impl Mark {
    /// Whether both marks are of the same machine; names may be used again, UIDs are not.
    pub fn is(&self, other: &Self) -> bool {
        self.machine_uid == other.machine_uid && self.cluster == other.cluster
    }

    /// Whose the machine is that was found by a recorded id, from the mark that it carries.
    pub fn owner_of(&self, found: Option<&Self>) -> Owner {
        match found {
            Some(found) if self.is(found) => Owner::Ours,
            Some(_) => Owner::Another,
            None => Owner::Nobody,
        }
    }
}

/// Name of a Machine: unique for ever, since the UID of its Pool and an attempt that is
/// never used twice are part of it; a DNS label, since a Pod may have the same name.
pub fn machine_name(pool: &str, pool_uid: &str, slot: u32, attempt: u32) -> String {
    let stem: String = pool
        .chars()
        .take(40)
        .map(|c| if c == '.' { '-' } else { c })
        .collect();
    let uid: String = pool_uid.chars().filter(|c| *c != '-').take(5).collect();
    format!("{}-{uid}-{slot}-{attempt}", stem.trim_end_matches('-'))
}

/// Whose a machine is that was found by a recorded id (P11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The mark is that of the Machine on record.
    Ours,
    /// The machine carries another mark.
    Another,
    /// The machine carries no mark.
    Nobody,
}

/// What an order must know of the Pool around its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolShape {
    /// Machines that the Pool wants.
    pub machines: u32,
    /// Whether they must reach each other by private addresses.
    pub connected: bool,
}

/// An order for one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// Mark of the machine.
    pub mark: Mark,
    /// Idempotency token: ordering twice with it gives one machine.
    pub token: String,
    /// Id of the Offer within the provider.
    pub offer: String,
    /// The provider's name of what is ordered.
    pub instance_type: String,
    /// Region, `""` where there is none.
    pub region: String,
    /// Market.
    pub market: Market,
    /// Highest price in USD per hour. Where the bid is paid, this only bounds the bid, which is
    /// made from the market's price at the time of the order.
    pub max_hourly_cost: Option<Usd>,
    /// Accelerators: canonical name and count, which may be a part of one.
    pub accelerator: Option<(String, f64)>,
    /// vCPUs asked for, where the provider sells them freely.
    pub vcpus: Option<f64>,
    /// Memory in bytes asked for, where the provider sells it freely.
    pub memory_bytes: Option<u64>,
    /// Disk in bytes asked for.
    pub disk_bytes: Option<u64>,
    /// Size of /dev/shm in bytes, where the provider can set it.
    pub shm_bytes: Option<u64>,
    /// The one public key that may log in, in OpenSSH form.
    pub authorized_key: String,
    /// Script to be run once as root at the first boot; `""` where there is none. It
    /// returns at once.
    pub boot_script: String,
    /// The token by which the machine proves its host key ([`crate::proof`]); `None` where no proof
    /// is asked for. It belongs into the boot data and nowhere else.
    pub host_token: Option<Secret>,
    /// How many machines the Pool wants, and whether they must reach each other, in one network.
    pub pool: PoolShape,
    /// Settings of the provider that the Pool overrides for its machines, by their names
    /// in the Provider object; `Null` where it overrides none.
    pub overrides: serde_json::Value,
    /// Labels that people see, where the provider has such.
    pub labels: BTreeMap<String, String>,
}

/// What a provider answers to an order it accepted. It may know no address yet (P1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The provider's id of the machine.
    pub id: String,
}
