//! Which image a machine starts from.

use serde_json::json;
use skyward_core::{ErrorKind, ProviderError, offer::Architecture};

use crate::{
    cloud::{Region, call},
    config::Choice,
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
pub async fn image(region: &Region, choice: &Choice, kind: &Kind) -> Result<Image, ProviderError> {
    let id = match &choice.ami {
        Some(id) => id.clone(),
        None => newest(region, choice, kind).await?,
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
        root_device,
        least_gb: u32::try_from(least).unwrap_or(0),
    })
}

async fn newest(region: &Region, choice: &Choice, kind: &Kind) -> Result<String, ProviderError> {
    let name = parameter(&choice.ubuntu, kind);
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
    use super::*;

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
                Architecture::X86_64,
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
                Architecture::X86_64,
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
                Architecture::X86_64,
                "/aws/service/neuron/dlami/base/ubuntu-24.04/latest/image_id",
            ),
        ] {
            assert_eq!(parameter(ubuntu, &kind(drivers, architecture)), expected);
        }
    }
}
