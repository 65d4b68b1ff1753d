//! Names of accelerators: every cloud spells them its own way, a Pool asks for one name.
//!
//! [`canonical`] is what offers and Pools are compared by; [`parse`] reads what clouds
//! write (`1x H100 SXM5 80GB`). [`models`] is the catalogue, [`mig`] the table of the
//! partitions of NVIDIA's Multi-Instance GPUs. Whatever the catalogue does not know is
//! kept as it is written, so that a new or a custom accelerator needs no release of ours.

pub mod mig;
pub mod models;
mod visible;

use std::{collections::BTreeMap, sync::LazyLock};

pub use models::{MODELS, Model};
use serde::{Deserialize, Serialize};
pub use visible::{Visible, visible};

/// How an accelerator is built into its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
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
    /// As people write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sxm => "SXM",
            Self::Pcie => "PCIe",
            Self::Nvl => "NVL",
        }
    }

    /// From what people and clouds write: `SXM5`, `pcie`, `NVL`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        // Of SXM and PCIe there are generations.
        match text.strip_suffix(|c: char| c.is_ascii_digit()).unwrap_or(&text) {
            "SXM" => Some(Self::Sxm),
            "PCIE" => Some(Self::Pcie),
            _ if text == "HGX" => Some(Self::Sxm),
            _ if text == "NVL" => Some(Self::Nvl),
            _ => None,
        }
    }
}

/// What the text of a cloud says about accelerators; what it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// Canonical name.
    pub name: String,
    /// Memory of each in GB, as it stands on the box: 80 for an H100.
    pub memory_gb: Option<f64>,
    /// How it is built in.
    pub form_factor: Option<FormFactor>,
    /// How many; may be a fraction.
    pub count: Option<f64>,
}

/// The canonical name for what a cloud or a person wrote: `H100` for `NVIDIA H100 80GB HBM3`,
/// `RTX 4090` for `GeForce_RTX-4090`. An unknown name is kept, tidied.
pub fn canonical(text: &str) -> String {
    parse(text).name
}

/// The model of a name, if the catalogue has it.
pub fn model(text: &str) -> Option<&'static Model> {
    read(&tokens(text)).map(|(model, _)| model)
}

/// Memory of one in GB as it stands on the box, where the catalogue knows the model.
pub fn memory_gb(text: &str) -> Option<f64> {
    let (model, said) = read(&tokens(text))?;
    Some(said.memory_gb.unwrap_or_else(|| model.memory(said.form_factor)))
}

/// The memory that stands on the box (80), for what an API counts (81559 MiB). A size
/// that no variant of the model comes near is kept, in whole GB.
pub fn nominal_memory_gb(name: &str, mebibytes: f64) -> f64 {
    let counted = [mebibytes / 1024.0, mebibytes * 1_048_576.0 / 1e9];
    let distance = |variant: f64| {
        counted
            .iter()
            .map(|size| (size / variant - 1.0).abs())
            .fold(f64::INFINITY, f64::min)
    };
    model(name)
        .into_iter()
        .flat_map(|model| model.memory_gb.iter().copied())
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
        .filter(|variant| distance(*variant) < 0.08)
        .unwrap_or_else(|| (mebibytes / 1024.0 * 10.0).round() / 10.0)
}

/// The part of its memory that a card may lack of what is asked for: clouds name what is on the box,
/// or what its driver leaves of it, which is up to a sixteenth less.
const LACKING: f64 = 1.0 / 15.0;

/// Whether an accelerator that a cloud offers with so many GB has what is asked for. The units make
/// no difference: a card that is sold as 80 GB has 80 GiB at most clouds, and both units mean the
/// same card.
pub fn has_memory(offered_gb: f64, asked_gb: f64) -> bool {
    offered_gb >= asked_gb * (1.0 - LACKING)
}

/// Reads what a cloud writes about the accelerators of a machine.
pub fn parse(text: &str) -> Parsed {
    let words = tokens(text);
    let said = read(&words).map(|(_, said)| said);
    said.unwrap_or_else(|| Parsed {
        name: words.join(" "),
        ..Parsed::default()
    })
}

/// Words that name no model: makers, families and what marketing adds.
const NOISE: &[&str] = &[
    "NVIDIA",
    "GEFORCE",
    "TESLA",
    "AMD",
    "INSTINCT",
    "AWS",
    "AMAZON",
    "GOOGLE",
    "CLOUD",
    "INTEL",
    "HABANA",
    "CORPORATION",
    "GENERATION",
    "GPU",
    "GPUS",
    "TENSOR",
    "CORE",
    "GRACE",
    "HOPPER",
    "BLACKWELL",
    "SUPERCHIP",
    "SERVER",
    "WORKSTATION",
    "EDITION",
    "OAM",
    "DGX",
    "VRAM",
    "GRAPHICS",
    "HBM2",
    "HBM2E",
    "HBM3",
    "HBM3E",
    "GDDR5",
    "GDDR6",
    "GDDR6X",
    "GDDR7",
    "NVLINK",
];

/// Names without spaces, with the model that they mean.
static NAMES: LazyLock<BTreeMap<String, &'static Model>> = LazyLock::new(|| {
    MODELS
        .iter()
        .flat_map(|model| model.names().map(move |name| (tokens(name).concat(), model)))
        .collect()
});

/// Upper case words of letters and digits; a point between two digits belongs to both.
fn tokens(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut words = vec![String::new()];
    for (at, byte) in bytes.iter().enumerate() {
        let inside =
            byte.is_ascii_alphanumeric() || *byte == b'.' && digit(at.checked_sub(1)) && digit(Some(at + 1));
        match (inside, words.last_mut()) {
            (true, Some(word)) => word.push(byte.to_ascii_uppercase() as char),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn read(words: &[String]) -> Option<(&'static Model, Parsed)> {
    let mut memory_gb = None;
    let mut form_factor = None;
    let mut count = None;
    let has_hbm3 = words.iter().any(|word| word == "HBM3");
    let mut rest: Vec<&str> = Vec::new();
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        if let Some(number) = amount(word, &["X"]).filter(|_| rest.is_empty() && count.is_none()) {
            count = Some(number);
        } else if let (Ok(number), Some(&"X"), true) = (word.parse(), words.peek(), rest.is_empty()) {
            count = Some(number);
            words.next();
        } else if let Some((number, name)) =
            leading_count(word).filter(|_| rest.is_empty() && count.is_none())
        {
            count = Some(number);
            rest.push(name);
        } else if let Some(gigabytes) = amount(word, &["GB", "GIB", "G"]) {
            memory_gb = Some(gigabytes);
        } else if let (Ok(number), Some(&unit)) = (word.parse::<f64>(), words.peek())
            && let Some(factor) = match unit {
                "GB" | "GIB" | "G" => Some(1.0),
                "MB" | "MIB" => Some(1.0 / 1024.0),
                _ => None,
            }
        {
            memory_gb = Some(number * factor);
            words.next();
        } else if let Some(built) = FormFactor::parse(word) {
            form_factor = Some(built);
        } else if !NOISE.contains(&word) {
            rest.push(word);
        }
    }
    let found = |model: &'static Model, form: Option<FormFactor>, number: Option<f64>| {
        let said = Parsed {
            name: model.name.to_owned(),
            // Memory beyond the model's is the machine's: `GH200 480GB`.
            memory_gb: memory_gb.filter(|size| *size <= 1.5 * model.largest_memory()),
            // Of the form factors that the name leaves open, only the module has this memory.
            form_factor: form_factor
                .or(form)
                .or((model.name == "H100" && has_hbm3).then_some(FormFactor::Sxm)),
            count: count.or(number),
        };
        (model, said)
    };
    if let Some((model, form)) = lookup(&rest.concat()) {
        return Some(found(model, form, None));
    }
    // `H100:8`, `8 H100`, `TPUv5p-8`, `H100x8`.
    let whole = |word: &str| {
        word.parse::<u16>()
            .ok()
            .filter(|number| *number > 0)
            .map(f64::from)
    };
    if let Some((last, before)) = rest.split_last() {
        if let (Some(number), Some((model, form))) = (whole(last), lookup(&before.concat())) {
            return Some(found(model, form, Some(number)));
        }
        if let Some((start, digits)) = last.rsplit_once('X')
            && let Some(number) = whole(digits)
            && let Some((model, form)) = lookup(&[&before.concat(), start].concat())
        {
            return Some(found(model, form, Some(number)));
        }
    }
    if let Some((first, after)) = rest.split_first()
        && let (Some(number), Some((model, form))) = (whole(first), lookup(&after.concat()))
    {
        return Some(found(model, form, Some(number)));
    }
    None
}

/// `80GB` as 80, for one of these units.
fn amount(word: &str, units: &[&str]) -> Option<f64> {
    units
        .iter()
        .find_map(|unit| word.strip_suffix(unit))
        .and_then(|number| number.parse::<f64>().ok())
        .filter(|number| *number > 0.0)
}

/// `8XH100` as 8 and `H100`.
fn leading_count(word: &str) -> Option<(f64, &str)> {
    let (number, name) = word.split_once('X')?;
    let number = number.parse::<f64>().ok().filter(|number| *number > 0.0)?;
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        .then_some((number, name))
}

/// The model of a name without spaces, and the form factor where the name says it.
fn lookup(name: &str) -> Option<(&'static Model, Option<FormFactor>)> {
    let exact = |name: &str| NAMES.get(name).copied();
    if let Some(model) = exact(name) {
        return Some((model, None));
    }
    if name.starts_with(|c: char| c.is_ascii_digit())
        && let Some(model) = ["RTX", "GTX"]
            .iter()
            .find_map(|family| exact(&[family, name].concat()))
    {
        return Some((model, None));
    }
    // Some write it all in one word: `geforcertx4090`, `A100SXM4`.
    let short = ["NVIDIA", "GEFORCE", "TESLA", "AMD"]
        .iter()
        .fold(name, |name, maker| name.strip_prefix(maker).unwrap_or(name));
    if let Some(model) = exact(short) {
        return Some((model, None));
    }
    ["SXM", "PCIE", "NVL"].iter().find_map(|form| {
        let (start, _) = short.rsplit_once(form)?;
        let built = FormFactor::parse(short.get(start.len()..)?)?;
        Some((exact(start)?, Some(built)))
    })
}

#[cfg(test)]
#[path = "accelerator/tests.rs"]
mod tests;
