//! Where a launch is connected: its subnet, its security groups, its network interfaces.

use serde_json::{Value, json};

use super::context::Context;
use super::failure::Failure;
use super::groups as security_groups;
use super::input::{flag, int, list, text, texts};
use super::network::{self, Subnet};

/// Where a launch is connected.
pub struct Placed {
    /// The subnet, when the request names one.
    pub subnet: Option<Subnet>,
    /// The security groups.
    pub groups: Vec<String>,
    /// The network interfaces: card, device and kind.
    pub interfaces: Vec<Value>,
    /// Whether it gets a public address; `None` where the subnet decides.
    pub public: Option<bool>,
}

/// Checks what launch parameters say about the network.
pub fn check(context: &Context<'_, '_>, spec: &Value) -> Result<Placed, Failure> {
    let interfaces = list(spec, "NetworkInterfaces");
    let names = texts(spec, "SecurityGroups");
    let (mut subnet, mut groups) = (
        text(spec, "SubnetId").map(str::to_owned),
        texts(spec, "SecurityGroupIds"),
    );
    let mut public = None;
    if let Some(interface) = interfaces.first() {
        if !groups.is_empty() || !names.is_empty() {
            return Err(Failure::combination(
                "Network interfaces and an instance-level security groups may not be specified on the same request",
            ));
        }
        // Overrides of a fleet say the subnet beside the template's interface; that is
        // allowed. In one request it is not: `RunInstances` looks for that before.
        if int(interface, "DeviceIndex") != Some(0) {
            return Err(Failure::value(
                "The first network interface must have the device index 0",
            ));
        }
        groups = texts(interface, "Groups");
        subnet = text(interface, "SubnetId").map(str::to_owned).or(subnet);
        public = interface.get("AssociatePublicIpAddress").and_then(Value::as_bool);
    }
    if interfaces.len() > 1 {
        if interfaces
            .iter()
            .any(|interface| flag(interface, "AssociatePublicIpAddress"))
        {
            return Err(Failure::combination(
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.",
            ));
        }
        // Nor does the subnet give them one.
        public = Some(false);
    }
    let subnet = match subnet {
        None => None,
        Some(id) => Some(
            network::subnets(&context.region)
                .into_iter()
                .find(|subnet| subnet.id == id)
                .ok_or_else(|| {
                    Failure::client(
                        "InvalidSubnetID.NotFound",
                        format!("The subnet ID '{id}' does not exist"),
                    )
                })?,
        ),
    };
    groups.extend(named(context, &names)?);
    let vpc = subnet.as_ref().map_or_else(
        || network::default_vpc(&context.region),
        |subnet| subnet.vpc.clone(),
    );
    check_groups(context, &vpc, subnet.as_ref(), &groups)?;
    if groups.is_empty() {
        groups.push(security_groups::default_group(&vpc));
    }
    Ok(Placed {
        subnet,
        groups,
        interfaces: kinds(interfaces),
        public,
    })
}

/// The ids of security groups by their names, which are those of the default VPC.
fn named(context: &Context<'_, '_>, names: &[String]) -> Result<Vec<String>, Failure> {
    let home = network::default_vpc(&context.region);
    names
        .iter()
        .map(|name| {
            security_groups::by_name(context, name, &home).ok_or_else(|| {
                Failure::client(
                    "InvalidGroup.NotFound",
                    format!("The security group '{name}' does not exist in default VPC '{home}'"),
                )
            })
        })
        .collect()
}

/// All groups have to be of the network.
fn check_groups(
    context: &Context<'_, '_>,
    vpc: &str,
    subnet: Option<&Subnet>,
    groups: &[String],
) -> Result<(), Failure> {
    for id in groups {
        match security_groups::group(context, id) {
            None => {
                return Err(Failure::client(
                    "InvalidGroup.NotFound",
                    format!("The security group '{id}' does not exist"),
                ));
            }
            Some((_, other)) if other != vpc => {
                let place = subnet.map_or(vpc, |subnet| subnet.id.as_str());
                return Err(Failure::client(
                    "InvalidParameter",
                    format!("Security group {id} and subnet {place} belong to different networks."),
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// What is remembered of the interfaces of a request; without any there is one.
fn kinds(interfaces: &[Value]) -> Vec<Value> {
    let one = |interface: &Value| {
        json!({
            "device": int(interface, "DeviceIndex").unwrap_or(0),
            "card": int(interface, "NetworkCardIndex").unwrap_or(0),
            "kind": text(interface, "InterfaceType").unwrap_or("interface"),
        })
    };
    if interfaces.is_empty() {
        vec![one(&Value::Null)]
    } else {
        interfaces.iter().map(one).collect()
    }
}
