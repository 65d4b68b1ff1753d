//! Requests as Verda describes them, strict: a field that is not here is a violation.

use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::core::cloud::{Call, Refusal};
use crate::core::http::Request;

#[derive(Debug, Deserialize)]
#[serde(tag = "grant_type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Grant {
    ClientCredentials {
        client_id: String,
        client_secret: String,
    },
    RefreshToken {
        refresh_token: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn all(&self) -> Vec<String> {
        match self {
            Self::One(id) => vec![id.clone()],
            Self::Many(ids) => ids.clone(),
        }
    }

    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::One(_))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tag {
    pub(super) key: String,
    pub(super) value: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnDiscontinue {
    #[default]
    KeepDetached,
    MoveToTrash,
    DeletePermanently,
}

/// Kinds of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Kind {
    #[serde(rename = "NVMe")]
    Nvme,
    #[serde(rename = "NVMe_Shared")]
    NvmeShared,
    #[serde(rename = "HDD")]
    Hdd,
    #[serde(rename = "HDD_Shared")]
    HddShared,
    #[serde(rename = "NVMe_Local_Storage")]
    NvmeLocalStorage,
    #[serde(rename = "NVMe_Shared_Cluster")]
    NvmeSharedCluster,
    #[serde(rename = "NVMe_OS_Cluster")]
    NvmeOsCluster,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Nvme,
        Self::NvmeShared,
        Self::Hdd,
        Self::HddShared,
        Self::NvmeLocalStorage,
        Self::NvmeSharedCluster,
        Self::NvmeOsCluster,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nvme => "NVMe",
            Self::NvmeShared => "NVMe_Shared",
            Self::Hdd => "HDD",
            Self::HddShared => "HDD_Shared",
            Self::NvmeLocalStorage => "NVMe_Local_Storage",
            Self::NvmeSharedCluster => "NVMe_Shared_Cluster",
            Self::NvmeOsCluster => "NVMe_OS_Cluster",
        }
    }

    /// The kind of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is a file system that several instances may have, while they run.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::NvmeShared | Self::HddShared | Self::NvmeSharedCluster)
    }

    /// Whether no new volumes of this type can be made.
    pub(super) fn is_retired(self) -> bool {
        matches!(self, Self::Hdd | Self::HddShared)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OsVolume {
    pub(super) name: String,
    pub(super) size: f64,
    #[serde(default)]
    pub(super) on_spot_discontinue: OnDiscontinue,
    #[serde(default)]
    pub(super) tags: Vec<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewVolume {
    pub(super) name: String,
    pub(super) size: f64,
    pub(super) r#type: Kind,
    #[serde(default)]
    pub(super) on_spot_discontinue: OnDiscontinue,
    #[serde(default)]
    pub(super) tags: Vec<Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Contract {
    LongTerm,
    PayAsYouGo,
    Spot,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deploy {
    pub(super) instance_type: String,
    pub(super) image: String,
    pub(super) hostname: String,
    pub(super) location_code: String,
    pub(super) ssh_key_ids: Option<OneOrMany>,
    pub(super) startup_script_id: Option<String>,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) tags: Vec<Tag>,
    pub(super) os_volume: Option<OsVolume>,
    #[serde(default)]
    pub(super) is_spot: bool,
    pub(super) contract: Option<Contract>,
    #[serde(default)]
    pub(super) volumes: Vec<NewVolume>,
    #[serde(default)]
    pub(super) existing_volumes: Vec<String>,
    #[serde(rename = "coupon")]
    _coupon: Option<String>,
    #[serde(rename = "pricing")]
    _pricing: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    Boot,
    Start,
    Shutdown,
    Delete,
    Discontinue,
    Hibernate,
    ConfigureSpot,
    ForceShutdown,
    DeleteStuck,
    Deploy,
    Transfer,
}

impl Action {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Start => "start",
            Self::Shutdown => "shutdown",
            Self::Delete => "delete",
            Self::Discontinue => "discontinue",
            Self::Hibernate => "hibernate",
            Self::ConfigureSpot => "configure_spot",
            Self::ForceShutdown => "force_shutdown",
            Self::DeleteStuck => "delete_stuck",
            Self::Deploy => "deploy",
            Self::Transfer => "transfer",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Act {
    pub(super) action: Action,
    pub(super) id: OneOrMany,
    pub(super) volume_ids: Option<Vec<String>>,
    #[serde(default)]
    pub(super) delete_permanently: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddKey {
    pub(super) name: String,
    pub(super) key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddScript {
    pub(super) name: String,
    pub(super) script: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteMany {
    #[serde(rename = "keys", alias = "scripts")]
    pub(super) ids: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateVolume {
    pub(super) r#type: Kind,
    pub(super) location_code: String,
    pub(super) size: f64,
    pub(super) name: String,
    pub(super) instance_id: Option<String>,
    #[serde(default)]
    pub(super) instance_ids: Vec<String>,
    #[serde(default)]
    pub(super) tags: Vec<Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum VolumeAction {
    Attach,
    Detach,
    Delete,
    Rename,
    Resize,
    Restore,
    Clone,
    Cancel,
    Create,
    Export,
    Transfer,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActOnVolumes {
    pub(super) action: VolumeAction,
    pub(super) id: OneOrMany,
    pub(super) size: Option<f64>,
    pub(super) instance_id: Option<String>,
    #[serde(default)]
    pub(super) instance_ids: Vec<String>,
    pub(super) name: Option<String>,
    pub(super) r#type: Option<String>,
    #[serde(default)]
    pub(super) is_permanent: bool,
    pub(super) location_code: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteVolume {
    #[serde(default)]
    pub(super) is_permanent: bool,
}

/// What is wrong with a request by our own strict types.
pub(super) fn check(request: &Request, call: &Call) -> Vec<String> {
    let result = match call.name {
        "token" => body::<Grant>(request).map(drop),
        "instances.create" => body::<Deploy>(request).map(drop),
        "instances.delete" | "instances.action" => body::<Act>(request).map(drop),
        "tags.add" | "volume-tags.add" => body::<Tag>(request).map(drop),
        "keys.create" => body::<AddKey>(request).map(drop),
        "scripts.create" => body::<AddScript>(request).map(drop),
        "keys.delete" | "scripts.delete" if request.segments().len() == 2 => {
            body::<DeleteMany>(request).map(drop)
        }
        "volumes.create" => body::<CreateVolume>(request).map(drop),
        "volumes.action" => body::<ActOnVolumes>(request).map(drop),
        // The client for Go gives none.
        "volumes.delete" if request.body.is_empty() => Ok(()),
        "volumes.delete" => body::<DeleteVolume>(request).map(drop),
        _ => return Vec::new(),
    };
    let mut wrong: Vec<String> = result.err().into_iter().collect();
    let json = request
        .header("content-type")
        .is_some_and(|given| given.starts_with("application/json"));
    if !json && (request.method != Method::DELETE || !request.body.is_empty()) {
        wrong.push("bodies are application/json".to_owned());
    }
    wrong
}

/// A body without the nulls in its objects, by which Verda's own client says that something is
/// not given; `None` where there are none, or where it is no JSON.
pub(super) fn without_nulls(body: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    drop_nulls(&mut value).then(|| value.to_string().into_bytes())
}

/// Returns whether there were any.
fn drop_nulls(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => {
            let before = fields.len();
            fields.retain(|_, field| !field.is_null());
            let fewer = fields.len() < before;
            fields
                .values_mut()
                .fold(fewer, |any, field| drop_nulls(field) || any)
        }
        Value::Array(items) => {
            let mut any = false;
            for item in items {
                any |= drop_nulls(item);
            }
            any
        }
        _ => false,
    }
}

/// The body as one of these types.
pub(super) fn body<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    let result = match without_nulls(&request.body) {
        Some(body) => serde_json::from_slice(&body),
        None => serde_json::from_slice(&request.body),
    };
    result.map_err(|error| format!("the body: {error}"))
}

/// The body as one of these types, where the check has been passed.
pub(super) fn given<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    body(request).map_err(Refusal::Bad)
}

/// The action of a `PUT /v1/instances`.
pub(super) fn action_of(request: &Request) -> Option<&'static str> {
    body::<Act>(request).ok().map(|act| act.action.name())
}
