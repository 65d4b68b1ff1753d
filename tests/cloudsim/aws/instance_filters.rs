//! The filters of instances, each with the field of the description that it is compared with.

use serde_json::Value;

use super::context::Context;
use super::described::{describe_one, state};
use super::input::{list, tag_values};
use super::instances::groups_of;
use crate::core::machine::{Machine, Phase};

/// Filters on what the simulator itself remembers.
const OWN: [&str; 20] = [
    "availability-zone",
    "client-token",
    "image-id",
    "instance-id",
    "instance-state-code",
    "instance-state-name",
    "instance-type",
    "instance.group-id",
    "key-name",
    "network-interface.availability-zone",
    "network-interface.group-id",
    "network-interface.owner-id",
    "network-interface.requester-managed",
    "owner-id",
    "reservation-id",
    "spot-instance-request-id",
    "subnet-id",
    "tag-value",
    "vpc-id",
    "network-interface.vpc-id",
];

/// Filters that are known, and match no instance of the simulator.
const NONE: [&str; 22] = [
    "capacity-reservation-id",
    "capacity-reservation-specification.capacity-reservation-target.capacity-reservation-id",
    "capacity-reservation-specification.capacity-reservation-target.capacity-reservation-resource-group-arn",
    "current-instance-boot-mode",
    "boot-mode",
    "host-id",
    "instance.virtualization-type",
    "ipv6-address",
    "kernel-id",
    "network-interface.ipv6-addresses.ipv6-address",
    "network-interface.requester-id",
    "outpost-arn",
    "placement-group-name",
    "placement-partition-number",
    "platform",
    "product-code",
    "product-code.type",
    "ramdisk-id",
    "requester-id",
    "secondary-interface-id",
    "sriov-net-support",
    "tpm-support",
];

/// Filters by the place in the description that they look at.
const PLACES: [(&str, &str); 36] = [
    ("architecture", "/Architecture"),
    ("availability-zone-id", "/Placement/AvailabilityZoneId"),
    (
        "capacity-reservation-specification.capacity-reservation-preference",
        "/CapacityReservationSpecification/CapacityReservationPreference",
    ),
    ("dns-name", "/PublicDnsName"),
    ("ebs-optimized", "/EbsOptimized"),
    ("ena-support", "/EnaSupport"),
    ("enclave-options.enabled", "/EnclaveOptions/Enabled"),
    ("hibernation-options.configured", "/HibernationOptions/Configured"),
    ("hypervisor", "/Hypervisor"),
    ("iam-instance-profile.arn", "/IamInstanceProfile/Arn"),
    ("iam-instance-profile.id", "/IamInstanceProfile/Id"),
    ("instance-lifecycle", "/InstanceLifecycle"),
    ("ip-address", "/PublicIpAddress"),
    ("launch-index", "/AmiLaunchIndex"),
    ("launch-time", "/LaunchTime"),
    (
        "maintenance-options.auto-recovery",
        "/MaintenanceOptions/AutoRecovery",
    ),
    ("metadata-options.http-endpoint", "/MetadataOptions/HttpEndpoint"),
    (
        "metadata-options.http-protocol-ipv6",
        "/MetadataOptions/HttpProtocolIpv6",
    ),
    (
        "metadata-options.http-put-response-hop-limit",
        "/MetadataOptions/HttpPutResponseHopLimit",
    ),
    ("metadata-options.http-tokens", "/MetadataOptions/HttpTokens"),
    (
        "metadata-options.instance-metadata-tags",
        "/MetadataOptions/InstanceMetadataTags",
    ),
    ("monitoring-state", "/Monitoring/State"),
    ("platform-details", "/PlatformDetails"),
    ("private-dns-name", "/PrivateDnsName"),
    (
        "private-dns-name-options.hostname-type",
        "/PrivateDnsNameOptions/HostnameType",
    ),
    ("private-ip-address", "/PrivateIpAddress"),
    ("reason", "/StateTransitionReason"),
    ("root-device-name", "/RootDeviceName"),
    ("root-device-type", "/RootDeviceType"),
    ("source-dest-check", "/SourceDestCheck"),
    ("state-reason-code", "/StateReason/Code"),
    ("state-reason-message", "/StateReason/Message"),
    ("tenancy", "/Placement/Tenancy"),
    ("usage-operation", "/UsageOperation"),
    ("usage-operation-update-time", "/UsageOperationUpdateTime"),
    ("virtualization-type", "/VirtualizationType"),
];

/// Filters that look at each item of a list in the description.
const EACH: [(&str, &str, &str); 19] = [
    (
        "block-device-mapping.attach-time",
        "BlockDeviceMappings",
        "/Ebs/AttachTime",
    ),
    (
        "block-device-mapping.delete-on-termination",
        "BlockDeviceMappings",
        "/Ebs/DeleteOnTermination",
    ),
    (
        "block-device-mapping.device-name",
        "BlockDeviceMappings",
        "/DeviceName",
    ),
    (
        "block-device-mapping.status",
        "BlockDeviceMappings",
        "/Ebs/Status",
    ),
    (
        "block-device-mapping.volume-id",
        "BlockDeviceMappings",
        "/Ebs/VolumeId",
    ),
    ("instance.group-name", "SecurityGroups", "/GroupName"),
    (
        "network-interface.addresses.association.public-ip",
        "NetworkInterfaces",
        "/Association/PublicIp",
    ),
    (
        "network-interface.addresses.primary",
        "NetworkInterfaces",
        "/PrivateIpAddresses/0/Primary",
    ),
    (
        "network-interface.addresses.private-ip-address",
        "NetworkInterfaces",
        "/PrivateIpAddress",
    ),
    (
        "network-interface.association.public-ip",
        "NetworkInterfaces",
        "/Association/PublicIp",
    ),
    (
        "network-interface.attachment.attachment-id",
        "NetworkInterfaces",
        "/Attachment/AttachmentId",
    ),
    (
        "network-interface.attachment.device-index",
        "NetworkInterfaces",
        "/Attachment/DeviceIndex",
    ),
    (
        "network-interface.attachment.status",
        "NetworkInterfaces",
        "/Attachment/Status",
    ),
    (
        "network-interface.mac-address",
        "NetworkInterfaces",
        "/MacAddress",
    ),
    (
        "network-interface.network-interface-id",
        "NetworkInterfaces",
        "/NetworkInterfaceId",
    ),
    (
        "network-interface.private-dns-name",
        "NetworkInterfaces",
        "/PrivateDnsName",
    ),
    (
        "network-interface.source-dest-check",
        "NetworkInterfaces",
        "/SourceDestCheck",
    ),
    ("network-interface.status", "NetworkInterfaces", "/Status"),
    ("network-interface.subnet-id", "NetworkInterfaces", "/SubnetId"),
];

/// The names of all filters but those by tags.
pub fn known() -> Vec<&'static str> {
    let places = PLACES.iter().map(|(name, _)| *name);
    let each = EACH.iter().map(|(name, ..)| *name);
    OWN.into_iter().chain(NONE).chain(places).chain(each).collect()
}

/// What an instance has under the name of a filter.
pub fn values(context: &Context<'_, '_>, machine: &Machine, phase: Phase, filter: &str) -> Vec<String> {
    let one = |value: &Value| match value {
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Bool(flag) => vec![flag.to_string()],
        _ => Vec::new(),
    };
    if let Some((_, place)) = PLACES.iter().find(|(name, _)| *name == filter) {
        let described = describe_one(context, machine, phase);
        return described.pointer(place).map(one).unwrap_or_default();
    }
    if let Some((_, items, place)) = EACH.iter().find(|(name, ..)| *name == filter) {
        let described = describe_one(context, machine, phase);
        let items = list(&described, items).iter();
        return items
            .filter_map(|item| item.pointer(place))
            .flat_map(one)
            .collect();
    }
    match filter {
        "availability-zone" | "network-interface.availability-zone" => vec![machine.region.clone()],
        "client-token" => one(&machine.detail["clientToken"]),
        "image-id" => one(&machine.detail["image"]),
        "instance-id" => vec![machine.id.clone()],
        "instance-state-code" => vec![state(context.visit.world, machine, phase).0.to_string()],
        "instance-state-name" => vec![state(context.visit.world, machine, phase).1.to_owned()],
        "instance-type" => vec![machine.instance_type.clone()],
        "instance.group-id" | "network-interface.group-id" => groups_of(machine),
        "key-name" => one(&machine.detail["key"]),
        "network-interface.requester-managed" => vec!["false".to_owned()],
        "owner-id" | "network-interface.owner-id" => vec![machine.account.clone()],
        "reservation-id" => one(&machine.detail["reservation"]),
        "spot-instance-request-id" => one(&machine.detail["spotRequest"]),
        "subnet-id" => one(&machine.detail["subnet"]),
        "vpc-id" | "network-interface.vpc-id" => one(&machine.detail["vpc"]),
        "tag-value" => machine.mark.tags.values().cloned().collect(),
        other => tag_values(&machine.mark.tags, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_is_in_two_lists() {
        let all = known();
        let once: std::collections::BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(once.len(), all.len());
    }
}
