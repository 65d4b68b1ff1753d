//! What the arguments of RunPod's GraphQL are made of.

/// The type of an argument or of a field of an input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `String` (also `DateTime`s, which are texts).
    Text,
    /// `Int`.
    Int,
    /// `Float`.
    Float,
    /// `Boolean`.
    Bool,
    /// One of these names.
    Enum(&'static str, &'static [&'static str]),
    /// An input object.
    Input(&'static Input),
    /// A list.
    List(&'static Kind),
}

impl Kind {
    /// The name of the type, as variables are declared with it.
    pub(super) fn name(self) -> String {
        match self {
            Self::Text => "String".to_owned(),
            Self::Int => "Int".to_owned(),
            Self::Float => "Float".to_owned(),
            Self::Bool => "Boolean".to_owned(),
            Self::Enum(name, _) => name.to_owned(),
            Self::Input(input) => input.name.to_owned(),
            Self::List(of) => format!("[{}]", of.name()),
        }
    }
}

/// An input object: its fields, and which must be given.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) fields: &'static [(&'static str, Kind, bool)],
}

const ENV: Input = Input {
    name: "EnvironmentVariableInput",
    fields: &[("key", Kind::Text, true), ("value", Kind::Text, true)],
};
const CLOUD: Kind = Kind::Enum("CloudTypeEnum", &["ALL", "SECURE", "COMMUNITY"]);

/// What on-demand and spot orders share. Rust cannot join constant slices, so spot repeats it.
macro_rules! pod_fields {
    ($($more:expr),*) => {
        &[
            ("name", Kind::Text, false), ("imageName", Kind::Text, false), ("gpuTypeId", Kind::Text, false),
            ("gpuCount", Kind::Int, false), ("cloudType", CLOUD, false), ("containerDiskInGb", Kind::Int, false),
            ("volumeInGb", Kind::Int, false), ("volumeMountPath", Kind::Text, false), ("ports", Kind::Text, false),
            ("supportPublicIp", Kind::Bool, false), ("startSsh", Kind::Bool, false), ("dockerArgs", Kind::Text, false),
            ("startJupyter", Kind::Bool, false), ("cudaVersion", Kind::Text, false), ("volumeKey", Kind::Text, false),
            ("env", Kind::List(&Kind::Input(&ENV)), false), ("dataCenterId", Kind::Text, false),
            ("countryCode", Kind::Text, false), ("allowedCudaVersions", Kind::List(&Kind::Text), false),
            ("minCudaVersion", Kind::Text, false), ("minVcpuCount", Kind::Int, false),
            ("minMemoryInGb", Kind::Int, false), ("minDownload", Kind::Int, false), ("minUpload", Kind::Int, false),
            ("networkVolumeId", Kind::Text, false), ("templateId", Kind::Text, false),
            ("containerRegistryAuthId", Kind::Text, false), ("deployCost", Kind::Float, false),
            ("stopAfter", Kind::Text, false), ("terminateAfter", Kind::Text, false),
            ("compliance", Kind::List(&Kind::Text), false) $(, $more)*
        ]
    };
}

pub(super) static ON_DEMAND: Input = Input {
    name: "PodFindAndDeployOnDemandInput",
    fields: pod_fields!(),
};
pub(super) static SPOT: Input = Input {
    name: "PodRentInterruptableInput",
    fields: pod_fields!(("bidPerGpu", Kind::Float, false)),
};
pub(super) static CPU: Input = Input {
    name: "deployCpuPodInput",
    fields: pod_fields!(("instanceId", Kind::Text, true)),
};
pub(super) static POD_ID: Input = Input {
    name: "PodFilter",
    fields: &[("podId", Kind::Text, true)],
};
pub(super) static TERMINATE: Input = Input {
    name: "PodTerminateInput",
    fields: &[("podId", Kind::Text, true)],
};
pub(super) static STOP: Input = Input {
    name: "PodStopInput",
    fields: &[("podId", Kind::Text, true)],
};
pub(super) static RESUME: Input = Input {
    name: "PodResumeInput",
    fields: &[("podId", Kind::Text, true), ("gpuCount", Kind::Int, false)],
};
pub(super) static BID_RESUME: Input = Input {
    name: "PodBidResumeInput",
    fields: &[
        ("podId", Kind::Text, true),
        ("bidPerGpu", Kind::Float, true),
        ("gpuCount", Kind::Int, true),
    ],
};
pub(super) static SETTINGS: Input = Input {
    name: "UpdateUserSettingsInput",
    fields: &[("pubKey", Kind::Text, false)],
};
pub(super) static GPU_FILTER: Input = Input {
    name: "GpuTypeFilter",
    fields: &[("id", Kind::Text, false), ("cluster", Kind::Bool, false)],
};
pub(super) static LOWEST: Input = Input {
    name: "GpuLowestPriceInput",
    fields: &[
        ("gpuCount", Kind::Int, false),
        ("minCudaVersion", Kind::Text, false),
        ("secureCloud", Kind::Bool, false),
        ("dataCenterId", Kind::Text, false),
        ("countryCode", Kind::Text, false),
        ("minDisk", Kind::Int, false),
        ("minMemoryInGb", Kind::Int, false),
        ("minVcpuCount", Kind::Int, false),
    ],
};
pub(super) static CPU_FILTER: Input = Input {
    name: "CpuFlavorInput",
    fields: &[("id", Kind::Text, false)],
};
pub(super) static SPECIFICS: Input = Input {
    name: "SpecificsInput",
    fields: &[
        ("instanceId", Kind::Text, false),
        ("dataCenterId", Kind::Text, false),
    ],
};
pub(super) static TEMPLATES: Input = Input {
    name: "PodTemplateInput",
    fields: &[("isRunpod", Kind::Bool, false)],
};
pub(super) static EDIT: Input = Input {
    name: "PodEditJobInput",
    fields: &[
        ("podId", Kind::Text, true),
        ("imageName", Kind::Text, false),
        ("dockerArgs", Kind::Text, false),
        ("env", Kind::List(&Kind::Input(&ENV)), false),
        ("port", Kind::Int, false),
        ("ports", Kind::Text, false),
        ("containerDiskInGb", Kind::Int, false),
        ("volumeInGb", Kind::Int, false),
        ("volumeMountPath", Kind::Text, false),
        ("containerRegistryAuthId", Kind::Text, false),
    ],
};
pub(super) static CREATE_CLUSTER: Input = Input {
    name: "CreateClusterInput",
    fields: &[
        ("clusterName", Kind::Text, true),
        ("gpuTypeId", Kind::Text, true),
        ("podCount", Kind::Int, true),
        ("gpuCountPerPod", Kind::Int, true),
        (
            "type",
            Kind::Enum("ClusterType", &["APPLICATION", "TRAINING", "SLURM", "RAY"]),
            true,
        ),
        ("imageName", Kind::Text, false),
        ("dockerArgs", Kind::Text, false),
        ("env", Kind::List(&Kind::Input(&ENV)), false),
        ("ports", Kind::Text, false),
        ("startSsh", Kind::Bool, false),
        ("startJupyter", Kind::Bool, false),
        ("containerDiskInGb", Kind::Int, false),
        ("volumeInGb", Kind::Int, false),
        ("volumeMountPath", Kind::Text, false),
        ("volumeKey", Kind::Text, false),
        ("networkVolumeId", Kind::Text, false),
        ("templateId", Kind::Text, false),
        ("containerRegistryAuthId", Kind::Text, false),
        ("dataCenterId", Kind::Text, false),
        ("countryCode", Kind::Text, false),
        ("allowedCudaVersions", Kind::List(&Kind::Text), false),
        ("throughput", Kind::Int, false),
        ("deployCost", Kind::Float, false),
    ],
};
/// The original of this project writes `clusterId`, others `id`; one of them must be there.
pub(super) static DELETE_CLUSTER: Input = Input {
    name: "DeleteClusterInput",
    fields: &[("clusterId", Kind::Text, false), ("id", Kind::Text, false)],
};
pub(super) static SAVE_TEMPLATE: Input = Input {
    name: "SaveTemplateInput",
    fields: &[
        ("id", Kind::Text, false),
        ("name", Kind::Text, true),
        ("imageName", Kind::Text, true),
        ("containerDiskInGb", Kind::Int, true),
        ("volumeInGb", Kind::Int, true),
        ("volumeMountPath", Kind::Text, false),
        ("dockerArgs", Kind::Text, false),
        ("ports", Kind::Text, false),
        ("env", Kind::List(&Kind::Input(&ENV)), false),
        ("containerRegistryAuthId", Kind::Text, false),
        ("allowedCudaVersions", Kind::List(&Kind::Text), false),
        ("category", Kind::Text, false),
        ("readme", Kind::Text, false),
        ("isPublic", Kind::Bool, false),
        ("isServerless", Kind::Bool, false),
        ("startSsh", Kind::Bool, false),
        ("startJupyter", Kind::Bool, false),
    ],
};
pub(super) static SAVE_REGISTRY: Input = Input {
    name: "SaveRegistryAuthInput",
    fields: &[
        ("name", Kind::Text, true),
        ("username", Kind::Text, true),
        ("password", Kind::Text, true),
    ],
};
pub(super) static UPDATE_REGISTRY: Input = Input {
    name: "UpdateRegistryAuthInput",
    fields: &[
        ("id", Kind::Text, true),
        ("username", Kind::Text, true),
        ("password", Kind::Text, true),
    ],
};
pub(super) static CREATE_VOLUME: Input = Input {
    name: "CreateNetworkVolumeInput",
    fields: &[
        ("name", Kind::Text, true),
        ("size", Kind::Int, true),
        ("dataCenterId", Kind::Text, true),
    ],
};
pub(super) static UPDATE_VOLUME: Input = Input {
    name: "UpdateNetworkVolumeInput",
    fields: &[
        ("id", Kind::Text, true),
        ("name", Kind::Text, false),
        ("size", Kind::Int, false),
    ],
};
pub(super) static DELETE_VOLUME: Input = Input {
    name: "DeleteNetworkVolumeInput",
    fields: &[("id", Kind::Text, true)],
};
