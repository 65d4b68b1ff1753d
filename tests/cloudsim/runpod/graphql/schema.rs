//! The part of RunPod's schema that its published clients and pages show. No official SDL
//! is published, so that anything else is refused: our client must not guess either.

use super::inputs::{
    BID_RESUME, CPU, CPU_FILTER, CREATE_CLUSTER, CREATE_VOLUME, DELETE_CLUSTER, DELETE_VOLUME, EDIT,
    GPU_FILTER, Input, LOWEST, ON_DEMAND, POD_ID, RESUME, SAVE_REGISTRY, SAVE_TEMPLATE, SETTINGS, SPECIFICS,
    SPOT, STOP, TEMPLATES, TERMINATE, UPDATE_REGISTRY, UPDATE_VOLUME,
};

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
    /// An argument that is a text and must be given.
    pub(super) key: Option<&'static str>,
    /// What it is made of; `None` for scalars.
    pub(super) of: Option<&'static Object>,
}

const fn scalar(name: &'static str) -> Output {
    Output {
        name,
        input: None,
        key: None,
        of: None,
    }
}

const fn object(name: &'static str, of: &'static Object) -> Output {
    Output {
        name,
        input: None,
        key: None,
        of: Some(of),
    }
}

const fn keyed(name: &'static str, key: &'static str, of: Option<&'static Object>) -> Output {
    Output {
        name,
        input: None,
        key: Some(key),
        of,
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
        key: None,
        of,
    }
}

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
        scalar("networkVolumeId"),
        scalar("templateId"),
        scalar("cpuFlavorId"),
        scalar("locked"),
        scalar("createdAt"),
        scalar("lastStartedAt"),
        scalar("clusterIp"),
        scalar("clusterIdx"),
        object("networkVolume", &NETWORK_VOLUME),
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
        object("dataCenter", &DATA_CENTER),
    ],
};
static VARIABLE: Object = Object {
    name: "EnvironmentVariable",
    fields: &[scalar("key"), scalar("value")],
};
static PORT_LABEL: Object = Object {
    name: "PortsConfig",
    fields: &[scalar("port"), scalar("name")],
};
static TEMPLATE: Object = Object {
    name: "PodTemplate",
    fields: &[
        scalar("id"),
        scalar("name"),
        scalar("imageName"),
        scalar("dockerArgs"),
        scalar("containerDiskInGb"),
        scalar("containerRegistryAuthId"),
        scalar("volumeInGb"),
        scalar("volumeMountPath"),
        scalar("ports"),
        scalar("category"),
        scalar("readme"),
        scalar("isPublic"),
        scalar("isRunpod"),
        scalar("isServerless"),
        scalar("startSsh"),
        scalar("startJupyter"),
        scalar("allowedCudaVersions"),
        scalar("boundEndpointId"),
        object("env", &VARIABLE),
        object("portsConfig", &PORT_LABEL),
    ],
};
static CPU_SPECIFICS: Object = Object {
    name: "Specifics",
    fields: &[scalar("stockStatus"), scalar("securePrice"), scalar("slsPrice")],
};
static CPU_FLAVOR: Object = Object {
    name: "CpuFlavor",
    fields: &[
        scalar("id"),
        scalar("displayName"),
        scalar("groupId"),
        scalar("groupName"),
        scalar("minVcpu"),
        scalar("maxVcpu"),
        scalar("vcpuBurstable"),
        scalar("ramMultiplier"),
        scalar("diskLimitPerVcpu"),
        asked("specifics", &SPECIFICS, false, Some(&CPU_SPECIFICS)),
    ],
};
static CLUSTER: Object = Object {
    name: "Cluster",
    fields: &[scalar("id"), scalar("name"), object("pods", &POD)],
};
static USER: Object = Object {
    name: "User",
    fields: &[
        scalar("id"),
        scalar("authId"),
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
        asked("cpuFlavors", &CPU_FILTER, false, Some(&CPU_FLAVOR)),
        asked("podTemplates", &TEMPLATES, false, Some(&TEMPLATE)),
        keyed("podTemplate", "id", Some(&TEMPLATE)),
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
        asked("createCluster", &CREATE_CLUSTER, true, Some(&CLUSTER)),
        asked("deleteCluster", &DELETE_CLUSTER, true, None),
        asked("podEditJob", &EDIT, true, Some(&POD)),
        asked("podTerminate", &TERMINATE, true, None),
        asked("podStop", &STOP, true, Some(&POD)),
        asked("podResume", &RESUME, true, Some(&POD)),
        asked("podBidResume", &BID_RESUME, true, Some(&POD)),
        asked("saveTemplate", &SAVE_TEMPLATE, true, Some(&TEMPLATE)),
        keyed("deleteTemplate", "templateName", None),
        asked("saveRegistryAuth", &SAVE_REGISTRY, true, Some(&REGISTRY)),
        asked("updateRegistryAuth", &UPDATE_REGISTRY, true, Some(&REGISTRY)),
        keyed("deleteRegistryAuth", "registryAuthId", None),
        asked("createNetworkVolume", &CREATE_VOLUME, true, Some(&NETWORK_VOLUME)),
        asked("updateNetworkVolume", &UPDATE_VOLUME, true, Some(&NETWORK_VOLUME)),
        asked("deleteNetworkVolume", &DELETE_VOLUME, true, None),
        asked("updateUserSettings", &SETTINGS, false, Some(&USER)),
    ],
};
