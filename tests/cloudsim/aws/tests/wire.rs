//! What the service models allow, and how answers look on the wire.

use serde_json::json;

use super::{Hand, models};
use crate::aws::query::{Dialect, ProblemKind, decode};
use crate::core::fault::{Fault, Rule, When};

fn pairs(text: &str) -> Vec<(String, String)> {
    crate::core::http::decode_form(text)
}

#[test]
fn names_of_parameters_follow_query_name_then_location_name_then_the_member() {
    let Some(models) = models() else { return };
    let form = "ImageId=ami-1&MinCount=1&MaxCount=2&SecurityGroupId.1=sg-1&SecurityGroupId.2=sg-2\
        &TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=a&TagSpecification.1.Tag.1.Value=b\
        &BlockDeviceMapping.1.DeviceName=%2Fdev%2Fsda1&BlockDeviceMapping.1.Ebs.VolumeSize=100\
        &NetworkInterface.1.AssociatePublicIpAddress=true&NetworkInterface.1.SecurityGroupId.1=sg-3\
        &MetadataOptions.HttpTokens=required&DryRun=false";
    let decoded = decode(&models.ec2, Dialect::Ec2, "RunInstances", &pairs(form)).expect("decoded");
    assert_eq!(decoded.problems, []);
    assert_eq!(
        decoded.input,
        json!({
            "ImageId": "ami-1",
            "MinCount": 1,
            "MaxCount": 2,
            "SecurityGroupIds": ["sg-1", "sg-2"],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100}}],
            "NetworkInterfaces": [{"AssociatePublicIpAddress": true, "Groups": ["sg-3"]}],
            "MetadataOptions": {"HttpTokens": "required"},
            "DryRun": false,
        })
    );
}

#[test]
fn a_fleet_uses_plural_names_as_they_are() {
    let Some(models) = models() else { return };
    let form = "Type=instant&LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateId=lt-1\
        &LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version=%24Latest\
        &LaunchTemplateConfigs.1.Overrides.1.InstanceType=g6.xlarge&LaunchTemplateConfigs.1.Overrides.1.SubnetId=subnet-1\
        &TargetCapacitySpecification.TotalTargetCapacity=1&TargetCapacitySpecification.DefaultTargetCapacityType=spot";
    let decoded = decode(&models.ec2, Dialect::Ec2, "CreateFleet", &pairs(form)).expect("decoded");
    assert_eq!(decoded.problems, []);
    assert_eq!(
        decoded.input["LaunchTemplateConfigs"][0]["Overrides"][0]["InstanceType"],
        "g6.xlarge"
    );
}

#[test]
fn whatever_the_model_does_not_have_is_a_problem() {
    let Some(models) = models() else { return };
    let table = [
        ("MinCount=1&MaxCount=1&SecurityGroups.1=a", ProblemKind::Unknown),
        ("MinCount=1&MaxCount=1&Colour=red", ProblemKind::Unknown),
        (
            "MinCount=1&MaxCount=1&TagSpecifications.1.ResourceType=instance",
            ProblemKind::Unknown,
        ),
        ("MinCount=1&MaxCount=1&ImageId.1=ami-1", ProblemKind::Unknown),
        ("MaxCount=1", ProblemKind::Missing),
        ("MinCount=one&MaxCount=1", ProblemKind::Malformed),
        ("MinCount=1&MaxCount=1&DryRun=True", ProblemKind::Malformed),
        (
            "MinCount=1&MaxCount=1&SecurityGroupId.2=sg-1",
            ProblemKind::Malformed,
        ),
        (
            "MinCount=1&MaxCount=1&InstanceInitiatedShutdownBehavior=explode",
            ProblemKind::Malformed,
        ),
        ("MinCount=1&MinCount=2&MaxCount=1", ProblemKind::Malformed),
    ];
    for (form, kind) in table {
        let decoded = decode(&models.ec2, Dialect::Ec2, "RunInstances", &pairs(form)).expect("decoded");
        assert!(
            decoded.problems.iter().any(|problem| problem.kind == kind),
            "{form}: {:?}",
            decoded.problems
        );
    }
}

#[test]
fn a_request_against_the_description_is_refused_and_recorded() {
    let Some(hand) = Hand::new() else { return };
    hand.ec2("DescribeInstances", &[("InstanceIds.1", "i-0123456789abcdef0")])
        .fails(400, "UnknownParameter");
    assert_eq!(hand.sim.violations().len(), 1);
    hand.ec2("FlyToTheMoon", &[]).fails(400, "InvalidAction");
    assert_eq!(hand.sim.violations().len(), 2);
    assert_eq!(hand.sim.mistakes(), []);
}

#[test]
fn answers_have_the_element_names_of_the_service() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("t3.micro", &[]);
    let reply = hand.ec2("DescribeInstances", &[("InstanceId.1", &id)]).fine();
    assert!(
        reply
            .body
            .contains("<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">")
    );
    for path in [
        "<reservationSet><item>",
        "<instancesSet><item>",
        "<instanceState><code>16</code><name>running</name>",
        "<ipAddress>",
    ] {
        assert!(reply.body.contains(path), "{path} is not in {}", reply.body);
    }
    hand.judged_clean();
}

#[test]
fn errors_have_the_form_of_each_service() {
    let Some(hand) = Hand::new() else { return };
    let ec2 = hand.ec2("DescribeInstances", &[("InstanceId.1", "i-0123456789abcdef0")]);
    ec2.fails(400, "InvalidInstanceID.NotFound");
    assert!(
        ec2.body.contains("<Response><Errors><Error><Code>"),
        "{}",
        ec2.body
    );
    let ssm = hand.parameter("/no/such/parameter");
    assert_eq!(
        (ssm.status, ssm.json()["__type"].as_str()),
        (400, Some("ParameterNotFound"))
    );
    hand.sim
        .fault(Rule::once("sts.GetCallerIdentity", Fault::Unauthorized));
    let sts = hand.sts("GetCallerIdentity");
    sts.fails(403, "InvalidClientTokenId");
    assert!(
        sts.body.contains("<ErrorResponse") && sts.body.contains("<Type>Sender</Type>"),
        "{}",
        sts.body
    );
}

#[test]
fn each_refusal_of_the_core_has_the_code_and_status_of_ec2() {
    let Some(hand) = Hand::new() else { return };
    let table = [
        (Fault::TooMany { retry_after: None }, 503, "RequestLimitExceeded"),
        (
            Fault::Server {
                status: 500,
                when: When::Before,
            },
            500,
            "InternalError",
        ),
        (
            Fault::Server {
                status: 503,
                when: When::Before,
            },
            503,
            "Unavailable",
        ),
        (Fault::NoCapacity, 500, "InsufficientInstanceCapacity"),
        (Fault::Quota { what: "P".to_owned() }, 400, "VcpuLimitExceeded"),
        (Fault::Unauthorized, 401, "AuthFailure"),
        (Fault::Expired, 400, "RequestExpired"),
        (Fault::Forbidden, 403, "UnauthorizedOperation"),
    ];
    for (fault, status, code) in table {
        hand.sim.fault(Rule::once("ec2.RunInstances", fault));
        hand.run("t3.micro", &[]).fails(status, code);
        hand.wait(5);
    }
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    assert!(hand.sim.pending_faults().is_empty());
}

#[test]
fn an_answer_that_is_lost_after_the_effect_leaves_the_machine() {
    let Some(hand) = Hand::new() else { return };
    hand.sim.fault(Rule::once(
        "create",
        Fault::Server {
            status: 500,
            when: When::After,
        },
    ));
    hand.run("t3.micro", &[("ClientToken", "token-1")])
        .fails(500, "InternalError");
    hand.wait(2);
    let found = hand
        .ec2(
            "DescribeInstances",
            &[("Filter.1.Name", "client-token"), ("Filter.1.Value.1", "token-1")],
        )
        .fine();
    assert_eq!(found.all("instanceId").len(), 1);
    let again = hand.run("t3.micro", &[("ClientToken", "token-1")]).fine();
    assert_eq!(again.text("instanceId"), found.text("instanceId"));
    assert_eq!(hand.sim.world(|world| world.machines.len()), 1);
    hand.judged_clean();
}

#[test]
fn too_many_calls_of_one_action_are_refused_with_503_until_the_bucket_fills() {
    let Some(hand) = Hand::new() else { return };
    let image = hand.image("amd64");
    let parameters = [
        ("ImageId", image.as_str()),
        ("InstanceType", "t3.micro"),
        ("MinCount", "1"),
        ("MaxCount", "1"),
    ];
    let statuses: Vec<u16> = (0..7)
        .map(|_| hand.ec2("RunInstances", &parameters).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 503, 503]);
    hand.ec2("DescribeRegions", &[]).fine();
    hand.in_region("us-west-2").ec2("DescribeInstances", &[]).fine();
    hand.wait(1);
    hand.ec2("RunInstances", &parameters).fine();
}

#[test]
fn the_other_services_have_words_of_their_own_for_the_same_refusals() {
    let Some(hand) = Hand::new() else { return };
    let table = [
        (
            Fault::TooMany { retry_after: None },
            "ThrottlingException",
            "Throttling",
        ),
        (
            Fault::Server {
                status: 500,
                when: When::Before,
            },
            "InternalServerError",
            "InternalError",
        ),
        (
            Fault::Unauthorized,
            "UnrecognizedClientException",
            "InvalidClientTokenId",
        ),
        (Fault::Expired, "ExpiredTokenException", "ExpiredToken"),
        (Fault::Forbidden, "AccessDeniedException", "AccessDenied"),
    ];
    for (fault, json_code, sts_code) in table {
        hand.sim.fault(Rule::once("ssm.GetParameter", fault.clone()));
        hand.sim.fault(Rule::once("sts.GetCallerIdentity", fault.clone()));
        let ssm = hand.parameter("/a/b");
        assert_eq!(ssm.json()["__type"], json_code, "{fault:?}");
        assert_eq!(
            hand.sts("GetCallerIdentity").text("Code"),
            Some(sts_code),
            "{fault:?}"
        );
    }
    hand.judged_clean();
}

#[test]
fn every_read_call_answers_what_its_model_allows() {
    let Some(hand) = Hand::new() else { return };
    hand.running("g5.xlarge", &[("InstanceMarketOptions.MarketType", "spot")]);
    let calls = [
        "DescribeAvailabilityZones",
        "DescribeImages",
        "DescribeInstanceStatus",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeInstances",
        "DescribeKeyPairs",
        "DescribeLaunchTemplates",
        "DescribeRegions",
        "DescribeSecurityGroups",
        "DescribeSpotInstanceRequests",
        "DescribeSpotPriceHistory",
        "DescribeSubnets",
        "DescribeTags",
        "DescribeVpcs",
    ];
    for call in calls {
        hand.ec2(call, &[]).fine();
    }
    let id = hand
        .ec2("DescribeInstances", &[])
        .text("instanceId")
        .expect("an id")
        .to_owned();
    hand.ec2("GetConsoleOutput", &[("InstanceId", &id)]).fine();
    let scores = hand
        .ec2(
            "GetSpotPlacementScores",
            &[("TargetCapacity", "1"), ("InstanceType.1", "g5.xlarge")],
        )
        .fine();
    assert!(scores.text("score").is_some());
    hand.judged_clean();
}
