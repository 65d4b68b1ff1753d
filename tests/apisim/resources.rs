//! Which resources are served, and how they differ.

/// A resource that the server keeps.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The API group, `""` for the core.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// Plural name, as paths have it.
    pub plural: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Whether objects are in a namespace.
    pub namespaced: bool,
    /// Whether the status has a path of its own.
    pub status: bool,
    /// Whether an object's generation counts changes of its content.
    pub generation: bool,
    /// Whether a replacement needs no version.
    pub unconditional: bool,
    /// Fields that objects are selected by, besides name and namespace; `None`: no such selector is refused.
    pub selectable: Option<&'static [&'static str]>,
}

const fn ours(
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    status: bool,
    selectable: &'static [&'static str],
) -> Resource {
    Resource {
        group: "skyward.dev",
        version: "v1alpha1",
        plural,
        kind,
        namespaced,
        status,
        generation: true,
        unconditional: false,
        selectable: Some(selectable),
    }
}

const fn core(plural: &'static str, kind: &'static str, namespaced: bool) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        kind,
        namespaced,
        status: false,
        generation: false,
        unconditional: true,
        selectable: None,
    }
}

/// Every resource that the operator reads or writes.
pub const RESOURCES: &[Resource] = &[
    ours("pools", "Pool", true, true, &[]),
    ours("machines", "Machine", true, true, &["spec.pool", "spec.provider"]),
    ours("tasks", "Task", true, true, &["spec.pool", "status.phase"]),
    ours("crontasks", "CronTask", true, true, &[]),
    ours("providers", "Provider", false, true, &[]),
    ours("offers", "Offer", false, false, &["spec.provider"]),
    core("configmaps", "ConfigMap", true),
    core("secrets", "Secret", true),
    core("namespaces", "Namespace", false),
    Resource {
        group: "coordination.k8s.io",
        unconditional: false,
        ..core("leases", "Lease", true)
    },
    Resource {
        group: "events.k8s.io",
        ..core("events", "Event", true)
    },
    Resource {
        group: "apiextensions.k8s.io",
        unconditional: false,
        status: true,
        generation: true,
        ..core("customresourcedefinitions", "CustomResourceDefinition", false)
    },
];

impl Resource {
    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The path of a list, or with a name of one object.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let root = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        let space = match namespace {
            _ if !self.namespaced => String::new(),
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let name = if name.is_empty() {
            String::new()
        } else {
            format!("/{name}")
        };
        format!("{root}{space}/{}{name}", self.plural)
    }

    /// Whether a CustomResourceDefinition defines it.
    pub(crate) fn is_ours(&self) -> bool {
        self.group == "skyward.dev"
    }

    /// The kind as refusals name it.
    pub(crate) fn kind_words(&self) -> String {
        match self.group {
            "" => self.kind.to_owned(),
            group => format!("{}.{group}", self.kind),
        }
    }

    /// The resource as refusals name it.
    pub(crate) fn words(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}
