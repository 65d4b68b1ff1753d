//! Firewall groups and their rules. What no rule accepts does not come in.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{date, listed, missing, uuid};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::body;

/// The kind of a group.
const GROUP: &str = "firewall-group";
/// The most rules of a group.
const RULES: usize = 50;

/// A group to be made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewGroup {
    #[serde(default)]
    description: String,
}

/// A rule to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewRule {
    ip_type: String,
    protocol: String,
    subnet: String,
    subnet_size: u8,
    #[serde(default)]
    port: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    notes: String,
}

/// One of the account's own, by its id.
pub(super) fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Resource, Refusal> {
    uuid(GROUP, id)?;
    visit.resource(GROUP, id).ok_or_else(|| missing(GROUP))
}

fn rules(group: &Resource) -> Vec<Value> {
    group.detail.as_array().cloned().unwrap_or_default()
}

/// How many machines have a group.
fn linked(visit: &Visit<'_>, id: &str) -> usize {
    let machines = visit.world.machines_of(&visit.account);
    let having = |machine: &&crate::Machine| machine.exists() && machine.detail["firewall_group_id"] == id;
    machines.filter(having).count()
}

fn shown(visit: &Visit<'_>, group: &Resource) -> Value {
    json!({
        "id": group.id, "description": group.name, "date_created": date(group.created),
        "date_modified": date(group.created), "instance_count": linked(visit, &group.id),
        "rule_count": rules(group).len(), "max_rule_count": RULES,
    })
}

pub(super) fn list(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let found = visit.resources(GROUP);
    let found = found.map(|group| (group.id.clone(), shown(visit, group)));
    listed(visit, "firewall_groups", found.collect())
}

pub(super) fn get(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let group = shown(visit, own(visit, id)?);
    Ok(Answer::json(200, &json!({ "firewall_group": group })))
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewGroup { description } = body(visit.request)?;
    let id = visit.world.chance.uuid();
    let group = visit.add(GROUP, &id, &description, json!([]));
    Ok(Answer::json(
        201,
        &json!({ "firewall_group": shown(visit, &group) }),
    ))
}

pub(super) fn delete(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    own(visit, id)?;
    if linked(visit, id) > 0 {
        return Err(Refusal::Bad(
            "This firewall group is linked to instances.".to_owned(),
        ));
    }
    visit.end(GROUP, id);
    Ok(Answer::empty(204))
}

pub(super) fn list_rules(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let rules = rules(own(visit, id)?);
    let keyed = rules.into_iter().map(|rule| (format!("{:>5}", rule["id"]), rule));
    listed(visit, "firewall_rules", keyed.collect())
}

/// Whether these are one port, or the first and the last of a range.
fn is_port(text: &str) -> bool {
    let ports: Option<Vec<u16>> = text.split(':').map(|port| port.parse().ok()).collect();
    ports.is_some_and(|ports| ports.len() <= 2 && ports.is_sorted() && !ports.contains(&0))
}

pub(super) fn create_rule(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let rule: NewRule = body(visit.request)?;
    let mut rules = rules(own(visit, id)?);
    let bad = |what: &str| Err(Refusal::Bad(format!("Invalid {what}.")));
    let protocol = rule.protocol.to_lowercase();
    let has_ports = match protocol.as_str() {
        "tcp" | "udp" => true,
        "icmp" | "gre" => false,
        _ => return bad("protocol"),
    };
    if has_ports != !rule.port.is_empty() || (has_ports && !is_port(&rule.port)) {
        return bad("port");
    }
    let fits = match (rule.ip_type.as_str(), rule.subnet.parse()) {
        ("v4", Ok(IpAddr::V4(_))) => rule.subnet_size <= 32,
        ("v6", Ok(IpAddr::V6(_))) => rule.subnet_size <= 128,
        _ => false,
    };
    if !fits || !["", "cloudflare"].contains(&rule.source.as_str()) {
        return bad("subnet");
    }
    if rules.len() >= RULES {
        return Err(Refusal::Quota("firewall rules".to_owned()));
    }
    let number = rules
        .last()
        .and_then(|last| last["id"].as_u64())
        .unwrap_or_default()
        + 1;
    let made = json!({
        "id": number, "type": rule.ip_type, "ip_type": rule.ip_type, "action": "accept", "protocol": protocol,
        "port": rule.port, "subnet": rule.subnet, "subnet_size": rule.subnet_size, "source": rule.source,
        "notes": rule.notes,
    });
    rules.push(made.clone());
    if let Some(group) = visit.world.resources.get_mut(id) {
        group.detail = Value::Array(rules);
    }
    Ok(Answer::json(201, &json!({ "firewall_rule": made })))
}
