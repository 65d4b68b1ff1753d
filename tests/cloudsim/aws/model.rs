//! The official description of an AWS service: a botocore service model.
//!
//! It is data of Amazon's, read when a test runs from the folder that
//! `SKYWARD_SPECS` names, and never a part of this repository; of Service Quotas
//! that folder has none, so `quotas` describes its one operation. What it says
//! decides which requests are allowed and how an answer is written; nothing
//! here knows our client.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::Value;

use super::quotas;

/// A service model: operations, and the shapes they refer to.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    /// Protocol, version, names.
    pub metadata: Metadata,
    /// Operations by name.
    pub operations: BTreeMap<String, Operation>,
    /// Shapes by name.
    pub shapes: BTreeMap<String, Shape>,
}

/// What the model says about the service as a whole.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The version a Query request has to name.
    pub api_version: String,
    /// `ec2`, `query` or `json`.
    pub protocol: String,
    /// Namespace of XML answers.
    #[serde(default)]
    pub xml_namespace: Option<Namespace>,
    /// What stands before the dot of `X-Amz-Target` (JSON protocol).
    #[serde(default)]
    pub target_prefix: Option<String>,
}

/// An XML namespace, which the models write in two ways.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Namespace {
    /// Plainly.
    Plain(String),
    /// As an object.
    Object {
        /// The address.
        uri: String,
    },
}

/// One operation.
#[derive(Debug, Clone, Deserialize)]
pub struct Operation {
    /// Shape of its parameters.
    #[serde(default)]
    pub input: Option<Reference>,
    /// Shape of its answer.
    #[serde(default)]
    pub output: Option<Reference>,
}

/// A use of a shape, with the name it has on the wire there.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// The shape's name.
    pub shape: String,
    /// Name on the wire.
    #[serde(default)]
    pub location_name: Option<String>,
    /// Name in an EC2 request, where that differs once more.
    #[serde(default)]
    pub query_name: Option<String>,
    /// Element around the answer (Query protocol).
    #[serde(default)]
    pub result_wrapper: Option<String>,
}

/// A shape.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// What kind of value it is.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Members of a structure.
    #[serde(default)]
    pub members: BTreeMap<String, Reference>,
    /// Members that must be there.
    #[serde(default)]
    pub required: Vec<String>,
    /// What a list holds.
    #[serde(default)]
    pub member: Option<Box<Reference>>,
    /// What a map's values are.
    #[serde(default)]
    pub value: Option<Box<Reference>>,
    /// Allowed values of a string.
    #[serde(default, rename = "enum")]
    pub allowed: Vec<String>,
    /// Least value, length or count.
    #[serde(default)]
    pub min: Option<f64>,
    /// Greatest value, length or count.
    #[serde(default)]
    pub max: Option<f64>,
    /// True where a list has no element of its own around it (Query protocol).
    #[serde(default)]
    pub flattened: bool,
}

/// Kinds of shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Named members.
    Structure,
    /// A sequence.
    List,
    /// Keys and values.
    Map,
    /// Text.
    String,
    /// A 32-bit number.
    Integer,
    /// A 64-bit number.
    Long,
    /// A number with a fraction.
    Double,
    /// The same.
    Float,
    /// Yes or no.
    Boolean,
    /// A moment.
    Timestamp,
    /// Bytes, on the wire as base64.
    Blob,
}

impl Model {
    /// Reads a model.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The shape that a reference names.
    pub fn shape(&self, reference: &Reference) -> Result<&Shape, String> {
        self.shapes
            .get(&reference.shape)
            .ok_or_else(|| format!("the model has no shape {}", reference.shape))
    }

    /// The namespace of XML answers.
    pub fn namespace(&self) -> &str {
        match &self.metadata.xml_namespace {
            Some(Namespace::Plain(uri) | Namespace::Object { uri }) => uri,
            None => "",
        }
    }
}

/// The models of the services that the simulator speaks.
#[derive(Debug, Clone)]
pub struct Models {
    /// EC2.
    pub ec2: Model,
    /// Systems Manager, for its parameters.
    pub ssm: Model,
    /// The price list.
    pub pricing: Model,
    /// Service Quotas.
    pub quotas: Model,
    /// Identity.
    pub sts: Model,
}

impl Models {
    /// Reads the models from a folder, but for that of Service Quotas.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let one = |name: &str| Model::read(&folder.join(format!("aws-{name}.botocore.json")));
        Ok(Self {
            ec2: one("ec2")?,
            ssm: one("ssm")?,
            pricing: one("pricing")?,
            quotas: serde_json::from_str(quotas::MODEL)
                .map_err(|error| format!("the model of Service Quotas: {error}"))?,
            sts: one("sts")?,
        })
    }

    /// The models, or nothing where the environment names no folder: then tests
    /// of AWS report themselves as skipped.
    pub fn from_environment() -> Option<Result<Arc<Self>, String>> {
        // A campaign makes thousands of clouds, and the models do not change.
        static READ: OnceLock<Option<Result<Arc<Models>, String>>> = OnceLock::new();
        READ.get_or_init(|| {
            crate::core::description::folder().map(|folder| Self::read(&folder).map(Arc::new))
        })
        .clone()
    }
}

/// Checks a value against the limits of its shape, beyond its type.
pub(super) fn check_limits(
    shape: &Shape,
    shape_name: &str,
    path: &str,
    value: &Value,
    problems: &mut Vec<String>,
) {
    let size = match value {
        Value::String(text) => {
            // New instance types appear each month, so their list in the model is
            // never complete: whether one exists is for the catalogue to say.
            if !shape.allowed.is_empty() && shape_name != "InstanceType" && !shape.allowed.contains(text) {
                problems.push(format!(
                    "{path}: '{text}' is not one of {}",
                    shape.allowed.join(", ")
                ));
            }
            if shape.kind == Kind::Timestamp {
                return;
            }
            text.chars().count() as f64
        }
        Value::Number(number) => number.as_f64().unwrap_or_default(),
        Value::Array(items) => items.len() as f64,
        Value::Null | Value::Bool(_) | Value::Object(_) => return,
    };
    if shape.min.is_some_and(|least| size < least) {
        problems.push(format!(
            "{path}: {size} is below the least value {}",
            shape.min.unwrap_or_default()
        ));
    }
    if shape.max.is_some_and(|most| size > most) {
        problems.push(format!(
            "{path}: {size} is above the greatest value {}",
            shape.max.unwrap_or_default()
        ));
    }
}
