//! `RunInstances`, the life of instances, quotas, stock, billing.

use rust_decimal::Decimal;
use serde_json::json;

use super::{ACCOUNT, Hand};
use crate::aws::{Quota, quota_name};
use crate::core::fault::{Fault, Rule};
use crate::core::market::{Left, Market, Shelf};

const SPOT: [(&str, &str); 2] = [
    ("InstanceMarketOptions.MarketType", "spot"),
    ("InstanceType", "g5.xlarge"),
];

fn stock(hand: &Hand, kind: &str, zone: &str, market: Market, left: u64) {
    hand.sim
        .world(|world| world.stock.set(Shelf::new(kind, zone, market), Left::Count(left)));
}

fn quota(hand: &Hand, name: &str, vcpus: u64) {
    hand.sim.world(|world| {
        let account = world.accounts.get_mut(ACCOUNT).expect("an account");
        account.quotas.insert(name.to_owned(), vcpus);
    });
}

#[test]
fn a_new_instance_is_pending_then_running_with_a_public_address() {
    let Some(hand) = Hand::new() else { return };
    let launched = hand.run("t3.micro", &[]).fine();
    let id = launched.text("instanceId").expect("an id").to_owned();
    assert!(launched.body.contains("<name>pending</name>") && launched.text("ipAddress").is_none());
    hand.wait(60);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert!(described.body.contains("<name>running</name>") && described.text("ipAddress").is_some());
    hand.judged_clean();
}

#[test]
fn right_after_its_creation_an_instance_may_not_be_found() {
    let Some(hand) = Hand::new() else { return };
    let id = hand
        .run("t3.micro", &[])
        .fine()
        .text("instanceId")
        .expect("an id")
        .to_owned();
    hand.ec2("DescribeInstances", &[("InstanceId.1", &id)])
        .fails(400, "InvalidInstanceID.NotFound");
    assert_eq!(
        hand.ec2("DescribeInstances", &[]).fine().all("instanceId").len(),
        0
    );
    hand.wait(2);
    assert_eq!(hand.state(&id), "pending");
}

#[test]
fn the_same_client_token_gives_the_first_reservation_and_other_parameters_a_mismatch() {
    let Some(hand) = Hand::new() else { return };
    let first = hand.run("t3.micro", &[("ClientToken", "a")]).fine();
    hand.wait(5);
    let second = hand.run("t3.micro", &[("ClientToken", "a")]).fine();
    assert_eq!(first.text("reservationId"), second.text("reservationId"));
    assert_eq!(first.text("instanceId"), second.text("instanceId"));
    hand.run("t3.medium", &[("ClientToken", "a")])
        .fails(400, "IdempotentParameterMismatch");
    let long = "a".repeat(65);
    hand.run("t3.micro", &[("ClientToken", &long)])
        .fails(400, "InvalidParameterValue");
    assert_eq!(hand.sim.world(|world| world.machines.len()), 1);
    hand.judged_clean();
}

#[test]
fn a_zone_without_stock_is_told_with_500_and_another_zone_has_it() {
    let Some(hand) = Hand::new() else { return };
    stock(&hand, "g5.xlarge", "us-east-1a", Market::OnDemand, 0);
    let (empty, full) = (hand.subnet_in("us-east-1a"), hand.subnet_in("us-east-1b"));
    hand.run("g5.xlarge", &[("SubnetId", &empty)])
        .fails(500, "InsufficientInstanceCapacity");
    hand.run("g5.xlarge", &[("SubnetId", &full)]).fine();
    // Without a subnet the service chooses a zone that has one.
    hand.run("g5.xlarge", &[]).fine();
    hand.judged_clean();
}

#[test]
fn as_many_as_there_are_are_launched_but_not_fewer_than_the_least() {
    let Some(hand) = Hand::new() else { return };
    stock(&hand, "g5.xlarge", "us-east-1a", Market::OnDemand, 2);
    let subnet = hand.subnet_in("us-east-1a");
    hand.run(
        "g5.xlarge",
        &[("SubnetId", &subnet), ("MinCount", "3"), ("MaxCount", "4")],
    )
    .fails(500, "InsufficientInstanceCapacity");
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    let reply = hand
        .run(
            "g5.xlarge",
            &[("SubnetId", &subnet), ("MinCount", "1"), ("MaxCount", "4")],
        )
        .fine();
    assert_eq!(reply.all("instanceId").len(), 2);
    hand.judged_clean();
}

#[test]
fn quotas_are_counted_in_vcpus_for_each_market() {
    let Some(hand) = Hand::new() else { return };
    quota(&hand, quota_name(Quota::P, Market::OnDemand), 0);
    quota(&hand, quota_name(Quota::G, Market::OnDemand), 8);
    quota(&hand, quota_name(Quota::G, Market::Spot), 4);
    hand.run("p3.2xlarge", &[]).fails(400, "VcpuLimitExceeded");
    let first = hand.running("g5.xlarge", &[]);
    hand.running("g5.xlarge", &[]);
    hand.run("g5.xlarge", &[]).fails(400, "VcpuLimitExceeded");
    hand.run("g5.xlarge", &SPOT).fine();
    hand.run("g5.xlarge", &SPOT)
        .fails(400, "MaxSpotInstanceCountExceeded");
    hand.wait(2);
    hand.ec2("TerminateInstances", &[("InstanceId.1", &first)]).fine();
    hand.run("g5.xlarge", &[]).fine();
    hand.judged_clean();
}

#[test]
fn what_a_launch_names_has_to_exist_and_fit() {
    let Some(hand) = Hand::new() else { return };
    let big = "a".repeat(24_000);
    let arm = hand.image("arm64");
    let table: [(&[(&str, &str)], &str); 13] = [
        (&[("ImageId", "ami-00000000000000000")], "InvalidAMIID.NotFound"),
        (&[("ImageId", "image")], "InvalidAMIID.Malformed"),
        (&[("ImageId", &arm)], "InvalidParameterValue"),
        (&[("InstanceType", "x9.huge")], "InvalidParameterValue"),
        (&[("KeyName", "nobody")], "InvalidKeyPair.NotFound"),
        (
            &[("SubnetId", "subnet-00000000000000000")],
            "InvalidSubnetID.NotFound",
        ),
        (
            &[("SecurityGroupId.1", "sg-00000000000000000")],
            "InvalidGroup.NotFound",
        ),
        (&[("UserData", "not base64!")], "InvalidUserData.Malformed"),
        (&[("UserData", &big)], "InvalidParameterValue"),
        (&[("IamInstanceProfile.Name", "nobody")], "InvalidParameterValue"),
        (
            &[
                ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
                ("BlockDeviceMapping.1.Ebs.VolumeSize", "4"),
            ],
            "InvalidBlockDeviceMapping",
        ),
        (&[("InstanceType", "p6-b200.48xlarge"), SPOT[0]], "Unsupported"),
        (
            &[
                ("NetworkInterface.1.DeviceIndex", "0"),
                ("NetworkInterface.1.SecurityGroupId.1", "sg-1"),
                ("SecurityGroupId.1", "sg-1"),
            ],
            "InvalidParameterCombination",
        ),
    ];
    for (more, code) in table {
        hand.run("t3.micro", more).fails(400, code);
        hand.wait(2);
    }
    let other = hand.subnet_in("us-east-1a");
    hand.run("p5.48xlarge", &[("SubnetId", &other)])
        .fails(400, "Unsupported");
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    hand.judged_clean();
}

#[test]
fn a_templates_interface_and_a_subnet_beside_it_do_not_go_together() {
    let Some(hand) = Hand::new() else { return };
    let template = [
        ("LaunchTemplateName", "skyward-t"),
        ("LaunchTemplateData.NetworkInterface.1.DeviceIndex", "0"),
        (
            "LaunchTemplateData.NetworkInterface.1.AssociatePublicIpAddress",
            "true",
        ),
    ];
    hand.ec2("CreateLaunchTemplate", &template).fine();
    let named = ("LaunchTemplate.LaunchTemplateName", "skyward-t");
    let subnet = hand.subnet_in("us-east-1a");
    hand.run("t3.micro", &[named, ("SubnetId", &subnet)])
        .fails(400, "InvalidParameterCombination");
    hand.run("t3.micro", &[named]).fine();
    hand.judged_clean();
}

#[test]
fn filters_look_at_all_that_is_described() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("t3.micro", &[]);
    let described = hand.ec2("DescribeInstances", &[]).fine();
    let volume = described.text("volumeId").expect("a volume").to_owned();
    let found = |call: &str, name: &str, value: &str| {
        let filter = [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
        hand.ec2(call, &filter).fine().all("instanceId").join(" ")
    };
    for (name, value) in [
        ("block-device-mapping.status", "attached"),
        ("block-device-mapping.volume-id", volume.as_str()),
        ("ebs-optimized", "false"),
        ("instance.group-name", "default"),
        ("launch-index", "0"),
        ("network-interface.group-id", "sg-*"),
        ("platform-details", "Linux/UNIX"),
        ("root-device-name", "/dev/*"),
        ("root-device-type", "ebs"),
        ("tenancy", "default"),
    ] {
        assert_eq!(found("DescribeInstances", name, value), id, "{name}");
    }
    assert_eq!(found("DescribeInstances", "platform", "windows"), "");
    assert_eq!(
        found("DescribeInstanceStatus", "instance-status.status", "initializing"),
        id
    );
    assert_eq!(
        found("DescribeInstanceStatus", "system-status.status", "impaired"),
        ""
    );
    let refused = [("Filter.1.Name", "no-such"), ("Filter.1.Value.1", "x")];
    hand.ec2("DescribeInstances", &refused)
        .fails(400, "InvalidParameterValue");
    hand.judged_clean();
}

#[test]
fn an_image_may_be_named_by_its_parameter() {
    let Some(hand) = Hand::new() else { return };
    let name =
        "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id";
    let order = |image: &str| {
        let order = [
            ("ImageId", image),
            ("InstanceType", "t3.micro"),
            ("MinCount", "1"),
            ("MaxCount", "1"),
        ];
        hand.ec2("RunInstances", &order)
    };
    let made = order(name).fine();
    assert_eq!(made.text("imageId"), Some(hand.image("amd64").as_str()));
    order("resolve:ssm:/no/such").fails(400, "InvalidParameterValue");
}

#[test]
fn filters_find_what_carries_a_tag_a_token_or_a_state() {
    let Some(hand) = Hand::new() else { return };
    let tags = [
        ("ClientToken", "token-1"),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "skyward:managed"),
        ("TagSpecification.1.Tag.1.Value", "true"),
    ];
    let id = hand.running("t3.micro", &tags);
    hand.running("t3.micro", &[]);
    for (name, value) in [
        ("tag:skyward:managed", "true"),
        ("tag-key", "skyward:*"),
        ("client-token", "token-1"),
    ] {
        let found = hand
            .ec2(
                "DescribeInstances",
                &[("Filter.1.Name", name), ("Filter.1.Value.1", value)],
            )
            .fine();
        assert_eq!(found.all("instanceId"), [id.as_str()], "{name}");
    }
    let states = [
        ("Filter.1.Name", "instance-state-name"),
        ("Filter.1.Value.1", "pending"),
        ("Filter.1.Value.2", "running"),
    ];
    assert_eq!(
        hand.ec2("DescribeInstances", &states)
            .fine()
            .all("instanceId")
            .len(),
        2
    );
    hand.ec2(
        "CreateTags",
        &[("ResourceId.1", &id), ("Tag.1.Key", "more"), ("Tag.1.Value", "x")],
    )
    .fine();
    let found = hand
        .ec2(
            "DescribeTags",
            &[("Filter.1.Name", "resource-id"), ("Filter.1.Value.1", &id)],
        )
        .fine();
    assert_eq!(found.all("key"), ["more", "skyward:managed"]);
    hand.judged_clean();
}

#[test]
fn pages_and_ids_do_not_go_together() {
    let Some(hand) = Hand::new() else { return };
    hand.run("t3.micro", &[("MinCount", "12"), ("MaxCount", "12")])
        .fine();
    hand.wait(2);
    let first = hand.ec2("DescribeInstances", &[("MaxResults", "5")]).fine();
    assert_eq!(first.all("instanceId").len(), 5);
    let token = first.text("nextToken").expect("a token").to_owned();
    let second = hand
        .ec2(
            "DescribeInstances",
            &[("MaxResults", "1000"), ("NextToken", &token)],
        )
        .fine();
    assert_eq!(
        (second.all("instanceId").len(), second.text("nextToken")),
        (7, None)
    );
    let id = first.text("instanceId").expect("an id");
    hand.ec2("DescribeInstances", &[("InstanceId.1", id), ("MaxResults", "5")])
        .fails(400, "InvalidParameterCombination");
    hand.ec2("DescribeInstances", &[("MaxResults", "4")])
        .fails(400, "InvalidParameterValue");
    hand.ec2("DescribeInstances", &[("NextToken", "nonsense")])
        .fails(400, "InvalidNextToken");
    hand.sim.fault(Rule::once(
        "ec2.DescribeInstances",
        Fault::PartialPage { keep: 3 },
    ));
    let short = hand.ec2("DescribeInstances", &[]).fine();
    assert_eq!(
        (short.all("instanceId").len(), short.text("nextToken").is_some()),
        (3, true)
    );
    hand.judged_clean();
}

#[test]
fn termination_acts_on_all_or_none_and_may_be_repeated_until_the_instance_is_forgotten() {
    let Some(hand) = Hand::new() else { return };
    let (one, two) = (hand.running("t3.micro", &[]), hand.running("t3.micro", &[]));
    let unknown = [
        ("InstanceId.1", one.as_str()),
        ("InstanceId.2", "i-0ffffffffffffffff"),
    ];
    hand.ec2("TerminateInstances", &unknown)
        .fails(400, "InvalidInstanceID.NotFound");
    assert_eq!(hand.state(&one), "running");
    hand.ec2("TerminateInstances", &[("InstanceId.1", "machine")])
        .fails(400, "InvalidInstanceID.Malformed");
    let both = [("InstanceId.1", one.as_str()), ("InstanceId.2", two.as_str())];
    let reply = hand.ec2("TerminateInstances", &both).fine();
    // Which of the two states comes first in an item means nothing.
    let mut states = reply.all("name");
    states.sort_unstable();
    assert_eq!(states, ["running", "running", "shutting-down", "shutting-down"]);
    hand.wait(30);
    assert_eq!(hand.state(&one), "terminated");
    let again = hand.ec2("TerminateInstances", &[("InstanceId.1", &one)]).fine();
    assert_eq!(again.all("name"), ["terminated", "terminated"]);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &one)]).fine();
    assert!(
        described
            .body
            .contains("<stateReason><code>Client.UserInitiatedShutdown</code>")
    );
    hand.wait(3_600);
    hand.ec2("DescribeInstances", &[("InstanceId.1", &one)])
        .fails(400, "InvalidInstanceID.NotFound");
    hand.judged_clean();
}

#[test]
fn running_time_is_billed_by_the_second_and_at_least_a_minute() {
    let Some(hand) = Hand::new() else { return };
    let hour = |id: &str| hand.sim.meter(|meter| meter.bill_of(id)).expect("a bill");
    let id = hand
        .run("g5.xlarge", &[])
        .fine()
        .text("instanceId")
        .expect("an id")
        .to_owned();
    hand.wait(19);
    assert_eq!(hour(&id), Decimal::ZERO, "pending time is free");
    hand.wait(2);
    hand.ec2("TerminateInstances", &[("InstanceId.1", &id)]).fine();
    hand.wait(600);
    let minute = Decimal::new(1_006, 3) / Decimal::from(60);
    assert_eq!(hour(&id).round_dp(9), minute.round_dp(9));
    let id = hand.running("g5.xlarge", &[]);
    hand.wait(3_600 - 40);
    assert_eq!(hour(&id).round_dp(9), Decimal::new(1_006, 3));
}

#[test]
fn an_instance_that_halts_itself_ends_or_stops_by_its_shutdown_behaviour() {
    let Some(hand) = Hand::new() else { return };
    let ends = hand.running("t3.micro", &[("InstanceInitiatedShutdownBehavior", "terminate")]);
    let stops = hand.running("t3.micro", &[]);
    let spot = hand.running("g5.xlarge", &SPOT);
    for id in [&ends, &stops, &spot] {
        hand.sim
            .world(|world| world.happen(crate::core::world::Happening::HaltedItself(id.clone())));
    }
    hand.wait(60);
    assert_eq!(
        [hand.state(&ends), hand.state(&stops), hand.state(&spot)],
        ["terminated", "stopped", "terminated"]
    );
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &ends)]).fine();
    assert!(described.body.contains("Client.InstanceInitiatedShutdown"));
    let billed = hand.sim.meter(|meter| {
        meter
            .billed_now()
            .iter()
            .map(|machine| machine.id.clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(billed, [stops], "a stopped instance costs its volumes");
}

#[test]
fn a_volume_that_is_to_be_kept_stays_on_the_bill() {
    let Some(hand) = Hand::new() else { return };
    let keep = [
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "100"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "false"),
    ];
    let id = hand.running("t3.micro", &keep);
    hand.ec2("TerminateInstances", &[("InstanceId.1", &id)]).fine();
    hand.wait(60);
    let kinds = hand.sim.meter(|meter| {
        meter
            .leftovers(ACCOUNT)
            .iter()
            .map(|left| left.kind)
            .collect::<Vec<_>>()
    });
    assert_eq!(kinds, ["volume"]);
    assert!(hand.sim.meter(|meter| meter.hourly(ACCOUNT)) > Decimal::ZERO);
}

#[test]
fn a_spot_instance_whose_price_is_no_longer_enough_is_told_and_taken() {
    let Some(hand) = Hand::new() else { return };
    let subnet = hand.subnet_in("us-east-1a");
    let spot = [
        SPOT[0],
        ("InstanceMarketOptions.SpotOptions.MaxPrice", "0.70"),
        ("SubnetId", &subnet),
    ];
    let low = [
        SPOT[0],
        ("InstanceMarketOptions.SpotOptions.MaxPrice", "0.01"),
        ("SubnetId", &subnet),
    ];
    hand.run("g5.xlarge", &low).fails(400, "SpotMaxPriceTooLow");
    let id = hand.running("g5.xlarge", &spot);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert_eq!(described.text("instanceLifecycle"), Some("spot"));
    let request = described
        .text("spotInstanceRequestId")
        .expect("a request")
        .to_owned();
    let price = json!({"type": "g5.xlarge", "zone": "us-east-1a", "price": "0.9"});
    hand.sim
        .control("spot-price", &price)
        .expect("known")
        .expect("done");
    let status = |code: &str| {
        let reply = hand
            .ec2(
                "DescribeSpotInstanceRequests",
                &[("SpotInstanceRequestId.1", &request)],
            )
            .fine();
        assert!(
            reply.body.contains(&format!("<code>{code}</code>")),
            "{code}: {}",
            reply.body
        );
    };
    status("marked-for-termination");
    assert_eq!(hand.state(&id), "running");
    hand.wait(150);
    assert_eq!(hand.state(&id), "terminated");
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert!(
        described
            .body
            .contains("<code>Server.SpotInstanceTermination</code>"),
        "{}",
        described.body
    );
    status("instance-terminated-no-capacity");
    hand.judged_clean();
}

#[test]
fn a_cancelled_spot_request_leaves_its_instance_alone() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("g5.xlarge", &SPOT);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    let request = described
        .text("spotInstanceRequestId")
        .expect("a request")
        .to_owned();
    let reply = hand
        .ec2(
            "CancelSpotInstanceRequests",
            &[("SpotInstanceRequestId.1", &request)],
        )
        .fine();
    assert_eq!(reply.text("state"), Some("cancelled"));
    assert_eq!(hand.state(&id), "running");
    hand.judged_clean();
}

#[test]
fn a_launch_that_fails_later_ends_with_its_reason() {
    let Some(hand) = Hand::new() else { return };
    let cause = crate::core::machine::Cause::Installation("Client.VolumeLimitExceeded".to_owned());
    let plan = crate::core::machine::BootPlan {
        takes: jiff::SignedDuration::from_secs(10),
        ends: crate::core::machine::BootEnd::Fails(cause),
    };
    hand.sim.fault(Rule::once("create", Fault::Boot(plan)));
    let id = hand
        .run("t3.micro", &[])
        .fine()
        .text("instanceId")
        .expect("an id")
        .to_owned();
    hand.wait(60);
    let described = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert!(
        described.body.contains("<name>terminated</name>"),
        "{}",
        described.body
    );
    assert!(
        described.body.contains("<code>Client.VolumeLimitExceeded</code>"),
        "{}",
        described.body
    );
    assert_eq!(hand.sim.meter(|meter| meter.bill(ACCOUNT)), Decimal::ZERO);
}

#[test]
fn a_lost_host_stops_an_instance_and_takes_a_spot_one() {
    let Some(hand) = Hand::new() else { return };
    let (kept, spot) = (hand.running("t3.micro", &[]), hand.running("g5.xlarge", &SPOT));
    for id in [&kept, &spot] {
        hand.sim
            .world(|world| world.happen(crate::core::world::Happening::Died(id.clone())));
    }
    hand.wait(60);
    assert_eq!([hand.state(&kept), hand.state(&spot)], ["stopped", "terminated"]);
}

#[test]
fn status_checks_pass_after_a_while_and_fail_on_a_sick_host() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("t3.micro", &[]);
    let status = || {
        hand.ec2("DescribeInstanceStatus", &[("InstanceId.1", &id)])
            .fine()
            .body
    };
    assert!(status().contains("<status>initializing</status>"));
    hand.wait(120);
    assert!(status().contains("<status>ok</status>"));
    hand.sim
        .control("impair", &json!({"machine": id}))
        .expect("known")
        .expect("done");
    assert!(status().contains("<status>impaired</status>"));
    hand.judged_clean();
}

#[test]
fn a_private_subnet_gives_no_public_address_and_an_interface_can_ask_for_one() {
    let Some(hand) = Hand::new() else { return };
    let reply = hand
        .ec2(
            "DescribeSubnets",
            &[("Filter.1.Name", "default-for-az"), ("Filter.1.Value.1", "false")],
        )
        .fine();
    let private = reply.text("subnetId").expect("a subnet").to_owned();
    let without = hand.running("t3.micro", &[("SubnetId", &private)]);
    let with = hand.running(
        "t3.micro",
        &[
            ("NetworkInterface.1.DeviceIndex", "0"),
            ("NetworkInterface.1.SubnetId", &private),
            ("NetworkInterface.1.AssociatePublicIpAddress", "true"),
        ],
    );
    let address = |id: &str| {
        let reply = hand.ec2("DescribeInstances", &[("InstanceId.1", id)]).fine();
        reply.text("ipAddress").map(str::to_owned)
    };
    assert!(address(&without).is_none());
    assert!(address(&with).is_some());
    hand.judged_clean();
}
