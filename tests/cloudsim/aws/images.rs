//! Machine images, and the parameters of Systems Manager that name the newest ones.

use serde_json::{Value, json};

use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, flag, needed, page, texts};

/// A public image that exists in each region under an id of its own.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// The parameter that holds its id.
    pub parameter: &'static str,
    /// Its name.
    pub name: &'static str,
    /// `x86_64` or `arm64`.
    pub architecture: &'static str,
    /// Its owner.
    owner: &'static str,
    /// The user who logs in over SSH.
    pub user: &'static str,
    /// The device of its root volume.
    pub root_device: &'static str,
    /// Gigabytes of the snapshot of its root volume.
    pub root_size: i64,
    /// Regions without it.
    missing_in: &'static [&'static str],
}

const fn canonical(parameter: &'static str, name: &'static str, architecture: &'static str) -> Image {
    Image {
        parameter,
        name,
        architecture,
        owner: "099720109477",
        user: "ubuntu",
        root_device: "/dev/sda1",
        root_size: 8,
        missing_in: &[],
    }
}

const fn deep_learning(parameter: &'static str, name: &'static str, architecture: &'static str) -> Image {
    Image {
        owner: "898082745236",
        root_size: 35,
        ..canonical(parameter, name, architecture)
    }
}

/// All images. `ebs-gp3` begins with Ubuntu 24.04; older ones are under `ebs-gp2`.
pub const IMAGES: [Image; 11] = [
    canonical(
        "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
        "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20261101",
        "x86_64",
    ),
    canonical(
        "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id",
        "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-arm64-server-20261101",
        "arm64",
    ),
    canonical(
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261101",
        "x86_64",
    ),
    canonical(
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-arm64-server-20261101",
        "arm64",
    ),
    canonical(
        "/aws/service/canonical/ubuntu/server/20.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
        "ubuntu/images/hvm-ssd/ubuntu-focal-20.04-amd64-server-20260801",
        "x86_64",
    ),
    deep_learning(
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261101",
        "x86_64",
    ),
    deep_learning(
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261101",
        "x86_64",
    ),
    Image {
        missing_in: &["ap-northeast-1"],
        ..deep_learning(
            "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
            "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261101",
            "arm64",
        )
    },
    deep_learning(
        "/aws/service/deeplearning/ami/x86_64/base-neuron-ubuntu-22.04/latest/ami-id",
        "Deep Learning Base Neuron AMI (Ubuntu 22.04) 20261101",
        "x86_64",
    ),
    deep_learning(
        "/aws/service/neuron/dlami/multi-framework/ubuntu-22.04/latest/image_id",
        "Deep Learning AMI Neuron (Ubuntu 22.04) 20261101",
        "x86_64",
    ),
    Image {
        owner: "137112412989",
        user: "ec2-user",
        root_device: "/dev/xvda",
        ..canonical(
            "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
            "al2023-ami-2023.9.20261101.0-kernel-6.1-x86_64",
            "x86_64",
        )
    },
];

impl Image {
    /// Its id in a region.
    pub fn id(&self, region: &str) -> String {
        format!("ami-0{}", digits(&format!("{region} {}", self.parameter), 16))
    }
}

/// The image with an id in a region.
pub fn find(region: &str, id: &str) -> Result<&'static Image, Failure> {
    if !id.starts_with("ami-") {
        return Err(Failure::client(
            "InvalidAMIID.Malformed",
            format!("Invalid id: \"{id}\" (expecting \"ami-...\")"),
        ));
    }
    IMAGES
        .iter()
        .find(|image| image.id(region) == id && !image.missing_in.contains(&region))
        .ok_or_else(|| {
            Failure::client(
                "InvalidAMIID.NotFound",
                format!("The image id '[{id}]' does not exist"),
            )
        })
}

/// The image whose id a parameter holds, of which a version may be named.
pub fn of_parameter(region: &str, name: &str) -> Result<&'static Image, Failure> {
    let plain = name.split(':').next().unwrap_or(name);
    IMAGES
        .iter()
        .find(|image| image.parameter == plain && !image.missing_in.contains(&region))
        .ok_or_else(|| Failure::value(format!("The parameter '{name}' cannot be resolved to an image")))
}

/// SSM `GetParameter`.
pub fn get_parameter(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let name = needed(input, "Name").map_err(|_| Failure::client("ValidationException", "Name is empty"))?;
    let parameter = parameter(context, name).ok_or_else(|| Failure::client("ParameterNotFound", ""))?;
    Ok(json!({ "Parameter": parameter }))
}

/// SSM `GetParameters`: parameters that do not exist are listed in the answer, and are no failure.
pub fn get_parameters(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let (mut found, mut invalid) = (Vec::new(), Vec::new());
    for name in texts(input, "Names") {
        match parameter(context, &name) {
            Some(parameter) => found.push(parameter),
            None => invalid.push(name),
        }
    }
    Ok(json!({"Parameters": found, "InvalidParameters": invalid}))
}

/// SSM `GetParametersByPath`: the parameters right below a path, or all below it.
pub fn get_parameters_by_path(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let path = needed(input, "Path").map_err(|_| Failure::client("ValidationException", "Path is empty"))?;
    let below = |name: &str| {
        name.strip_prefix(path.trim_end_matches('/'))
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| flag(input, "Recursive") || !rest.contains('/'))
    };
    let all: Vec<Value> = IMAGES
        .iter()
        .filter(|image| below(image.parameter))
        .filter_map(|image| parameter(context, image.parameter))
        .collect();
    let pages = Pages {
        least: 1,
        most: 10,
        usual: Some(10),
    };
    let (found, next) = page(input, pages, context.visit.keep, all)?;
    let mut answer = json!({ "Parameters": found });
    if let Some(next) = next {
        answer["NextToken"] = json!(next);
    }
    Ok(answer)
}

fn parameter(context: &Context<'_, '_>, name: &str) -> Option<Value> {
    let image = of_parameter(&context.region, name).ok()?;
    Some(json!({
        "Name": image.parameter,
        "Type": "String",
        "Value": image.id(&context.region),
        "Version": 41,
        "LastModifiedDate": 1_793_491_200.0,
        "ARN": format!("arn:aws:ssm:{}::parameter{}", context.region, image.parameter),
        "DataType": "aws:ec2:image",
    }))
}

/// What the service calls the owners whose images it vouches for.
const ALIAS: &str = "amazon";

/// Filters, each with the field of the description that it is compared with. Filters on fields that
/// no image here has match nothing.
const FILTERS: [(&str, &str); 28] = [
    ("architecture", "/Architecture"),
    (
        "block-device-mapping.delete-on-termination",
        "/BlockDeviceMappings/0/Ebs/DeleteOnTermination",
    ),
    (
        "block-device-mapping.device-name",
        "/BlockDeviceMappings/0/DeviceName",
    ),
    (
        "block-device-mapping.encrypted",
        "/BlockDeviceMappings/0/Ebs/Encrypted",
    ),
    (
        "block-device-mapping.snapshot-id",
        "/BlockDeviceMappings/0/Ebs/SnapshotId",
    ),
    (
        "block-device-mapping.volume-size",
        "/BlockDeviceMappings/0/Ebs/VolumeSize",
    ),
    (
        "block-device-mapping.volume-type",
        "/BlockDeviceMappings/0/Ebs/VolumeType",
    ),
    ("creation-date", "/CreationDate"),
    ("description", "/Description"),
    ("ena-support", "/EnaSupport"),
    ("hypervisor", "/Hypervisor"),
    ("image-id", "/ImageId"),
    ("image-type", "/ImageType"),
    ("is-public", "/Public"),
    ("kernel-id", "/KernelId"),
    ("platform", "/Platform"),
    ("product-code", "/ProductCodes/0/ProductCodeId"),
    ("manifest-location", "/ImageLocation"),
    ("name", "/Name"),
    ("owner-alias", "/ImageOwnerAlias"),
    ("owner-id", "/OwnerId"),
    ("platform-details", "/PlatformDetails"),
    ("ramdisk-id", "/RamdiskId"),
    ("root-device-name", "/RootDeviceName"),
    ("root-device-type", "/RootDeviceType"),
    ("sriov-net-support", "/SriovNetSupport"),
    ("state", "/State"),
    ("virtualization-type", "/VirtualizationType"),
];

/// `DescribeImages`.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let ids = texts(input, "ImageIds");
    for id in &ids {
        find(&context.region, id)?;
    }
    let owners = texts(input, "Owners");
    // Amazon vouches for the others whose images are here.
    let owned = |image: &Image| {
        owners.is_empty() || owners.iter().any(|owner| owner == image.owner || owner == ALIAS)
    };
    let all: Vec<&Image> = IMAGES
        .iter()
        .filter(|image| !image.missing_in.contains(&context.region.as_str()))
        .filter(|image| ids.is_empty() || ids.contains(&image.id(&context.region)))
        .filter(|image| owned(image))
        .collect();
    let known = FILTERS.map(|(name, _)| name);
    let found = filtered(input, &known, true, all, |image, filter| {
        let described = describe_one(image, &context.region);
        let place = FILTERS.iter().find(|(name, _)| *name == filter);
        match place.and_then(|(_, place)| described.pointer(place)) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(value) => vec![value.to_string()],
            None => Vec::new(),
        }
    })?;
    let (found, next) = page(
        input,
        Pages {
            least: 1,
            most: 1_000,
            usual: None,
        },
        context.visit.keep,
        found,
    )?;
    let images: Vec<Value> = found
        .into_iter()
        .map(|image| describe_one(image, &context.region))
        .collect();
    Ok(json!({"Images": images, "NextToken": next}))
}

/// An image as answers have it.
fn describe_one(image: &Image, region: &str) -> Value {
    json!({
        "ImageId": image.id(region),
        "Name": image.name,
        "Description": image.name,
        "ImageLocation": format!("amazon/{}", image.name),
        "ImageOwnerAlias": ALIAS,
        "OwnerId": image.owner,
        "Architecture": image.architecture,
        "State": "available",
        "Public": true,
        "ImageType": "machine",
        "CreationDate": "2026-11-01T00:00:00.000Z",
        "DeprecationTime": "2028-11-01T00:00:00.000Z",
        "PlatformDetails": "Linux/UNIX",
        "UsageOperation": "RunInstances",
        "ProductCodes": [],
        "RootDeviceName": image.root_device,
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "EnaSupport": true,
        "SriovNetSupport": "simple",
        "BlockDeviceMappings": [{
            "DeviceName": image.root_device,
            "Ebs": {
                "VolumeSize": image.root_size,
                "VolumeType": "gp3",
                "DeleteOnTermination": true,
                "SnapshotId": "snap-0a1b2c3d4e5f60718",
                "Encrypted": false,
            },
        }],
        "PublicSsmParameterName": image.parameter,
        "Tags": [],
    })
}
