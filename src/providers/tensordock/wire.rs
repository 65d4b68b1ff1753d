//! The parts of TensorDock's JSON that we read. New fields are ignored, and fields that may be missing
//! or null are optional. One machine is told in more than one form: its fields stand beside its id or within
//! `attributes`, and all of it may stand within `data`.

use std::{collections::BTreeMap, mem};

use serde::Deserialize;
use serde_json::Value;
use skyward_provider_kit::{Amount, http::shape};

/// The call that reads machines, in the words of `skyward check-provider`.
const READ: &str = "read the instances";
/// The call that reads places.
pub const LOCATIONS: &str = "list the locations";

/// A virtual machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    /// Its id.
    pub id: String,
    /// Its name, with the mark.
    pub name: Option<String>,
    /// Where it is in its life, in any case.
    pub status: Option<String>,
    /// The public address that leads to it, which other machines of its host have too.
    #[serde(rename = "ipAddress", alias = "ip_address")]
    pub address: Option<String>,
    /// Ports of that address that lead to it: a list of `internal_port` and `external_port`.
    #[serde(rename = "portForwards", alias = "port_forwards", default)]
    pub forwards: Value,
    /// USD for an hour of all of it.
    #[serde(rename = "rateHourly", alias = "rate_hourly")]
    pub rate: Option<Amount>,
}

/// Most characters of an id that is believed.
const LONGEST_ID: usize = 128;

/// A machine in any of its forms; `None` for what is none.
pub fn machine(mut told: Value) -> Option<Machine> {
    if let Some(whole @ Value::Object(_)) = told.get_mut("data").map(Value::take) {
        told = whole;
    }
    // A list would be read as the fields one after another.
    let beside = told.as_object_mut()?;
    if let Some(Value::Object(mut all)) = beside.remove("attributes") {
        let told = mem::take(beside).into_iter();
        all.extend(told.filter(|(_, value)| !value.is_null()));
        *beside = all;
    }
    shape::compare::<Machine>(READ, "", &told);
    let found: Option<Machine> = serde_json::from_value(told).ok();
    found.filter(|found| (1..=LONGEST_ID).contains(&found.id.len()))
}

/// The machines of a list, which stands at one of three places; `None` where one of them cannot be read, without which
/// the list would be a shorter one.
pub fn machines(told: &Value) -> Option<Vec<Machine>> {
    let places = ["/data/instances", "/data/attributes/instances", "/data"];
    let listed = places.iter().find_map(|place| told.pointer(place)?.as_array())?;
    listed.iter().cloned().map(machine).collect()
}

/// A place with hosts.
#[derive(Clone, Debug, Deserialize)]
pub struct Location {
    /// Its id.
    pub id: String,
    /// City.
    #[serde(default)]
    pub city: String,
    /// Country, by its whole name.
    #[serde(default)]
    pub country: String,
    /// From 0 to 4.
    pub tier: Option<u32>,
    /// The GPUs that are sold there; one that cannot be read hides no other.
    #[serde(default)]
    gpus: Vec<Value>,
}

impl Location {
    /// The models of GPUs that are sold there.
    pub fn gpus(&self) -> impl Iterator<Item = Gpu> {
        shape::each::<Gpu>(LOCATIONS, "/data/locations/[]/gpus/[]", &self.gpus);
        self.gpus.iter().filter_map(|gpu| Gpu::deserialize(gpu).ok())
    }
}

/// The places in this list that can be read.
pub fn locations(told: &[Value]) -> Vec<Location> {
    shape::each::<Location>(LOCATIONS, "/data/locations/[]", told);
    let read = told.iter().map(Location::deserialize);
    read.filter_map(Result::ok).collect()
}

/// A model of GPU that is sold at a place, with what may be ordered around it.
#[derive(Clone, Debug, Deserialize)]
pub struct Gpu {
    /// Its name, such as `geforcertx4090-pcie-24gb`.
    #[serde(rename = "v0Name")]
    pub name: String,
    /// How many one host has free.
    pub max_count: u32,
    /// USD for an hour of one.
    pub price_per_hr: Amount,
    /// USD for an hour of one `per_vcpu_hr`, `per_gb_ram_hr` and `per_gb_storage_hr`.
    pub pricing: BTreeMap<String, Amount>,
    /// The most of all else: `max_vcpus`, `max_ram_gb`, `max_storage_gb`.
    #[serde(default)]
    pub resources: BTreeMap<String, f64>,
    /// `port_forwarding_available` and others.
    #[serde(default)]
    pub network_features: Value,
}

#[cfg(test)]
#[path = "tests/wire.rs"]
mod tests;
