//! Networks, and the firewalls of a project.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::catalogue::{head, one, region_of};
use super::lists::{Item, list};
use super::operations::{About, End, TAKES};
use super::orders::is_name;
use super::{Gcp, after, check, date, enter, invalid, missing, path, refused, target, url, with_usual};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::{RestApi, body};

/// The kind of a firewall.
const FIREWALL: &str = "firewall";
/// The network that every project has, with a subnetwork of its name in each region.
const DEFAULT: &str = "default";
/// A network whose owner makes its subnetworks: it has one, in one region.
const RESEARCH: &str = "research";
const RESEARCH_SUBNET: [&str; 2] = ["us-central1", "research-us"];
const NOT_FOUND: &str = "The referenced resource cannot be found.";
/// The regions with a subnetwork.
const REGIONS: [&str; 4] = ["asia-southeast1", "europe-west4", "us-central1", "us-east5"];

/// The firewall of the default network that lets SSH in.
const GIVEN: &str = "default-allow-ssh";

/// What an address costs an hour, on demand and at a spot instance: 0.005 and 0.0025 USD.
pub(super) const ADDRESS: [Decimal; 2] = [
    Decimal::from_parts(50, 0, 0, false, 4),
    Decimal::from_parts(25, 0, 0, false, 4),
];

/// A network interface of an order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Interface {
    network: Option<String>,
    subnetwork: Option<String>,
    #[serde(rename = "nicType")]
    _nic_type: Option<String>,
    #[serde(rename = "stackType")]
    _stack_type: Option<String>,
    // The description judges their words.
    access_configs: Vec<Value>,
}

impl Interface {
    /// Whether it asks for an address.
    pub(super) fn has_address(&self) -> bool {
        !self.access_configs.is_empty()
    }
}

/// A path without the project before it.
fn in_project<'a>(visit: &Visit<'_>, given: &'a str) -> &'a str {
    let own = path(given);
    let project = format!("projects/{}/", visit.account);
    own.strip_prefix(project.as_str()).unwrap_or(own)
}

/// The subnetwork that a network has in a region.
fn subnetwork(network: &str, region: &str) -> Option<String> {
    let name = match network {
        DEFAULT => DEFAULT,
        RESEARCH if region == RESEARCH_SUBNET[0] => RESEARCH_SUBNET[1],
        _ => return None,
    };
    Some(format!("regions/{region}/subnetworks/{name}"))
}

/// The interfaces of an order as they are shown.
pub(super) fn interfaces(visit: &mut Visit<'_>, zone: &str, wanted: &[Interface]) -> Result<Value, Refusal> {
    let [wanted] = wanted else {
        return Err(Gcp::not_simulated("orders without exactly one network"));
    };
    let region = region_of(zone);
    let given = wanted.network.as_deref().map(|given| in_project(visit, given));
    let subnet = wanted.subnetwork.as_deref().map(|given| in_project(visit, given));
    let is_meant = |network: &&str| match (given, subnet) {
        (Some(given), _) => given == format!("global/networks/{network}"),
        (None, Some(subnet)) => subnetwork(network, region).as_deref() == Some(subnet),
        (None, None) => *network == DEFAULT,
    };
    let Some(network) = [DEFAULT, RESEARCH].into_iter().find(is_meant) else {
        return invalid("networkInterfaces[0]", NOT_FOUND);
    };
    let own = subnetwork(network, region);
    #[rustfmt::skip]
    let rules = [
        (network == RESEARCH && subnet.is_none(), "networkInterfaces[0]", "A subnetwork must be given for a network in custom subnet mode."),
        (subnet.is_some() && own.as_deref() != subnet, "networkInterfaces[0].subnetwork", NOT_FOUND),
    ];
    check(&rules)?;
    let place = format!("projects/{}", visit.account);
    let number = visit.world.chance.below(250) + 2;
    let mut shown = json!({
        "kind": "compute#networkInterface", "name": "nic0", "networkIP": format!("10.128.0.{number}"),
        "network": url(&format!("{place}/global/networks/{network}")), "stackType": "IPV4_ONLY",
        "subnetwork": url(&format!("{place}/{}", own.unwrap_or_default())),
    });
    if let Some(config) = wanted.access_configs.first() {
        let usual = [
            ("kind", json!("compute#accessConfig")),
            ("name", json!("External NAT")),
            ("type", json!("ONE_TO_ONE_NAT")),
            ("networkTier", json!("PREMIUM")),
        ];
        shown["accessConfigs"] = json!([with_usual(config.clone(), usual)]);
    }
    Ok(json!([shown]))
}

fn all_networks(visit: &Visit<'_>) -> Vec<Item> {
    let place = format!("projects/{}", visit.account);
    let shown = |name: &str| {
        let subnets = REGIONS.iter().filter_map(|region| subnetwork(name, region));
        let subnets: Vec<String> = subnets.map(|own| url(&format!("{place}/{own}"))).collect();
        let fields = json!({ "autoCreateSubnetworks": name == DEFAULT, "subnetworks": subnets });
        let own = format!("{place}/global/networks/{name}");
        let shown = head("network", name, &own, fields);
        (String::new(), name.to_owned(), shown)
    };
    vec![shown(DEFAULT), shown(RESEARCH)]
}

pub(super) fn network(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    one(visit, all_networks(visit), "", name)
}

/// A firewall to be made.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Rule {
    name: String,
    description: String,
    network: Option<String>,
    direction: Option<String>,
    priority: Option<u16>,
    allowed: Vec<Allowed>,
    source_ranges: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source_tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    target_tags: Vec<String>,
}

/// Traffic that a firewall lets in.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    #[serde(rename = "IPProtocol")]
    protocol: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
}

fn all_firewalls(visit: &Visit<'_>) -> Vec<Item> {
    let place = format!("projects/{}/global", visit.account);
    let fields = json!({
        "network": url(&format!("{place}/networks/{DEFAULT}")), "direction": "INGRESS", "priority": 65_534,
        "sourceRanges": ["0.0.0.0/0"], "allowed": [{ "IPProtocol": "tcp", "ports": ["22"] }],
    });
    let given = head(FIREWALL, GIVEN, &format!("{place}/firewalls/{GIVEN}"), fields);
    let mut items = vec![(String::new(), GIVEN.to_owned(), given)];
    let made = visit.resources(FIREWALL);
    items.extend(made.map(|rule| (String::new(), rule.name.clone(), rule.detail.clone())));
    items
}

pub(super) fn firewalls(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    list(visit, FIREWALL, all_firewalls(visit))
}

pub(super) fn firewall(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    one(visit, all_firewalls(visit), "", name)
}

/// Answers a call about a firewall with an operation.
fn begun(api: &mut Gcp, visit: &Visit<'_>, kind: &str, [id, name]: [&str; 2]) -> Answer {
    let (now, request) = (visit.now(), visit.request);
    let about: About<'_> = [&visit.account, "", kind, "firewalls", name, id];
    let end = End::At(after(now, TAKES));
    api.operations.begin(request, about, now, end)
}

pub(super) fn create(api: &mut Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    let rule: Rule = body(visit.request)?;
    let usual = format!("global/networks/{DEFAULT}");
    let network = in_project(visit, rule.network.as_deref().unwrap_or(&usual)).to_owned();
    let known = [DEFAULT, RESEARCH].map(|name| format!("global/networks/{name}"));
    if rule.direction.as_deref() == Some("EGRESS") {
        return Err(Gcp::not_simulated("rules of what goes out"));
    }
    check(&[
        (!is_name(&rule.name), "name", "It is no name."),
        (!known.contains(&network), "network", NOT_FOUND),
    ])?;
    if all_firewalls(visit).iter().any(|(_, name, _)| *name == rule.name) {
        return refused(409, "alreadyExists", "The resource already exists");
    }
    let (place, id) = (format!("projects/{}", visit.account), api.operations.id());
    let mut given = json!(rule);
    given["network"] = url(&format!("{place}/{network}")).into();
    let own = url(&format!("{place}/global/firewalls/{}", rule.name));
    let open: Vec<&str> = rule
        .source_tags
        .is_empty()
        .then_some("0.0.0.0/0")
        .into_iter()
        .collect();
    let usual = [
        ("id", json!(id)),
        ("kind", json!("compute#firewall")),
        ("creationTimestamp", json!(date(visit.now()))),
        ("selfLink", json!(own)),
        ("direction", json!("INGRESS")),
        ("priority", json!(1_000)),
        ("sourceRanges", json!(open)),
    ];
    visit.add(FIREWALL, &id, &rule.name, with_usual(given, usual));
    Ok(begun(api, visit, "insert", [&id, &rule.name]))
}

/// Deletes a firewall, unless it was made a moment ago. Those of the default network stay here.
pub(super) fn delete(api: &mut Gcp, visit: &mut Visit<'_>, name: &str) -> Result<Answer, Refusal> {
    enter(api, visit)?;
    let is_meant = |rule: &&Resource| rule.name == name || rule.id == name;
    let found = visit.resources(FIREWALL).find(is_meant);
    let rule = found.ok_or_else(|| missing(&target(visit.request)))?.clone();
    if visit.now() < after(rule.created, TAKES) {
        return refused(400, "resourceNotReady", "The resource is not ready");
    }
    visit.end(FIREWALL, &rule.id);
    Ok(begun(api, visit, "delete", [&rule.id, &rule.name]))
}
