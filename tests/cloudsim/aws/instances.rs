//! Instances as they are described, and their end.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::context::{Context, digits, moment};
use super::failure::{Failure, Outcome};
use super::groups;
use super::input::{Pages, filtered, flag, int, list, page, tag_set, tag_values, text, texts};
use super::network::zone_id;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Market;
use crate::core::world::World;

/// How long a terminated instance can still be described.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// How long stopping takes to be seen.
const STOPPING: SignedDuration = SignedDuration::from_secs(10);

/// An instance with the phase that is shown.
type Shown<'a> = (&'a Machine, Phase);

/// Whether an instance counts against quotas.
pub fn counts(machine: &Machine) -> bool {
    matches!(machine.phase, Phase::Pending | Phase::Running)
}

/// The security groups of an instance.
pub fn groups_of(machine: &Machine) -> Vec<String> {
    list(&machine.detail, "groups")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// The name of the machine in its network, from its id.
pub fn hostname(id: &str) -> String {
    format!("ip-{}", private_address(id).replace('.', "-"))
}

fn private_address(id: &str) -> String {
    let number = u16::from_str_radix(&digits(id, 4), 16).unwrap_or_default();
    format!("172.31.{}.{}", number >> 8, (number & 0xff).clamp(4, 254))
}

/// The instances of an account in a region that can be seen, with the phase that
/// is shown.
pub fn visible<'a>(context: &'a Context<'_, '_>) -> Vec<(&'a Machine, Phase)> {
    let world = &context.visit.world;
    let now = world.now();
    world
        .machines_of(&context.visit.account)
        .filter(|machine| machine.detail["region"] == context.region.as_str())
        .filter_map(|machine| Some((machine, world.listed(machine)?)))
        .filter(|(machine, phase)| {
            *phase != Phase::Ended
                || machine
                    .since(Phase::Ended)
                    .is_none_or(|at| now.duration_since(at) < REMEMBERED)
        })
        .collect()
}

fn named<'a>(context: &'a Context<'_, '_>, ids: &[String]) -> Result<Vec<(&'a Machine, Phase)>, Failure> {
    for id in ids {
        let well_formed = id.strip_prefix("i-").is_some_and(|digits| {
            (digits.len() == 17 || digits.len() == 8) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if !well_formed {
            return Err(Failure::client(
                "InvalidInstanceID.Malformed",
                format!("Invalid id: \"{id}\""),
            ));
        }
    }
    let all = visible(context);
    let unknown: Vec<&str> = ids
        .iter()
        .map(String::as_str)
        .filter(|id| !all.iter().any(|(machine, _)| machine.id == *id))
        .collect();
    match unknown.as_slice() {
        [] => Ok(all
            .into_iter()
            .filter(|(machine, _)| ids.contains(&machine.id))
            .collect()),
        [one] => Err(Failure::client(
            "InvalidInstanceID.NotFound",
            format!("The instance ID '{one}' does not exist"),
        )),
        many => Err(Failure::client(
            "InvalidInstanceID.NotFound",
            format!("The instance IDs '{}' do not exist", many.join(", ")),
        )),
    }
}

fn state(world: &World, machine: &Machine, phase: Phase) -> (i64, &'static str) {
    match phase {
        Phase::Pending => (0, "pending"),
        Phase::Running | Phase::Failed => (16, "running"),
        Phase::Ending => (32, "shutting-down"),
        Phase::Ended => (48, "terminated"),
        Phase::Halted => {
            let recent = machine
                .since(Phase::Halted)
                .is_some_and(|at| world.now().duration_since(at) < STOPPING);
            if recent { (64, "stopping") } else { (80, "stopped") }
        }
    }
}

fn state_value((code, name): (i64, &'static str)) -> Value {
    json!({"Code": code, "Name": name})
}

/// Why an instance is not running: code and message.
fn reason(machine: &Machine, phase: Phase) -> Option<(String, String)> {
    if matches!(phase, Phase::Pending | Phase::Running | Phase::Failed) {
        return None;
    }
    let (code, words) = match machine.cause.as_ref()? {
        Cause::Asked => ("Client.UserInitiatedShutdown", "User initiated shutdown"),
        Cause::Itself => ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
        Cause::Reclaimed if phase == Phase::Halted => {
            ("Server.SpotInstanceShutdown", "Spot instance shutdown")
        }
        Cause::Reclaimed => ("Server.SpotInstanceTermination", "Spot instance termination"),
        Cause::Died => ("Server.InternalError", "Internal error"),
        Cause::NoCapacity => (
            "Server.InsufficientInstanceCapacity",
            "Insufficient capacity to launch the instance",
        ),
        Cause::Installation(code) if code.contains('.') && !code.contains(' ') => {
            (code.as_str(), "Client error on launch")
        }
        Cause::Installation(_) => ("Client.InternalError", "Client error on launch"),
    };
    Some((code.to_owned(), format!("{code}: {words}")))
}

/// An instance as answers have it.
pub fn describe_one(context: &Context<'_, '_>, machine: &Machine, phase: Phase) -> Value {
    let world = &context.visit.world;
    let detail = &machine.detail;
    let gone = matches!(phase, Phase::Ended);
    let running = matches!(phase, Phase::Running | Phase::Failed);
    // Machines of a back end that others reach at an address of their own show it.
    let endpoint = machine.endpoint.as_ref().map(|endpoint| endpoint.address.clone());
    let own = endpoint.clone().filter(|address| is_private(address));
    let private = own.unwrap_or_else(|| private_address(&machine.id));
    let public = endpoint.filter(|_| running && flag(detail, "public"));
    let reason = reason(machine, phase);
    let transition = match &reason {
        Some((code, _)) if code.starts_with("Client.User") => machine
            .since(Phase::Ending)
            .or(machine.since(Phase::Halted))
            .map(|at| format!("User initiated ({})", at.strftime("%Y-%m-%d %H:%M:%S GMT")))
            .unwrap_or_default(),
        Some((_, message)) => message.clone(),
        None => String::new(),
    };
    let groups: Vec<Value> = groups_of(machine)
        .into_iter()
        .map(|id| {
            let name = groups::group(context, &id).map(|(name, _)| name);
            json!({"GroupId": id, "GroupName": name})
        })
        .collect();
    let devices: Vec<Value> = list(detail, "volumes")
        .iter()
        .filter(|_| !gone)
        .map(|volume| {
            json!({
                "DeviceName": volume["device"],
                "Ebs": {
                    "VolumeId": volume["id"],
                    "Status": "attached",
                    "AttachTime": moment(machine.created()),
                    "DeleteOnTermination": !flag(volume, "keep"),
                },
            })
        })
        .collect();
    let spot = machine.market == Market::Spot;
    json!({
        "InstanceId": machine.id,
        "ImageId": detail["image"],
        "State": state_value(state(world, machine, phase)),
        "StateReason": reason.map(|(code, message)| json!({"Code": code, "Message": message})),
        "StateTransitionReason": transition,
        "InstanceType": machine.instance_type,
        "KeyName": detail["key"],
        "AmiLaunchIndex": detail["index"],
        "LaunchTime": moment(machine.created()),
        "Placement": {
            "AvailabilityZone": machine.region,
            "AvailabilityZoneId": zone_id(&machine.region),
            "GroupName": "",
            "Tenancy": "default",
        },
        "Monitoring": {"State": "disabled"},
        "PublicDnsName": public.as_ref().map_or_else(String::new, |address| {
            format!("ec2-{}.{}.compute.amazonaws.com", address.replace('.', "-"), context.region)
        }),
        "PublicIpAddress": public,
        "PrivateDnsName": if gone { String::new() } else { format!("ip-{}.ec2.internal", private.replace('.', "-")) },
        "PrivateIpAddress": (!gone).then_some(private),
        "SubnetId": if gone { Value::Null } else { detail["subnet"].clone() },
        "VpcId": if gone { Value::Null } else { detail["vpc"].clone() },
        "Architecture": detail["architecture"],
        "RootDeviceName": detail["rootDevice"],
        "RootDeviceType": "ebs",
        "BlockDeviceMappings": devices,
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "EnaSupport": true,
        "EbsOptimized": false,
        "ClientToken": detail["clientToken"],
        "InstanceLifecycle": spot.then_some("spot"),
        "SpotInstanceRequestId": detail["spotRequest"],
        "SecurityGroups": if gone { Vec::new() } else { groups },
        "IamInstanceProfile": detail.get("profile").map(|arn| json!({"Arn": arn, "Id": "AIPASIMULATED0000001"})),
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": detail["tokens"],
            "HttpPutResponseHopLimit": detail["hopLimit"],
            "HttpEndpoint": detail["metadata"],
        },
        "Tags": tag_set(&machine.mark.tags),
    })
}

fn is_private(address: &str) -> bool {
    // 198.18.0.0/15 of the machines in memory is no private network.
    address
        .parse::<std::net::Ipv4Addr>()
        .is_ok_and(|address| address.is_private() || address.is_loopback())
}

// What no instance here has, as a platform, is known and finds none.
const FILTERS: [&str; 58] = [
    "architecture",
    "availability-zone",
    "availability-zone-id",
    "block-device-mapping.delete-on-termination",
    "block-device-mapping.device-name",
    "block-device-mapping.status",
    "block-device-mapping.volume-id",
    "capacity-reservation-id",
    "client-token",
    "dns-name",
    "ebs-optimized",
    "ena-support",
    "host-id",
    "hypervisor",
    "iam-instance-profile.arn",
    "image-id",
    "instance-id",
    "instance-lifecycle",
    "instance-state-code",
    "instance-state-name",
    "instance-type",
    "instance.group-id",
    "instance.group-name",
    "ip-address",
    "ipv6-address",
    "kernel-id",
    "key-name",
    "launch-index",
    "launch-time",
    "metadata-options.http-endpoint",
    "metadata-options.http-tokens",
    "monitoring-state",
    "network-interface.group-id",
    "network-interface.subnet-id",
    "network-interface.vpc-id",
    "owner-id",
    "placement-group-name",
    "platform",
    "platform-details",
    "private-dns-name",
    "private-ip-address",
    "product-code",
    "ramdisk-id",
    "reason",
    "requester-id",
    "reservation-id",
    "root-device-name",
    "root-device-type",
    "source-dest-check",
    "spot-instance-request-id",
    "state-reason-code",
    "state-reason-message",
    "subnet-id",
    "tag-value",
    "tenancy",
    "usage-operation",
    "virtualization-type",
    "vpc-id",
];

/// Filters by the place in the description that they look at.
const PLACES: [(&str, &str); 19] = [
    ("availability-zone-id", "/Placement/AvailabilityZoneId"),
    ("dns-name", "/PublicDnsName"),
    ("ebs-optimized", "/EbsOptimized"),
    ("ena-support", "/EnaSupport"),
    ("hypervisor", "/Hypervisor"),
    ("iam-instance-profile.arn", "/IamInstanceProfile/Arn"),
    ("launch-index", "/AmiLaunchIndex"),
    ("metadata-options.http-endpoint", "/MetadataOptions/HttpEndpoint"),
    ("metadata-options.http-tokens", "/MetadataOptions/HttpTokens"),
    ("monitoring-state", "/Monitoring/State"),
    ("network-interface.subnet-id", "/SubnetId"),
    ("network-interface.vpc-id", "/VpcId"),
    ("private-dns-name", "/PrivateDnsName"),
    ("reason", "/StateTransitionReason"),
    ("root-device-name", "/RootDeviceName"),
    ("root-device-type", "/RootDeviceType"),
    ("state-reason-message", "/StateReason/Message"),
    ("tenancy", "/Placement/Tenancy"),
    ("virtualization-type", "/VirtualizationType"),
];

fn filter_values(context: &Context<'_, '_>, machine: &Machine, phase: Phase, filter: &str) -> Vec<String> {
    let described = || describe_one(context, machine, phase);
    let one = |value: &Value| match value {
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Bool(flag) => vec![flag.to_string()],
        _ => Vec::new(),
    };
    let each = |items: &str, place: &str| -> Vec<String> {
        let described = described();
        let items = list(&described, items).iter();
        items
            .filter_map(|item| item.pointer(place))
            .flat_map(one)
            .collect()
    };
    match filter {
        "architecture" => one(&described()["Architecture"]),
        "availability-zone" => vec![machine.region.clone()],
        "client-token" => one(&machine.detail["clientToken"]),
        "image-id" => one(&machine.detail["image"]),
        "instance-id" => vec![machine.id.clone()],
        "instance-lifecycle" => one(&described()["InstanceLifecycle"]),
        "instance-state-code" => vec![state(context.visit.world, machine, phase).0.to_string()],
        "instance-state-name" => vec![state(context.visit.world, machine, phase).1.to_owned()],
        "instance-type" => vec![machine.instance_type.clone()],
        "block-device-mapping.delete-on-termination" => {
            each("BlockDeviceMappings", "/Ebs/DeleteOnTermination")
        }
        "block-device-mapping.device-name" => each("BlockDeviceMappings", "/DeviceName"),
        "block-device-mapping.status" => each("BlockDeviceMappings", "/Ebs/Status"),
        "block-device-mapping.volume-id" => each("BlockDeviceMappings", "/Ebs/VolumeId"),
        "instance.group-id" | "network-interface.group-id" => groups_of(machine),
        "instance.group-name" => each("SecurityGroups", "/GroupName"),
        "ip-address" => one(&described()["PublicIpAddress"]),
        "key-name" => one(&machine.detail["key"]),
        "launch-time" => one(&described()["LaunchTime"]),
        "owner-id" => vec![machine.account.clone()],
        "platform-details" => vec!["Linux/UNIX".to_owned()],
        "source-dest-check" => vec!["true".to_owned()],
        "usage-operation" => vec!["RunInstances".to_owned()],
        "private-ip-address" => one(&described()["PrivateIpAddress"]),
        "reservation-id" => one(&machine.detail["reservation"]),
        "spot-instance-request-id" => one(&machine.detail["spotRequest"]),
        "state-reason-code" => one(&described()["StateReason"]["Code"]),
        "subnet-id" => one(&machine.detail["subnet"]),
        "vpc-id" => one(&machine.detail["vpc"]),
        "tag-value" => machine.mark.tags.values().cloned().collect(),
        other => match PLACES.iter().find(|(name, _)| *name == other) {
            Some((_, place)) => described().pointer(place).map(one).unwrap_or_default(),
            None => tag_values(&machine.mark.tags, other),
        },
    }
}

/// Instances that a request asks for by ids, filters and page.
fn asked<'a>(
    context: &'a Context<'_, '_>,
    input: &Value,
    ids_may_have_pages: bool,
) -> Result<(Vec<Shown<'a>>, Option<String>), Failure> {
    let ids = texts(input, "InstanceIds");
    if !ids.is_empty()
        && !ids_may_have_pages
        && (int(input, "MaxResults").is_some() || text(input, "NextToken").is_some())
    {
        return Err(Failure::combination(
            "The parameter instancesSet cannot be used with the parameter maxResults",
        ));
    }
    let all = if ids.is_empty() {
        visible(context)
    } else {
        named(context, &ids)?
    };
    let found = filtered(input, &FILTERS, true, all, |(machine, phase), filter| {
        filter_values(context, machine, *phase, filter)
    })?;
    page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )
}

/// `DescribeInstances`.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let (found, next) = asked(context, input, false)?;
    let mut reservations: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (machine, phase) in found {
        let reservation = machine.detail["reservation"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        reservations
            .entry(reservation)
            .or_default()
            .push(describe_one(context, machine, phase));
    }
    let reservations: Vec<Value> = reservations
        .into_iter()
        .map(|(id, instances)| {
            json!({"ReservationId": id, "OwnerId": context.visit.account, "Groups": [], "Instances": instances})
        })
        .collect();
    Ok(json!({"Reservations": reservations, "NextToken": next}))
}

/// The status of an instance, and that of its reachability.
fn health(context: &Context<'_, '_>, machine: &Machine, phase: Phase) -> (&'static str, &'static str) {
    let ready = machine
        .since(Phase::Running)
        .is_some_and(|at| context.visit.now().duration_since(at) > SignedDuration::from_secs(60));
    match phase {
        Phase::Running if flag(&machine.detail, "impaired") => ("impaired", "failed"),
        Phase::Running if ready => ("ok", "passed"),
        Phase::Pending | Phase::Running => ("initializing", "initializing"),
        Phase::Halted | Phase::Failed | Phase::Ending | Phase::Ended => {
            ("not-applicable", "insufficient-data")
        }
    }
}

/// `DescribeInstanceStatus`: running ones only, unless all are asked for.
pub fn describe_status(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let everything = flag(input, "IncludeAllInstances");
    let ids = texts(input, "InstanceIds");
    let all = if ids.is_empty() {
        visible(context)
    } else {
        named(context, &ids)?
    };
    let all = all
        .into_iter()
        .filter(|(_, phase)| everything || *phase == Phase::Running)
        .collect();
    let known = [
        "availability-zone",
        "availability-zone-id",
        "instance-state-code",
        "instance-state-name",
        "instance-status.reachability",
        "instance-status.status",
        "system-status.reachability",
        "system-status.status",
    ];
    let found = filtered(
        input,
        &known,
        true,
        all,
        |(machine, phase), filter| match filter {
            "instance-status.reachability" | "system-status.reachability" => {
                vec![health(context, machine, *phase).1.to_owned()]
            }
            "instance-status.status" | "system-status.status" => {
                vec![health(context, machine, *phase).0.to_owned()]
            }
            other => filter_values(context, machine, *phase, other),
        },
    )?;
    let pages = Pages {
        least: 5,
        most: 1_000,
        usual: Some(100),
    };
    let (found, next) = page(input, pages, context.visit.keep, found)?;
    let statuses: Vec<Value> = found
        .into_iter()
        .map(|(machine, phase)| {
            let (status, passed) = health(context, machine, phase);
            let summary = json!({"Status": status, "Details": [{"Name": "reachability", "Status": passed}]});
            json!({
                "InstanceId": machine.id,
                "AvailabilityZone": machine.region,
                "AvailabilityZoneId": zone_id(&machine.region),
                "InstanceState": state_value(state(context.visit.world, machine, phase)),
                "InstanceStatus": summary,
                "SystemStatus": summary,
                "Events": [],
            })
        })
        .collect();
    Ok(json!({"InstanceStatuses": statuses, "NextToken": next}))
}

/// `TerminateInstances`: all of them or, with one that is not known, none.
pub fn terminate(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let ids = texts(input, "InstanceIds");
    if ids.is_empty() {
        return Err(Failure::missing("InstanceId"));
    }
    if ids.len() > 1_000 {
        return Err(Failure::value("At most 1000 instances in one call."));
    }
    let found: Vec<(String, (i64, &'static str), bool)> = named(context, &ids)?
        .into_iter()
        .map(|(machine, phase)| {
            (
                machine.id.clone(),
                state(context.visit.world, machine, phase),
                flag(&machine.detail, "protected"),
            )
        })
        .collect();
    if let Some((id, ..)) = found.iter().find(|(.., protected)| *protected) {
        return Err(Failure::client(
            "OperationNotPermitted",
            format!(
                "The instance '{id}' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again."
            ),
        ));
    }
    context.visit.subject = ids.first().cloned();
    let mut changes = Vec::new();
    for (id, before, _) in found {
        end(context.visit.world, &id, Cause::Asked);
        let after = context
            .visit
            .world
            .machines
            .get(&id)
            .map(|machine| state(context.visit.world, machine, machine.phase));
        changes.push(json!({
            "InstanceId": id,
            "PreviousState": state_value(before),
            "CurrentState": after.map(state_value),
        }));
    }
    Ok(json!({"TerminatingInstances": changes}))
}

/// Ends a machine. Volumes that are to be kept stay behind, and cost.
pub fn end(world: &mut World, id: &str, cause: Cause) {
    let takes = world.end_takes;
    let Some(machine) = world.machines.get(id) else {
        return;
    };
    if matches!(machine.phase, Phase::Ending | Phase::Ended) {
        return;
    }
    let kept: Vec<(String, i64)> = list(&machine.detail, "volumes")
        .iter()
        .filter(|volume| flag(volume, "keep"))
        .filter_map(|volume| Some((text(volume, "id")?.to_owned(), int(volume, "size")?)))
        .collect();
    let (account, region) = (
        machine.account.clone(),
        text(&machine.detail, "region").unwrap_or_default().to_owned(),
    );
    for (volume, gigabytes) in kept {
        let mut resource = world.new_resource(&volume, "volume", &account, "");
        resource.region.clone_from(&region);
        world.add_resource(resource, Decimal::new(gigabytes * 110, 6));
    }
    world.end(id, cause, takes);
}

/// `GetConsoleOutput`.
pub fn console_output(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let ids = vec![super::input::needed(input, "InstanceId")?.to_owned()];
    let (machine, _) = named(context, &ids)?
        .into_iter()
        .next()
        .ok_or_else(|| Failure::internal("no instance"))?;
    let text = format!("Ubuntu 24.04 LTS {} ttyS0\r\n", hostname(&machine.id));
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    Ok(json!({"InstanceId": machine.id, "Timestamp": context.moment(), "Output": encoded}))
}
