//! Regions, zones and networks.
//!
//! Each region has the default VPC with a public subnet in each zone, and a second VPC with one
//! subnet that assigns no public addresses.

use serde_json::{Value, json};

use super::catalogue::{self, REGIONS};
use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, page, texts};

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// Its id.
    pub id: String,
    /// Its network.
    pub vpc: String,
    /// Its zone.
    pub zone: String,
    /// Whether it belongs to the default VPC.
    pub default: bool,
    number: usize,
}

/// How many addresses are left in a subnet.
const FREE: u32 = 4_091;

impl Subnet {
    /// Its addresses.
    fn block(&self) -> String {
        if self.default {
            format!("172.31.{}.0/20", self.number * 16)
        } else {
            "10.0.0.0/24".to_owned()
        }
    }

    fn arn(&self, context: &Context<'_, '_>) -> String {
        format!(
            "arn:aws:ec2:{}:{}:subnet/{}",
            context.region, context.visit.account, self.id
        )
    }
}

/// The default VPC of a region.
pub fn default_vpc(region: &str) -> String {
    format!("vpc-0{}", digits(&format!("default vpc {region}"), 16))
}

/// The VPC of a region that is not the default one.
pub fn other_vpc(region: &str) -> String {
    format!("vpc-0{}", digits(&format!("other vpc {region}"), 16))
}

/// The subnets of a region.
pub fn subnets(region: &str) -> Vec<Subnet> {
    let zones = catalogue::zones(region);
    let first = zones.first().cloned();
    let one = |zone: String, vpc: String, default, number| Subnet {
        id: format!("subnet-0{}", digits(&format!("{vpc} {zone}"), 16)),
        vpc,
        zone,
        default,
        number,
    };
    let mut all: Vec<Subnet> = zones
        .into_iter()
        .enumerate()
        .map(|(number, zone)| one(zone, default_vpc(region), true, number))
        .collect();
    all.extend(first.map(|zone| one(zone, other_vpc(region), false, 0)));
    all
}

/// `DescribeRegions`.
pub fn describe_regions(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let _ = context;
    let named = texts(input, "RegionNames");
    for name in &named {
        if !REGIONS.iter().any(|(region, ..)| region == name) {
            return Err(Failure::client(
                "InvalidParameterValue",
                format!("Invalid region provided: {name}"),
            ));
        }
    }
    let regions: Vec<&str> = REGIONS
        .iter()
        .map(|(name, ..)| *name)
        .filter(|name| named.is_empty() || named.iter().any(|wanted| wanted == name))
        .collect();
    let regions = filtered(
        input,
        &["region-name", "opt-in-status", "endpoint"],
        false,
        regions,
        |region, filter| match filter {
            "region-name" => vec![(*region).to_owned()],
            "opt-in-status" => vec!["opt-in-not-required".to_owned()],
            _ => vec![format!("ec2.{region}.amazonaws.com")],
        },
    )?;
    let regions: Vec<Value> = regions
        .into_iter()
        .map(|region| {
            json!({
                "RegionName": region,
                "Endpoint": format!("ec2.{region}.amazonaws.com"),
                "OptInStatus": "opt-in-not-required",
            })
        })
        .collect();
    Ok(json!({"Regions": regions}))
}

/// The id of a zone, which unlike its name means the same in all accounts.
pub fn zone_id(zone: &str) -> String {
    let (region, letter) = zone.split_at(zone.len().saturating_sub(1));
    let short: String = region
        .split('-')
        .map(|part| match part {
            "east" | "west" | "central" | "northeast" => part.chars().take(1).collect(),
            other => other.to_owned(),
        })
        .collect();
    let number = letter.bytes().next().map_or(1, |byte| byte - b'a' + 1);
    format!("{short}-az{number}")
}

/// `DescribeAvailabilityZones`.
pub fn describe_zones(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let (names, ids) = (texts(input, "ZoneNames"), texts(input, "ZoneIds"));
    let zones = catalogue::zones(&context.region);
    let unknown = names.iter().find(|name| !zones.contains(name));
    let unknown = unknown.or(ids
        .iter()
        .find(|id| !zones.iter().any(|zone| zone_id(zone) == **id)));
    if let Some(unknown) = unknown {
        return Err(Failure::value(format!("Invalid availability zone: [{unknown}]")));
    }
    let zones = zones
        .into_iter()
        .filter(|zone| names.is_empty() || names.contains(zone))
        .filter(|zone| ids.is_empty() || ids.contains(&zone_id(zone)))
        .collect();
    let known = [
        "group-long-name",
        "group-name",
        "message",
        "opt-in-status",
        "parent-zone-id",
        "parent-zone-name",
        "region-name",
        "state",
        "zone-id",
        "zone-name",
        "zone-type",
    ];
    let zones = filtered(input, &known, false, zones, |zone: &String, filter| {
        vec![match filter {
            "zone-name" => zone.clone(),
            "zone-id" => zone_id(zone),
            "state" => "available".to_owned(),
            "zone-type" => "availability-zone".to_owned(),
            "opt-in-status" => "opt-in-not-required".to_owned(),
            "group-name" | "region-name" => context.region.clone(),
            // Only zones of other kinds have these.
            _ => return Vec::new(),
        }]
    })?;
    let zones: Vec<Value> = zones
        .into_iter()
        .map(|zone| {
            json!({
                "ZoneName": zone,
                "ZoneId": zone_id(&zone),
                "RegionName": context.region,
                "State": "available",
                "ZoneType": "availability-zone",
                "OptInStatus": "opt-in-not-required",
                "GroupName": context.region,
                "NetworkBorderGroup": context.region,
                "Messages": [],
            })
        })
        .collect();
    Ok(json!({"AvailabilityZones": zones}))
}

const VPC_FILTERS: [&str; 13] = [
    "cidr",
    "cidr-block",
    "cidr-block-association.association-id",
    "cidr-block-association.cidr-block",
    "cidr-block-association.state",
    "cidrBlock",
    "dhcp-options-id",
    "dhcpOptionsId",
    "is-default",
    "isDefault",
    "owner-id",
    "state",
    "vpc-id",
];

/// The addresses of a VPC.
fn block(default: bool) -> &'static str {
    if default { "172.31.0.0/16" } else { "10.0.0.0/16" }
}

fn association(vpc: &str) -> String {
    format!("vpc-cidr-assoc-0{}", digits(&format!("{vpc} addresses"), 16))
}

fn dhcp_options(region: &str) -> String {
    format!("dopt-0{}", digits(&format!("dhcp {region}"), 16))
}

/// `DescribeVpcs`.
pub fn describe_vpcs(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let all = vec![
        (default_vpc(&context.region), true),
        (other_vpc(&context.region), false),
    ];
    let named = texts(input, "VpcIds");
    if let Some(unknown) = named.iter().find(|id| !all.iter().any(|(vpc, _)| vpc == *id)) {
        return Err(Failure::client(
            "InvalidVpcID.NotFound",
            format!("The vpc ID '{unknown}' does not exist"),
        ));
    }
    let all = all
        .into_iter()
        .filter(|(vpc, _)| named.is_empty() || named.contains(vpc))
        .collect();
    let found = filtered(
        input,
        &VPC_FILTERS,
        true,
        all,
        |(vpc, default), filter| match filter {
            "vpc-id" => vec![vpc.clone()],
            "is-default" | "isDefault" => vec![default.to_string()],
            "state" => vec!["available".to_owned()],
            "cidr-block-association.state" => vec!["associated".to_owned()],
            "cidr" | "cidr-block" | "cidrBlock" | "cidr-block-association.cidr-block" => {
                vec![block(*default).to_owned()]
            }
            "cidr-block-association.association-id" => vec![association(vpc)],
            "dhcp-options-id" | "dhcpOptionsId" => vec![dhcp_options(&context.region)],
            "owner-id" => vec![context.visit.account.clone()],
            _ => Vec::new(),
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
    let vpcs: Vec<Value> = found
        .into_iter()
        .map(|(vpc, default)| {
            json!({
                "VpcId": vpc,
                "IsDefault": default,
                "State": "available",
                "CidrBlock": block(default),
                "CidrBlockAssociationSet": [{
                    "AssociationId": association(&vpc),
                    "CidrBlock": block(default),
                    "CidrBlockState": {"State": "associated"},
                }],
                "DhcpOptionsId": dhcp_options(&context.region),
                "OwnerId": context.visit.account,
                "InstanceTenancy": "default",
                "Tags": [],
            })
        })
        .collect();
    Ok(json!({"Vpcs": vpcs, "NextToken": next}))
}

const SUBNET_FILTERS: [&str; 19] = [
    "assign-ipv6-address-on-creation",
    "availability-zone",
    "availability-zone-id",
    "availabilityZone",
    "availabilityZoneId",
    "available-ip-address-count",
    "cidr",
    "cidr-block",
    "cidrBlock",
    "default-for-az",
    "defaultForAz",
    "enable-dns64",
    "ipv6-native",
    "map-public-ip-on-launch",
    "owner-id",
    "state",
    "subnet-arn",
    "subnet-id",
    "vpc-id",
];

/// `DescribeSubnets`.
pub fn describe_subnets(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let all = subnets(&context.region);
    let named = texts(input, "SubnetIds");
    if let Some(unknown) = named
        .iter()
        .find(|id| !all.iter().any(|subnet| subnet.id == **id))
    {
        return Err(Failure::client(
            "InvalidSubnetID.NotFound",
            format!("The subnet ID '{unknown}' does not exist"),
        ));
    }
    let all = all
        .into_iter()
        .filter(|subnet| named.is_empty() || named.contains(&subnet.id))
        .collect();
    let found = filtered(
        input,
        &SUBNET_FILTERS,
        true,
        all,
        |subnet: &Subnet, filter| match filter {
            "subnet-id" => vec![subnet.id.clone()],
            "vpc-id" => vec![subnet.vpc.clone()],
            "availability-zone" | "availabilityZone" => vec![subnet.zone.clone()],
            "availability-zone-id" | "availabilityZoneId" => vec![zone_id(&subnet.zone)],
            "available-ip-address-count" => vec![FREE.to_string()],
            "cidr" | "cidr-block" | "cidrBlock" => vec![subnet.block()],
            "owner-id" => vec![context.visit.account.clone()],
            "state" => vec!["available".to_owned()],
            "subnet-arn" => vec![subnet.arn(context)],
            "default-for-az" | "defaultForAz" | "map-public-ip-on-launch" => vec![subnet.default.to_string()],
            "assign-ipv6-address-on-creation" | "enable-dns64" | "ipv6-native" => vec!["false".to_owned()],
            _ => Vec::new(),
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
    let subnets: Vec<Value> = found
        .into_iter()
        .map(|subnet| {
            json!({
                "SubnetId": subnet.id,
                "VpcId": subnet.vpc,
                "AvailabilityZone": subnet.zone,
                "AvailabilityZoneId": zone_id(&subnet.zone),
                "State": "available",
                "CidrBlock": subnet.block(),
                "SubnetArn": subnet.arn(context),
                "AvailableIpAddressCount": FREE,
                "DefaultForAz": subnet.default,
                "MapPublicIpOnLaunch": subnet.default,
                "MapCustomerOwnedIpOnLaunch": false,
                "AssignIpv6AddressOnCreation": false,
                "Ipv6CidrBlockAssociationSet": [],
                "Ipv6Native": false,
                "EnableDns64": false,
                "PrivateDnsNameOptionsOnLaunch": {
                    "HostnameType": "ip-name",
                    "EnableResourceNameDnsARecord": false,
                    "EnableResourceNameDnsAAAARecord": false,
                },
                "OwnerId": context.visit.account,
                "Tags": [],
            })
        })
        .collect();
    Ok(json!({"Subnets": subnets, "NextToken": next}))
}
