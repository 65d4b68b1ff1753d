//! An instance as answers have it.

use serde_json::{Value, json};

use super::catalogue;
use super::context::{Context, digits, moment};
use super::groups;
use super::input::{flag, list, tag_set, text};
use super::instances::groups_of;
use super::network::zone_id;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Market;
use crate::core::world::World;

/// How long stopping takes to be seen.
const STOPPING: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// The name of the machine in its network, from its id.
pub fn hostname(id: &str) -> String {
    format!("ip-{}", private_address(id).replace('.', "-"))
}

fn private_address(id: &str) -> String {
    let number = u16::from_str_radix(&digits(id, 4), 16).unwrap_or_default();
    format!("172.31.{}.{}", number >> 8, (number & 0xff).clamp(4, 254))
}

fn is_private(address: &str) -> bool {
    // 198.18.0.0/15 of the machines in memory is no private network.
    address
        .parse::<std::net::Ipv4Addr>()
        .is_ok_and(|address| address.is_private() || address.is_loopback())
}

/// Its state: number and name.
pub fn state(world: &World, machine: &Machine, phase: Phase) -> (i64, &'static str) {
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

/// A state as answers have it.
pub fn state_value((code, name): (i64, &'static str)) -> Value {
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

/// The name of a public address.
fn public_name(address: &str, region: &str) -> String {
    // The oldest region has a name of its own in both.
    let place = if region == "us-east-1" {
        "compute-1".to_owned()
    } else {
        format!("{region}.compute")
    };
    format!("ec2-{}.{place}.amazonaws.com", address.replace('.', "-"))
}

/// The name of a private address.
fn private_name(address: &str, region: &str) -> String {
    let place = if region == "us-east-1" {
        "ec2".to_owned()
    } else {
        format!("{region}.compute")
    };
    format!("ip-{}.{place}.internal", address.replace('.', "-"))
}

/// The addresses of an instance as they are shown now.
struct Addresses {
    private: String,
    public: Option<String>,
}

impl Addresses {
    fn of(machine: &Machine, phase: Phase) -> Self {
        // Machines of a back end that others reach at an address of their own show it.
        let endpoint = machine.endpoint.as_ref().map(|endpoint| endpoint.address.clone());
        let own = endpoint.clone().filter(|address| is_private(address));
        let running = matches!(phase, Phase::Running | Phase::Failed);
        Self {
            private: own.unwrap_or_else(|| private_address(&machine.id)),
            public: endpoint.filter(|_| running && flag(&machine.detail, "public")),
        }
    }
}

/// The network interfaces: the first has the addresses of the instance.
fn interfaces(machine: &Machine, addresses: &Addresses, groups: &[Value], region: &str) -> Vec<Value> {
    let one = |(index, interface): (usize, &Value)| {
        let id = text(interface, "id").unwrap_or_default();
        let (private, public) = if index == 0 {
            (addresses.private.clone(), addresses.public.as_ref())
        } else {
            (private_address(id), None)
        };
        let association = public.map(|address| {
            json!({"IpOwnerId": "amazon", "PublicDnsName": public_name(address, region), "PublicIp": address})
        });
        let name = private_name(&private, region);
        let mac = digits(&format!("{id} mac"), 10);
        let mac: Vec<&str> = (0..5).map(|pair| &mac[pair * 2..pair * 2 + 2]).collect();
        json!({
            "NetworkInterfaceId": id,
            "InterfaceType": interface["kind"],
            "Description": "",
            "Status": "in-use",
            "OwnerId": machine.account,
            "SubnetId": machine.detail["subnet"],
            "VpcId": machine.detail["vpc"],
            "MacAddress": format!("02:{}", mac.join(":")),
            "SourceDestCheck": true,
            "Groups": groups,
            "Ipv6Addresses": [],
            "PrivateDnsName": name,
            "PrivateIpAddress": private,
            "Association": association,
            "PrivateIpAddresses": [{
                "Primary": true,
                "PrivateIpAddress": private,
                "PrivateDnsName": name,
                "Association": association,
            }],
            "Attachment": {
                "AttachmentId": format!("eni-attach-0{}", digits(&format!("{id} attachment"), 16)),
                "AttachTime": moment(machine.created()),
                "DeleteOnTermination": true,
                "DeviceIndex": interface["device"],
                "NetworkCardIndex": interface["card"],
                "Status": "attached",
            },
        })
    };
    list(&machine.detail, "interfaces")
        .iter()
        .enumerate()
        .map(one)
        .collect()
}

/// What clients expect of every instance, and what is the same of nearly all.
fn usual(machine: &Machine) -> Value {
    let kind = catalogue::instance_type(&machine.instance_type);
    json!({
        "CapacityReservationSpecification": {"CapacityReservationPreference": "open"},
        "CpuOptions": kind.map(|kind| json!({"CoreCount": kind.cores(), "ThreadsPerCore": kind.threads()})),
        "EbsOptimized": false,
        "EnaSupport": true,
        "EnclaveOptions": {"Enabled": false},
        "HibernationOptions": {"Configured": false},
        "Hypervisor": "xen",
        "MaintenanceOptions": {"AutoRecovery": "default"},
        "Monitoring": {"State": "disabled"},
        "PlatformDetails": "Linux/UNIX",
        "PrivateDnsNameOptions": {
            "HostnameType": "ip-name",
            "EnableResourceNameDnsARecord": false,
            "EnableResourceNameDnsAAAARecord": false,
        },
        "ProductCodes": [],
        "RootDeviceType": "ebs",
        "SourceDestCheck": true,
        "UsageOperation": "RunInstances",
        "UsageOperationUpdateTime": moment(machine.created()),
        "VirtualizationType": "hvm",
    })
}

/// An instance as answers have it.
pub fn describe_one(context: &Context<'_, '_>, machine: &Machine, phase: Phase) -> Value {
    let world = &context.visit.world;
    let detail = &machine.detail;
    let gone = matches!(phase, Phase::Ended);
    let addresses = Addresses::of(machine, phase);
    let Addresses { private, public } = &addresses;
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
    let interfaces = if gone {
        Vec::new()
    } else {
        interfaces(machine, &addresses, &groups, &context.region)
    };
    let spot = machine.market == Market::Spot;
    let mut described = usual(machine);
    let own = json!({
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
        "PublicDnsName": public.as_ref().map_or_else(String::new, |address| public_name(address, &context.region)),
        "PublicIpAddress": public,
        "PrivateDnsName": if gone { String::new() } else { private_name(private, &context.region) },
        "PrivateIpAddress": (!gone).then_some(private),
        "SubnetId": if gone { Value::Null } else { detail["subnet"].clone() },
        "VpcId": if gone { Value::Null } else { detail["vpc"].clone() },
        "Architecture": detail["architecture"],
        "RootDeviceName": detail["rootDevice"],
        "BlockDeviceMappings": devices,
        "ClientToken": detail["clientToken"],
        "InstanceLifecycle": spot.then_some("spot"),
        "SpotInstanceRequestId": detail["spotRequest"],
        "NetworkInterfaces": interfaces,
        "SecurityGroups": if gone { Vec::new() } else { groups },
        "IamInstanceProfile": detail.get("profile").map(|arn| json!({"Arn": arn, "Id": "AIPASIMULATED0000001"})),
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": detail["tokens"],
            "HttpPutResponseHopLimit": detail["hopLimit"],
            "HttpEndpoint": detail["metadata"],
            "HttpProtocolIpv6": "disabled",
            "InstanceMetadataTags": if flag(detail, "tagsInMetadata") { "enabled" } else { "disabled" },
        },
        "Tags": tag_set(&machine.mark.tags),
    });
    // Two at once are too much for one macro.
    if let (Some(all), Value::Object(own)) = (described.as_object_mut(), own) {
        all.extend(own);
    }
    described
}
