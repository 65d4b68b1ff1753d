//! What `RunInstances` and fleets have in common: whether a launch is allowed,
//! where it fits, and its machines.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::catalogue::{self, Device, InstanceType};
use super::context::{Context, digits};
use super::described::hostname;
use super::failure::Failure;
use super::images::{self, Image};
use super::input::{check_tag_count, flag, int, list, needed, read_tags, text};
use super::launch_network::{self, Placed};
use super::network::{self, Subnet};
use super::parts;
use super::{keys, room};
use crate::backend::{Boot, SshWay, Start};
use crate::core::machine::{Mark, NewMachine};
use crate::core::market::Market;

/// Most bytes of user data, before base64.
const USER_DATA: usize = 16_384;
/// Kinds of resources that a launch may tag.
const TAGGABLE: [&str; 5] = [
    "instance",
    "volume",
    "network-interface",
    "spot-instances-request",
    "elastic-gpu",
];
/// Price of a gigabyte of gp3 for an hour, in millionths of a dollar: 0.08 a month.
const VOLUME_MILLIONTHS: i64 = 110;

/// A launch that is allowed; where it goes is decided later.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What is rented.
    pub kind: &'static InstanceType,
    image: &'static Image,
    image_id: String,
    key: Option<(String, String)>,
    groups: Vec<String>,
    interfaces: Vec<Value>,
    /// The subnet, when the request names one.
    pub subnet: Option<Subnet>,
    /// The zone, when the request names one.
    pub zone: Option<String>,
    public: Option<bool>,
    user_data: String,
    /// On demand or spot.
    pub market: Market,
    /// The most that a spot instance may cost an hour.
    pub max_price: Option<Decimal>,
    tags: BTreeMap<String, String>,
    /// Of what belongs to the machine, by kind.
    part_tags: BTreeMap<String, BTreeMap<String, String>>,
    volumes: Vec<Value>,
    detail: Map<String, Value>,
}

/// Lays one set of launch parameters over another. Tags of both count.
pub fn overlay(below: &Value, above: &Value) -> Value {
    let mut merged = below.as_object().cloned().unwrap_or_default();
    for (name, value) in above.as_object().into_iter().flatten() {
        if name == "TagSpecifications"
            && let (Some(Value::Array(old)), Value::Array(new)) = (merged.get_mut(name), value)
        {
            old.extend(new.clone());
            continue;
        }
        merged.insert(name.clone(), value.clone());
    }
    Value::Object(merged)
}

/// Checks launch parameters as they are after templates and overrides.
pub fn check(context: &Context<'_, '_>, spec: &Value) -> Result<Launch, Failure> {
    let given = needed(spec, "ImageId")?;
    // An image may be named by the parameter that holds its id.
    let image = match given.strip_prefix("resolve:ssm:") {
        Some(parameter) => images::of_parameter(&context.region, parameter)?,
        None => images::find(&context.region, given)?,
    };
    let image_id = image.id(&context.region);
    let type_name = text(spec, "InstanceType").unwrap_or("m1.small");
    let kind = catalogue::instance_type(type_name)
        .ok_or_else(|| Failure::value(format!("Invalid value '{type_name}' for InstanceType.")))?;
    if kind.architecture != image.architecture {
        return Err(Failure::value(format!(
            "The architecture '{}' of the specified instance type does not match the architecture '{}' of the specified AMI. Specify an instance type and an AMI that have matching architectures, and try again. You can use 'describe-instance-types' or 'describe-images' to discover the architecture of the instance type or AMI.",
            kind.architecture, image.architecture
        )));
    }
    let key = match text(spec, "KeyName") {
        Some(name) => Some((name.to_owned(), keys::public_key(context, name)?)),
        None => None,
    };
    let placed = launch_network::check(context, spec)?;
    let (market, max_price, detail) = check_market(context, spec)?;
    let zone = check_zone(context, spec)?;
    let mut tags = BTreeMap::new();
    let mut part_tags: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for specification in list(spec, "TagSpecifications") {
        let resource = needed(specification, "ResourceType")?;
        if !TAGGABLE.contains(&resource) {
            return Err(Failure::value(format!(
                "'{resource}' is not a valid taggable resource type for this operation."
            )));
        }
        context.may("ec2:CreateTags")?;
        let given = read_tags(specification)?;
        if resource == "instance" {
            tags.extend(given);
        } else {
            part_tags.entry(resource.to_owned()).or_default().extend(given);
        }
    }
    for all in part_tags.values().chain([&tags]) {
        check_tag_count(all)?;
    }
    let Placed {
        subnet,
        groups,
        interfaces,
        public,
    } = placed;
    Ok(Launch {
        kind,
        image,
        image_id,
        key,
        groups,
        interfaces,
        subnet,
        zone,
        public,
        user_data: check_user_data(spec)?,
        market,
        max_price,
        tags,
        part_tags,
        volumes: check_volumes(spec, image)?,
        detail,
    })
}

/// The zone that a launch names, by its name or its id.
fn check_zone(context: &Context<'_, '_>, spec: &Value) -> Result<Option<String>, Failure> {
    let placement = &spec["Placement"];
    let named = |zone: &String| {
        text(placement, "AvailabilityZone").is_none_or(|name| name == zone)
            && text(placement, "AvailabilityZoneId").is_none_or(|id| id == network::zone_id(zone))
    };
    let Some(asked) = text(placement, "AvailabilityZone").or(text(placement, "AvailabilityZoneId")) else {
        return Ok(None);
    };
    match catalogue::zones(&context.region).into_iter().find(named) {
        Some(zone) => Ok(Some(zone)),
        None => Err(Failure::value(format!("Invalid availability zone: [{asked}]"))),
    }
}

fn check_user_data(spec: &Value) -> Result<String, Failure> {
    let Some(encoded) = text(spec, "UserData").filter(|encoded| !encoded.is_empty()) else {
        return Ok(String::new());
    };
    let bytes = STANDARD.decode(encoded).map_err(|_| {
        Failure::client(
            "InvalidUserData.Malformed",
            "Invalid BASE64 encoding of user data.",
        )
    })?;
    if bytes.len() > USER_DATA {
        return Err(Failure::value(format!(
            "User data is limited to {USER_DATA} bytes"
        )));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Market, greatest price, and what else the instance remembers of its order.
type Bought = (Market, Option<Decimal>, Map<String, Value>);

fn check_market(context: &Context<'_, '_>, spec: &Value) -> Result<Bought, Failure> {
    let mut detail = Map::new();
    let options = &spec["InstanceMarketOptions"];
    let market = match text(options, "MarketType") {
        None if options.get("SpotOptions").is_some() => return Err(Failure::missing("MarketType")),
        None => Market::OnDemand,
        Some("spot") => Market::Spot,
        Some(other) => {
            return Err(Failure::client(
                "Unsupported",
                format!("The market type '{other}' needs a reservation."),
            ));
        }
    };
    let spot = &options["SpotOptions"];
    let max_price = match text(spot, "MaxPrice") {
        None => None,
        Some(price) => Some(
            price
                .parse::<Decimal>()
                .ok()
                .filter(|price| *price > Decimal::ZERO)
                .ok_or_else(|| Failure::value(format!("{price} is not a valid spot instance price")))?,
        ),
    };
    let persistent = text(spot, "SpotInstanceType") == Some("persistent");
    let interruption = text(spot, "InstanceInterruptionBehavior").unwrap_or("terminate");
    if market == Market::Spot && interruption != "terminate" && !persistent {
        return Err(Failure::combination(format!(
            "Interruption behavior '{interruption}' is only supported with persistent Spot requests."
        )));
    }
    detail.insert("interruption".to_owned(), json!(interruption));
    detail.insert(
        "spotType".to_owned(),
        json!(if persistent { "persistent" } else { "one-time" }),
    );
    let shutdown = text(spec, "InstanceInitiatedShutdownBehavior").unwrap_or("stop");
    detail.insert("shutdown".to_owned(), json!(shutdown));
    let profile = &spec["IamInstanceProfile"];
    if let Some(named) = text(profile, "Arn").or(text(profile, "Name")) {
        context.may("iam:PassRole")?;
        let (name, what) = match named.rsplit_once('/') {
            Some((_, name)) => (name, "iamInstanceProfile.arn"),
            None => (named, "iamInstanceProfile.name"),
        };
        if !context.state.profiles.contains(name) {
            return Err(Failure::value(format!(
                "Value ({named}) for parameter {what} is invalid. Invalid IAM Instance Profile {}",
                if what.ends_with("arn") { "ARN" } else { "name" }
            )));
        }
        detail.insert(
            "profile".to_owned(),
            json!(format!(
                "arn:aws:iam::{}:instance-profile/{name}",
                context.visit.account
            )),
        );
    }
    let metadata = &spec["MetadataOptions"];
    let hops = int(metadata, "HttpPutResponseHopLimit").unwrap_or(1);
    if !(1..=64).contains(&hops) {
        return Err(Failure::value(
            "HttpPutResponseHopLimit has to be between 1 and 64",
        ));
    }
    detail.insert("hopLimit".to_owned(), json!(hops));
    detail.insert(
        "tokens".to_owned(),
        json!(text(metadata, "HttpTokens").unwrap_or("optional")),
    );
    detail.insert(
        "metadata".to_owned(),
        json!(text(metadata, "HttpEndpoint").unwrap_or("enabled")),
    );
    detail.insert(
        "tagsInMetadata".to_owned(),
        json!(text(metadata, "InstanceMetadataTags") == Some("enabled")),
    );
    detail.insert("protected".to_owned(), json!(flag(spec, "DisableApiTermination")));
    Ok((market, max_price, detail))
}

fn check_volumes(spec: &Value, image: &Image) -> Result<Vec<Value>, Failure> {
    let mut root =
        json!({"device": image.root_device, "size": image.root_size, "kind": "gp3", "keep": false});
    let mut volumes = Vec::new();
    for mapping in list(spec, "BlockDeviceMappings") {
        let device = needed(mapping, "DeviceName")?;
        let ebs = &mapping["Ebs"];
        let size = int(ebs, "VolumeSize");
        let kind = text(ebs, "VolumeType").unwrap_or("gp3");
        let keep = ebs.get("DeleteOnTermination").and_then(Value::as_bool) == Some(false);
        if device == image.root_device {
            if size.is_some_and(|size| size < image.root_size) {
                return Err(Failure::client(
                    "InvalidBlockDeviceMapping",
                    format!(
                        "Volume of size {}GB is smaller than snapshot 'snap-0a1b2c3d4e5f60718', expect size >= {}GB",
                        size.unwrap_or_default(),
                        image.root_size
                    ),
                ));
            }
            root = json!({"device": device, "size": size.unwrap_or(image.root_size), "kind": kind, "keep": keep});
        } else {
            let size = size.ok_or_else(|| {
                Failure::client(
                    "MissingParameter",
                    "The request must contain the parameter size or snapshotId",
                )
            })?;
            volumes.push(json!({"device": device, "size": size, "kind": kind, "keep": keep}));
        }
    }
    volumes.insert(0, root);
    if volumes
        .iter()
        .any(|volume| int(volume, "size").is_some_and(|size| !(1..=65_536).contains(&size)))
    {
        return Err(Failure::value("Volume size is not between 1 and 65536 GiB"));
    }
    Ok(volumes)
}

/// Of one call: the ids that all its machines share.
#[derive(Debug, Clone)]
pub struct Order {
    /// The reservation.
    pub reservation: String,
    /// The client token that each machine shows.
    pub client_token: String,
    /// Tags that the service itself adds.
    pub service_tags: BTreeMap<String, String>,
}

/// Makes one machine. The caller has checked the stock.
pub fn start(
    context: &mut Context<'_, '_>,
    launch: &Launch,
    subnet: &Subnet,
    order: &Order,
    index: usize,
) -> String {
    let id = context.id("i");
    let kind = launch.kind;
    context
        .visit
        .world
        .take_stock(kind.name, &subnet.zone, launch.market);
    let on_demand = room::on_demand_price(context, kind);
    let price = match launch.market {
        Market::OnDemand => on_demand,
        Market::Spot => room::spot_price(context, kind, &subnet.zone),
    };
    let mut volumes = launch.volumes.clone();
    for volume in &mut volumes {
        volume["id"] = json!(context.id("vol"));
    }
    let mut interfaces = launch.interfaces.clone();
    for (index, interface) in interfaces.iter_mut().enumerate() {
        let id = format!("eni-0{}", digits(&format!("{id} interface {index}"), 16));
        interface["id"] = json!(id);
    }
    let gigabytes: i64 = volumes.iter().filter_map(|volume| int(volume, "size")).sum();
    let mut detail = launch.detail.clone();
    let spot_request =
        (launch.market == Market::Spot).then(|| format!("sir-{}", context.visit.world.chance.hex(8)));
    let given = json!({
        "region": context.region,
        "zone": subnet.zone,
        "subnet": subnet.id,
        "vpc": subnet.vpc,
        "public": launch.public.unwrap_or(subnet.default),
        "image": launch.image_id,
        "architecture": launch.image.architecture,
        "rootDevice": launch.image.root_device,
        "key": launch.key.as_ref().map(|(name, _)| name),
        "groups": launch.groups,
        "userData": launch.user_data,
        "clientToken": order.client_token,
        "reservation": order.reservation,
        "index": index,
        "spotRequest": spot_request,
        "maxPrice": launch.max_price,
        "volumes": volumes,
        "interfaces": interfaces,
    });
    detail.extend(given.as_object().cloned().unwrap_or_default());
    let mut tags = launch.tags.clone();
    tags.extend(order.service_tags.clone());
    let mark = Mark {
        name: tags.get("Name").cloned().unwrap_or_default(),
        tags,
        ..Mark::default()
    };
    let start = if launch.user_data.is_empty() {
        Start::Nothing
    } else {
        Start::UserData(launch.user_data.clone())
    };
    let new = NewMachine {
        id: id.clone(),
        account: context.visit.account.clone(),
        mark,
        instance_type: kind.name.to_owned(),
        region: subnet.zone.clone(),
        market: launch.market,
        price,
        on_demand_price: on_demand,
        disk_price: Decimal::new(gigabytes * VOLUME_MILLIONTHS, 6),
        plan: context.visit.boot.clone(),
        boot: Boot {
            hostname: hostname(&id),
            image: launch.image_id.clone(),
            user: launch.image.user.to_owned(),
            authorized_keys: launch.key.iter().map(|(_, public)| public.clone()).collect(),
            start,
            env: BTreeMap::new(),
            ssh: SshWay::Direct,
            metadata: true,
            gpus: match kind.device {
                Device::Gpus("NVIDIA", name, count, _) => vec![format!("NVIDIA {name}"); count as usize],
                Device::Fraction(..) => vec!["NVIDIA L4".to_owned()],
                Device::None | Device::Gpus(..) | Device::Neuron(..) | Device::Inference(..) => Vec::new(),
            },
            ..Boot::default()
        },
        detail: Value::Object(detail),
    };
    context.visit.world.create(new);
    if let Some(machine) = context.visit.world.machines.get_mut(&id) {
        let own: Vec<(String, &str)> = parts::of(machine)
            .into_iter()
            .map(|(part, kind)| (part.to_owned(), kind))
            .collect();
        for (part, kind) in own {
            if let Some(tags) = launch.part_tags.get(kind) {
                parts::set_tags(machine, &part, tags);
            }
        }
    }
    context.visit.made.push(id.clone());
    context.visit.subject.get_or_insert_with(|| id.clone());
    id
}
