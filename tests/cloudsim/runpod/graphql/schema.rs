//! The part of RunPod's schema that its published clients and pages show. No official SDL
//! could be had, so what is not here is refused: a client must not guess either.

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

/// A type that answers have.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Output],
}

/// A field of one.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: &'static str,
    /// The type of its argument `input`, and whether that must be given.
    pub(super) input: Option<(&'static Input, bool)>,
    /// What it is made of; `None` for scalars.
    pub(super) of: Option<&'static Object>,
}

const fn scalar(name: &'static str) -> Output {
    Output {
        name,
        input: None,
        of: None,
    }
}

const fn object(name: &'static str, of: &'static Object) -> Output {
    Output {
        name,
        input: None,
        of: Some(of),
    }
}

const fn asked(
    name: &'static str,
    input: &'static Input,
    required: bool,
    of: Option<&'static Object>,
) -> Output {
    Output {
        name,
        input: Some((input, required)),
        of,
    }
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

static ON_DEMAND: Input = Input {
    name: "PodFindAndDeployOnDemandInput",
    fields: pod_fields!(),
};
static SPOT: Input = Input {
    name: "PodRentInterruptableInput",
    fields: pod_fields!(("bidPerGpu", Kind::Float, false)),
};
static CPU: Input = Input {
    name: "deployCpuPodInput",
    fields: pod_fields!(("instanceId", Kind::Text, true)),
};
static POD_ID: Input = Input {
    name: "PodFilter",
    fields: &[("podId", Kind::Text, true)],
};
static TERMINATE: Input = Input {
    name: "PodTerminateInput",
    fields: &[("podId", Kind::Text, true)],
};
static STOP: Input = Input {
    name: "PodStopInput",
    fields: &[("podId", Kind::Text, true)],
};
static RESUME: Input = Input {
    name: "PodResumeInput",
    fields: &[("podId", Kind::Text, true), ("gpuCount", Kind::Int, false)],
};
static BID_RESUME: Input = Input {
    name: "PodBidResumeInput",
    fields: &[
        ("podId", Kind::Text, true),
        ("bidPerGpu", Kind::Float, true),
        ("gpuCount", Kind::Int, true),
    ],
};
static SETTINGS: Input = Input {
    name: "UpdateUserSettingsInput",
    fields: &[("pubKey", Kind::Text, false)],
};
static GPU_FILTER: Input = Input {
    name: "GpuTypeFilter",
    fields: &[("id", Kind::Text, false), ("cluster", Kind::Bool, false)],
};
static LOWEST: Input = Input {
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

static LOWEST_PRICE: Object = Object {
    name: "LowestPrice",
    fields: &[
        scalar("minimumBidPrice"),
        scalar("uninterruptablePrice"),
        scalar("stockStatus"),
        scalar("totalCount"),
        scalar("rentedCount"),
        scalar("minVcpu"),
        scalar("minMemory"),
        scalar("gpuName"),
        scalar("gpuTypeId"),
        scalar("compliance"),
        scalar("countryCode"),
    ],
};
static GROUP_CENTER: Object = Object {
    name: "NodeGroupDatacenter",
    fields: &[scalar("id")],
};
static GPU_TYPE: Object = Object {
    name: "GpuType",
    fields: &[
        scalar("id"),
        scalar("displayName"),
        scalar("memoryInGb"),
        scalar("secureCloud"),
        scalar("communityCloud"),
        scalar("maxGpuCount"),
        scalar("maxGpuCountSecureCloud"),
        scalar("maxGpuCountCommunityCloud"),
        scalar("manufacturer"),
        scalar("cudaCores"),
        scalar("securePrice"),
        scalar("communityPrice"),
        scalar("secureSpotPrice"),
        scalar("communitySpotPrice"),
        scalar("oneWeekPrice"),
        scalar("oneMonthPrice"),
        scalar("threeMonthPrice"),
        scalar("sixMonthPrice"),
        scalar("clusterPrice"),
        scalar("minPodGpuCount"),
        object("nodeGroupDatacenters", &GROUP_CENTER),
        asked("lowestPrice", &LOWEST, false, Some(&LOWEST_PRICE)),
    ],
};
static PORT: Object = Object {
    name: "PodRuntimePorts",
    fields: &[
        scalar("ip"),
        scalar("isIpPublic"),
        scalar("privatePort"),
        scalar("publicPort"),
        scalar("type"),
    ],
};
static RUNTIME: Object = Object {
    name: "PodRuntime",
    fields: &[scalar("uptimeInSeconds"), object("ports", &PORT)],
};
static MACHINE: Object = Object {
    name: "PodMachineInfo",
    fields: &[
        scalar("dataCenterId"),
        scalar("gpuDisplayName"),
        scalar("location"),
        scalar("podHostId"),
    ],
};
static POD: Object = Object {
    name: "Pod",
    fields: &[
        scalar("id"),
        scalar("name"),
        scalar("desiredStatus"),
        scalar("imageName"),
        scalar("env"),
        scalar("costPerHr"),
        scalar("gpuCount"),
        scalar("vcpuCount"),
        scalar("memoryInGb"),
        scalar("machineId"),
        scalar("containerDiskInGb"),
        scalar("containerRegistryAuthId"),
        scalar("dockerArgs"),
        scalar("dockerId"),
        scalar("lastStatusChange"),
        scalar("podType"),
        scalar("port"),
        scalar("ports"),
        scalar("uptimeSeconds"),
        scalar("volumeInGb"),
        scalar("volumeMountPath"),
        object("machine", &MACHINE),
        object("runtime", &RUNTIME),
    ],
};
static REGISTRY: Object = Object {
    name: "ContainerRegistryAuth",
    fields: &[scalar("id"), scalar("name")],
};
static NETWORK_VOLUME: Object = Object {
    name: "NetworkVolume",
    fields: &[
        scalar("id"),
        scalar("name"),
        scalar("size"),
        scalar("dataCenterId"),
    ],
};
static TEMPLATE: Object = Object {
    name: "PodTemplate",
    fields: &[scalar("id"), scalar("name"), scalar("containerRegistryAuthId")],
};
static USER: Object = Object {
    name: "User",
    fields: &[
        scalar("id"),
        scalar("pubKey"),
        scalar("email"),
        scalar("clientBalance"),
        scalar("currentSpendPerHr"),
        scalar("spendLimit"),
        scalar("notifyPodsStale"),
        scalar("notifyPodsGeneral"),
        scalar("notifyLowBalance"),
        object("pods", &POD),
        object("containerRegistryCreds", &REGISTRY),
        object("networkVolumes", &NETWORK_VOLUME),
        object("podTemplates", &TEMPLATE),
    ],
};

static GPU_IN_CENTER: Object = Object {
    name: "GpuAvailability",
    fields: &[scalar("gpuTypeId"), scalar("displayName"), scalar("stockStatus")],
};
static DATA_CENTER: Object = Object {
    name: "DataCenter",
    fields: &[
        scalar("id"),
        scalar("name"),
        scalar("location"),
        scalar("listed"),
        object("gpuAvailability", &GPU_IN_CENTER),
    ],
};

/// What may be queried.
pub(super) static QUERY: Object = Object {
    name: "Query",
    fields: &[
        asked("gpuTypes", &GPU_FILTER, false, Some(&GPU_TYPE)),
        object("myself", &USER),
        object("dataCenters", &DATA_CENTER),
        scalar("countryCodes"),
        asked("pod", &POD_ID, false, Some(&POD)),
    ],
};

/// What may be done.
pub(super) static MUTATION: Object = Object {
    name: "Mutation",
    fields: &[
        asked("podFindAndDeployOnDemand", &ON_DEMAND, false, Some(&POD)),
        asked("podRentInterruptable", &SPOT, true, Some(&POD)),
        asked("deployCpuPod", &CPU, true, Some(&POD)),
        asked("podTerminate", &TERMINATE, true, None),
        asked("podStop", &STOP, true, Some(&POD)),
        asked("podResume", &RESUME, true, Some(&POD)),
        asked("podBidResume", &BID_RESUME, true, Some(&POD)),
        asked("updateUserSettings", &SETTINGS, false, Some(&USER)),
    ],
};
