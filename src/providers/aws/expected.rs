//! The fields that this crate reads of the answers of EC2 and STS, by their names on the wire. The SDK reads these answers
//! into types of its own, which do not tell what an answer lacks.
//!
//! A field that is no `Option` is one without which a machine, an offer or a leftover is not seen.

#![expect(dead_code, reason = "only the names and the kinds of the fields matter")]

use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, de::IgnoredAny};
use skyward_core::Usd;

/// Elements that are lists, those without entries too.
pub(crate) const LISTS: &[&str] = &[
    "accelerators",
    "gpus",
    "instanceTypeOfferingSet",
    "instanceTypeSet",
    "instancesSet",
    "launchTemplates",
    "neuronDevices",
    "reservationSet",
    "securityGroupInfo",
    "spotPriceHistorySet",
    "supportedArchitectures",
    "supportedUsageClasses",
    "tagSet",
];

/// Any text.
type Text = IgnoredAny;

/// A text with a number, a time or a truth value.
#[derive(Deserialize)]
#[serde(try_from = "String", bound = "T: FromStr")]
pub(crate) struct Parsed<T>(T);

impl<T: FromStr> TryFrom<String> for Parsed<T> {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self).map_err(|_| "the text has another form")
    }
}

/// Elements with these elements in them.
macro_rules! elements {
    ($($name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* })*) => {$(
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $name {
            $($(#[$attribute])* $field: $kind,)*
        }
    )*};
}

// The answers, by their calls.
elements! {
    GetCallerIdentity {
        #[serde(rename = "GetCallerIdentityResult")]
        result: Caller,
    }
    DescribeInstances {
        reservation_set: Vec<Reservation>,
        next_token: Option<Text>,
    }
    DescribeInstanceTypes {
        instance_type_set: Vec<Kind>,
        next_token: Option<Text>,
    }
    DescribeInstanceTypeOfferings {
        instance_type_offering_set: Vec<Offering>,
        next_token: Option<Text>,
    }
    DescribeSpotPriceHistory {
        spot_price_history_set: Vec<Entry>,
        next_token: Option<Text>,
    }
    DescribeSecurityGroups {
        security_group_info: Vec<Group>,
        next_token: Option<Text>,
    }
    DescribeLaunchTemplates {
        launch_templates: Vec<Template>,
        next_token: Option<Text>,
    }
}

// What stands in them.
elements! {
    Caller {
        #[serde(rename = "Account")]
        account: Text,
        #[serde(rename = "Arn")]
        arn: Option<Text>,
    }
    Reservation {
        instances_set: Vec<Machine>,
    }
    Machine {
        instance_id: Text,
        instance_lifecycle: Option<Text>,
        instance_state: Option<State>,
        instance_type: Option<Text>,
        ip_address: Option<Text>,
        launch_time: Option<Parsed<Timestamp>>,
        placement: Option<Placement>,
        private_ip_address: Option<Text>,
        reason: Option<Text>,
        state_reason: Option<Reason>,
        tag_set: Vec<Tag>,
    }
    State {
        name: Option<Text>,
    }
    Placement {
        availability_zone: Option<Text>,
    }
    Reason {
        code: Option<Text>,
        message: Option<Text>,
    }
    Tag {
        key: Text,
        value: Option<Text>,
    }
    Kind {
        bare_metal: Option<Parsed<bool>>,
        burstable_performance_supported: Option<Parsed<bool>>,
        gpu_info: Option<Gpus>,
        inference_accelerator_info: Option<Inference>,
        instance_type: Text,
        memory_info: Memory,
        neuron_info: Option<Neuron>,
        processor_info: Processor,
        supported_usage_classes: Option<Vec<Text>>,
        v_cpu_info: Cpus,
    }
    Memory {
        #[serde(rename = "sizeInMiB")]
        size: Parsed<i64>,
    }
    Processor {
        supported_architectures: Vec<Text>,
    }
    Cpus {
        #[serde(rename = "defaultVCpus")]
        count: Parsed<i32>,
    }
    Gpus {
        gpus: Option<Vec<Gpu>>,
        #[serde(rename = "totalGpuMemoryInMiB")]
        memory: Option<Parsed<i32>>,
    }
    Gpu {
        count: Option<Parsed<i32>>,
        #[serde(rename = "gpuPartitionSize")]
        partition: Option<Parsed<f64>>,
        logical_gpu_count: Option<Parsed<i32>>,
        manufacturer: Option<Text>,
        memory_info: Option<DeviceMemory>,
        name: Option<Text>,
    }
    Neuron {
        neuron_devices: Option<Vec<Device>>,
    }
    Inference {
        accelerators: Option<Vec<Device>>,
    }
    Device {
        count: Option<Parsed<i32>>,
        memory_info: Option<DeviceMemory>,
        name: Option<Text>,
    }
    DeviceMemory {
        #[serde(rename = "sizeInMiB")]
        size: Option<Parsed<i32>>,
    }
    Offering {
        instance_type: Text,
        location: Text,
    }
    Entry {
        availability_zone: Text,
        instance_type: Text,
        spot_price: Parsed<Usd>,
        timestamp: Parsed<Timestamp>,
    }
    Group {
        group_id: Text,
        tag_set: Vec<Tag>,
    }
    Template {
        launch_template_id: Text,
        tag_set: Vec<Tag>,
    }
}
