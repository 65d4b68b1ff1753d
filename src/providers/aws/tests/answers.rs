//! Answers of EC2 and STS as they should be, and with fields that are missing, renamed, added and unreadable.

use aws_sdk_ec2::types::Reservation;
use rstest::rstest;
use skyward_provider_kit::http::shape::{Shape, What, watched};

use super::*;
use crate::recorded::ec2;

const INSTANCES: &str = include_str!("../../tests/fixtures/aws/instances.xml");
const INSTANCE: &str = "/reservationSet/[]/instancesSet/[]";
const TYPES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstanceTypesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><instanceTypeSet><item>
<instanceType>g6.xlarge</instanceType><supportedUsageClasses><item>on-demand</item></supportedUsageClasses>
<bareMetal>false</bareMetal><burstablePerformanceSupported>false</burstablePerformanceSupported>
<processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures></processorInfo>
<vCpuInfo><defaultVCpus>4</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>16384</sizeInMiB></memoryInfo>
<gpuInfo><gpus><item><name>L4</name><manufacturer>NVIDIA</manufacturer><count>1</count><gpuPartitionSize>0.125</gpuPartitionSize>
<logicalGpuCount>1</logicalGpuCount><memoryInfo><sizeInMiB>22888</sizeInMiB></memoryInfo></item></gpus>
<totalGpuMemoryInMiB>22888</totalGpuMemoryInMiB></gpuInfo>
<neuronInfo><neuronDevices><item><name>Trainium</name><count>1</count><memoryInfo><sizeInMiB>32768</sizeInMiB></memoryInfo></item></neuronDevices></neuronInfo>
<inferenceAcceleratorInfo><accelerators><item><name>Inferentia</name><count>1</count><memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo></item></accelerators></inferenceAcceleratorInfo>
</item></instanceTypeSet><nextToken>more</nextToken></DescribeInstanceTypesResponse>"#;
const CALLER: &str = r#"<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/canary</Arn><UserId>AIDAEXAMPLE</UserId><Account>123456789012</Account>
</GetCallerIdentityResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>"#;

/// The shapes of an answer to a call.
async fn shapes(call: &str, answer: &str) -> Vec<Shape> {
    watched(async { compare(call, answer.as_bytes()) }).await.1
}

fn at<'a>(shapes: &'a [Shape], place: &str) -> &'a Shape {
    let found = shapes.iter().find(|shape| shape.place == place);
    found.unwrap_or_else(|| panic!("nothing at {place}: {shapes:?}"))
}

/// Place, field, what is wrong, and its new name.
fn deviations(shapes: &[Shape]) -> Vec<(&str, &str, What, Option<&str>)> {
    let all = shapes.iter().flat_map(|shape| {
        let of_shape = shape.deviations.iter();
        of_shape.map(move |found| (shape.place.as_str(), found))
    });
    all.map(|(place, found)| (place, found.field.as_str(), found.what, found.renamed.as_deref()))
        .collect()
}

/// The same without fields that an answer may lack, and that have no other name in it.
fn wrong(shapes: &[Shape]) -> Vec<(&str, &str, What, Option<&str>)> {
    let mut all = deviations(shapes);
    all.retain(|(_, _, what, renamed)| what.breaks() || renamed.is_some());
    all
}

#[tokio::test]
async fn recorded_instances_are_as_expected_and_their_tags_are_shown_nowhere() {
    let shapes = shapes("DescribeInstances", INSTANCES).await;
    assert_eq!(wrong(&shapes), []);
    let instances = at(&shapes, INSTANCE);
    assert_eq!((instances.call, instances.objects), ("list the instances", 3));
    assert_eq!(
        instances.present,
        [
            "instanceId",
            "instanceLifecycle",
            "instanceState",
            "instanceType",
            "ipAddress",
            "launchTime",
            "placement",
            "privateIpAddress",
            "reason",
            "stateReason",
            "tagSet",
        ]
    );
    assert!(
        instances.unread.contains(&"architecture".to_owned()),
        "{instances:?}"
    );
    let tags = at(&shapes, &format!("{INSTANCE}/tagSet/[]"));
    assert_eq!(tags.present, ["key", "value"]);
    let shown = format!("{shapes:?}");
    for value in ["skyward", "train", "somebody", "198.51.100.7"] {
        assert!(!shown.contains(value), "{value}: {shown}");
    }
}

#[tokio::test]
async fn an_answer_with_every_field_has_no_deviation() {
    for (call, answer, words, place) in [
        (
            "DescribeInstanceTypes",
            TYPES,
            "list the instance types",
            "/instanceTypeSet/[]/gpuInfo/gpus/[]/memoryInfo",
        ),
        (
            "GetCallerIdentity",
            CALLER,
            "check the credentials",
            "/GetCallerIdentityResult",
        ),
        (
            "DescribeInstanceTypeOfferings",
            "<R><instanceTypeOfferingSet><item><instanceType>a</instanceType><location>b</location></item>\
             </instanceTypeOfferingSet><nextToken>more</nextToken></R>",
            "list the zones of the instance types",
            "/instanceTypeOfferingSet/[]",
        ),
        (
            "DescribeSpotPriceHistory",
            "<R><spotPriceHistorySet><item><instanceType>a</instanceType><availabilityZone>b</availabilityZone>\
             <spotPrice>0.3012</spotPrice><timestamp>2026-11-21T03:04:05.000Z</timestamp></item>\
             </spotPriceHistorySet><nextToken>more</nextToken></R>",
            "list the spot prices",
            "/spotPriceHistorySet/[]",
        ),
        (
            "DescribeSecurityGroups",
            "<R><securityGroupInfo><item><groupId>sg-1</groupId><tagSet/></item></securityGroupInfo>\
             <nextToken>more</nextToken></R>",
            "list the security groups",
            "/securityGroupInfo/[]",
        ),
        (
            "DescribeLaunchTemplates",
            "<R><launchTemplates><item><launchTemplateId>lt-1</launchTemplateId><tagSet/></item></launchTemplates>\
             <nextToken>more</nextToken></R>",
            "list the launch templates",
            "/launchTemplates/[]",
        ),
    ] {
        let shapes = shapes(call, answer).await;
        assert_eq!(deviations(&shapes), [], "{call}");
        assert_eq!(at(&shapes, place).call, words);
    }
}

#[tokio::test]
async fn a_list_without_entries_is_as_expected() {
    let kind = ["supportedUsageClasses", "gpus", "neuronDevices", "accelerators"];
    let mut emptied = TYPES.to_owned();
    for list in kind {
        let (before, rest) = emptied.split_once(&format!("<{list}>")).unwrap();
        let (_, after) = rest.split_once(&format!("</{list}>")).unwrap();
        emptied = format!("{before}<{list}/>{after}");
    }
    let mut answers = vec![("DescribeInstanceTypes", emptied)];
    for (call, list) in [
        ("DescribeInstances", "reservationSet"),
        ("DescribeInstanceTypes", "instanceTypeSet"),
        ("DescribeInstanceTypeOfferings", "instanceTypeOfferingSet"),
        ("DescribeSpotPriceHistory", "spotPriceHistorySet"),
        ("DescribeSecurityGroups", "securityGroupInfo"),
        ("DescribeLaunchTemplates", "launchTemplates"),
    ] {
        answers.push((call, format!("<R>\n  <{list}/>\n</R>")));
        answers.push((call, format!("<R><{list}></{list}></R>")));
    }
    for (call, answer) in answers {
        let shapes = shapes(call, &answer).await;
        assert!(!shapes.is_empty(), "{call}");
        assert_eq!(wrong(&shapes), [], "{call}: {answer}");
    }
}

#[rstest]
#[case::needed("instanceId", None, What::Missing)]
#[case::needed_and_renamed("instanceId", Some("instanceUid"), What::Missing)]
#[case::a_list("tagSet", Some("tagsSet"), What::Missing)]
#[case::optional("launchTime", None, What::Absent)]
#[case::optional_and_renamed("launchTime", Some("launchedTime"), What::Absent)]
#[tokio::test]
async fn a_field_of_an_instance_that_is_missing_or_renamed_is_told(
    #[case] field: &str,
    #[case] to: Option<&str>,
    #[case] what: What,
) {
    let changed = match to {
        Some(to) => INSTANCES.replace(&format!("{field}>"), &format!("{to}>")),
        // The field is no field of an instance any more, but one of something that is not read.
        None => INSTANCES
            .replace(&format!("<{field}>"), &format!("<canary><{field}>"))
            .replace(&format!("</{field}>"), &format!("</{field}></canary>")),
    };
    let shapes = shapes("DescribeInstances", &changed).await;
    let found = deviations(&shapes);
    assert!(found.contains(&(INSTANCE, field, what, to)), "{found:?}");
}

#[tokio::test]
async fn the_only_field_of_an_element_is_missed() {
    let changed = TYPES.replace("<defaultVCpus>4</defaultVCpus>", "");
    let shapes = shapes("DescribeInstanceTypes", &changed).await;
    let told = (
        "/instanceTypeSet/[]/vCpuInfo",
        "defaultVCpus",
        What::Missing,
        None,
    );
    assert_eq!(wrong(&shapes), [told]);
}

#[tokio::test]
async fn a_list_that_has_another_name_is_told() {
    let changed = INSTANCES.replace("reservationSet>", "reservationsSet>");
    let shapes = shapes("DescribeInstances", &changed).await;
    let told = ("", "reservationSet", What::Missing, Some("reservationsSet"));
    assert_eq!(wrong(&shapes), [told]);
}

#[tokio::test]
async fn a_field_that_is_new_in_every_instance_is_named_and_breaks_nothing() {
    let changed = INSTANCES.replace(
        "<instanceId>",
        "<addedLater><canary>1</canary></addedLater><instanceId>",
    );
    let shapes = shapes("DescribeInstances", &changed).await;
    assert_eq!(wrong(&shapes), []);
    let instances = at(&shapes, INSTANCE);
    assert!(
        instances.unread.contains(&"addedLater".to_owned()),
        "{instances:?}"
    );
    assert!(!format!("{shapes:?}").contains("canary"), "{shapes:?}");
}

#[rstest]
#[case::a_time(
    "DescribeInstances",
    INSTANCES,
    "2026-11-21T03:04:05.000Z",
    "canary",
    INSTANCE,
    "launchTime"
)]
#[case::a_number(
    "DescribeInstanceTypes",
    TYPES,
    ">16384<",
    ">16 GiB<",
    "/instanceTypeSet/[]/memoryInfo",
    "sizeInMiB"
)]
#[case::a_number_that_is_not_written(
    "DescribeInstanceTypes",
    TYPES,
    ">16384<",
    "><",
    "/instanceTypeSet/[]/memoryInfo",
    "sizeInMiB"
)]
#[case::a_truth_value(
    "DescribeInstanceTypes",
    TYPES,
    "<bareMetal>false",
    "<bareMetal>canary",
    "/instanceTypeSet/[]",
    "bareMetal"
)]
#[tokio::test]
async fn a_value_that_the_sdk_cannot_read_is_told_by_its_field(
    #[case] call: &str,
    #[case] answer: &str,
    #[case] value: &str,
    #[case] by: &str,
    #[case] place: &str,
    #[case] field: &str,
) {
    let shapes = shapes(call, &answer.replace(value, by)).await;
    assert_eq!(wrong(&shapes), [(place, field, What::Unreadable, None)]);
    assert!(!format!("{shapes:?}").contains("canary"), "{shapes:?}");
}

#[tokio::test]
async fn an_answer_that_is_no_xml_or_to_another_call_is_not_compared() {
    for (call, answer) in [
        ("DescribeInstances", "<html><body>busy"),
        ("DescribeInstances", ""),
        ("CreateFleet", INSTANCES),
    ] {
        assert_eq!(shapes(call, answer).await, [], "{call}");
    }
    assert_eq!(
        watched(async { compare("DescribeInstances", b"\xff") }).await.1,
        []
    );
}

#[tokio::test]
async fn what_the_sdk_reads_is_compared_while_answers_are_compared() {
    let client = ec2(200, INSTANCES);
    let pages = client.describe_instances().into_paginator().items().send();
    let (read, shapes) = watched(pages.try_collect()).await;
    let read: Vec<Reservation> = read.unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(at(&shapes, INSTANCE).objects, 3);
}

#[tokio::test]
async fn a_refusal_is_not_compared_and_an_answer_that_the_sdk_cannot_read_is() {
    let refusal = INSTANCES.replace("DescribeInstancesResponse", "Response");
    let (read, shapes) = watched(ec2(503, &refusal).describe_instances().send()).await;
    assert!(read.is_err());
    assert_eq!(shapes, []);
    let changed = INSTANCES.replace("2026-11-21T03:04:05.000Z", "yesterday");
    let (read, shapes) = watched(ec2(200, &changed).describe_instances().send()).await;
    assert!(read.is_err());
    assert_eq!(wrong(&shapes), [(INSTANCE, "launchTime", What::Unreadable, None)]);
}
