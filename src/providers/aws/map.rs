//! An order becomes requests to EC2, an instance becomes a machine. Pure: the same order
//! gives the same bytes, so that ordering twice is ordering once.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use aws_sdk_ec2::types::{
    Filter, FleetLaunchTemplateConfigRequest, FleetLaunchTemplateOverridesRequest,
    FleetLaunchTemplateSpecificationRequest, FleetOnDemandAllocationStrategy, Instance, InstanceStateName,
    InstanceType, LaunchTemplateBlockDeviceMappingRequest, LaunchTemplateEbsBlockDeviceRequest,
    LaunchTemplateHttpTokensState, LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceMetadataEndpointState, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest, LaunchTemplateTagSpecificationRequest,
    OnDemandOptionsRequest, RequestLaunchTemplateData, ResourceType, ShutdownBehavior,
    SpotInstanceInterruptionBehavior, SpotOptionsRequest, Tag, TagSpecification,
    TargetCapacitySpecificationRequest, VolumeType,
};
use jiff::Timestamp;
use skyward_core::{
    Mark, Market, Order, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    boot, cut, digest,
    marks::{self, Tags},
};

use crate::{
    config::{ROOT, Settings},
    network::Subnet,
};

/// Tag of everything that is ours.
pub const MANAGED: &str = "skyward:managed";
/// Tag with the installation.
pub const CLUSTER: &str = "skyward:cluster";
/// Tag with the Provider object.
pub const PROVIDER: &str = "skyward:provider";
/// Tag with the UID of the Pool.
pub const POOL_UID: &str = "skyward:pool-uid";
/// Tag with the UID of the Machine.
pub const MACHINE_UID: &str = "skyward:machine-uid";
/// Keys of the tags of the mark that a whole Pool has in common.
const POOLS: [&str; 4] = [CLUSTER, "skyward:namespace", "skyward:pool", POOL_UID];
/// Longest value of a tag.
const LONGEST: usize = 256;
const TAGS: Tags = Tags::new("skyward:", LONGEST);
const USER: &str = "skyward:user";
/// Port of SSH at every image.
const SSH: u16 = 22;
/// Size of the root disk where the Pool says none, in GB.
const DISK_GIB: u64 = 100;
/// Most labels as tags: EC2 allows 50 tags, and ours come first.
const MOST_LABELS: usize = 24;

/// An image, as a template needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Name of its root device.
    pub root_device: String,
    /// Smallest root disk that it fits on, in GB.
    pub least_gb: u32,
    /// Volumes besides its root that would outlive a machine, so that they do not.
    pub others: Vec<LaunchTemplateBlockDeviceMappingRequest>,
}

/// A launch template: everything that the machines of a Pool have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// Its name, which is made from its content: templates of one name are equal.
    pub name: String,
    /// Its content.
    pub data: RequestLaunchTemplateData,
}

fn tag(key: &str, value: &str) -> Tag {
    Tag::builder().key(key).value(cut(value, LONGEST)).build()
}

/// Tags of what the machines of a Pool share.
pub fn pool_tags(mark: &Mark, provider: &str) -> Vec<Tag> {
    let of_pool = |tag: &marks::Tag| POOLS.contains(&tag.key.as_str());
    let mut tags = ours_of(&format!("skyward-{}", mark.pool), provider);
    tags.extend(TAGS.write(mark).iter().filter(|tag| of_pool(tag)).map(written));
    tags
}

/// Tags of a machine: its mark, and the labels that people see.
pub fn machine_tags(order: &Order, provider: &str, user: &str) -> Vec<Tag> {
    let mark = &order.mark;
    let mut tags = ours_of(&format!("skyward-{}", mark.machine), provider);
    tags.extend(TAGS.write(mark).iter().map(written));
    tags.push(tag(USER, user));
    let labels = order.labels.iter().filter(|(name, _)| {
        !name.is_empty()
            && name.len() <= 128
            && !name.starts_with("aws:")
            && !name.starts_with("skyward:")
            && *name != "Name"
    });
    tags.extend(labels.take(MOST_LABELS).map(|(name, value)| tag(name, value)));
    tags
}

/// Tags of everything that is ours.
fn ours_of(name: &str, provider: &str) -> Vec<Tag> {
    vec![tag("Name", name), tag(MANAGED, "true"), tag(PROVIDER, provider)]
}

fn written(of_mark: &marks::Tag) -> Tag {
    tag(&of_mark.key, of_mark.value.as_deref().unwrap_or_default())
}

/// The mark in an instance's tags; `None` when it is not ours.
pub fn mark(tags: &[Tag]) -> Option<Mark> {
    TAGS.read_by(|key| value(tags, key))
}

/// The value of a tag.
pub fn value(tags: &[Tag], key: &str) -> Option<String> {
    tags.iter()
        .find(|tag| tag.key() == Some(key))
        .and_then(|tag| tag.value())
        .map(str::to_owned)
}

/// A filter of a list.
pub fn filter(name: &str, values: &[&str]) -> Filter {
    Filter::builder()
        .name(name)
        .set_values(Some(values.iter().map(|value| (*value).to_owned()).collect()))
        .build()
}

/// Filters for resources of this installation and Provider, and of one Pool if it is named.
pub fn ours(cluster: &str, provider: &str, pool_uid: Option<&str>) -> Vec<Filter> {
    let mut filters = vec![
        filter(&format!("tag:{CLUSTER}"), &[cluster]),
        filter(&format!("tag:{PROVIDER}"), &[provider]),
    ];
    filters.extend(pool_uid.map(|uid| filter(&format!("tag:{POOL_UID}"), &[uid])));
    filters
}

/// The order's token as EC2 takes it: at most 64 characters.
pub fn token(order: &Order) -> String {
    if order.token.len() <= 64 && order.token.is_ascii() {
        order.token.clone()
    } else {
        digest(&order.token, 64)
    }
}

/// The token of an order after so many refusals: EC2 repeats its answer to a known token. A refused
/// order started nothing, so another token makes no second machine. The token is deterministic, so
/// an order whose answer is lost finds its machine.
pub fn next_token(token: &str, refusals: u32) -> String {
    let next = format!("{token}-again-{refusals}");
    if next.len() <= 64 { next } else { digest(&next, 64) }
}

/// The template that an order is started from.
pub fn template(
    order: &Order,
    provider: &str,
    settings: &Settings,
    image: &Image,
    group: &str,
    public_address: bool,
    user_data: &str,
) -> Template {
    let asked = order.disk_bytes.map(|bytes| bytes.div_ceil(1 << 30));
    let disk = asked.unwrap_or(DISK_GIB).max(u64::from(image.least_gb));
    let interface = LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
        .device_index(0)
        .associate_public_ip_address(public_address)
        .delete_on_termination(true)
        .groups(group)
        .build();
    let root = LaunchTemplateBlockDeviceMappingRequest::builder()
        .device_name(&image.root_device)
        .ebs(
            LaunchTemplateEbsBlockDeviceRequest::builder()
                .volume_size(i32::try_from(disk).unwrap_or(i32::MAX))
                .volume_type(VolumeType::Gp3)
                .delete_on_termination(true)
                .build(),
        )
        .build();
    let metadata = LaunchTemplateInstanceMetadataOptionsRequest::builder()
        .http_endpoint(LaunchTemplateInstanceMetadataEndpointState::Enabled)
        .http_tokens(LaunchTemplateHttpTokensState::Required)
        .http_put_response_hop_limit(1)
        .build();
    let tagged = |kind: ResourceType| {
        LaunchTemplateTagSpecificationRequest::builder()
            .resource_type(kind)
            .set_tags(Some(pool_tags(&order.mark, provider)))
            .build()
    };
    let profile = settings.instance_profile_arn.as_ref().map(|arn| {
        LaunchTemplateIamInstanceProfileSpecificationRequest::builder()
            .arn(arn)
            .build()
    });
    let data = RequestLaunchTemplateData::builder()
        .image_id(&image.id)
        .user_data(boot::base64(user_data))
        .network_interfaces(interface)
        .set_block_device_mappings(Some([vec![root], image.others.clone()].concat()))
        .metadata_options(metadata)
        // With this a machine that stops itself ends its bill.
        .instance_initiated_shutdown_behavior(ShutdownBehavior::Terminate)
        .set_iam_instance_profile(profile)
        // The tags of the instance itself differ from machine to machine: the fleet sets them.
        .tag_specifications(tagged(ResourceType::Volume))
        .tag_specifications(tagged(ResourceType::NetworkInterface))
        .build();
    let content = format!(
        "{}|{}|{disk}|{group}|{public_address}|{:?}|{user_data}",
        image.id, image.root_device, settings.instance_profile_arn
    );
    Template {
        name: format!("skyward-{}-{}", order.mark.pool_uid, digest(&content, 16)),
        data,
    }
}

/// A fleet that starts one machine and ends (type `instant`).
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Idempotency token.
    pub token: String,
    /// Template, and the subnets to try.
    pub config: FleetLaunchTemplateConfigRequest,
    /// One machine, spot or on demand.
    pub capacity: TargetCapacitySpecificationRequest,
    /// How spot capacity is chosen.
    pub spot: Option<SpotOptionsRequest>,
    /// How on-demand capacity is chosen.
    pub on_demand: Option<OnDemandOptionsRequest>,
    /// Tags of the fleet and of the instance.
    pub tags: Vec<TagSpecification>,
}

/// The fleet of an order, in these subnets.
pub fn fleet(
    order: &Order,
    provider: &str,
    settings: &Settings,
    template: &str,
    subnets: &[&Subnet],
) -> Fleet {
    let spot = order.market == Market::Spot;
    let price = order.max_hourly_cost.filter(|_| spot).map(Usd::exact);
    let overrides = subnets
        .iter()
        .map(|subnet| {
            FleetLaunchTemplateOverridesRequest::builder()
                .instance_type(InstanceType::from(order.instance_type.as_str()))
                .subnet_id(&subnet.id)
                .set_max_price(price.clone())
                .build()
        })
        .collect();
    let config = FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(
            FleetLaunchTemplateSpecificationRequest::builder()
                .launch_template_name(template)
                .version("$Latest")
                .build(),
        )
        .set_overrides(Some(overrides))
        .build();
    let market = if spot { "spot" } else { "on-demand" };
    let tagged = |kind: ResourceType, tags: Vec<Tag>| {
        TagSpecification::builder()
            .resource_type(kind)
            .set_tags(Some(tags))
            .build()
    };
    Fleet {
        token: token(order),
        config,
        capacity: TargetCapacitySpecificationRequest::builder()
            .total_target_capacity(1)
            .default_target_capacity_type(market.into())
            .build(),
        spot: spot.then(|| {
            SpotOptionsRequest::builder()
                .allocation_strategy(settings.allocation_strategy.unwrap_or_default().into())
                .instance_interruption_behavior(SpotInstanceInterruptionBehavior::Terminate)
                .build()
        }),
        on_demand: (!spot).then(|| {
            OnDemandOptionsRequest::builder()
                .allocation_strategy(FleetOnDemandAllocationStrategy::LowestPrice)
                .build()
        }),
        tags: vec![
            tagged(ResourceType::Fleet, pool_tags(&order.mark, provider)),
            tagged(
                ResourceType::Instance,
                machine_tags(order, provider, settings.user()),
            ),
        ],
    }
}

/// When a machine was started.
pub fn launched(instance: &Instance) -> Option<Timestamp> {
    let time = instance.launch_time()?;
    Timestamp::new(time.secs(), i32::try_from(time.subsec_nanos()).ok()?).ok()
}

/// Whether a machine may be taken back.
pub fn is_spot(instance: &Instance) -> bool {
    instance
        .instance_lifecycle()
        .is_some_and(|life| life.as_str() == "spot")
}

/// Zone that a machine stands in.
pub fn zone(instance: &Instance) -> Option<&str> {
    instance.placement()?.availability_zone()
}

/// The machine of an instance; `None` when it is not ours.
pub fn machine(instance: &Instance, region: &str) -> Option<ProviderMachine> {
    let tags = instance.tags();
    let address = |text: Option<&str>| text.and_then(|text| text.parse::<IpAddr>().ok());
    let dialled = address(instance.public_ip_address()).or_else(|| address(instance.private_ip_address()));
    Some(ProviderMachine {
        id: instance.instance_id()?.to_owned(),
        mark: mark(tags)?,
        phase: phase(instance, dialled.is_some()),
        endpoint: dialled.map(|address| Endpoint {
            dial: Dial::Address(SocketAddr::new(address, SSH)),
            user: value(tags, USER).unwrap_or_else(|| ROOT.to_owned()),
            password: None,
        }),
        private_address: instance.private_ip_address().map(str::to_owned),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: Some(region.to_owned()),
            hourly_price: None,
            billed_since: launched(instance),
            reclaim_at: None,
        },
    })
}

/// Whether a machine ended because its end was ordered, by us or by somebody else.
pub fn was_returned(instance: &Instance) -> bool {
    let code = instance.state_reason().and_then(|reason| reason.code());
    let state = instance.state().and_then(|state| state.name());
    state == Some(&InstanceStateName::Terminated) && code == Some("Client.UserInitiatedShutdown")
}

/// Where a machine is in its life.
fn phase(instance: &Instance, reachable: bool) -> ProviderPhase {
    let state = instance.state().and_then(|state| state.name());
    let reason = instance.state_reason();
    let code = reason.and_then(|reason| reason.code()).unwrap_or_default();
    let said = reason
        .and_then(|reason| reason.message())
        .or_else(|| instance.state_transition_reason())
        .filter(|said| !said.is_empty())
        .unwrap_or("AWS gives no reason");
    let failed = ProviderPhase::failed;
    let ended = || match code {
        "Server.SpotInstanceTermination" | "Server.SpotInstanceShutdown" => failed(
            FailureKind::Reclaimed,
            format!("AWS took the spot instance back: {said}"),
        ),
        "Server.InsufficientInstanceCapacity" => failed(
            FailureKind::NoCapacity,
            format!("AWS had no capacity for the instance after all: {said}"),
        ),
        "Client.InstanceInitiatedShutdown" => ProviderPhase::Stopped(format!("it shut itself down: {said}")),
        "Client.InvalidSnapshot.NotFound" => failed(
            FailureKind::UnusableImage,
            format!("the snapshot of its image is gone: {said}. Correct aws.ami"),
        ),
        "Client.VolumeLimitExceeded" => failed(
            FailureKind::Other,
            format!(
                "the quota of EBS volumes is used up: {said}. Ask for more at Service Quotas, or set a smaller disk"
            ),
        ),
        "Client.InternalError" => failed(
            FailureKind::Other,
            format!(
                "{said}. Usually its disk could not be decrypted: give the account the right to use the KMS key of EBS encryption"
            ),
        ),
        _ => failed(
            FailureKind::Lost,
            format!("the instance was ended from outside: {said}"),
        ),
    };
    match state {
        Some(InstanceStateName::Pending) | None => ProviderPhase::Starting(None),
        Some(InstanceStateName::Running) if reachable => ProviderPhase::Running,
        Some(InstanceStateName::Running) => ProviderPhase::starting("it waits for its address"),
        // Ordered by us, or by somebody else: the end is the same.
        Some(InstanceStateName::ShuttingDown)
            if code.is_empty() || code == "Client.UserInitiatedShutdown" =>
        {
            ProviderPhase::Stopping
        }
        Some(InstanceStateName::Stopping | InstanceStateName::Stopped)
            if code == "Client.UserInitiatedShutdown" =>
        {
            ProviderPhase::Stopped(format!("the instance was stopped from outside: {said}"))
        }
        Some(_) => ended(),
    }
}

/// The zone that most of these machines stand in; of two equal ones, that of the oldest.
pub fn common_zone(instances: &[Instance], except: &str) -> Option<String> {
    let mut zones: BTreeMap<&str, (usize, Option<Timestamp>)> = BTreeMap::new();
    for instance in instances {
        if value(instance.tags(), MACHINE_UID).as_deref() == Some(except) {
            continue;
        }
        let Some(zone) = zone(instance) else { continue };
        let (count, oldest) = zones.entry(zone).or_default();
        *count += 1;
        *oldest = [*oldest, launched(instance)].into_iter().flatten().min();
    }
    zones
        .into_iter()
        .min_by_key(|(_, (count, oldest))| (std::cmp::Reverse(*count), *oldest))
        .map(|(zone, _)| zone.to_owned())
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
