//! Instances as lists and single answers have them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::filter;
use super::offers::number;
use super::reply::{Failure, Outcome};
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Market;

/// Most instances of a page.
const PAGE: usize = 25;

/// `actual_status`, `cur_state`, `intended_status` and `status_msg`.
fn status(
    context: &Context<'_, '_>,
    machine: &Machine,
    phase: Phase,
) -> (Value, &'static str, &'static str, Value) {
    let wanted = context
        .state
        .market
        .rental(&machine.id)
        .is_some_and(|rental| rental.wanted);
    let intended = if wanted { "running" } else { "stopped" };
    match phase {
        Phase::Pending => {
            let since = machine.since(Phase::Pending).unwrap_or_else(|| machine.created());
            let age = context.visit.now().duration_since(since);
            let image = machine.detail["image"].as_str().unwrap_or_default();
            if age < SignedDuration::from_secs(2) {
                (Value::Null, "running", intended, Value::Null)
            } else if age < SignedDuration::from_secs(5) {
                (json!("created"), "running", intended, Value::Null)
            } else {
                (
                    json!("loading"),
                    "running",
                    intended,
                    json!(format!("{image}: Pulling from library")),
                )
            }
        }
        Phase::Running => (json!("running"), "running", intended, json!("success, running")),
        Phase::Halted => (json!("stopped"), "stopped", intended, json!("")),
        Phase::Failed => match &machine.cause {
            Some(Cause::Installation(text)) => (json!("exited"), "running", "running", json!(text)),
            Some(Cause::Itself) => (
                json!("exited"),
                "running",
                "running",
                json!("container exited with code 0"),
            ),
            _ => (json!("offline"), "running", "running", json!("host is offline")),
        },
        Phase::Ending | Phase::Ended => (json!("exited"), "unloaded", "stopped", json!("")),
    }
}

/// An instance as answers have it.
pub fn describe(context: &Context<'_, '_>, machine: &Machine, phase: Phase) -> Map<String, Value> {
    let detail = &machine.detail;
    let (actual, current, intended, message) = status(context, machine, phase);
    let endpoint = machine.endpoint.as_ref().filter(|_| phase == Phase::Running);
    let direct = detail["direct"] == true;
    let mut ports = Map::new();
    if let Some(endpoint) = endpoint
        && direct
    {
        // The port is text, and each port is listed for both families.
        let entry = json!([
            {"HostIp": "0.0.0.0", "HostPort": endpoint.port.to_string()},
            {"HostIp": "::", "HostPort": endpoint.port.to_string()},
        ]);
        ports.insert("22/tcp".to_owned(), entry);
    }
    let address = endpoint.map_or_else(
        || detail["hostAddress"].as_str().unwrap_or_default().to_owned(),
        |endpoint| endpoint.address.clone(),
    );
    let id: i64 = machine.id.parse().unwrap_or_default();
    let env: Vec<Value> = machine
        .mark
        .env
        .iter()
        .map(|(name, value)| json!([name, value]))
        .collect();
    let gpus = detail["gpus"].as_i64().unwrap_or(1);
    let spot = machine.market == Market::Spot;
    let slice = context.state.market.rental(&machine.id).map(|rental| rental.ask);
    let min_bid = slice.map_or(Decimal::ZERO, |ask| context.state.market.min_bid(&ask));
    let created = machine.created().as_second() as f64;
    let end = detail["endDate"].as_i64().unwrap_or_default() as f64;
    let running_for = machine.since(Phase::Running).filter(|_| phase == Phase::Running);
    let uptime = running_for.map(|since| context.visit.now().duration_since(since).as_secs() as f64 / 60.0);
    // In two parts: one would be too long for the macro.
    let mut record = json!({
        "id": id,
        "label": (!machine.mark.name.is_empty()).then_some(&machine.mark.name),
        "machine_id": detail["machine"],
        "host_id": detail["host"],
        "cluster_id": detail["cluster"],
        "actual_status": actual,
        "cur_state": current,
        "next_state": if matches!(phase, Phase::Ending | Phase::Ended) { "unloaded" } else { current },
        "intended_status": intended,
        "status_msg": message,
        // With the blanks that the service leaves around it.
        "public_ipaddr": format!("{address}\n"),
        "local_ipaddrs": "172.17.0.2 \n",
        "ssh_host": endpoint.map_or_else(
            || format!("ssh{}.vast.ai", id % 9 + 1),
            |endpoint| endpoint.address.clone(),
        ),
        "ssh_idx": (id % 9 + 1).to_string(),
        "ssh_port": endpoint.map_or(10_000 + id % 20_000, |endpoint| i64::from(endpoint.port)),
        "machine_dir_ssh_port": endpoint.map_or(0, |endpoint| i64::from(endpoint.port)),
        "ports": endpoint.map(|_| Value::Object(ports)),
        "direct_port_start": -1,
        "direct_port_end": -1,
    });
    let rest = json!({
        "is_bid": spot,
        "min_bid": number(min_bid),
        "dph_base": number(machine.price - machine.disk_price),
        "dph_total": number(machine.price),
        "storage_total_cost": number(machine.disk_price),
        "num_gpus": gpus,
        "gpu_name": detail["gpuName"],
        "gpu_ram": detail["gpuRam"],
        "gpu_totalram": detail["gpuRam"].as_i64().unwrap_or_default() * gpus,
        "cpu_cores": detail["cpuCores"],
        "cpu_cores_effective": detail["cpuCoresEffective"],
        "cpu_ram": detail["cpuRam"],
        "disk_space": detail["disk"],
        "image_uuid": detail["image"],
        "image_runtype": detail["runtype"],
        "image_args": [],
        "extra_env": env,
        "onstart": detail["onstart"],
        "jupyter_token": detail["jupyterToken"],
        "geolocation": detail["geolocation"],
        "reliability2": detail["reliability"],
        "start_date": created,
        "end_date": end,
        "duration": (end - created).max(0.0),
        "uptime_mins": uptime,
        "template_id": detail["template"]["id"],
        "template_hash_id": detail["template"]["hash_id"],
        "template_name": detail["template"]["name"],
        "volume_info": detail["volumes"],
    });
    if let (Value::Object(record), Value::Object(rest)) = (&mut record, rest) {
        record.extend(rest);
    }
    record.as_object().cloned().unwrap_or_default()
}

fn visible<'a>(context: &'a Context<'_, '_>) -> Vec<(&'a Machine, Phase)> {
    let world = &context.visit.world;
    let mut all: Vec<(&Machine, Phase)> = world
        .machines_of(&context.visit.account)
        .filter_map(|machine| Some((machine, world.listed(machine)?)))
        .filter(|(_, phase)| *phase != Phase::Ended)
        .collect();
    all.sort_by_key(|(machine, _)| machine.id.parse::<i64>().unwrap_or_default());
    all
}

/// `GET /api/v0/instances/{id}/`: one object under a plural name, and null for what
/// is not there.
pub fn get(context: &Context<'_, '_>, id: &str) -> Outcome {
    if id.parse::<i64>().is_err() {
        return Err(Failure::arguments("invalid instance_id"));
    }
    let found = visible(context).into_iter().find(|(machine, _)| machine.id == id);
    let record = found.map(|(machine, phase)| describe(context, machine, phase));
    Ok(json!({"instances": record}))
}

/// `GET /api/v0/instances/`: all of them, in one list.
pub fn list_all(context: &Context<'_, '_>) -> Outcome {
    let keep = context.visit.keep.unwrap_or(usize::MAX);
    let all: Vec<Map<String, Value>> = visible(context)
        .into_iter()
        .map(|(machine, phase)| describe(context, machine, phase))
        .take(keep)
        .collect();
    Ok(json!({"instances_found": all.len(), "instances": all}))
}

/// `GET /api/v1/instances/`: pages of 25 at most.
pub fn list(context: &Context<'_, '_>) -> Outcome {
    let request = context.visit.request;
    let invalid = |text: String| Failure::new(400, "invalid_request", text);
    let json_of = |name: &str| -> Result<Option<Value>, Failure> {
        request
            .parameter(name)
            .map(|text| serde_json::from_str(text).map_err(|error| invalid(format!("{name}: {error}"))))
            .transpose()
    };
    let limit = match request.parameter("limit") {
        None => PAGE,
        Some(text) => text
            .parse::<usize>()
            .ok()
            .filter(|limit| (1..=PAGE).contains(limit))
            .ok_or_else(|| invalid(format!("limit has to be between 1 and {PAGE}, not {text}")))?,
    };
    let everything = visible(context);
    let mut labels: Map<String, Value> = Map::new();
    for (machine, _) in &everything {
        let count = labels
            .get(&machine.mark.name)
            .and_then(Value::as_i64)
            .unwrap_or(0);
        labels.insert(machine.mark.name.clone(), json!(count + 1));
    }
    let total = everything.len();
    let mut found: Vec<Map<String, Value>> = Vec::new();
    let filters = json_of("select_filters")?
        .and_then(|filters| filters.as_object().cloned())
        .unwrap_or_default();
    for (machine, phase) in everything {
        let record = describe(context, machine, phase);
        if filter::matches(&record, &filters).map_err(invalid)? {
            found.push(record);
        }
    }
    if let Some(order) = json_of("order_by")? {
        let pairs: Vec<(String, bool)> = order
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pair| Some((pair.get("col")?.as_str()?.to_owned(), pair.get("dir")? != "desc")))
            .collect();
        filter::sort(&mut found, &pairs);
    }
    let start = match request.parameter("after_token").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => STANDARD
            .decode(token)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| text.parse::<usize>().ok())
            .ok_or_else(|| Failure::new(400, "invalid_token", "after_token is not valid"))?,
    };
    let matching = found.len();
    let size = limit.min(context.visit.keep.unwrap_or(usize::MAX)).max(1);
    let page: Vec<Map<String, Value>> = found.into_iter().skip(start).take(size).collect();
    let end = start + page.len();
    let next = (end < matching).then(|| STANDARD.encode(end.to_string()));
    let columns = json_of("select_cols")?
        .and_then(|columns| columns.as_array().cloned())
        .unwrap_or_default();
    let names: Vec<&str> = columns.iter().filter_map(Value::as_str).collect();
    let page: Vec<Map<String, Value>> = page
        .into_iter()
        .map(|record| {
            let all = names.is_empty() || names.contains(&"*");
            record
                .into_iter()
                .filter(|(name, _)| all || names.contains(&name.as_str()))
                .collect()
        })
        .collect();
    Ok(json!({
        "success": true,
        "instances_found": matching,
        "total_instances": total,
        "label_counts": labels,
        "next_token": next,
        "instances": page,
    }))
}

/// `GET /api/v0/instances/filters/`: by what the instances of the account can be told apart.
pub fn filters(context: &Context<'_, '_>) -> Outcome {
    let mut found: Vec<Value> = Vec::new();
    for (machine, phase) in visible(context) {
        let record = describe(context, machine, phase);
        let combination = json!({
            "actual_status": record["actual_status"],
            "gpu_name": record["gpu_name"],
            "verification": "verified",
        });
        if !found.contains(&combination) {
            found.push(combination);
        }
    }
    Ok(json!({"success": true, "filters": found}))
}
