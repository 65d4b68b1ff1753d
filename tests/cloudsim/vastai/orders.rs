//! Orders of instances.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde_json::{Map, Value};

use super::contracts::decimal;
use super::reply::Failure;
use super::templates;

/// Gigabytes of disk where the order names none.
const USUAL_DISK: i64 = 10;
/// The longest start-up script, in characters.
const ONSTART: usize = 4_048;

/// What an order asks for, with what a template added.
pub(super) struct Order {
    pub(super) image: String,
    pub(super) disk: Decimal,
    pub(super) label: String,
    pub(super) runtype: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) networks: Vec<String>,
    pub(super) ports: Vec<String>,
    pub(super) onstart: String,
    pub(super) args: Vec<String>,
    pub(super) vm: bool,
    pub(super) runs: bool,
    pub(super) cancel_unavailable: Option<bool>,
    /// The template, as the instance shows it; null where there is none.
    pub(super) template: Value,
}

impl Order {
    pub(super) fn read(body: &Map<String, Value>) -> Result<Self, Failure> {
        let text = |name: &str| {
            body.get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let image = text("image");
        if image.is_empty() {
            return Err(Failure::arguments(
                "error 400/3470: Invalid args: 'image' is required",
            ));
        }
        let onstart = text("onstart");
        if onstart.chars().count() > ONSTART {
            return Err(Failure::arguments(format!(
                "onstart is longer than {ONSTART} characters"
            )));
        }
        let (mut env, mut networks, mut ports) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (name, value) in body.get("env").and_then(Value::as_object).into_iter().flatten() {
            if let Some(network) = name.strip_prefix("-n ") {
                networks.push(network.trim().to_owned());
            } else if let Some(port) = name.strip_prefix("-p ") {
                ports.push(port.trim().to_owned());
            } else {
                env.insert(
                    name.clone(),
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned),
                );
            }
        }
        let disk = body
            .get("disk")
            .and_then(decimal)
            .unwrap_or_else(|| Decimal::from(USUAL_DISK));
        let args = match body.get("args").and_then(Value::as_array) {
            Some(args) => args.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            None => text("args_str").split_whitespace().map(str::to_owned).collect(),
        };
        let mut runtype = text("runtype");
        if runtype.is_empty() {
            if Vec::is_empty(&args) { "ssh" } else { "args" }.clone_into(&mut runtype);
        }
        Ok(Self {
            image,
            disk,
            label: text("label"),
            runtype,
            env,
            networks,
            ports,
            onstart,
            args,
            vm: body.get("vm").and_then(Value::as_bool).unwrap_or(false),
            runs: text("target_state") != "stopped",
            cancel_unavailable: body.get("cancel_unavail").and_then(Value::as_bool),
            template: body.get(templates::MARK).cloned().unwrap_or_default(),
        })
    }
}
