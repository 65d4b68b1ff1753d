//! Settings of a Novita account and what its Secret holds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::shared::Disk;
use skyward_core::CredentialKey;

/// Key of the API key.
pub const API_KEY: &str = "NOVITA_API_KEY";

/// Keys of the Secret.
pub const CREDENTIALS: &[CredentialKey] = &[CredentialKey {
    name: API_KEY,
    required: true,
    what: "API key of the account (console of Novita, Key Management)",
}];

/// Where the default images are.
const IMAGES: &str = "nvcr.io/nvidia/cuda";

/// Tags of the default images, the newest CUDA first. A host takes an image whose CUDA its driver supports.
const TAGS: [&str; 5] = [
    "12.9.1-runtime-ubuntu24.04",
    "12.8.1-runtime-ubuntu24.04",
    "12.6.3-runtime-ubuntu24.04",
    "12.4.1-runtime-ubuntu22.04",
    "11.8.0-runtime-ubuntu22.04",
];

/// Machines of Novita: containers with NVIDIA GPUs, on demand and spot, reached through Novita's proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Id of the one cluster whose machines are offered. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub cluster_id: Option<String>,
    /// Size of the disk of machines whose Pool names none, within the bounds of the product. Default `50G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs_size: Option<Disk>,
    /// Image of the containers: Debian or Ubuntu. Default `nvcr.io/nvidia/cuda:12.9.1-runtime-ubuntu24.04`, or one
    /// with an older CUDA, down to 11.8, where no free host supports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub docker_image: Option<String>,
    /// Lowest CUDA version that the host's driver must support, such as `12.4`. Default: that of the image, where
    /// its name says one (`cuda:12.4.1-…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), regex(pattern = r"^[0-9]+\.[0-9]+$"))]
    pub min_cuda_version: Option<String>,
}

/// An image, and the CUDA version that the host must support for it.
pub type Start = (String, Option<String>);

impl Settings {
    /// What a machine starts from: each is tried where no host takes the one before it.
    pub fn starts(&self) -> Vec<Start> {
        let least = self.min_cuda_version.as_ref();
        if let Some(image) = &self.docker_image {
            let cuda = least.cloned().or_else(|| version_of(image));
            return vec![(image.clone(), cuda)];
        }
        let start = |(number, tag): (usize, &str)| {
            let image = format!("{IMAGES}:{tag}");
            let own = version_of(&image)?;
            match least.filter(|least| numbers(least) > numbers(&own)) {
                None => Some((image, Some(own))),
                // The newest image runs where more is supported.
                Some(least) if number == 0 => Some((image, Some(least.clone()))),
                Some(_) => None,
            }
        };
        TAGS.into_iter().enumerate().filter_map(start).collect()
    }

    /// Size in GB of the disk where the Pool names none.
    pub fn disk_gb(&self) -> u32 {
        self.rootfs_size.as_ref().map_or(50, Disk::gb)
    }
}

/// The CUDA version in an image's name.
fn version_of(image: &str) -> Option<String> {
    let (_, tag) = image.rsplit_once("cuda:")?;
    let mut parts = tag.split(['.', '-']);
    let number = |part: Option<&str>| part?.parse::<u32>().ok();
    let (major, minor) = (number(parts.next())?, number(parts.next())?);
    Some(format!("{major}.{minor}"))
}

/// The numbers of a version: 12.10 is above 12.9.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
#[path = "tests/config.rs"]
mod tests;
