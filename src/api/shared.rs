//! Parts that several kinds use.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Accelerator of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// Name such as `H100`, `A100`, `L4`, `T4`, `RTX_4090`. It may say more, as in `A100-80GB`,
    /// `H100-NVL` or `H100:8`: the same as `memoryGB`, `formFactor` and `count`.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// How many each machine has at least; a part of one, such as `0.125`, where a cloud sells
    /// such. Default 1.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_written"
    )]
    // The API server compares whole numbers with whole bounds alone: 0 would be taken.
    #[schemars(
        range(min = 0.125, max = 16.0),
        extend("x-kubernetes-validations" = [{"rule": "self >= 0.125", "message": "count must be at least 0.125"}])
    )]
    pub count: Option<f64>,
    /// Least memory of each in GB (10^9 bytes); any when left out.
    #[serde(default, rename = "memoryGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub memory_gb: Option<u32>,
    /// How each is built into its machine; any when left out. Where a cloud does not say it,
    /// nothing fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_factor: Option<FormFactor>,
}

/// How an accelerator is built into its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::crd::explain_variants)]
pub enum FormFactor {
    /// A module on a board with NVLink between all of them.
    #[serde(rename = "SXM")]
    Sxm,
    /// A card.
    #[serde(rename = "PCIe")]
    Pcie,
    /// A card with an NVLink bridge to its neighbour.
    #[serde(rename = "NVL")]
    Nvl,
}

impl FormFactor {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sxm => "SXM",
            Self::Pcie => "PCIe",
            Self::Nvl => "NVL",
        }
    }
}

/// A whole number without a point, as people write it.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn as_written<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    match number {
        None => to.serialize_none(),
        Some(part) if part.fract() > 0.0 => to.serialize_f64(*part),
        Some(whole) => to.serialize_u64(*whole as u64),
    }
}

/// One environment variable with a literal value. For values from Secrets use `envFrom`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = crate::rule::matches("^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable has letters, digits and _ and begins with no digit"))]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[schemars(length(max = 8192))]
    pub value: String,
}

/// A Secret or ConfigMap of the same namespace; each key becomes a variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.secretRef) != has(self.configMapRef)").message("an entry of envFrom needs exactly one of secretRef and configMapRef"))]
pub struct EnvFrom {
    /// A Secret. Its values are masked where a log tail is shown in status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalRef>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<LocalRef>,
    /// Put in front of each key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub prefix: String,
}

/// An object of the same namespace, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Whether to go on without it when it does not exist. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// An amount of memory or storage as Kubernetes writes it, such as `512Mi` or `8Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub String);

impl Size {
    /// In bytes; `None` when the text is not an amount, which admission refuses.
    pub fn bytes(&self) -> Option<u64> {
        let text = self.0.as_str();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor: u64 = match text.get(digits.len()..)? {
            "" => 1,
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(factor)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A number is admitted as far as the rule, which says what to write instead of it.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": r"type(self) == string && string(self).matches(r'^[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?$')",
                "message": "write an amount such as 512Mi or 8Gi",
            }],
        })
    }
}

/// An amount of money or CPUs as text. In a manifest a whole number needs no quotes: it is exact.
/// A fraction does, because YAML and JSON make a binary one of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(from)?;
        Ok(Self(match written {
            Written::Whole(number) => number.to_string(),
            Written::Text(text) => text,
        }))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(i64),
    Text(String),
}

impl std::ops::Deref for Amount {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_an_amount_with_and_without_quotes() {
        for (written, expected) in [("50", "50"), ("\"50\"", "50"), ("\"2.50\"", "2.50")] {
            let amount: Amount = serde_json::from_str(written).unwrap();
            assert_eq!(&*amount, expected);
            assert_eq!(
                serde_json::to_value(&amount).unwrap(),
                expected,
                "text from then on"
            );
        }
        assert!(serde_json::from_str::<Amount>("2.5").is_err());
    }

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("512Mi", Some(536_870_912)),
            ("1G", Some(1_000_000_000)),
            ("7", Some(7)),
            ("7X", None),
            ("99999999999999999999Ti", None),
        ] {
            assert_eq!(Size(text.to_owned()).bytes(), expected, "{text}");
        }
    }
}
