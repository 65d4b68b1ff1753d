//! The parts of Novita's JSON that we read. New fields are ignored, and fields may be missing or null. Numbers and
//! moments come as numbers or as texts.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use skyward_core::{Secret, Usd};
use skyward_provider_kit::{Amount, time};

/// A machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// Its id; empty where an answer has none.
    pub id: String,
    /// Its name, which carries the mark.
    pub name: Option<String>,
    /// Where it is in its life.
    pub status: Value,
    /// Why it failed: `state` and `message`.
    pub status_error: Value,
    /// Name of the cluster that it stands in.
    pub cluster_name: Option<String>,
    /// What was rented.
    pub product_id: Option<String>,
    /// How many GPUs it has, as a text.
    pub gpu_num: Value,
    /// Its environment, each with `key` and `value`: it carries the mark as well.
    pub envs: Value,
    /// `onDemand`, `spot` or `monthly`.
    pub billing_mode: Value,
    /// How far a reclaim is; empty on demand.
    pub spot_status: Option<String>,
    /// When it is taken back: seconds, or 0 while that is not decided.
    pub spot_reclaim_time: Value,
    /// Since when it exists.
    pub created_at: Value,
    /// Where SSH answers.
    #[serde(rename = "connectComponentSSH")]
    pub ssh: Option<Ssh>,
    /// The password, where older answers have it.
    #[serde(deserialize_with = "secret")]
    pub ssh_password: Option<Secret>,
    /// Price in USD per hour, where that is known; no field of Novita's.
    #[serde(skip)]
    pub price: Option<Usd>,
}

/// Where SSH answers, and the password.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ssh {
    /// Such as `ssh -p 31234 root@proxy.example`.
    pub ssh_command: Option<String>,
    /// The same in answers of another form.
    pub command: Option<String>,
    /// The password of that user.
    #[serde(deserialize_with = "secret")]
    pub password: Option<Secret>,
    /// Whether it answers already.
    pub is_running: Option<bool>,
}

/// A kind of machine, with the price of each of its GPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Product {
    /// Its id.
    pub id: String,
    /// Such as `RTX 4090 24GB`.
    pub name: String,
    /// vCPUs for each GPU.
    pub cpu_per_gpu: Value,
    /// Memory in GB for each GPU.
    pub memory_per_gpu: Value,
    /// Whether it can be had now with as many GPUs as were asked for.
    pub available_deploy: Option<bool>,
    /// How many there are: `none`, or a word for some.
    pub inventory_state: Value,
    /// Least disk in GB.
    #[serde(rename = "minRootFS")]
    pub least_disk: Value,
    /// Most disk in GB.
    #[serde(rename = "maxRootFS")]
    pub most_disk: Value,
    /// Price of a GPU on demand, in 1/100,000 USD per hour.
    pub price: Value,
    /// The same on the spot market.
    pub spot_price: Value,
    /// The markets: `onDemand`, `spot`, `monthly`.
    pub billing_methods: Value,
}

/// A number that is written as a number or as a text.
pub fn amount(value: &Value) -> Option<Amount> {
    serde_json::from_value(value.clone()).ok()
}

/// A number of things.
pub fn number(value: &Value) -> Option<u32> {
    u32::try_from(amount(value)?.0).ok()
}

/// A moment, as seconds, milliseconds or a date; `None` for 0 and for what is none.
pub fn moment(value: &Value) -> Option<Timestamp> {
    /// Above it a number of seconds would be of another millennium.
    const SECONDS: i64 = 100_000_000_000;
    let Some(count) = amount(value).and_then(|amount| i64::try_from(amount.0).ok()) else {
        return time(value.as_str());
    };
    match count {
        ..=0 => None,
        1..SECONDS => Timestamp::from_second(count).ok(),
        _ => Timestamp::from_millisecond(count).ok(),
    }
}

/// A secret text; an empty one is none.
fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
}
