use rstest::rstest;

use super::*;

#[rstest]
#[case("g2-standard-4", "g2-standard-4", None)]
#[case("n1-standard-8+nvidia-tesla-t4x1", "n1-standard-8", Some(("nvidia-tesla-t4", 1)))]
fn a_type_of_machine_is_read_as_it_was_written(
    #[case] text: &str,
    #[case] machine: &str,
    #[case] added: Option<(&str, u32)>,
) {
    let kind = Kind::parse(text).unwrap();
    assert_eq!(kind.machine, machine);
    let found = kind.added.as_ref().map(|(name, count)| (name.as_str(), *count));
    assert_eq!(found, added);
    assert_eq!(kind.to_string(), text);
}

#[rstest]
#[case("")]
#[case("g2/standard-4")]
#[case("G2-standard-4")]
#[case("n1-standard-8+")]
#[case("n1-standard-8+nvidia-tesla-t4")]
#[case("n1-standard-8+nvidia-tesla-t4x0")]
#[case("n1-standard-8+../nvidia-tesla-t4x1")]
fn a_text_that_is_no_type_of_machine_is_none(#[case] text: &str) {
    assert_eq!(Kind::parse(text), None);
}

#[rstest]
#[case::added("n1-standard-8", Some(("nvidia-tesla-t4", 2)), "n1-standard-8+nvidia-tesla-t4x2")]
#[case::its_own("g2-standard-4", Some(("nvidia-l4", 1)), "g2-standard-4")]
#[case::none("g2-standard-4", None, "g2-standard-4")]
fn an_instance_is_of_the_type_that_its_order_named(
    #[case] machine: &str,
    #[case] gpus: Option<(&str, u32)>,
    #[case] expected: &str,
) {
    let address = |collection, name| format!("https://elsewhere.example/zones/z/{collection}/{name}");
    let instance = Instance {
        machine_type: address("machineTypes", machine),
        guest_accelerators: gpus
            .into_iter()
            .map(|(name, count)| crate::gcp::wire::Attached {
                accelerator_type: address("acceleratorTypes", name),
                accelerator_count: count,
            })
            .collect(),
        ..Instance::default()
    };
    assert_eq!(Kind::of(&instance).to_string(), expected);
}

#[rstest]
#[case("g2-standard-4", "pd-balanced")]
#[case("a3-highgpu-8g", "pd-balanced")]
#[case("a3-ultragpu-8g", "hyperdisk-balanced")]
#[case("a4-highgpu-8g", "hyperdisk-balanced")]
#[case("g4-standard-48", "hyperdisk-balanced")]
fn the_newest_machines_have_the_disks_that_they_take(#[case] machine: &str, #[case] expected: &str) {
    assert_eq!(Kind::parse(machine).unwrap().disk_type(), expected);
}
