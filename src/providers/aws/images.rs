//! Which image a machine starts from.

use aws_sdk_ec2::types::{
    BlockDeviceMapping, LaunchTemplateBlockDeviceMappingRequest, LaunchTemplateEbsBlockDeviceRequest,
};
use serde_json::json;
use skyward_core::{ErrorKind, ProviderError, offer::Architecture};

use crate::{
    cloud::{Region, call},
    config::Settings,
    map::Image,
    offers::{Drivers, Kind},
};

/// Where AWS and Canonical publish the newest image for a type.
pub fn parameter(ubuntu: &str, kind: &Kind) -> String {
    let arm = kind.architecture == Architecture::Arm64;
    match kind.drivers {
        Drivers::Nvidia => format!(
            "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-{ubuntu}/latest/ami-id",
            if arm { "arm64" } else { "x86_64" }
        ),
        Drivers::Neuron => format!("/aws/service/neuron/dlami/base/ubuntu-{ubuntu}/latest/image_id"),
        Drivers::None => format!(
            "/aws/service/canonical/ubuntu/server/{ubuntu}/stable/current/{}/hvm/{}/ami-id",
            if arm { "arm64" } else { "amd64" },
            // Canonical moved to gp3 with 24.04.
            if ubuntu < "24.04" { "ebs-gp2" } else { "ebs-gp3" }
        ),
    }
}

/// The image of an order: the given one, else the newest that fits its type.
pub async fn image(region: &Region, settings: &Settings, kind: &Kind) -> Result<Image, ProviderError> {
    let id = match &settings.ami {
        Some(id) => id.clone(),
        None => newest(region, settings, kind).await?,
    };
    let answer = call(
        "look at the image",
        region.ec2.describe_images().image_ids(&id).send(),
    )
    .await?;
    let Some(image) = answer.images().first() else {
        return Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "look at the image",
            format!(
                "there is no image {id} in {}; correct aws.ami: an AMI belongs to one region and must be shared with the account",
                region.name
            ),
        ));
    };
    let root_device = image.root_device_name().unwrap_or("/dev/sda1").to_owned();
    let least = image
        .block_device_mappings()
        .iter()
        .find(|mapping| mapping.device_name() == Some(&root_device))
        .and_then(|mapping| mapping.ebs()?.volume_size())
        .unwrap_or(0);
    Ok(Image {
        id,
        least_gb: u32::try_from(least).unwrap_or(0),
        others: others(image, &root_device),
        root_device,
    })
}

/// The volumes that an image brings besides its root, set to be deleted with the machine: an image
/// may say that they outlive it, and each machine would then leave volumes that are billed.
fn others(
    image: &aws_sdk_ec2::types::Image,
    root_device: &str,
) -> Vec<LaunchTemplateBlockDeviceMappingRequest> {
    let request = |mapping: &BlockDeviceMapping| {
        let name = mapping.device_name().filter(|name| *name != root_device)?;
        let ebs = mapping
            .ebs()
            .filter(|ebs| ebs.delete_on_termination() == Some(false))?;
        // A volume is encrypted as its snapshot is; only for an empty one encryption can be
        // requested.
        let empty = ebs.snapshot_id.is_none();
        let same = LaunchTemplateEbsBlockDeviceRequest::builder()
            .set_snapshot_id(ebs.snapshot_id.clone())
            .set_encrypted(ebs.encrypted.filter(|_| empty))
            .set_kms_key_id(ebs.kms_key_id.clone().filter(|_| empty))
            .set_volume_size(ebs.volume_size)
            .set_volume_type(ebs.volume_type.clone())
            .set_iops(ebs.iops)
            .set_throughput(ebs.throughput)
            .delete_on_termination(true)
            .build();
        let mapping = LaunchTemplateBlockDeviceMappingRequest::builder()
            .device_name(name)
            .ebs(same);
        Some(mapping.build())
    };
    image.block_device_mappings().iter().filter_map(request).collect()
}

async fn newest(region: &Region, settings: &Settings, kind: &Kind) -> Result<String, ProviderError> {
    let name = parameter(settings.ubuntu(), kind);
    let answer = call("look up the image", region.parameter.ask(json!({ "Name": name })))
        .await
        .map_err(|error| match error.kind {
            ErrorKind::NotFound => ProviderError {
                kind: ErrorKind::InvalidOrder,
                message: format!(
                    "{} has no image {name} for {}; set aws.ubuntuVersion to another version, or aws.ami",
                    region.name, kind.name
                ),
                ..error
            },
            _ => error,
        })?;
    answer["Parameter"]["Value"]
        .as_str()
        .filter(|value| value.starts_with("ami-"))
        .map(str::to_owned)
        .ok_or_else(|| {
            ProviderError::new(
                ErrorKind::InvalidOrder,
                "look up the image",
                format!("the parameter {name} names no image; set aws.ami"),
            )
        })
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{EbsBlockDevice, VolumeType};

    use super::*;

    fn volume(device: &str, stays: bool) -> BlockDeviceMapping {
        let ebs = EbsBlockDevice::builder()
            .snapshot_id("snap-1")
            .volume_size(500)
            .volume_type(VolumeType::Gp3)
            .delete_on_termination(!stays);
        BlockDeviceMapping::builder()
            .device_name(device)
            .ebs(ebs.build())
            .build()
    }

    #[test]
    fn a_volume_that_an_image_would_leave_behind_goes_with_its_machine() {
        let image = aws_sdk_ec2::types::Image::builder()
            .block_device_mappings(volume("/dev/xvda", true))
            .block_device_mappings(volume("/dev/sdb", true))
            .block_device_mappings(volume("/dev/sdc", false))
            .block_device_mappings(
                BlockDeviceMapping::builder()
                    .device_name("/dev/sdd")
                    .virtual_name("ephemeral0")
                    .build(),
            )
            .build();
        let found = others(&image, "/dev/xvda");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].device_name(), Some("/dev/sdb"));
        let ebs = found[0].ebs().unwrap();
        assert_eq!(ebs.delete_on_termination(), Some(true));
        assert_eq!(
            (ebs.snapshot_id(), ebs.volume_size()),
            (Some("snap-1"), Some(500))
        );
        assert_eq!(ebs.encrypted(), None);
    }

    #[test]
    fn an_empty_volume_stays_as_encrypted_as_its_image_says() {
        let ebs = EbsBlockDevice::builder()
            .volume_size(20)
            .encrypted(true)
            .kms_key_id("key-1")
            .delete_on_termination(false);
        let mapping = BlockDeviceMapping::builder().device_name("/dev/sdb");
        let image = aws_sdk_ec2::types::Image::builder()
            .block_device_mappings(mapping.ebs(ebs.build()).build())
            .build();
        let found = others(&image, "/dev/xvda");
        let ebs = found[0].ebs().unwrap();
        assert_eq!((ebs.encrypted(), ebs.kms_key_id()), (Some(true), Some("key-1")));
    }

    fn kind(drivers: Drivers, architecture: Architecture) -> Kind {
        Kind {
            name: "x".into(),
            vcpus: 2.0,
            memory_gb: 8.0,
            architecture,
            accelerators: None,
            drivers,
            on_demand: true,
            spot: true,
            burstable: false,
            bare_metal: false,
        }
    }

    #[test]
    fn drivers_and_architecture_choose_the_image() {
        for (ubuntu, drivers, architecture, expected) in [
            (
                "24.04",
                Drivers::None,
                Architecture::Amd64,
                "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
            ),
            (
                "22.04",
                Drivers::None,
                Architecture::Arm64,
                "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id",
            ),
            (
                "24.04",
                Drivers::Nvidia,
                Architecture::Amd64,
                "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
            ),
            (
                "22.04",
                Drivers::Nvidia,
                Architecture::Arm64,
                "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
            ),
            (
                "24.04",
                Drivers::Neuron,
                Architecture::Amd64,
                "/aws/service/neuron/dlami/base/ubuntu-24.04/latest/image_id",
            ),
        ] {
            assert_eq!(parameter(ubuntu, &kind(drivers, architecture)), expected);
        }
    }
}
