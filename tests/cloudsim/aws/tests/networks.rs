//! Networks, security groups, key pairs and templates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{ACCOUNT, Hand};

fn default_vpc(hand: &Hand) -> String {
    let reply = hand
        .ec2(
            "DescribeVpcs",
            &[("Filter.1.Name", "is-default"), ("Filter.1.Value.1", "true")],
        )
        .fine();
    reply.text("vpcId").expect("a VPC").to_owned()
}

fn other_vpc(hand: &Hand) -> String {
    let reply = hand
        .ec2(
            "DescribeVpcs",
            &[("Filter.1.Name", "is-default"), ("Filter.1.Value.1", "false")],
        )
        .fine();
    reply.text("vpcId").expect("a VPC").to_owned()
}

fn group(hand: &Hand, name: &str, vpc: &str) -> super::Reply {
    hand.ec2(
        "CreateSecurityGroup",
        &[
            ("GroupName", name),
            ("GroupDescription", "a group"),
            ("VpcId", vpc),
        ],
    )
}

#[test]
fn a_region_has_a_default_vpc_with_a_subnet_in_each_zone() {
    let Some(hand) = Hand::new() else { return };
    assert_eq!(hand.ec2("DescribeRegions", &[]).fine().all("regionName").len(), 4);
    let zones = hand.ec2("DescribeAvailabilityZones", &[]).fine();
    assert_eq!(
        zones.all("zoneName"),
        [
            "us-east-1a",
            "us-east-1b",
            "us-east-1c",
            "us-east-1d",
            "us-east-1f"
        ]
    );
    assert_eq!(zones.all("zoneId")[0], "use1-az1");
    assert_eq!(hand.subnets().len(), 5);
    assert_ne!(default_vpc(&hand), default_vpc(&hand.in_region("us-west-2")));
    hand.judged_clean();
}

#[test]
fn a_group_of_the_same_name_may_be_in_another_vpc_and_a_second_in_one_is_a_duplicate() {
    let Some(hand) = Hand::new() else { return };
    let (home, other) = (default_vpc(&hand), other_vpc(&hand));
    let id = group(&hand, "skyward", &home)
        .fine()
        .text("groupId")
        .expect("an id")
        .to_owned();
    group(&hand, "skyward", &home).fails(400, "InvalidGroup.Duplicate");
    group(&hand, "skyward", &other).fine();
    let named = [("Filter.1.Name", "group-name"), ("Filter.1.Value.1", "skyward")];
    assert_eq!(
        hand.ec2("DescribeSecurityGroups", &named)
            .fine()
            .all("groupName")
            .len(),
        2
    );
    let in_vpc = [
        named[0],
        named[1],
        ("Filter.2.Name", "vpc-id"),
        ("Filter.2.Value.1", &home),
    ];
    assert_eq!(
        hand.ec2("DescribeSecurityGroups", &in_vpc).fine().text("groupId"),
        Some(id.as_str())
    );
    hand.judged_clean();
}

#[test]
fn a_permission_is_given_once() {
    let Some(hand) = Hand::new() else { return };
    let id = group(&hand, "skyward", &default_vpc(&hand))
        .fine()
        .text("groupId")
        .expect("an id")
        .to_owned();
    let ssh = [
        ("GroupId", id.as_str()),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", "22"),
        ("IpPermissions.1.ToPort", "22"),
        ("IpPermissions.1.IpRanges.1.CidrIp", "0.0.0.0/0"),
    ];
    let itself = [
        ("GroupId", id.as_str()),
        ("IpPermissions.1.IpProtocol", "-1"),
        ("IpPermissions.1.Groups.1.GroupId", id.as_str()),
    ];
    hand.ec2("AuthorizeSecurityGroupIngress", &ssh).fine();
    hand.ec2("AuthorizeSecurityGroupIngress", &ssh)
        .fails(400, "InvalidPermission.Duplicate");
    hand.ec2("AuthorizeSecurityGroupIngress", &itself).fine();
    let mut wrong = ssh;
    wrong[4].1 = "everywhere";
    hand.ec2("AuthorizeSecurityGroupIngress", &wrong)
        .fails(400, "InvalidParameterValue");
    let described = hand.ec2("DescribeSecurityGroups", &[("GroupId.1", &id)]).fine();
    assert!(
        described.body.contains("<cidrIp>0.0.0.0/0</cidrIp>")
            && described.body.contains("<fromPort>22</fromPort>")
    );
    hand.judged_clean();
}

#[test]
fn permissions_of_the_same_ports_are_shown_as_one_with_all_kinds_of_sources() {
    let Some(hand) = Hand::new() else { return };
    let id = group(&hand, "skyward", &default_vpc(&hand))
        .fine()
        .text("groupId")
        .expect("an id")
        .to_owned();
    let ssh = |cidr: &str, words: &str| {
        let parameters = [
            // A group of the default VPC may be named by its name.
            ("GroupName", "skyward"),
            ("IpPermissions.1.IpProtocol", "6"),
            ("IpPermissions.1.FromPort", "22"),
            ("IpPermissions.1.ToPort", "22"),
            ("IpPermissions.1.IpRanges.1.CidrIp", cidr),
            ("IpPermissions.1.IpRanges.1.Description", words),
        ];
        hand.ec2("AuthorizeSecurityGroupIngress", &parameters)
    };
    ssh("10.0.0.0/8", "home").fine();
    ssh("192.168.0.0/16", "away").fine();
    ssh("10.0.0.0/8", "other words").fails(400, "InvalidPermission.Duplicate");
    let described = hand.ec2("DescribeSecurityGroups", &[("GroupId.1", &id)]).fine();
    assert_eq!(described.all("fromPort"), ["22"]);
    assert_eq!(described.all("description"), ["home", "away"]);
    for kind in ["groups", "ipv6Ranges", "prefixListIds"] {
        let empty = format!("<{kind}></{kind}>");
        assert_eq!(described.body.matches(&empty).count(), 2, "{}", described.body);
    }
    let filter = [
        ("Filter.1.Name", "ip-permission.cidr"),
        ("Filter.1.Value.1", "192.168.*"),
    ];
    let found = hand.ec2("DescribeSecurityGroups", &filter).fine();
    assert_eq!(found.text("groupId"), Some(id.as_str()));
    let launched = hand.run("t3.micro", &[("SecurityGroup.1", "skyward")]).fine();
    assert!(launched.body.contains(&id), "{}", launched.body);
    hand.run("t3.micro", &[("SecurityGroup.1", "nobody")])
        .fails(400, "InvalidGroup.NotFound");
    hand.judged_clean();
}

#[test]
fn the_group_that_a_network_has_by_itself_is_opened_as_others_are() {
    let Some(hand) = Hand::new() else { return };
    group(&hand, "default", &default_vpc(&hand)).fails(400, "InvalidGroup.Reserved");
    let open = [
        ("GroupName", "default"),
        ("IpProtocol", "tcp"),
        ("FromPort", "22"),
        ("ToPort", "22"),
        ("CidrIp", "0.0.0.0/0"),
    ];
    let opened = hand.ec2("AuthorizeSecurityGroupIngress", &open).fine();
    assert_eq!(opened.text("cidrIpv4"), Some("0.0.0.0/0"));
    hand.ec2("AuthorizeSecurityGroupIngress", &open)
        .fails(400, "InvalidPermission.Duplicate");
    let home = [
        ("GroupName.1", "default"),
        ("Filter.1.Name", "ip-permission.to-port"),
        ("Filter.1.Value.1", "22"),
    ];
    let described = hand.ec2("DescribeSecurityGroups", &home).fine();
    assert_eq!(described.all("fromPort"), ["22"]);
    assert_eq!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
    hand.judged_clean();
}

#[test]
fn a_group_in_use_cannot_go_until_its_instances_are_terminated() {
    let Some(hand) = Hand::new() else { return };
    let id = group(&hand, "skyward", &default_vpc(&hand))
        .fine()
        .text("groupId")
        .expect("an id")
        .to_owned();
    let machine = hand.running("t3.micro", &[("SecurityGroupId.1", &id)]);
    hand.ec2("DeleteSecurityGroup", &[("GroupId", &id)])
        .fails(400, "DependencyViolation");
    hand.ec2("TerminateInstances", &[("InstanceId.1", &machine)])
        .fine();
    hand.ec2("DeleteSecurityGroup", &[("GroupId", &id)])
        .fails(400, "DependencyViolation");
    hand.wait(30);
    hand.ec2("DeleteSecurityGroup", &[("GroupId", &id)]).fine();
    hand.ec2("DeleteSecurityGroup", &[("GroupId", &id)])
        .fails(400, "InvalidGroup.NotFound");
    assert_eq!(hand.sim.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
    hand.judged_clean();
}

fn ed25519(seed: u8) -> String {
    let mut blob = vec![0, 0, 0, 11];
    blob.extend(b"ssh-ed25519");
    blob.extend([0, 0, 0, 32]);
    blob.extend([seed; 32]);
    STANDARD.encode(format!("ssh-ed25519 {} me@here", STANDARD.encode(blob)))
}

#[test]
fn a_key_pair_is_imported_once_by_name_and_its_deletion_needs_no_existence() {
    let Some(hand) = Hand::new() else { return };
    let key = ed25519(1);
    let import = [("KeyName", "skyward-1"), ("PublicKeyMaterial", key.as_str())];
    hand.ec2("ImportKeyPair", &import).fine();
    hand.ec2("ImportKeyPair", &import)
        .fails(400, "InvalidKeyPair.Duplicate");
    hand.ec2(
        "ImportKeyPair",
        &[("KeyName", "skyward-2"), ("PublicKeyMaterial", &key)],
    )
    .fine();
    let described = hand
        .ec2(
            "DescribeKeyPairs",
            &[("KeyName.1", "skyward-1"), ("IncludePublicKey", "true")],
        )
        .fine();
    assert_eq!(described.text("keyType"), Some("ed25519"));
    assert!(
        described
            .text("publicKey")
            .is_some_and(|key| key.starts_with("ssh-ed25519 "))
    );
    hand.ec2("DescribeKeyPairs", &[("KeyName.1", "nobody")])
        .fails(400, "InvalidKeyPair.NotFound");
    let filtered = hand
        .ec2(
            "DescribeKeyPairs",
            &[("Filter.1.Name", "key-name"), ("Filter.1.Value.1", "nobody")],
        )
        .fine();
    assert_eq!(filtered.all("keyName").len(), 0);
    for _ in 0..2 {
        hand.ec2("DeleteKeyPair", &[("KeyName", "skyward-1")]).fine();
    }
    hand.in_region("us-west-2")
        .ec2("DescribeKeyPairs", &[("KeyName.1", "skyward-2")])
        .fails(400, "InvalidKeyPair.NotFound");
    hand.judged_clean();
}

#[test]
fn only_rsa_and_ed25519_keys_are_taken() {
    let Some(hand) = Hand::new() else { return };
    let ecdsa = STANDARD.encode("ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY= me");
    hand.ec2(
        "ImportKeyPair",
        &[("KeyName", "k"), ("PublicKeyMaterial", &ecdsa)],
    )
    .fails(400, "InvalidKey.Format");
    let plain = "ssh-ed25519 AAAA";
    hand.ec2("ImportKeyPair", &[("KeyName", "k"), ("PublicKeyMaterial", plain)])
        .fails(400, "InvalidParameterValue");
    assert!(
        !hand.sim.violations().is_empty(),
        "a blob that is not base64 is against the description"
    );
}

#[test]
fn a_template_has_a_name_of_its_own_and_can_go_at_once() {
    let Some(hand) = Hand::new() else { return };
    let create = [
        ("LaunchTemplateName", "skyward-a"),
        ("LaunchTemplateData.ImageId", "ami-1"),
        ("TagSpecification.1.ResourceType", "launch-template"),
        ("TagSpecification.1.Tag.1.Key", "skyward:managed"),
        ("TagSpecification.1.Tag.1.Value", "true"),
    ];
    let id = hand
        .ec2("CreateLaunchTemplate", &create)
        .fine()
        .text("launchTemplateId")
        .expect("an id")
        .to_owned();
    hand.ec2("CreateLaunchTemplate", &create)
        .fails(400, "InvalidLaunchTemplateName.AlreadyExistsException");
    let tagged = [
        ("Filter.1.Name", "tag:skyward:managed"),
        ("Filter.1.Value.1", "true"),
    ];
    assert_eq!(
        hand.ec2("DescribeLaunchTemplates", &tagged)
            .fine()
            .text("launchTemplateId"),
        Some(id.as_str())
    );
    hand.ec2("DeleteLaunchTemplate", &[("LaunchTemplateId", &id)])
        .fine();
    hand.ec2("DeleteLaunchTemplate", &[("LaunchTemplateId", &id)])
        .fails(400, "InvalidLaunchTemplateId.NotFound");
    hand.ec2("DeleteLaunchTemplate", &[("LaunchTemplateName", "skyward-a")])
        .fails(400, "InvalidLaunchTemplateName.NotFoundException");
    hand.judged_clean();
}
