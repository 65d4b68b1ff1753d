//! The fields of instances and their parts that other clients read.

use super::{Hand, Reply};

fn tags_of(hand: &Hand, filter: &str, value: &str) -> Reply {
    let filter = [("Filter.1.Name", filter), ("Filter.1.Value.1", value)];
    hand.ec2("DescribeTags", &filter).fine()
}

#[test]
fn an_instance_is_described_with_all_that_clients_expect_of_every_one() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("t3.micro", &[]);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    for path in [
        "<platformDetails>Linux/UNIX</platformDetails>",
        "<usageOperation>RunInstances</usageOperation>",
        "<sourceDestCheck>true</sourceDestCheck>",
        "<cpuOptions><coreCount>1</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>",
        "<hostnameType>ip-name</hostnameType>",
        "<interfaceType>interface</interfaceType>",
        "<ipOwnerId>amazon</ipOwnerId>",
        "<productCodes></productCodes>",
    ] {
        assert!(
            described.body.contains(path),
            "{path} is not in {}",
            described.body
        );
    }
    assert_eq!(described.text("publicIp"), described.text("ipAddress"));
    let name = described.text("privateDnsName").expect("a name");
    assert!(
        name.starts_with("ip-") && name.ends_with(".ec2.internal"),
        "{name}"
    );
    let interface = described.text("networkInterfaceId").expect("an interface");
    let filter = [
        ("Filter.1.Name", "network-interface.network-interface-id"),
        ("Filter.1.Value.1", interface),
    ];
    let found = hand.ec2("DescribeInstances", &filter).fine();
    assert_eq!(found.text("instanceId"), Some(id.as_str()));
    let west = hand.in_region("us-west-2");
    let id = west.running("t3.micro", &[]);
    let described = west.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    let name = described.text("privateDnsName").expect("a name");
    assert!(name.ends_with(".us-west-2.compute.internal"), "{name}");
    hand.judged_clean();
}

#[test]
fn several_network_interfaces_leave_no_public_address() {
    let Some(hand) = Hand::new() else { return };
    let subnet = hand.subnet_in("us-east-1b");
    let with = |public: &str| {
        let more = [
            ("NetworkInterface.1.DeviceIndex", "0"),
            ("NetworkInterface.1.SubnetId", subnet.as_str()),
            ("NetworkInterface.1.InterfaceType", "efa"),
            ("NetworkInterface.1.AssociatePublicIpAddress", public),
            ("NetworkInterface.2.DeviceIndex", "1"),
            ("NetworkInterface.2.NetworkCardIndex", "1"),
            ("NetworkInterface.2.SubnetId", subnet.as_str()),
            ("NetworkInterface.2.InterfaceType", "efa-only"),
        ];
        hand.run("p5.48xlarge", &more)
    };
    with("true").fails(400, "InvalidParameterCombination");
    let id = with("false").fine().text("instanceId").expect("an id").to_owned();
    hand.wait(60);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert_eq!(described.all("interfaceType"), ["efa", "efa-only"]);
    assert_eq!(described.all("networkCardIndex"), ["0", "1"]);
    assert_eq!(described.text("ipAddress"), None);
    let types = hand
        .ec2("DescribeInstanceTypes", &[("InstanceType.1", "p5.48xlarge")])
        .fine();
    assert_eq!(types.text("maximumEfaInterfaces"), Some("32"));
    hand.judged_clean();
}

#[test]
fn volumes_interfaces_and_spot_requests_have_tags_of_their_own() {
    let Some(hand) = Hand::new() else { return };
    let mut more: Vec<(&str, String)> = vec![
        ("InstanceMarketOptions.MarketType", "spot".to_owned()),
        (
            "InstanceMarketOptions.SpotOptions.SpotInstanceType",
            "one-time".to_owned(),
        ),
    ];
    let kinds = [
        "instance",
        "network-interface",
        "spot-instances-request",
        "volume",
    ];
    let names: Vec<[String; 3]> = (1..=kinds.len())
        .map(|number| {
            ["ResourceType", "Tag.1.Key", "Tag.1.Value"]
                .map(|name| format!("TagSpecification.{number}.{name}"))
        })
        .collect();
    for (kind, [resource, key, value]) in kinds.into_iter().zip(&names) {
        more.push((resource.as_str(), kind.to_owned()));
        more.push((key.as_str(), "of".to_owned()));
        more.push((value.as_str(), kind.to_owned()));
    }
    let more: Vec<(&str, &str)> = more.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let launched = hand.run("g5.xlarge", &more).fine();
    let id = launched.text("instanceId").expect("an id").to_owned();
    let volume = launched.text("volumeId").expect("a volume").to_owned();
    // A client that has launched need not wait until lists show it.
    for resource in [&id, &volume] {
        let tag = [
            ("ResourceId.1", resource.as_str()),
            ("Tag.1.Key", "more"),
            ("Tag.1.Value", "x"),
        ];
        hand.ec2("CreateTags", &tag).fine();
    }
    hand.wait(60);
    for kind in kinds {
        let tags = tags_of(&hand, "resource-type", kind);
        let own = tags.all("value").into_iter().filter(|value| *value == kind);
        assert_eq!(own.count(), 1, "{kind}: {}", tags.body);
    }
    assert_eq!(tags_of(&hand, "resource-id", &volume).all("key"), ["more", "of"]);
    let request = hand
        .ec2(
            "DescribeSpotInstanceRequests",
            &[("Filter.1.Name", "tag:of"), ("Filter.1.Value.1", "spot-*")],
        )
        .fine();
    assert_eq!(request.text("instanceId"), Some(id.as_str()));
    assert_eq!(request.text("instanceType"), Some("g5.xlarge"));
    assert_eq!(request.all("value"), ["spot-instances-request"]);
    let nobody = [
        ("ResourceId.1", "vol-00000000000000000"),
        ("Tag.1.Key", "a"),
        ("Tag.1.Value", "b"),
    ];
    hand.ec2("CreateTags", &nobody)
        .fails(400, "InvalidVolume.NotFound");
    hand.judged_clean();
}

#[test]
fn a_zone_may_be_named_by_its_id_and_has_to_exist() {
    let Some(hand) = Hand::new() else { return };
    let zone = [("ZoneId.1", "use1-az2")];
    let zones = hand.ec2("DescribeAvailabilityZones", &zone).fine();
    assert_eq!(zones.all("zoneName"), ["us-east-1b"]);
    hand.ec2("DescribeAvailabilityZones", &[("ZoneId.1", "use1-az9")])
        .fails(400, "InvalidParameterValue");
    let launched = hand
        .run("t3.micro", &[("Placement.AvailabilityZoneId", "use1-az2")])
        .fine();
    assert_eq!(launched.text("availabilityZone"), Some("us-east-1b"));
    hand.run("t3.micro", &[("Placement.AvailabilityZone", "us-west-2a")])
        .fails(400, "InvalidParameterValue");
    let subnets = [
        ("Filter.1.Name", "availability-zone-id"),
        ("Filter.1.Value.1", "use1-az2"),
        ("Filter.2.Name", "cidr-block"),
        ("Filter.2.Value.1", "172.31.*"),
    ];
    let found = hand.ec2("DescribeSubnets", &subnets).fine();
    assert_eq!(found.all("availabilityZone"), ["us-east-1b"]);
    let vpcs = [("Filter.1.Name", "cidr"), ("Filter.1.Value.1", "10.0.0.0/16")];
    assert_eq!(
        hand.ec2("DescribeVpcs", &vpcs).fine().text("isDefault"),
        Some("false")
    );
    hand.judged_clean();
}

#[test]
fn images_are_found_by_the_name_of_who_vouches_for_them() {
    let Some(hand) = Hand::new() else { return };
    let names = [
        ("Filter.1.Name", "name"),
        (
            "Filter.1.Value.1",
            "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*",
        ),
        ("Filter.2.Name", "owner-alias"),
        ("Filter.2.Value.1", "amazon"),
        ("Filter.3.Name", "block-device-mapping.volume-type"),
        ("Filter.3.Value.1", "gp3"),
    ];
    let found = hand.ec2("DescribeImages", &names).fine();
    assert_eq!(found.all("imageOwnerId"), ["099720109477"]);
    let all = hand.ec2("DescribeImages", &[("Owner.1", "amazon")]).fine();
    assert!(all.all("imageId").len() > 5);
    let own = hand.ec2("DescribeImages", &[("Owner.1", "self")]).fine();
    assert_eq!(own.all("imageId").len(), 0);
    hand.judged_clean();
}
