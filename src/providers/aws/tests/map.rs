use aws_sdk_ec2::{
    primitives::DateTime,
    types::{InstanceLifecycleType, InstanceState, Placement, StateReason},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rstest::rstest;
use skyward_core::order::PoolShape;

use super::*;

fn order() -> Order {
    Order {
        mark: Mark {
            cluster: "c1".into(),
            namespace: "team".into(),
            pool: "train".into(),
            pool_uid: "0f2c6a52-8f3a-4f60-9a63-1d3b0f7f6a01".into(),
            machine: "train-0-1".into(),
            machine_uid: "m1".into(),
            slot: 3,
            attempt: 2,
        },
        token: "0f2c6a52-8f3a-4f60-9a63-1d3b0f7f6a01-3-2".into(),
        instance_type: "g6.xlarge".into(),
        region: "us-east-1".into(),
        max_hourly_cost: Some(Usd::new(80_500, 5)),
        authorized_key: "ssh-ed25519 AAAA pool".into(),
        boot_script: "true\n".into(),
        pool: PoolShape {
            machines: 2,
            connected: true,
        },
        labels: BTreeMap::from([
            ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
            ("aws:reserved".to_owned(), "x".to_owned()),
            ("skyward:cluster".to_owned(), "forged".to_owned()),
        ]),
        ..Order::default()
    }
}

fn image() -> Image {
    Image {
        id: "ami-1".into(),
        root_device: "/dev/sda1".into(),
        least_gb: 75,
        others: Vec::new(),
    }
}

fn made(order: &Order) -> Template {
    let data = boot::cloud_config("root", order);
    template(
        order,
        "aws-main",
        &Settings::default(),
        &image(),
        "sg-1",
        true,
        &data,
    )
}

fn subnet(id: &str, zone: &str) -> Subnet {
    Subnet {
        id: id.into(),
        vpc: "vpc-1".into(),
        zone: zone.into(),
        public: true,
    }
}

#[test]
fn a_template_has_the_volumes_that_its_image_would_leave_behind() {
    let other = LaunchTemplateBlockDeviceMappingRequest::builder().device_name("/dev/sdb");
    let image = Image {
        others: vec![other.build()],
        ..image()
    };
    let data = template(
        &order(),
        "aws-main",
        &Settings::default(),
        &image,
        "sg-1",
        true,
        "",
    )
    .data;
    let devices = data.block_device_mappings();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].device_name(), Some("/dev/sdb"));
}

#[test]
fn a_template_is_safe_by_default() {
    let data = made(&order()).data;
    let metadata = data.metadata_options.unwrap();
    assert_eq!(metadata.http_tokens.unwrap().as_str(), "required");
    assert_eq!(metadata.http_put_response_hop_limit, Some(1));
    assert_eq!(
        data.instance_initiated_shutdown_behavior,
        Some(ShutdownBehavior::Terminate)
    );
    assert_eq!((data.iam_instance_profile, data.key_name), (None, None));
    let disk = data.block_device_mappings.unwrap().remove(0);
    assert_eq!(disk.device_name.as_deref(), Some("/dev/sda1"));
    let ebs = disk.ebs.unwrap();
    assert_eq!(
        (ebs.volume_size, ebs.delete_on_termination),
        (Some(100), Some(true))
    );
    assert_eq!(ebs.volume_type, Some(VolumeType::Gp3));
    let sent = BASE64_STANDARD.decode(data.user_data.unwrap()).unwrap();
    assert!(String::from_utf8(sent).unwrap().starts_with("#cloud-config\n"));
    let tagged: Vec<_> = data
        .tag_specifications
        .unwrap()
        .into_iter()
        .filter_map(|spec| spec.resource_type)
        .collect();
    assert_eq!(tagged, [ResourceType::Volume, ResourceType::NetworkInterface]);
}

#[rstest]
#[case(None, 100)]
#[case(Some(200 << 30), 200)]
#[case(Some(200_000_000_000), 187)]
#[case(Some(20 << 30), 75)]
fn the_disk_is_what_the_pool_asks_for_but_never_smaller_than_the_image(
    #[case] asked: Option<u64>,
    #[case] expected: i32,
) {
    let order = Order {
        disk_bytes: asked,
        ..order()
    };
    let disk = made(&order).data.block_device_mappings.unwrap().remove(0);
    assert_eq!(disk.ebs.unwrap().volume_size, Some(expected));
}

#[test]
fn machines_of_one_pool_share_a_template_until_its_content_changes() {
    let first = made(&order());
    let mut other = order();
    (other.mark.slot, other.mark.machine_uid, other.token) = (4, "m2".into(), "t2".into());
    assert_eq!(made(&other).name, first.name);
    other.disk_bytes = Some(500 << 30);
    assert_ne!(made(&other).name, first.name);
    let mut foreign = order();
    foreign.mark.pool_uid = "another".into();
    assert_ne!(made(&foreign).name, first.name);
    assert!(first.name.len() <= 128, "{}", first.name);
}

#[test]
fn the_same_order_is_the_same_request() {
    let (a, b) = (subnet("subnet-a", "us-east-1a"), subnet("subnet-b", "us-east-1b"));
    let fleet = || fleet(&order(), "aws-main", &Settings::default(), "t", &[&a, &b]);
    assert_eq!(fleet(), fleet());
    assert_eq!(made(&order()), made(&order()));
}

#[test]
fn a_spot_order_has_its_ceiling_and_ends_when_it_is_reclaimed() {
    let a = subnet("subnet-a", "us-east-1a");
    let spot = Order {
        market: Market::Spot,
        ..order()
    };
    let fleet = fleet(&spot, "aws-main", &Settings::default(), "t", &[&a]);
    assert_eq!(fleet.token, "0f2c6a52-8f3a-4f60-9a63-1d3b0f7f6a01-3-2");
    assert_eq!(fleet.capacity.total_target_capacity, Some(1));
    assert_eq!(
        fleet.capacity.default_target_capacity_type.unwrap().as_str(),
        "spot"
    );
    let options = fleet.spot.unwrap();
    assert_eq!(
        options.allocation_strategy.unwrap().as_str(),
        "price-capacity-optimized"
    );
    assert_eq!(
        options.instance_interruption_behavior,
        Some(SpotInstanceInterruptionBehavior::Terminate)
    );
    let tried = fleet.config.overrides.unwrap();
    assert_eq!(tried[0].max_price.as_deref(), Some("0.805"));
    assert_eq!(fleet.on_demand, None);
}

#[test]
fn an_order_on_demand_has_no_ceiling_since_its_price_is_fixed() {
    let a = subnet("subnet-a", "us-east-1a");
    let fleet = fleet(&order(), "aws-main", &Settings::default(), "t", &[&a]);
    assert_eq!(
        fleet.capacity.default_target_capacity_type.unwrap().as_str(),
        "on-demand"
    );
    assert_eq!(fleet.config.overrides.unwrap()[0].max_price, None);
    assert_eq!(fleet.spot, None);
}

#[test]
fn a_token_that_is_too_long_is_still_one_token() {
    let long = Order {
        token: "x".repeat(100),
        ..order()
    };
    assert_eq!(token(&long).len(), 64);
    assert_eq!(token(&long), token(&long.clone()));
    assert_ne!(
        token(&long),
        token(&Order {
            token: "x".repeat(101),
            ..order()
        })
    );
}

#[test]
fn after_each_refusal_an_order_has_another_token() {
    for first in [token(&order()), "x".repeat(64)] {
        let tokens: std::collections::BTreeSet<_> =
            (1..=100).map(|times| next_token(&first, times)).collect();
        assert_eq!(tokens.len(), 100);
        assert!(!tokens.contains(&first) && tokens.iter().all(|token| token.len() <= 64));
        assert!(tokens.contains(&next_token(&first, 7)), "the same each time");
    }
}

#[test]
fn a_mark_survives_its_tags_and_labels_cannot_forge_it() {
    let tags = machine_tags(&order(), "aws-main", "root");
    assert_eq!(mark(&tags), Some(order().mark));
    assert_eq!(value(&tags, "kubernetes.io/arch").as_deref(), Some("amd64"));
    assert_eq!(value(&tags, "aws:reserved"), None);
    let keys: std::collections::BTreeSet<_> = tags.iter().filter_map(Tag::key).collect();
    assert_eq!(keys.len(), tags.len(), "EC2 refuses a key twice");
    assert!(tags.len() <= 50);
    assert_eq!(mark(&tags[..4]), None);
}

fn instance(state: &str, reason: Option<&str>) -> Instance {
    Instance::builder()
        .instance_id("i-1")
        .state(InstanceState::builder().name(state.into()).build())
        .set_state_reason(reason.map(|code| {
            StateReason::builder()
                .code(code)
                .message(format!("{code}: said"))
                .build()
        }))
        .set_tags(Some(machine_tags(&order(), "aws-main", "root")))
        .private_ip_address("10.0.0.7")
        .public_ip_address("198.51.100.7")
        .launch_time(DateTime::from_secs(1_800_000_000))
        .instance_lifecycle(InstanceLifecycleType::Spot)
        .placement(Placement::builder().availability_zone("us-east-1b").build())
        .build()
}

fn failure(phase: &ProviderPhase) -> Option<FailureKind> {
    match phase {
        ProviderPhase::Failed(failure) => Some(failure.kind),
        ProviderPhase::Starting(_)
        | ProviderPhase::Running
        | ProviderPhase::Stopping
        | ProviderPhase::Stopped(_) => None,
    }
}

#[rstest]
#[case("pending", None, "Starting")]
#[case("running", None, "Running")]
#[case("shutting-down", None, "Stopping")]
#[case("shutting-down", Some("Client.UserInitiatedShutdown"), "Stopping")]
#[case("shutting-down", Some("Server.SpotInstanceTermination"), "Reclaimed")]
#[case("terminated", Some("Server.SpotInstanceTermination"), "Reclaimed")]
#[case("stopped", Some("Server.SpotInstanceShutdown"), "Reclaimed")]
#[case("terminated", Some("Client.UserInitiatedShutdown"), "Lost")]
#[case("stopped", Some("Client.UserInitiatedShutdown"), "Stopped")]
#[case("terminated", Some("Client.InstanceInitiatedShutdown"), "Stopped")]
#[case("shutting-down", Some("Client.InstanceInitiatedShutdown"), "Stopped")]
#[case("terminated", Some("Server.InsufficientInstanceCapacity"), "NoCapacity")]
#[case("terminated", Some("Client.VolumeLimitExceeded"), "Other")]
#[case("terminated", Some("Client.InternalError"), "Other")]
#[case("terminated", Some("Client.InvalidSnapshot.NotFound"), "UnusableImage")]
#[case("terminated", Some("Server.InternalError"), "Lost")]
#[case("terminated", None, "Lost")]
fn states_become_phases(#[case] state: &str, #[case] reason: Option<&str>, #[case] expected: &str) {
    let phase = machine(&instance(state, reason), "us-east-1").unwrap().phase;
    let seen = failure(&phase).map_or_else(
        || format!("{phase:?}").split('(').next().unwrap().to_owned(),
        |kind| format!("{kind:?}"),
    );
    assert_eq!(seen, expected);
}

#[rstest]
#[case("terminated", "Client.UserInitiatedShutdown", true)]
#[case("shutting-down", "Client.UserInitiatedShutdown", false)]
#[case("stopped", "Client.UserInitiatedShutdown", false)]
#[case("terminated", "Server.SpotInstanceTermination", false)]
fn a_machine_whose_end_was_ordered_is_gone_once_it_ended(
    #[case] state: &str,
    #[case] reason: &str,
    #[case] expected: bool,
) {
    assert_eq!(was_returned(&instance(state, Some(reason))), expected);
}

#[test]
fn a_machine_is_dialled_by_its_public_address_and_known_by_its_private_one() {
    let seen = machine(&instance("running", None), "us-east-1").unwrap();
    let endpoint = seen.endpoint.unwrap();
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.7:22".parse().unwrap()));
    assert_eq!(endpoint.user, "root");
    assert_eq!(seen.private_address.as_deref(), Some("10.0.0.7"));
    assert_eq!(seen.rental.region.as_deref(), Some("us-east-1"));
    assert_eq!(
        seen.rental.billed_since,
        Some(Timestamp::from_second(1_800_000_000).unwrap())
    );
}

#[test]
fn without_a_public_address_the_private_one_is_dialled() {
    let mut private = instance("running", None);
    private.public_ip_address = None;
    let endpoint = machine(&private, "us-east-1").unwrap().endpoint.unwrap();
    assert_eq!(endpoint.dial, Dial::Address("10.0.0.7:22".parse().unwrap()));
}

#[test]
fn a_machine_without_an_address_does_not_run_yet() {
    let mut young = instance("running", None);
    (young.public_ip_address, young.private_ip_address) = (None, None);
    let seen = machine(&young, "us-east-1").unwrap();
    assert!(matches!(seen.phase, ProviderPhase::Starting(Some(_))));
    assert_eq!(seen.endpoint, None);
}

#[test]
fn what_carries_no_mark_is_not_ours() {
    let mut foreign = instance("running", None);
    foreign.tags = None;
    assert_eq!(machine(&foreign, "us-east-1"), None);
}

#[test]
fn the_zone_of_a_pool_is_where_most_of_its_machines_are() {
    let at = |zone: &str, uid: &str, second| {
        let mut one = instance("running", None);
        one.placement = Some(Placement::builder().availability_zone(zone).build());
        one.launch_time = Some(DateTime::from_secs(second));
        one.tags = Some(vec![tag(MACHINE_UID, uid)]);
        one
    };
    let all = [
        at("a", "1", 30),
        at("b", "2", 20),
        at("b", "3", 40),
        at("c", "4", 10),
    ];
    assert_eq!(common_zone(&all, ""), Some("b".to_owned()));
    // Of two equally common zones that of the older machine.
    assert_eq!(common_zone(&all[..2], ""), Some("b".to_owned()));
    // A machine does not follow itself.
    assert_eq!(common_zone(&all[..1], "1"), None);
}
