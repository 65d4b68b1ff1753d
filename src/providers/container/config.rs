//! Settings of a Container provider with every default applied, so that later steps
//! have nothing left to decide.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use skyward_api::provider::{Amounts, ContainerSettings, PullPolicy, SecurityProfile};
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::digest;

use super::Options;

/// Resolved settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Image of the Pods.
    pub image: String,
    /// When it is pulled.
    pub pull_policy: PullPolicy,
    /// Pull Secrets, and whether each may be missing.
    pub pull_secrets: Vec<(String, bool)>,
    /// User that SSH logs in as.
    pub user: String,
    /// What the Pod may do.
    pub rights: Rights,
    /// Service account of the Pods.
    pub service_account: Option<String>,
    /// Nodes that Pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that Pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// Runtime class of the Pods.
    pub runtime_class: Option<String>,
    /// Requests where the Pool does not say.
    pub requests: Amounts,
    /// Limits where the Pool does not say.
    pub limits: Amounts,
}

/// What a Pod may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Root inside the Pod, with the runtime's ordinary capabilities.
    Root,
    /// Everything.
    Privileged,
    /// The restricted Pod Security Standard: user and group 1000, no capabilities.
    Restricted,
}

/// Settings of a Provider object.
pub fn resolve(settings: &ContainerSettings, options: &Options) -> Result<Settings, ProviderError> {
    let refuse = |message: &str| {
        Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "use the Provider",
            message,
        ))
    };
    let restricted = matches!(settings.security_profile, Some(SecurityProfile::Restricted));
    let rights = match (settings.privileged.unwrap_or(false), restricted) {
        (false, false) => Rights::Root,
        (true, false) => Rights::Privileged,
        (false, true) => Rights::Restricted,
        (true, true) => {
            return refuse(
                "container.privileged and container.securityProfile: Restricted exclude each other; remove one of them",
            );
        }
    };
    let user = match (&settings.ssh_user, rights) {
        (Some(user), Rights::Restricted) if user == "root" => {
            return refuse(
                "container.sshUser: root is impossible with container.securityProfile: Restricted; leave sshUser out",
            );
        }
        (Some(user), _) => user.clone(),
        (None, Rights::Restricted) => "skyward".to_owned(),
        (None, Rights::Root | Rights::Privileged) => "root".to_owned(),
    };
    let image = settings
        .image
        .clone()
        .unwrap_or_else(|| options.node_image.clone());
    if image.is_empty() {
        return refuse(
            "there is no image for the Pods; set container.image of the Provider, or the operator's --node-image",
        );
    }
    let resources = settings.resources.clone().unwrap_or_default();
    Ok(Settings {
        image,
        pull_policy: settings.image_pull_policy.unwrap_or(PullPolicy::IfNotPresent),
        pull_secrets: settings
            .image_pull_secrets
            .iter()
            .map(|s| (s.name.clone(), s.optional))
            .collect(),
        user,
        rights,
        service_account: settings.service_account_name.clone(),
        node_selector: settings.node_selector.clone(),
        tolerations: settings.tolerations.clone(),
        runtime_class: settings.runtime_class_name.clone(),
        requests: resources.requests.unwrap_or_default(),
        limits: resources.limits.unwrap_or_default(),
    })
}

/// The name as the value of a label: itself if it fits, else its beginning and a digest,
/// so that two long names stay two.
pub(super) fn label_value(name: &str) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    let start = name
        .get(..50)
        .unwrap_or_default()
        .trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{start}-{}", digest(name, 12))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::PodNetwork;

    fn options(image: &str) -> Options {
        Options {
            cluster: "c".into(),
            node_image: image.into(),
            pod_network: PodNetwork::Direct,
            namespaces: Vec::new(),
        }
    }

    #[test]
    fn defaults_give_root_in_the_operators_image() {
        let settings = resolve(&ContainerSettings::default(), &options("node:1")).unwrap();
        assert_eq!(
            (settings.image.as_str(), settings.user.as_str()),
            ("node:1", "root")
        );
        assert_eq!(settings.rights, Rights::Root);
        assert_eq!(settings.pull_policy, PullPolicy::IfNotPresent);
    }

    #[test]
    fn restricted_logs_in_as_an_ordinary_user() {
        let spec = ContainerSettings {
            security_profile: Some(SecurityProfile::Restricted),
            ..ContainerSettings::default()
        };
        let settings = resolve(&spec, &options("node:1")).unwrap();
        assert_eq!(
            (settings.user.as_str(), settings.rights),
            ("skyward", Rights::Restricted)
        );
    }

    #[test]
    fn contradicting_rights_are_refused_with_a_remedy() {
        let spec = ContainerSettings {
            security_profile: Some(SecurityProfile::Restricted),
            privileged: Some(true),
            ..ContainerSettings::default()
        };
        let error = resolve(&spec, &options("node:1")).unwrap_err();
        assert!(
            error.kind == ErrorKind::InvalidOrder && error.message.contains("remove one"),
            "{error}"
        );
    }

    #[test]
    fn no_image_at_all_is_refused() {
        let error = resolve(&ContainerSettings::default(), &options("")).unwrap_err();
        assert!(error.message.contains("--node-image"), "{error}");
    }

    #[test]
    fn long_names_stay_different_as_label_values() {
        let a = label_value(&format!("{}a", "x".repeat(100)));
        let b = label_value(&format!("{}b", "x".repeat(100)));
        assert!(a != b && a.len() <= 63, "{a} {b}");
        assert_eq!(label_value("local"), "local");
    }
}
