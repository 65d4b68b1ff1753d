//! Parts that several kinds use.

use std::{collections::BTreeMap, fmt};

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use skyward_core::Usd;
pub use skyward_core::accelerator::FormFactor;

use crate::written::{self, written};

/// Accelerator of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// Name such as `H100`, `A100`, `L4`, `T4`, `RTX_4090`. It may say more, as in `A100-80GB`,
    /// `H100-NVL` or `H100:8`: the same as `memory`, `formFactor` and `count`.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// How many each machine has at least, such as `8`; a fraction, where a cloud sells parts, as
    /// text such as `"0.5"`. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::count_between("accelerator.count", "0.125", "16"))]
    pub count: Option<Count>,
    /// Least memory of each, such as `80Gi`; any when left out. A card sold as 80 GB fits `80G` and
    /// `80Gi`: clouds do not agree on what their GB is, so the number before the unit is what is
    /// compared, and a card may lack a fifteenth of it, which clouds leave out for its own use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::size_with_unit("accelerator.memory", "1Ti"))]
    pub memory: Option<Size>,
    /// How each is built into its machine; any when left out. An Offer whose cloud does not tell it
    /// fits none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form_factor: Option<FormFactor>,
}

impl Accelerator {
    /// How many each machine has at least.
    pub fn number(&self) -> f64 {
        self.count.map_or(1.0, Count::number)
    }

    /// Least memory of each, as [`Size::card_gb`] reads it.
    pub fn memory_gb(&self) -> Option<f64> {
        self.memory.as_ref().and_then(Size::card_gb)
    }
}

/// Labels and annotations of an object that is made from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(!has(self.labels) || self.labels.all(key, !key.startsWith('skyward.dev/'))) && (!has(self.annotations) || self.annotations.all(key, !key.startsWith('skyward.dev/')))").message("names that begin with skyward.dev/ are the operator's own: leave them out of labels and annotations"))]
pub struct TemplateMetadata {
    /// Labels, such as `{team: vision}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    #[x_kube(validation = crate::rule::names_of_map("labels"))]
    #[x_kube(validation = Rule::new("self.all(key, self[key].matches(r'^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$'))").message("labels take values of letters, digits, -, _ and . that begin and end with a letter or digit, such as vision"))]
    pub labels: BTreeMap<String, String>,
    /// Annotations, such as `{example.org/ticket: "4711"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 1024}))]
    #[x_kube(validation = crate::rule::names_of_map("annotations"))]
    pub annotations: BTreeMap<String, String>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub String);

/// Units of a [`Size`], the largest first, in bytes.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("T", 1_000_000_000_000),
    ("Gi", 1 << 30),
    ("G", 1_000_000_000),
    ("Mi", 1 << 20),
    ("M", 1_000_000),
    ("Ki", 1 << 10),
    ("k", 1_000),
];

/// The most that a cloud is believed, in bytes: in M it still has the twelve digits of [`SIZE_PATTERN`].
const MOST_BYTES: f64 = (1_u64 << 59) as f64;

impl Size {
    /// That many bytes, in the largest unit that they are a whole number of.
    pub fn of(bytes: u64) -> Self {
        let exact = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
        Self(match UNITS.iter().find(exact) {
            Some((unit, factor)) => format!("{}{unit}", bytes / factor),
            None => bytes.to_string(),
        })
    }

    /// That many GB (10^9 bytes), as clouds count what they offer: an amount that is no whole
    /// number of Mi is rounded down to M.
    pub fn of_gb(gigabytes: f64) -> Self {
        let bytes = (gigabytes * 1e9).round().clamp(0.0, MOST_BYTES) as u64;
        let mega = 1_000_000;
        let is_exact = bytes.is_multiple_of(1 << 20) || bytes < mega;
        Self::of(if is_exact { bytes } else { bytes / mega * mega })
    }

    /// The memory of an accelerator that is sold with that many GB.
    pub fn of_card_gb(gigabytes: f64) -> Self {
        let mebibytes = (gigabytes * 1024.0).round().clamp(0.0, MOST_BYTES / 1_048_576.0);
        Self::of(mebibytes as u64 * (1 << 20))
    }

    /// In bytes; `None` when the text is not an amount, which admission refuses.
    pub fn bytes(&self) -> Option<u64> {
        let (number, unit) = self.parts()?;
        number.checked_mul(unit_bytes(unit)?)
    }

    /// In GB (10^9 bytes).
    pub fn gb(&self) -> Option<f64> {
        Some(self.bytes()? as f64 / 1e9)
    }

    /// Memory of an accelerator in the GB that it is sold with: here a binary unit means the same as
    /// a decimal one, `80G` and `80Gi` are both 80. `skyward_core::accelerator::has_memory` compares
    /// it.
    pub fn card_gb(&self) -> Option<f64> {
        let (number, unit) = self.parts()?;
        let per_step: f64 = if unit.ends_with('i') { 1024.0 } else { 1000.0 };
        let steps = match unit.get(..1).unwrap_or_default() {
            "" => -3,
            "k" | "K" => -2,
            "M" => -1,
            "G" => 0,
            "T" => 1,
            _ => return None,
        };
        Some(number as f64 * per_step.powi(steps))
    }

    /// The number and the unit.
    fn parts(&self) -> Option<(u64, &str)> {
        let digits = self.0.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        Some((digits.parse().ok()?, self.0.get(digits.len()..)?))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    if unit.is_empty() {
        return Some(1);
    }
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(*factor)
}

written!(
    Size,
    32,
    format!("type(self) == string && string(self).matches(r'{SIZE_PATTERN}')"),
    "write an amount with its unit such as 512Mi or 16Gi"
);

/// Pattern of a [`Size`].
pub(crate) const SIZE_PATTERN: &str = "^[0-9]{1,12}(Ki|Mi|Gi|Ti|k|M|G|T)?$";

/// Size of a disk in the settings of a kind of account, such as `100G`. `OR_NONE`: `"0"` says that
/// there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Disk<const OR_NONE: bool = false>(Size);

/// Least size of a [`Disk`].
const LEAST_DISK: u64 = 1_000_000_000;

impl<const OR_NONE: bool> Disk<OR_NONE> {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes().unwrap_or_default()
    }

    /// In GB (10^9 bytes), rounded up.
    pub fn gb(&self) -> u32 {
        whole_gb(self.bytes())
    }
}

/// In GB (10^9 bytes), rounded up: the unit in which clouds sell disks.
pub fn whole_gb(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
}

impl<const OR_NONE: bool> TryFrom<Written> for Disk<OR_NONE> {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let size = Size(written.text());
        match size.bytes() {
            Some(0) if OR_NONE => Ok(Self(size)),
            Some(bytes) if bytes >= LEAST_DISK => Ok(Self(size)),
            _ => Err(format!(
                "\"{size}\" is not the size of a disk; write 100Gi, not 100"
            )),
        }
    }
}

impl<const OR_NONE: bool> From<Disk<OR_NONE>> for String {
    fn from(disk: Disk<OR_NONE>) -> Self {
        disk.0.0
    }
}

impl<const OR_NONE: bool> JsonSchema for Disk<OR_NONE> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Disk".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (none, or_none) = if OR_NONE {
            ("self == '0' || ", ", or \"0\" for none")
        } else {
            ("", "")
        };
        let rule = format!(
            r"type(self) == string && ({none}string(self).matches(r'^[0-9]{{1,12}}(Ki|Mi|Gi|Ti|k|M|G|T)$') && quantity(string(self)).compareTo(quantity('1G')) >= 0 && quantity(string(self)).compareTo(quantity('64Ti')) <= 0)"
        );
        let message = format!("write the size of a disk from 1G to 64Ti{or_none}: 100Gi, not 100");
        written::schema(32, &rule, &message)
    }
}

/// The most CPUs or accelerators that a cloud is believed, in thousandths: their patterns admit seven digits.
const MOST_THOUSANDTHS: f64 = 9_999_999_000.0;

/// An amount of CPUs: a whole number such as `64`, or text such as `"64"` or `500m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Cpu {
    thousandths: u64,
}

impl Cpu {
    /// So many CPUs; less than a thousandth is left out.
    pub fn of(cpus: f64) -> Self {
        Self {
            thousandths: (cpus * 1000.0 + 1e-6).floor().clamp(0.0, MOST_THOUSANDTHS) as u64,
        }
    }

    /// How many CPUs, or what part of one.
    pub fn number(self) -> f64 {
        self.thousandths as f64 / 1000.0
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thousandths.is_multiple_of(1000) {
            write!(f, "{}", self.thousandths / 1000)
        } else {
            write!(f, "{}m", self.thousandths)
        }
    }
}

impl From<Cpu> for String {
    fn from(cpu: Cpu) -> Self {
        cpu.to_string()
    }
}

impl TryFrom<Written> for Cpu {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let text = written.text();
        let thousandths = match text.strip_suffix('m') {
            Some(number) => number.parse().ok(),
            None => thousandths(&text),
        };
        let thousandths = thousandths
            .ok_or_else(|| format!("\"{text}\" is not an amount of CPUs; write for example 500m or 4"))?;
        Ok(Self { thousandths })
    }
}

written!(
    Cpu,
    32,
    format!("type(self) == int ? self >= 0 : string(self).matches(r'{CPU_PATTERN}')"),
    "write an amount of CPUs such as 500m or 4"
);

/// Pattern of a [`Cpu`].
pub(crate) const CPU_PATTERN: &str = r"^[0-9]{1,7}(\.[0-9]{1,3}|m)?$";

/// How many accelerators: a whole number such as `8`, or a part of one as text such as `"0.5"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "StoredCount")]
pub struct Count {
    thousandths: u64,
}

impl Count {
    /// So many; to the nearest thousandth.
    pub fn of(number: f64) -> Self {
        Self {
            thousandths: (number * 1000.0).round().clamp(0.0, MOST_THOUSANDTHS) as u64,
        }
    }

    /// How many.
    pub fn number(self) -> f64 {
        self.thousandths as f64 / 1000.0
    }

    /// Whether it is a whole number.
    pub const fn is_whole(self) -> bool {
        self.thousandths.is_multiple_of(1000)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_whole() {
            to.serialize_u64(self.thousandths / 1000)
        } else {
            to.collect_str(self)
        }
    }
}

/// A [`Count`] as a record has it; a record older than the settled names has a fraction as a
/// number.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredCount {
    Written(Written),
    Part(f64),
}

impl TryFrom<StoredCount> for Count {
    type Error = String;

    fn try_from(stored: StoredCount) -> Result<Self, Self::Error> {
        let text = match stored {
            StoredCount::Written(written) => written.text(),
            StoredCount::Part(number) => return Ok(Self::of(number)),
        };
        let thousandths = thousandths(&text).ok_or_else(|| {
            format!("\"{text}\" is not a number of accelerators; write for example 8 or \"0.5\"")
        })?;
        Ok(Self { thousandths })
    }
}

written!(
    Count,
    16,
    format!("type(self) == int ? self >= 0 : string(self).matches(r'{COUNT_PATTERN}')"),
    "write a whole number such as 8, or a part of one as text such as \"0.5\""
);

/// Pattern of a [`Count`].
pub(crate) const COUNT_PATTERN: &str = r"^[0-9]{1,7}(\.[0-9]{1,3})?$";

/// A decimal with up to three digits after its point, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)
}

/// An amount of money as text. In a manifest a whole number needs no quotes: it is exact. A
/// fraction needs them, because YAML and JSON make a binary number of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "String")]
pub struct Amount(pub String);

impl Amount {
    /// The amount; `None` where the text is none.
    pub fn usd(&self) -> Option<Usd> {
        self.0.parse().ok()
    }
}

impl From<Written> for Amount {
    fn from(written: Written) -> Self {
        Self(written.text())
    }
}

impl From<Amount> for String {
    fn from(amount: Amount) -> Self {
        amount.0
    }
}

/// A whole number or text, as a manifest has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(i64),
    Text(String),
}

impl Written {
    fn text(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
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

    #[test]
    fn cpus_and_counts_are_read_from_numbers_and_text_and_written_in_one_way() {
        for (written, expected, number) in [
            ("64", "\"64\"", 64.0),
            ("\"64\"", "\"64\"", 64.0),
            ("\"500m\"", "\"500m\"", 0.5),
            ("\"0.5\"", "\"500m\"", 0.5),
            ("\"3.9\"", "\"3900m\"", 3.9),
            ("\"2000m\"", "\"2\"", 2.0),
        ] {
            let cpu: Cpu = serde_json::from_str(written).unwrap();
            assert_eq!(serde_json::to_string(&cpu).unwrap(), expected, "{written}");
            assert!((cpu.number() - number).abs() < 1e-9, "{written}");
            assert_eq!(Cpu::of(number), cpu);
        }
        for (written, expected, number) in [
            ("8", "8", 8.0),
            ("\"8\"", "8", 8.0),
            ("\"0.5\"", "\"0.5\"", 0.5),
            ("\"0.125\"", "\"0.125\"", 0.125),
            ("0.5", "\"0.5\"", 0.5),
        ] {
            let count: Count = serde_json::from_str(written).unwrap();
            assert_eq!(serde_json::to_string(&count).unwrap(), expected, "{written}");
            assert_eq!(Count::of(number), count);
        }
        assert!(serde_json::from_str::<Cpu>("0.5").is_err());
        for bad in ["\"many\"", "\"-1\"", "-1", "\"0.1234\"", "\"\"", "\".5\""] {
            assert!(serde_json::from_str::<Count>(bad).is_err(), "{bad}");
            assert!(serde_json::from_str::<Cpu>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_of_a_cloud_that_no_machine_has_are_cut_to_what_a_record_may_hold() {
        for huge in [1e12, 1e300, f64::INFINITY] {
            for size in [
                Size::of_gb(huge),
                Size::of_card_gb(huge),
                Size::of_gb(1e8 + 0.001),
            ] {
                let digits = size.0.trim_end_matches(char::is_alphabetic);
                assert!(digits.len() <= 12 && size.bytes().is_some(), "{size}");
            }
            assert_eq!(serde_json::to_string(&Count::of(huge)).unwrap(), "9999999");
            assert_eq!(Cpu::of(huge).to_string(), "9999999");
        }
        for none in [-1.0, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(
                (Size::of_gb(none).0, Size::of_card_gb(none).0),
                ("0".into(), "0".into())
            );
            assert_eq!(
                (Count::of(none), Cpu::of(none)),
                (Count::default(), Cpu::default())
            );
        }
    }

    #[test]
    fn bytes_are_written_in_the_unit_that_they_are_a_whole_number_of() {
        for (bytes, expected) in [
            (0, "0"),
            (512 << 30, "512Gi"),
            (1 << 40, "1Ti"),
            (64_000_000_000, "64G"),
            (64_300_000_000, "64300M"),
            (3 << 29, "1536Mi"),
            (64_300_000_123, "64300000123"),
            (999_999, "999999"),
        ] {
            assert_eq!(Size::of(bytes).0, expected);
            assert_eq!(Size::of(bytes).bytes(), Some(bytes));
        }
        for (gigabytes, expected) in [
            (549.755_813_888, "512Gi"),
            (64.3, "64300M"),
            (64.300_000_9, "64300M"),
        ] {
            assert_eq!(Size::of_gb(gigabytes).0, expected);
        }
    }

    /// The unit makes no difference for accelerators.
    #[test]
    fn a_card_sold_as_80_gb_is_80g_and_80gi() {
        for (text, gigabytes) in [
            ("80G", 80.0),
            ("80Gi", 80.0),
            ("81920Mi", 80.0),
            ("80000M", 80.0),
            ("1Ti", 1024.0),
            ("1T", 1000.0),
            ("22500M", 22.5),
        ] {
            assert_eq!(Size(text.to_owned()).card_gb(), Some(gigabytes), "{text}");
        }
        for (gigabytes, text) in [(80.0, "80Gi"), (3.5, "3584Mi"), (141.0, "141Gi")] {
            assert_eq!(Size::of_card_gb(gigabytes).0, text);
            assert_eq!(Size::of_card_gb(gigabytes).card_gb(), Some(gigabytes));
        }
        assert_eq!(Size("80X".to_owned()).card_gb(), None);
    }

    #[test]
    fn the_size_of_a_disk_has_a_unit() {
        for bad in ["100", "\"100\"", "\"0\"", "\"100M\"", "\"large\""] {
            let error = serde_json::from_str::<Disk>(bad).unwrap_err().to_string();
            assert!(error.contains("write 100Gi, not 100"), "{error}");
        }
        let disk: Disk = serde_json::from_str("\"100Gi\"").unwrap();
        assert_eq!((disk.gb(), disk.bytes()), (108, 100 << 30));
        assert_eq!(serde_json::to_value(&disk).unwrap(), "100Gi");
        let none: Disk<true> = serde_json::from_str("\"0\"").unwrap();
        assert_eq!(none.gb(), 0);
    }
}
