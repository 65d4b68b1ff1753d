//! `CreateFleet`, and descriptions of fleets afterwards.

use super::{Hand, Reply};
use crate::core::fault::{Fault, Rule};
use crate::core::market::{Left, Market, Shelf};

fn template(hand: &Hand, more: &[(&str, &str)]) -> String {
    let image = hand.image("amd64");
    let mut parameters = vec![
        ("LaunchTemplateName", "skyward-t"),
        ("LaunchTemplateData.ImageId", image.as_str()),
        (
            "LaunchTemplateData.InstanceInitiatedShutdownBehavior",
            "terminate",
        ),
        ("LaunchTemplateData.NetworkInterface.1.DeviceIndex", "0"),
        (
            "LaunchTemplateData.NetworkInterface.1.AssociatePublicIpAddress",
            "true",
        ),
        ("LaunchTemplateData.TagSpecification.1.ResourceType", "instance"),
        (
            "LaunchTemplateData.TagSpecification.1.Tag.1.Key",
            "skyward:managed",
        ),
        ("LaunchTemplateData.TagSpecification.1.Tag.1.Value", "true"),
    ];
    parameters.extend(more);
    hand.ec2("CreateLaunchTemplate", &parameters)
        .fine()
        .text("launchTemplateId")
        .expect("an id")
        .to_owned()
}

/// A fleet over zones, with more parameters.
fn fleet(
    hand: &Hand,
    template: &str,
    zones: &[&str],
    kind: &str,
    count: u32,
    more: &[(&str, &str)],
) -> Reply {
    let prefix = "LaunchTemplateConfigs.1";
    let mut parameters: Vec<(String, String)> = vec![
        ("Type".to_owned(), "instant".to_owned()),
        (
            format!("{prefix}.LaunchTemplateSpecification.LaunchTemplateId"),
            template.to_owned(),
        ),
        (
            format!("{prefix}.LaunchTemplateSpecification.Version"),
            "$Latest".to_owned(),
        ),
        (
            "TargetCapacitySpecification.TotalTargetCapacity".to_owned(),
            count.to_string(),
        ),
    ];
    for (index, zone) in zones.iter().enumerate() {
        let name = format!("{prefix}.Overrides.{}", index + 1);
        parameters.push((format!("{name}.InstanceType"), kind.to_owned()));
        parameters.push((format!("{name}.SubnetId"), hand.subnet_in(zone)));
    }
    parameters.retain(|(given, _)| !more.iter().any(|(name, _)| given == name));
    parameters.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let borrowed: Vec<(&str, &str)> = parameters
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    hand.ec2("CreateFleet", &borrowed)
}

const SPOT: (&str, &str) = ("TargetCapacitySpecification.DefaultTargetCapacityType", "spot");

fn stock(hand: &Hand, zone: &str, market: Market, left: u64) {
    hand.sim.world(|world| {
        world
            .stock
            .set(Shelf::new("g6.xlarge", zone, market), Left::Count(left));
    });
}

#[test]
fn a_fleet_launches_at_once_and_its_template_may_go_right_after() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let reply = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 2, &[SPOT]).fine();
    assert!(reply.body.contains("<errorSet></errorSet>"), "{}", reply.body);
    assert_eq!(reply.text("lifecycle"), Some("spot"));
    let ids = reply.text("instanceIds").expect("ids");
    assert_eq!(ids.matches("<item>").count(), 2);
    hand.ec2("DeleteLaunchTemplate", &[("LaunchTemplateId", &template)])
        .fine();
    hand.wait(60);
    let found = hand
        .ec2(
            "DescribeInstances",
            &[
                ("Filter.1.Name", "tag:skyward:managed"),
                ("Filter.1.Value.1", "true"),
            ],
        )
        .fine();
    assert_eq!(found.all("instanceId").len(), 2);
    assert_eq!(found.all("ipAddress").len(), 2);
    assert!(found.body.contains("aws:ec2:fleet-id"));
    hand.judged_clean();
}

#[test]
fn without_capacity_a_fleet_answers_200_with_errors_and_no_instances() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    for zone in ["us-east-1a", "us-east-1b"] {
        stock(&hand, zone, Market::Spot, 0);
    }
    let reply = fleet(
        &hand,
        &template,
        &["us-east-1a", "us-east-1b"],
        "g6.xlarge",
        1,
        &[SPOT],
    )
    .fine();
    assert_eq!(
        reply.all("errorCode"),
        ["InsufficientInstanceCapacity", "InsufficientInstanceCapacity"]
    );
    assert!(
        reply.body.contains("<fleetInstanceSet></fleetInstanceSet>"),
        "{}",
        reply.body
    );
    hand.sim.fault(Rule::once("create", Fault::NoCapacity));
    let reply = fleet(&hand, &template, &["us-east-1c"], "g6.xlarge", 1, &[SPOT]).fine();
    assert_eq!(reply.all("errorCode"), ["InsufficientInstanceCapacity"]);
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    hand.judged_clean();
}

#[test]
fn a_fleet_gives_what_there_is_unless_less_than_the_least_is_there() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    stock(&hand, "us-east-1a", Market::OnDemand, 1);
    stock(&hand, "us-east-1b", Market::OnDemand, 2);
    let zones = ["us-east-1a", "us-east-1b"];
    let least = [
        ("OnDemandOptions.MinTargetCapacity", "4"),
        ("OnDemandOptions.SingleInstanceType", "true"),
    ];
    let reply = fleet(&hand, &template, &zones, "g6.xlarge", 4, &least).fine();
    assert_eq!(
        (reply.all("instanceIds").len(), reply.all("errorCode").is_empty()),
        (0, false)
    );
    let reply = fleet(&hand, &template, &zones, "g6.xlarge", 4, &[]).fine();
    assert_eq!(hand.sim.world(|world| world.machines.len()), 3);
    assert!(!reply.all("errorCode").is_empty());
    hand.judged_clean();
}

#[test]
fn a_fleet_of_a_single_zone_takes_the_zone_that_has_enough() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    stock(&hand, "us-east-1a", Market::Spot, 1);
    stock(&hand, "us-east-1b", Market::Spot, 3);
    let single = [
        SPOT,
        ("SpotOptions.SingleAvailabilityZone", "true"),
        ("SpotOptions.SingleInstanceType", "true"),
        ("SpotOptions.MinTargetCapacity", "3"),
    ];
    fleet(
        &hand,
        &template,
        &["us-east-1a", "us-east-1b"],
        "g6.xlarge",
        3,
        &single,
    )
    .fine();
    let zones: Vec<String> = hand.sim.world(|world| {
        world
            .machines
            .values()
            .map(|machine| machine.region.clone())
            .collect()
    });
    assert_eq!(zones, ["us-east-1b"; 3]);
    hand.judged_clean();
}

#[test]
fn the_same_token_gives_the_same_fleet_but_instances_do_not_carry_it() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let token = [("ClientToken", "pool-7")];
    let first = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 1, &token).fine();
    let second = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 1, &token).fine();
    assert_eq!(first.text("fleetId"), second.text("fleetId"));
    assert_eq!(hand.sim.world(|world| world.machines.len()), 1);
    fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 2, &token)
        .fails(400, "IdempotentParameterMismatch");
    hand.wait(5);
    let found = hand
        .ec2(
            "DescribeInstances",
            &[("Filter.1.Name", "client-token"), ("Filter.1.Value.1", "pool-7")],
        )
        .fine();
    assert_eq!(found.all("instanceId").len(), 0);
    hand.judged_clean();
}

#[test]
fn a_template_that_is_not_there_fails_the_call_and_one_that_cannot_work_is_an_error_inside() {
    let Some(hand) = Hand::new() else { return };
    let gone = "lt-00000000000000000";
    fleet(&hand, gone, &["us-east-1a"], "g6.xlarge", 1, &[]).fails(400, "InvalidLaunchTemplateId.NotFound");
    let template = template(&hand, &[("LaunchTemplateData.KeyName", "nobody")]);
    let reply = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 1, &[]).fine();
    assert_eq!(reply.all("errorCode"), ["InvalidKeyPair.NotFound"]);
    hand.judged_clean();
}

#[test]
fn a_type_that_a_zone_does_not_carry_is_an_error_beside_the_zone_that_does() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let reply = fleet(
        &hand,
        &template,
        &["us-east-1a", "us-east-1b"],
        "p5.48xlarge",
        1,
        &[],
    )
    .fine();
    assert_eq!(
        (reply.all("instanceIds").len(), reply.all("errorCode").len()),
        (1, 0)
    );
    let reply = fleet(&hand, &template, &["us-east-1a"], "p5.48xlarge", 1, &[]).fine();
    assert_eq!(reply.all("errorCode"), ["Unsupported"]);
}

#[test]
fn an_instant_fleet_has_no_list_of_instances() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let reply = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 1, &[]).fine();
    let id = reply.text("fleetId").expect("an id");
    hand.ec2("DescribeFleetInstances", &[("FleetId", id)])
        .fails(400, "Unsupported");
    let nobody = "fleet-00000000-0000-4000-8000-000000000000";
    hand.ec2("DescribeFleetInstances", &[("FleetId", nobody)])
        .fails(400, "InvalidFleetId.NotFound");
    hand.judged_clean();
}

#[test]
fn a_fleet_on_request_tells_its_instances_when_it_is_asked() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let request = [SPOT, ("Type", "request")];
    let reply = fleet(&hand, &template, &["us-east-1a"], "g6.xlarge", 6, &request).fine();
    let id = reply.text("fleetId").expect("an id").to_owned();
    assert!(!reply.body.contains("instanceIds"), "{}", reply.body);
    let described = hand.ec2("DescribeFleets", &[]).fine();
    assert_eq!(
        (
            described.text("fleetId"),
            described.text("type"),
            described.text("activityStatus"),
            described.text("spotTargetCapacity"),
        ),
        (Some(id.as_str()), Some("request"), Some("fulfilled"), Some("6"))
    );
    let whole = [("FleetId", id.as_str())];
    let active = hand.ec2("DescribeFleetInstances", &whole).fine();
    assert_eq!(active.all("instanceHealth"), ["healthy"; 6]);
    assert!(
        active
            .text("spotInstanceRequestId")
            .is_some_and(|id| id.starts_with("sir-"))
    );
    let first = [whole[0], ("MaxResults", "4")];
    let first = hand.ec2("DescribeFleetInstances", &first).fine();
    let token = first.text("nextToken").expect("a token");
    let rest = [whole[0], ("MaxResults", "4"), ("NextToken", token)];
    let rest = hand.ec2("DescribeFleetInstances", &rest).fine();
    assert_eq!(
        [first.all("instanceId"), rest.all("instanceId")].concat(),
        active.all("instanceId")
    );
    let other = [
        whole[0],
        ("Filter.1.Name", "instance-type"),
        ("Filter.1.Value.1", "g5.*"),
    ];
    assert_eq!(
        hand.ec2("DescribeFleetInstances", &other)
            .fine()
            .all("instanceId")
            .len(),
        0
    );
    let delete = [("FleetId.1", id.as_str()), ("TerminateInstances", "false")];
    let deleted = hand.ec2("DeleteFleets", &delete).fine();
    assert_eq!(deleted.text("currentFleetState"), Some("deleted_running"));
    hand.wait(60);
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 6);
    hand.ec2("DescribeFleetInstances", &whole)
        .fails(400, "InvalidFleetId.NotFound");
    hand.judged_clean();
}

#[test]
fn a_fleet_that_others_would_keep_alive_is_not_simulated() {
    let Some(hand) = Hand::new() else { return };
    let template = template(&hand, &[]);
    let maintain = fleet(
        &hand,
        &template,
        &["us-east-1a"],
        "g6.xlarge",
        1,
        &[("ValidUntil", "2026-11-22T00:00:00Z")],
    );
    assert_eq!(maintain.status, 200, "{}", maintain.body);
    let id = maintain.text("fleetId").expect("an id").to_owned();
    let described = hand.ec2("DescribeFleets", &[("FleetId.1", &id)]).fine();
    assert_eq!(described.text("fleetState"), Some("active"));
    assert_eq!(hand.ec2("DescribeFleets", &[]).fine().all("fleetId").len(), 0);
    hand.ec2(
        "DeleteFleets",
        &[("FleetId.1", &id), ("TerminateInstances", "true")],
    )
    .fine();
    hand.wait(60);
    assert_eq!(hand.sim.meter(|meter| meter.billed_now().len()), 0);
    hand.judged_clean();
}
