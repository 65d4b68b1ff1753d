//! The parts of JarvisLabs' JSON that we read. Nothing but its Python client describes it: fields have two names, and
//! numbers and flags may be texts. New fields are ignored.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use skyward_core::{Mark, Market, Usd};
use skyward_provider_kit::{flag, http::shape, whole};

use super::config::{REGIONS, Region};

/// The template of virtual machines. All others are containers.
pub const VM: &str = "vm";

/// The fields of a machine that are read. Some have a second name, as the objects of the Python client call them.
#[rustfmt::skip]
const MACHINE: &[&str] = &[
    "machine_id", "status", "gpu_type", "num_gpus", "public_ip", "region", "is_spot",
    "instance_name", "name", "framework", "template", "ssh_str", "ssh_command",
];
/// The fields of a group of servers that are read.
const GROUP: &[&str] = &[
    "gpu_type",
    "region",
    "num_free_devices",
    "effective_num_free_devices",
    "price_per_hour",
    "spot_price",
    "vram",
    "cpus_per_gpu",
    "ram_per_gpu",
    "workload_type",
];

/// A machine. It has no `Debug`: fields that are not read may have secrets, such as the address of a notebook.
#[derive(Clone, Default)]
pub struct Machine {
    /// Its id.
    pub id: u64,
    told: Value,
    /// Whose it is, from its name and the keys of the account; no field of JarvisLabs'.
    pub mark: Option<Mark>,
    /// Price of what was rented in USD per hour, where that is known; no field of JarvisLabs'.
    pub price: Option<Usd>,
}

impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let told = shape::object(deserializer, MACHINE, Some("machine_id"))?;
        let id = whole(&told["machine_id"]).ok_or_else(|| D::Error::custom("machine_id is no number"))?;
        Ok(Self {
            id,
            told,
            ..Self::default()
        })
    }
}

impl Machine {
    /// A text about it, `""` where there is none.
    pub fn text(&self, field: &str) -> &str {
        // As the objects of the Python client call it.
        let other = match field {
            "instance_name" => "name",
            "framework" => "template",
            "ssh_str" => "ssh_command",
            same => same,
        };
        let all = [field, other].map(|name| self.told[name].as_str().unwrap_or_default().trim());
        all.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// How many GPUs it has.
    pub fn gpus(&self) -> u64 {
        whole(&self.told["num_gpus"]).unwrap_or_default()
    }

    /// The market that it is of.
    pub fn market(&self) -> Market {
        let spot = flag(&self.told["is_spot"]) == Some(true);
        if spot { Market::Spot } else { Market::OnDemand }
    }

    /// Whether it is a virtual machine.
    pub fn is_vm(&self) -> bool {
        self.text("framework") == VM
    }

    /// Its region: the first one where JarvisLabs names none, `None` for one that this version does not know.
    pub fn region(&self) -> Option<&'static Region> {
        let id = self.text("region");
        REGIONS.iter().find(|region| id.is_empty() || region.id == id)
    }
}

/// A group of servers, whose fields are read where they are used.
pub struct Group(pub Value);

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        shape::object(deserializer, GROUP, None).map(Self)
    }
}

/// Whether an answer says that all went well; `None` where it does not say. JarvisLabs spells the flag in two ways.
pub fn success(told: &Value) -> Option<bool> {
    flag(&told["success"]).or_else(|| flag(&told["sucess"]))
}
