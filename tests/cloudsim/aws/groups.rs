//! Security groups: one that each VPC has, and groups that clients make.

use serde_json::{Value, json};

use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, list, needed, page, tag_set, tag_values, tags_for, text, texts};
use super::instances;
use super::network::{default_vpc, other_vpc};
use super::rules;
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
    if name == "default" {
        return Err(Failure::client(
            "InvalidGroup.Reserved",
            "The security group 'default' is reserved",
        ));
    }
    if name.starts_with("sg-") || name.chars().count() > 255 {
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
    let answer = json!({"GroupId": id, "SecurityGroupArn": arn(context, &id), "Tags": tag_set(&group.tags)});
    context.visit.subject = Some(id);
    context
        .visit
        .world
        .add_resource(group, rust_decimal::Decimal::ZERO);
    Ok(answer)
}

/// All groups of the region: groups that networks have by themselves come first.
fn all(context: &Context<'_, '_>) -> Vec<Resource> {
    let account = &context.visit.account;
    let mut all = Vec::new();
    for vpc in [default_vpc(&context.region), other_vpc(&context.region)] {
        let id = default_group(&vpc);
        let mut group = context.visit.world.new_resource(&id, GROUP, account, "default");
        let changed = context.state.default_rules.get(&(account.clone(), id.clone()));
        let usual =
            || json!([{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id, "UserId": account}]}]);
        group.detail = json!({
            "vpc": vpc,
            "description": "default VPC security group",
            "rules": changed.cloned().unwrap_or_else(usual),
        });
        all.push(group);
    }
    all.extend(groups(context));
    all
}

/// The id of the group of this name in a network.
pub fn by_name(context: &Context<'_, '_>, name: &str, vpc: &str) -> Option<String> {
    all(context)
        .into_iter()
        .find(|group| group.name == name && vpc_of(group) == vpc)
        .map(|group| group.id)
}

/// The failure for a group that does not exist.
pub fn absent(what: &str) -> Failure {
    Failure::client(
        "InvalidGroup.NotFound",
        format!("The security group '{what}' does not exist"),
    )
}

const FILTERS: [&str; 20] = [
    "description",
    "egress.ip-permission.cidr",
    "egress.ip-permission.from-port",
    "egress.ip-permission.group-id",
    "egress.ip-permission.ipv6-cidr",
    "egress.ip-permission.protocol",
    "egress.ip-permission.to-port",
    "egress.ip-permission.user-id",
    "group-id",
    "group-name",
    "ip-permission.cidr",
    "ip-permission.from-port",
    "ip-permission.group-id",
    "ip-permission.group-name",
    "ip-permission.ipv6-cidr",
    "ip-permission.protocol",
    "ip-permission.to-port",
    "ip-permission.user-id",
    "owner-id",
    "vpc-id",
];

/// What every group lets out.
fn egress() -> [Value; 1] {
    [json!({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]})]
}

fn filter_values(context: &Context<'_, '_>, group: &Resource, filter: &str) -> Vec<String> {
    let rules = list(&group.detail, "rules");
    if let Some(name) = filter.strip_prefix("egress.ip-permission.") {
        return rules::filter_values(&egress(), name);
    }
    match filter.strip_prefix("ip-permission.") {
        Some("group-name") => rules::filter_values(rules, "group-id")
            .iter()
            .filter_map(|id| self::group(context, id))
            .map(|(name, _)| name)
            .collect(),
        Some(name) => rules::filter_values(rules, name),
        None => match filter {
            "group-id" => vec![group.id.clone()],
            "group-name" => vec![group.name.clone()],
            "vpc-id" => vec![vpc_of(group)],
            "description" => text(&group.detail, "description")
                .map(str::to_owned)
                .into_iter()
                .collect(),
            "owner-id" => vec![group.account.clone()],
            other => tag_values(&group.tags, other),
        },
    }
}

/// `DescribeSecurityGroups`.
pub fn describe_groups(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let all = all(context);
    let (ids, names) = (texts(input, "GroupIds"), texts(input, "GroupNames"));
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
    let found = filtered(input, &FILTERS, true, all, |group: &Resource, filter| {
        filter_values(context, group, filter)
    })?;
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
                "SecurityGroupArn": arn(context, &group.id),
                "Description": group.detail["description"],
                "VpcId": vpc_of(&group),
                "OwnerId": group.account,
                "IpPermissions": rules::merged(list(&group.detail, "rules")),
                "IpPermissionsEgress": rules::merged(&egress()),
                "Tags": tag_set(&group.tags),
            })
        })
        .collect();
    Ok(json!({"SecurityGroups": groups, "NextToken": next}))
}

fn arn(context: &Context<'_, '_>, id: &str) -> String {
    format!(
        "arn:aws:ec2:{}:{}:security-group/{id}",
        context.region, context.visit.account
    )
}

/// `AuthorizeSecurityGroupIngress`.
pub fn authorize_ingress(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let home = default_vpc(&context.region);
    let (id, name) = (text(input, "GroupId"), text(input, "GroupName"));
    let named = id
        .or(name)
        .ok_or_else(|| Failure::missing("GroupName or GroupId"))?;
    let group = all(context)
        .into_iter()
        .find(|group| match id {
            Some(id) => group.id == id,
            None => group.name == named && vpc_of(group) == home,
        })
        .ok_or_else(|| absent(named))?;
    let tags = tags_for(input, "security-group-rule", &["security-group-rule"])?;
    let mut rules = list(&group.detail, "rules").to_vec();
    let mut added = Vec::new();
    for permission in rules::permissions(input)? {
        for rule in rules::single(context, &vpc_of(&group), &permission)? {
            rules::add(&mut rules, rule.clone())?;
            added.push(rule);
        }
    }
    let described: Vec<Value> = added
        .iter()
        .map(|rule| rules::described(context, &group.id, rule, &tags))
        .collect();
    let rules = Value::Array(rules);
    if let Some(group) = context.visit.world.resources.get_mut(&group.id) {
        group.detail["rules"] = rules;
    } else {
        let key = (context.visit.account.clone(), group.id.clone());
        context.state.default_rules.insert(key, rules);
    }
    context.visit.subject = Some(group.id);
    Ok(json!({"Return": true, "SecurityGroupRules": described}))
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
    let group = found.ok_or_else(|| absent(&named))?;
    let used = context
        .visit
        .world
        .machines_of(&context.visit.account)
        .any(|machine| machine.exists() && instances::groups_of(machine).contains(&group.id));
    let referred = all(context).iter().any(|other| {
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
