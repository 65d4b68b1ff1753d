//! Security groups: one that each VPC has, and those that clients make.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{self, Pages, filtered, list, needed, page, tag_set, tag_values, tags_for, text, texts};
use super::instances;
use super::network::{default_vpc, other_vpc};
use crate::core::resource::Resource;

/// The kind of security groups among resources.
pub const GROUP: &str = "security-group";

/// The security group that every VPC has.
pub fn default_group(vpc: &str) -> String {
    format!("sg-0{}", digits(&format!("default group {vpc}"), 16))
}

/// The name of a security group and its VPC, if it exists in the region.
pub fn group(context: &Context<'_, '_>, id: &str) -> Option<(String, String)> {
    for vpc in [default_vpc(&context.region), other_vpc(&context.region)] {
        if default_group(&vpc) == id {
            return Some(("default".to_owned(), vpc));
        }
    }
    groups(context)
        .into_iter()
        .find(|found| found.id == id)
        .map(|found| (found.name.clone(), vpc_of(&found)))
}

fn groups(context: &Context<'_, '_>) -> Vec<Resource> {
    let region = &context.region;
    context
        .visit
        .world
        .resources_of(&context.visit.account, GROUP)
        .filter(|found| found.region == *region)
        .cloned()
        .collect()
}

fn vpc_of(group: &Resource) -> String {
    group.detail["vpc"].as_str().unwrap_or_default().to_owned()
}

/// `CreateSecurityGroup`.
pub fn create_group(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let name = needed(input, "GroupName")?.to_owned();
    let description = needed(input, "Description")?.to_owned();
    let tags = tags_for(input, GROUP, &[GROUP])?;
    if !tags.is_empty() {
        context.may("ec2:CreateTags")?;
    }
    let vpc = text(input, "VpcId").map_or_else(|| default_vpc(&context.region), str::to_owned);
    if ![default_vpc(&context.region), other_vpc(&context.region)].contains(&vpc) {
        return Err(Failure::client(
            "InvalidVpcID.NotFound",
            format!("The vpc ID '{vpc}' does not exist"),
        ));
    }
    if name.starts_with("sg-") || name == "default" || name.chars().count() > 255 {
        return Err(Failure::value(format!(
            "Value ({name}) for parameter GroupName is invalid."
        )));
    }
    let twin = groups(context)
        .into_iter()
        .any(|found| found.name == name && vpc_of(&found) == vpc);
    if twin {
        return Err(Failure::client(
            "InvalidGroup.Duplicate",
            format!("The security group '{name}' already exists for VPC '{vpc}'"),
        ));
    }
    let id = context.id("sg");
    let mut group = context
        .visit
        .world
        .new_resource(&id, GROUP, &context.visit.account, &name);
    group.region.clone_from(&context.region);
    group.tags = tags;
    group.detail = json!({"vpc": vpc, "description": description, "rules": []});
    let answer = json!({"GroupId": id, "Tags": tag_set(&group.tags)});
    context.visit.subject = Some(id);
    context
        .visit
        .world
        .add_resource(group, rust_decimal::Decimal::ZERO);
    Ok(answer)
}

/// `DescribeSecurityGroups`.
pub fn describe_groups(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let mut all = Vec::new();
    for vpc in [default_vpc(&context.region), other_vpc(&context.region)] {
        let id = default_group(&vpc);
        let mut group = context
            .visit
            .world
            .new_resource(&id, GROUP, &context.visit.account, "default");
        group.detail = json!({
            "vpc": vpc,
            "description": "default VPC security group",
            "rules": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id, "UserId": context.visit.account}]}],
        });
        all.push(group);
    }
    all.extend(groups(context));
    let (ids, names) = (texts(input, "GroupIds"), texts(input, "GroupNames"));
    let absent = |what: &str| {
        Failure::client(
            "InvalidGroup.NotFound",
            format!("The security group '{what}' does not exist"),
        )
    };
    if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|group| group.id == **id)) {
        return Err(absent(unknown));
    }
    // Names are meant in the default VPC only.
    let home = default_vpc(&context.region);
    if let Some(unknown) = names.iter().find(|name| {
        !all.iter()
            .any(|group| group.name == **name && vpc_of(group) == home)
    }) {
        return Err(absent(unknown));
    }
    let all = all
        .into_iter()
        .filter(|group| ids.is_empty() || ids.contains(&group.id))
        .filter(|group| names.is_empty() || (names.contains(&group.name) && vpc_of(group) == home))
        .collect();
    let known = ["group-id", "group-name", "vpc-id", "description", "owner-id"];
    let found = filtered(
        input,
        &known,
        true,
        all,
        |group: &Resource, filter| match filter {
            "group-id" => vec![group.id.clone()],
            "group-name" => vec![group.name.clone()],
            "vpc-id" => vec![vpc_of(group)],
            "description" => vec![
                group.detail["description"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            ],
            "owner-id" => vec![group.account.clone()],
            other => tag_values(&group.tags, other),
        },
    )?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 1000,
            usual: None,
        },
        context.visit.keep,
        found,
    )?;
    let groups: Vec<Value> = found
        .into_iter()
        .map(|group| {
            json!({
                "GroupId": group.id,
                "GroupName": group.name,
                "Description": group.detail["description"],
                "VpcId": vpc_of(&group),
                "OwnerId": group.account,
                "IpPermissions": group.detail["rules"],
                "IpPermissionsEgress": [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
                "Tags": tag_set(&group.tags),
            })
        })
        .collect();
    Ok(json!({"SecurityGroups": groups, "NextToken": next}))
}

/// `AuthorizeSecurityGroupIngress`.
pub fn authorize_ingress(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let id = needed(input, "GroupId")?.to_owned();
    let absent = || {
        Failure::client(
            "InvalidGroup.NotFound",
            format!("The security group '{id}' does not exist"),
        )
    };
    let group = groups(context)
        .into_iter()
        .find(|group| group.id == id)
        .ok_or_else(absent)?;
    let mut permissions = list(input, "IpPermissions").to_vec();
    if let Some(protocol) = text(input, "IpProtocol") {
        let mut flat = json!({"IpProtocol": protocol, "IpRanges": [{"CidrIp": text(input, "CidrIp").unwrap_or_default()}]});
        for port in ["FromPort", "ToPort"] {
            if let Some(number) = input::int(input, port) {
                flat[port] = json!(number);
            }
        }
        permissions.push(flat);
    }
    if permissions.is_empty() {
        return Err(Failure::missing("IpPermissions"));
    }
    let mut rules = group.detail["rules"].as_array().cloned().unwrap_or_default();
    let mut added = Vec::new();
    for permission in &permissions {
        for rule in single_rules(context, &group, permission)? {
            if rules.contains(&rule) {
                return Err(Failure::client(
                    "InvalidPermission.Duplicate",
                    format!("the specified rule \"{rule}\" already exists"),
                ));
            }
            rules.push(rule.clone());
            added.push(rule);
        }
    }
    let described: Vec<Value> = added
        .iter()
        .map(|rule| {
            let rule_id = context.id("sgr");
            json!({
                "SecurityGroupRuleId": rule_id,
                "GroupId": id,
                "GroupOwnerId": context.visit.account,
                "IsEgress": false,
                "IpProtocol": rule["IpProtocol"],
                "FromPort": rule.get("FromPort").cloned().unwrap_or(json!(-1)),
                "ToPort": rule.get("ToPort").cloned().unwrap_or(json!(-1)),
                "CidrIpv4": rule["IpRanges"][0]["CidrIp"],
            })
        })
        .collect();
    if let Some(group) = context.visit.world.resources.get_mut(&id) {
        group.detail["rules"] = Value::Array(rules);
    }
    context.visit.subject = Some(id);
    Ok(json!({"Return": true, "SecurityGroupRules": described}))
}

/// A permission with many sources as rules with one source each, checked.
fn single_rules(
    context: &Context<'_, '_>,
    group: &Resource,
    permission: &Value,
) -> Result<Vec<Value>, Failure> {
    let protocol = needed(permission, "IpProtocol")?;
    let mut base = json!({"IpProtocol": protocol});
    match protocol {
        "tcp" | "udp" | "6" | "17" => {
            for port in ["FromPort", "ToPort"] {
                let number = input::int(permission, port)
                    .filter(|number| (0..=65_535).contains(number))
                    .ok_or_else(|| Failure::value(format!("Invalid value for portRange: {port}")))?;
                base[port] = json!(number);
            }
        }
        "icmp" | "icmpv6" | "-1" => {}
        other => {
            return Err(Failure::value(format!(
                "Invalid value '{other}' for IP protocol. Unknown protocol."
            )));
        }
    }
    let mut rules = Vec::new();
    for range in list(permission, "IpRanges") {
        let cidr = needed(range, "CidrIp")?;
        let (address, bits) = cidr.split_once('/').unwrap_or((cidr, ""));
        if address.parse::<Ipv4Addr>().is_err() || !bits.parse::<u8>().is_ok_and(|bits| bits <= 32) {
            return Err(Failure::value(format!("CIDR block {cidr} is malformed")));
        }
        let mut rule = base.clone();
        rule["IpRanges"] = json!([{"CidrIp": cidr}]);
        rules.push(rule);
    }
    for range in list(permission, "Ipv6Ranges") {
        let mut rule = base.clone();
        rule["Ipv6Ranges"] = json!([{"CidrIpv6": needed(range, "CidrIpv6")?}]);
        rules.push(rule);
    }
    for pair in list(permission, "UserIdGroupPairs") {
        let source = needed(pair, "GroupId")?;
        let known = self::group(context, source);
        if known.is_none_or(|(_, vpc)| vpc != vpc_of(group)) {
            return Err(Failure::client(
                "InvalidGroup.NotFound",
                format!("The security group '{source}' does not exist"),
            ));
        }
        let mut rule = base.clone();
        rule["UserIdGroupPairs"] = json!([{"GroupId": source, "UserId": context.visit.account}]);
        rules.push(rule);
    }
    if rules.is_empty() {
        return Err(Failure::value("The permission names no source"));
    }
    Ok(rules)
}

/// `DeleteSecurityGroup`.
pub fn delete_group(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let home = default_vpc(&context.region);
    let found = match (text(input, "GroupId"), text(input, "GroupName")) {
        (Some(id), _) => groups(context).into_iter().find(|group| group.id == id),
        (None, Some(name)) => groups(context)
            .into_iter()
            .find(|group| group.name == name && vpc_of(group) == home),
        (None, None) => return Err(Failure::missing("GroupName or GroupId")),
    };
    let named = text(input, "GroupId")
        .or(text(input, "GroupName"))
        .unwrap_or_default()
        .to_owned();
    if [default_group(&home), default_group(&other_vpc(&context.region))].contains(&named) {
        return Err(Failure::client(
            "CannotDelete",
            "the specified group: \"default\" name: \"default\" cannot be deleted by a user",
        ));
    }
    let group = found.ok_or_else(|| {
        Failure::client(
            "InvalidGroup.NotFound",
            format!("The security group '{named}' does not exist"),
        )
    })?;
    let used = context
        .visit
        .world
        .machines_of(&context.visit.account)
        .any(|machine| machine.exists() && instances::groups_of(machine).contains(&group.id));
    let referred = groups(context).iter().any(|other| {
        other.id != group.id
            && list(&other.detail, "rules")
                .iter()
                .any(|rule| rule["UserIdGroupPairs"][0]["GroupId"] == group.id.as_str())
    });
    if used || referred {
        return Err(Failure::client(
            "DependencyViolation",
            format!("resource {} has a dependent object", group.id),
        ));
    }
    context.visit.world.end_resource(&group.id);
    context.visit.subject = Some(group.id.clone());
    Ok(json!({"Return": true, "GroupId": group.id}))
}
