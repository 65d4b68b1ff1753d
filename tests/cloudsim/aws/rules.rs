//! The rules of security groups: kept one by one with one source each, shown together as
//! permissions.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::context::Context;
use super::failure::Failure;
use super::groups;
use super::input::{int, list, needed, tag_set, text};
use super::network::default_vpc;

/// The fields in which rules of one permission are equal.
const KEYS: [&str; 3] = ["IpProtocol", "FromPort", "ToPort"];
/// The kinds of sources. Clients expect each of them, also when it is empty.
const SOURCES: [&str; 4] = ["UserIdGroupPairs", "IpRanges", "Ipv6Ranges", "PrefixListIds"];

/// The permissions that a request names: in a list, or a single one by its own parameters.
pub fn permissions(input: &Value) -> Result<Vec<Value>, Failure> {
    let mut all = list(input, "IpPermissions").to_vec();
    if let Some(name) = text(input, "SourceSecurityGroupName") {
        let pair = json!([{"GroupName": name}]);
        for protocol in ["tcp", "udp"] {
            all.push(
                json!({"IpProtocol": protocol, "FromPort": 0, "ToPort": 65_535, "UserIdGroupPairs": pair}),
            );
        }
        all.push(json!({"IpProtocol": "icmp", "FromPort": -1, "ToPort": -1, "UserIdGroupPairs": pair}));
    } else if let Some(protocol) = text(input, "IpProtocol") {
        let cidr = text(input, "CidrIp").unwrap_or_default();
        let mut flat = json!({"IpProtocol": protocol, "IpRanges": [{"CidrIp": cidr}]});
        for port in ["FromPort", "ToPort"] {
            if let Some(number) = int(input, port) {
                flat[port] = json!(number);
            }
        }
        all.push(flat);
    }
    if all.is_empty() {
        return Err(Failure::missing("IpPermissions"));
    }
    Ok(all)
}

/// A permission with many sources as rules with one source each, checked.
pub fn single(context: &Context<'_, '_>, vpc: &str, permission: &Value) -> Result<Vec<Value>, Failure> {
    let base = base(permission)?;
    let mut rules = Vec::new();
    let mut add = |kind: &str, mut source: Value, given: &Value| {
        if let Some(words) = text(given, "Description") {
            source["Description"] = json!(words);
        }
        let mut rule = base.clone();
        rule[kind] = json!([source]);
        rules.push(rule);
    };
    for range in list(permission, "IpRanges") {
        let cidr = needed(range, "CidrIp")?;
        check_range::<Ipv4Addr>(cidr, 32)?;
        add("IpRanges", json!({"CidrIp": cidr}), range);
    }
    for range in list(permission, "Ipv6Ranges") {
        let cidr = needed(range, "CidrIpv6")?;
        check_range::<Ipv6Addr>(cidr, 128)?;
        add("Ipv6Ranges", json!({"CidrIpv6": cidr}), range);
    }
    for pair in list(permission, "UserIdGroupPairs") {
        let source = match text(pair, "GroupName") {
            Some(name) if text(pair, "GroupId").is_none() => {
                groups::by_name(context, name, &default_vpc(&context.region))
                    .unwrap_or_else(|| name.to_owned())
            }
            _ => needed(pair, "GroupId")?.to_owned(),
        };
        if groups::group(context, &source).is_none_or(|(_, other)| other != vpc) {
            return Err(groups::absent(&source));
        }
        let source = json!({"GroupId": source, "UserId": context.visit.account});
        add("UserIdGroupPairs", source, pair);
    }
    if let Some(prefixes) = list(permission, "PrefixListIds").first() {
        let id = text(prefixes, "PrefixListId").unwrap_or_default();
        return Err(Failure::client(
            "InvalidPrefixListID.NotFound",
            format!("The prefix list ID '{id}' does not exist"),
        ));
    }
    if rules.is_empty() {
        return Err(Failure::value("The permission names no source"));
    }
    Ok(rules)
}

/// Protocol and ports of a permission.
fn base(permission: &Value) -> Result<Value, Failure> {
    let protocol = match needed(permission, "IpProtocol")? {
        "6" => "tcp",
        "17" => "udp",
        "1" => "icmp",
        "58" => "icmpv6",
        other => other,
    };
    let ports = (int(permission, "FromPort"), int(permission, "ToPort"));
    match (protocol, ports) {
        ("tcp" | "udp", (Some(from), Some(to))) if (0..=to).contains(&from) && to <= 65_535 => {
            Ok(json!({"IpProtocol": protocol, "FromPort": from, "ToPort": to}))
        }
        ("tcp" | "udp", _) => Err(Failure::value(
            "Invalid value for portRange. Must specify both from and to ports with TCP/UDP.",
        )),
        ("icmp" | "icmpv6", (kind, code)) => {
            Ok(json!({"IpProtocol": protocol, "FromPort": kind.unwrap_or(-1), "ToPort": code.unwrap_or(-1)}))
        }
        (other, _) if other == "-1" || other.parse::<u8>().is_ok() => Ok(json!({"IpProtocol": protocol})),
        (other, _) => Err(Failure::value(format!(
            "Invalid value '{other}' for IP protocol. Unknown protocol."
        ))),
    }
}

fn check_range<Address: std::str::FromStr>(cidr: &str, most: u8) -> Result<(), Failure> {
    let (address, bits) = cidr.split_once('/').unwrap_or((cidr, ""));
    if address.parse::<Address>().is_err() || !bits.parse::<u8>().is_ok_and(|bits| bits <= most) {
        return Err(Failure::value(format!("CIDR block {cidr} is malformed")));
    }
    Ok(())
}

/// The only source of a rule, with its kind.
fn source(rule: &Value) -> Option<(&'static str, &Value)> {
    SOURCES
        .into_iter()
        .find_map(|kind| Some((kind, list(rule, kind).first()?)))
}

/// The parts of a rule that identify it, without its description.
fn identity(rule: &Value) -> Value {
    let mut plain = rule.clone();
    for kind in SOURCES {
        let described = plain.get_mut(kind).and_then(Value::as_array_mut);
        for source in described.into_iter().flatten().filter_map(Value::as_object_mut) {
            source.remove("Description");
        }
    }
    plain
}

/// Adds a rule; fails when it is there already.
pub fn add(rules: &mut Vec<Value>, rule: Value) -> Result<(), Failure> {
    if rules.iter().any(|known| identity(known) == identity(&rule)) {
        let peer = source(&rule).and_then(|(_, source)| {
            let names = ["CidrIp", "CidrIpv6", "GroupId"];
            names.iter().find_map(|name| text(source, name))
        });
        let protocol = text(&rule, "IpProtocol").unwrap_or_default().to_uppercase();
        let ports = match (int(&rule, "FromPort"), int(&rule, "ToPort")) {
            (Some(from), Some(to)) => format!("{protocol}, from port: {from}, to port: {to}"),
            _ => "ALL".to_owned(),
        };
        return Err(Failure::client(
            "InvalidPermission.Duplicate",
            format!(
                "the specified rule \"peer: {}, {ports}, ALLOW\" already exists",
                peer.unwrap_or_default()
            ),
        ));
    }
    rules.push(rule);
    Ok(())
}

/// Rules as permissions: those of the same protocol and ports are one.
pub fn merged(rules: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for rule in rules {
        let alike = |other: &Value| KEYS.iter().all(|key| other.get(key) == rule.get(key));
        let place = all.iter().position(alike).unwrap_or_else(|| {
            let mut fresh = json!({});
            for key in KEYS {
                if let Some(value) = rule.get(key) {
                    fresh[key] = value.clone();
                }
            }
            for kind in SOURCES {
                fresh[kind] = json!([]);
            }
            all.push(fresh);
            all.len() - 1
        });
        for kind in SOURCES {
            if let Some(known) = all[place][kind].as_array_mut() {
                known.extend_from_slice(list(rule, kind));
            }
        }
    }
    all
}

/// A rule with an id of its own, as the answer to its making has it.
pub fn described(
    context: &mut Context<'_, '_>,
    group: &str,
    rule: &Value,
    tags: &BTreeMap<String, String>,
) -> Value {
    let id = context.id("sgr");
    let account = &context.visit.account;
    let source = source(rule);
    let of = |name: &str| source.and_then(|(_, source)| source.get(name)).cloned();
    let pair = source.filter(|(kind, _)| *kind == "UserIdGroupPairs");
    json!({
        "SecurityGroupRuleArn": format!("arn:aws:ec2:{}:{account}:security-group-rule/{id}", context.region),
        "SecurityGroupRuleId": id,
        "GroupId": group,
        "GroupOwnerId": account,
        "IsEgress": false,
        "IpProtocol": rule["IpProtocol"],
        "FromPort": int(rule, "FromPort").unwrap_or(-1),
        "ToPort": int(rule, "ToPort").unwrap_or(-1),
        "CidrIpv4": of("CidrIp"),
        "CidrIpv6": of("CidrIpv6"),
        "ReferencedGroupInfo": pair.map(|_| json!({"GroupId": of("GroupId"), "UserId": of("UserId")})),
        "Description": of("Description"),
        "Tags": tag_set(tags),
    })
}

/// What permissions have under the name of a filter, without `ip-permission.` before it.
pub fn filter_values(rules: &[Value], filter: &str) -> Vec<String> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (items, name) = match filter {
        "protocol" => (None, "IpProtocol"),
        "from-port" => (None, "FromPort"),
        "to-port" => (None, "ToPort"),
        "cidr" => (Some("IpRanges"), "CidrIp"),
        "ipv6-cidr" => (Some("Ipv6Ranges"), "CidrIpv6"),
        "group-id" => (Some("UserIdGroupPairs"), "GroupId"),
        "user-id" => (Some("UserIdGroupPairs"), "UserId"),
        _ => return Vec::new(),
    };
    rules
        .iter()
        .filter_map(|rule| match items {
            Some(kind) => list(rule, kind).first()?.get(name),
            None => rule.get(name),
        })
        .map(plain)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: i64, cidr: &str) -> Value {
        json!({"IpProtocol": "tcp", "FromPort": from, "ToPort": from, "IpRanges": [{"CidrIp": cidr}]})
    }

    #[test]
    fn rules_of_the_same_ports_are_one_permission_with_every_kind_of_source() {
        let rules = [
            range(22, "10.0.0.0/8"),
            json!({"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}),
            range(22, "192.168.0.0/16"),
        ];
        let merged = merged(&rules);
        assert_eq!(
            merged,
            [
                json!({
                    "IpProtocol": "tcp",
                    "FromPort": 22,
                    "ToPort": 22,
                    "UserIdGroupPairs": [],
                    "IpRanges": [{"CidrIp": "10.0.0.0/8"}, {"CidrIp": "192.168.0.0/16"}],
                    "Ipv6Ranges": [],
                    "PrefixListIds": [],
                }),
                json!({
                    "IpProtocol": "-1",
                    "UserIdGroupPairs": [{"GroupId": "sg-1"}],
                    "IpRanges": [],
                    "Ipv6Ranges": [],
                    "PrefixListIds": [],
                }),
            ]
        );
    }

    #[test]
    fn a_rule_with_other_words_about_it_is_the_same_rule() {
        let mut rules = vec![range(22, "0.0.0.0/0")];
        let mut again = range(22, "0.0.0.0/0");
        again["IpRanges"][0]["Description"] = json!("SSH");
        assert!(add(&mut rules, again).is_err());
        assert!(add(&mut rules, range(23, "0.0.0.0/0")).is_ok());
    }
}
