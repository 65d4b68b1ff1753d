//! The parts of JarvisLabs' JSON that we read. Nothing but its Python client describes it: fields have two names, and
//! numbers and flags may be texts. New fields are ignored.

use serde::Deserialize;
use serde_json::Value;
use skyward_core::{Mark, Market, Usd};
use skyward_provider_kit::{flag, whole};

use super::config::{REGIONS, Region};

/// The template of virtual machines. All others are containers.
pub const VM: &str = "vm";

/// The fields of a machine that are read.
#[rustfmt::skip]
const FIELDS: [&str; 13] = [
    "machine_id", "instance_name", "name", "status", "gpu_type", "num_gpus", "framework", "template", "ssh_str",
    "ssh_command", "public_ip", "region", "is_spot",
];

/// A machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct Machine {
    /// Its id.
    pub id: u64,
    told: Value,
    /// Whose it is, from its name and the keys of the account; no field of JarvisLabs'.
    pub mark: Option<Mark>,
    /// Price of what was rented in USD per hour, where that is known; no field of JarvisLabs'.
    pub price: Option<Usd>,
}

impl TryFrom<Value> for Machine {
    type Error = &'static str;

    fn try_from(mut told: Value) -> Result<Self, Self::Error> {
        // The others may have secrets, such as the address of a notebook.
        if let Some(fields) = told.as_object_mut() {
            fields.retain(|field, _| FIELDS.contains(&field.as_str()));
        }
        let id = whole(&told["machine_id"]).ok_or("a machine has no machine_id")?;
        let (mark, price) = (None, None);
        Ok(Self {
            id,
            told,
            mark,
            price,
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
    pub fn gpus(&self) -> u32 {
        let told = whole(&self.told["num_gpus"]);
        told.and_then(|gpus| u32::try_from(gpus).ok()).unwrap_or_default()
    }

    /// The market that it is of.
    pub fn market(&self) -> Market {
        if flag(&self.told["is_spot"]) == Some(true) {
            Market::Spot
        } else {
            Market::OnDemand
        }
    }

    /// Whether it is a virtual machine.
    pub fn is_vm(&self) -> bool {
        self.text("framework") == VM
    }

    /// Its region: the first one where JarvisLabs names none, `None` for one that this version does not know.
    pub fn region(&self) -> Option<&'static Region> {
        let mut all = REGIONS.iter();
        match self.text("region") {
            "" => all.next(),
            id => all.find(|region| region.id == id),
        }
    }
}

/// Whether an answer says that all went well; `None` where it does not say. JarvisLabs spells the flag in two ways.
pub fn success(told: &Value) -> Option<bool> {
    flag(&told["success"]).or_else(|| flag(&told["sucess"]))
}
