//! The parts of Massed Compute's JSON that we read. New fields are ignored. Its own description and its clients
//! disagree about the types of many fields, so most are read where they are used. Passwords of machines are never
//! read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use skyward_provider_kit::Amount;

/// A machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Instance {
    /// Its id.
    pub uuid: String,
    /// Its name, which people may change.
    #[serde(default)]
    pub name: Value,
    /// Its public address.
    #[serde(default)]
    pub ip: Value,
    /// The user who may log in.
    #[serde(default)]
    pub username: Value,
    /// Where it is in its life.
    #[serde(default)]
    pub status: Value,
    /// 1 once its system has started.
    #[serde(default)]
    pub os_booted: Value,
    /// The start-up command of its order.
    #[serde(default)]
    pub command_startup: Value,
    /// Since when it exists.
    #[serde(default)]
    pub created: Value,
    /// Where it stands: `name`.
    #[serde(default)]
    pub region: Value,
    /// What was rented: `name`, `price_hr`, `final_price_hr`.
    #[serde(default)]
    pub product: Value,
}

/// What the API tells of one machine: a list of one or none under the name of the list, or the machine itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct Told(pub Vec<Instance>);

impl TryFrom<Value> for Told {
    type Error = String;

    fn try_from(mut body: Value) -> Result<Self, Self::Error> {
        let fields = ["runningInstances", "runningInstance"];
        let told: Vec<Value> = fields
            .iter()
            .filter_map(|field| body.get_mut(*field).map(Value::take))
            .collect();
        // An answer of another form says nothing about the machine.
        if told.is_empty() {
            return Err("it has no field of instances".to_owned());
        }
        let each = told.into_iter().flat_map(|told| match told {
            Value::Null => Vec::new(),
            Value::Array(all) => all,
            Value::Object(one) if one.is_empty() => Vec::new(),
            one => vec![one],
        });
        let read = |one: Value| serde_json::from_value::<Instance>(one).map_err(|error| error.to_string());
        each.map(read).collect::<Result<Vec<_>, _>>().map(Self)
    }
}

/// Products by their names, some of which have blanks at their end.
pub type Inventory = BTreeMap<String, Product>;

/// A product.
#[derive(Clone, Debug, Deserialize)]
pub struct Product {
    /// What it is.
    pub instance_type: Kind,
    /// How many there are now.
    pub capacity_available: f64,
    /// Regions that have some now.
    pub regions_with_capacity_available: Option<Vec<Value>>,
}

/// What a product is.
#[derive(Clone, Debug, Deserialize)]
pub struct Kind {
    /// Cents an hour for the whole machine.
    pub price_cents_per_hour: Amount,
    /// What is in it.
    pub specs: Specs,
}

/// What is in a machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Specs {
    /// vCPUs.
    pub vcpu_count: f64,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Disk in GB.
    pub storage_gb: f64,
}
