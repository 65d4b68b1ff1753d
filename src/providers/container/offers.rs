//! Makes offers of the cluster's nodes: one for each group of equal nodes, and with GPUs one for
//! each usual number of them. Pure.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use skyward_core::{
    Usd, accelerator,
    offer::{Accelerators, Architecture, Availability, Offer},
};

use super::{GPU, LINUX, OS_LABEL, PRODUCT_LABEL, config::Settings, quantity};

/// Memory of one GPU in MiB, as NVIDIA's feature discovery labels nodes.
const GPU_MEMORY_LABEL: &str = "nvidia.com/gpu.memory";
/// Numbers of GPUs that a Pod can ask of a node that has more.
const USUAL_COUNTS: [u32; 5] = [1, 2, 4, 8, 16];
/// Name of GPUs whose node has no product label.
const UNKNOWN_GPU: &str = "GPU";

/// A group of equal nodes; its text is the offer's instance type, such as
/// `amd64/8cpu/31Gi/4xNVIDIA-A100-SXM4-80GB`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// As nodes are labelled: `amd64`, `arm64`.
    pub architecture: String,
    /// Tenths of a CPU that one Pod can get.
    pub deci_cpus: u64,
    /// GiB of memory that one Pod can get.
    pub memory_gib: u64,
    /// GPUs of one machine.
    pub gpus: u32,
    /// Label of their kind, if nodes have one.
    pub product: Option<String>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}cpu/{}Gi",
            self.architecture,
            cpus(self.deci_cpus),
            self.memory_gib
        )?;
        if self.gpus > 0 {
            write!(
                f,
                "/{}x{}",
                self.gpus,
                self.product.as_deref().unwrap_or(UNKNOWN_GPU)
            )?;
        }
        Ok(())
    }
}

fn cpus(deci: u64) -> String {
    if deci.is_multiple_of(10) {
        format!("{}", deci / 10)
    } else {
        format!("{}.{}", deci / 10, deci % 10)
    }
}

impl Group {
    /// A group from its text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '/');
        let architecture = parts.next().filter(|a| !a.is_empty())?.to_owned();
        let cpus: f64 = parts.next()?.strip_suffix("cpu")?.parse().ok()?;
        let memory_gib = parts.next()?.strip_suffix("Gi")?.parse().ok()?;
        let (gpus, product) = match parts.next() {
            None => (0, None),
            Some(gpus) => {
                let (count, product) = gpus.split_once('x')?;
                (
                    count.parse().ok()?,
                    (product != UNKNOWN_GPU).then(|| product.to_owned()),
                )
            }
        };
        Some(Self {
            architecture,
            deci_cpus: (cpus * 10.0).round() as u64,
            memory_gib,
            gpus,
            product,
        })
    }
}

/// Facts about a group besides its name.
#[derive(Default)]
struct Seen {
    available: bool,
    gpu_memory_mib: Option<f64>,
}

/// Offers of these nodes under these settings, in a fixed order.
pub fn offers(nodes: &[Node], settings: &Settings) -> Vec<Offer> {
    let mut groups: BTreeMap<Group, Seen> = BTreeMap::new();
    for node in nodes.iter().filter(|node| selected(node, settings)) {
        let Some(whole) = group(node) else { continue };
        let available = usable(node);
        let memory = node_label(node, GPU_MEMORY_LABEL)
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|mib| *mib > 0.0);
        let counts = USUAL_COUNTS.iter().copied().filter(|count| *count < whole.gpus);
        let mut add = |group: Group| {
            let seen = groups.entry(group).or_default();
            seen.available |= available;
            seen.gpu_memory_mib = seen.gpu_memory_mib.or(memory);
        };
        // A node with GPUs is offered without them, too.
        add(Group {
            gpus: 0,
            product: None,
            ..whole.clone()
        });
        for gpus in counts.chain((whole.gpus > 0).then_some(whole.gpus)) {
            add(Group {
                gpus,
                ..whole.clone()
            });
        }
    }
    groups
        .into_iter()
        .filter_map(|(group, seen)| offer(&group, &seen))
        .collect()
}

fn offer(group: &Group, seen: &Seen) -> Option<Offer> {
    let architecture = match group.architecture.as_str() {
        "amd64" => Architecture::Amd64,
        "arm64" => Architecture::Arm64,
        _ => return None,
    };
    let accelerators = (group.gpus > 0).then(|| {
        let kind = group.product.as_deref().map(Product::read).unwrap_or_default();
        Accelerators {
            name: if kind.name.is_empty() {
                UNKNOWN_GPU.to_owned()
            } else {
                kind.name
            },
            count: f64::from(group.gpus),
            form_factor: group
                .product
                .as_deref()
                .and_then(|label| accelerator::parse(label).form_factor),
            // The size on the box where the label has it (80), not what the driver leaves (85.9).
            memory_gb: kind
                .memory_gb
                .or_else(|| seen.gpu_memory_mib.map(|mib| (mib * 1_048_576.0 / 1e9).floor())),
        }
    });
    Some(Offer {
        id: id(group),
        instance_type: group.to_string(),
        region: String::new(),
        accelerators,
        vcpus: group.deci_cpus as f64 / 10.0,
        memory_gb: (group.memory_gib << 30) as f64 / 1e9,
        disk_gb: None,
        architecture,
        on_demand: Some(Usd::ZERO),
        spot: None,
        availability: if seen.available {
            Availability::Yes
        } else {
            Availability::Unknown
        },
        connected: true,
        rate_as_of: None,
    })
}

/// The group's text as a DNS label.
fn id(group: &Group) -> String {
    let text: String = group
        .to_string()
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    super::config::label_value(text.trim_matches('-'))
}

/// Largest Pod that such a node can hold; `None` when it does not say.
fn group(node: &Node) -> Option<Group> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    let amount = |name: &str| {
        allocatable
            .get(name)
            .and_then(|quantity| quantity::parse(&quantity.0))
    };
    let gpus = amount(GPU).unwrap_or(0.0) as u32;
    Some(Group {
        architecture: node_label(node, "kubernetes.io/arch")
            .or_else(|| {
                node.status
                    .as_ref()?
                    .node_info
                    .as_ref()
                    .map(|info| info.architecture.as_str())
            })?
            .to_owned(),
        // Rounded down, so that equal nodes with a few spare pages make one group.
        deci_cpus: (amount("cpu")? * 10.0).floor() as u64,
        memory_gib: (amount("memory")? / 1_073_741_824.0).floor() as u64,
        gpus,
        product: (gpus > 0)
            .then(|| node_label(node, PRODUCT_LABEL).map(str::to_owned))
            .flatten(),
    })
}

fn node_label<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Whether Pods with these settings may ever run there.
fn selected(node: &Node, settings: &Settings) -> bool {
    let labels = node.metadata.labels.as_ref();
    let linux = node_label(node, OS_LABEL) == Some(LINUX);
    let fits = linux
        && settings
            .node_selector
            .iter()
            .all(|(name, value)| labels.is_some_and(|l| l.get(name) == Some(value)));
    let taints = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    // Taints that the control plane sets on an unhealthy node are not lasting.
    let lasting = taints.iter().filter(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !taint.key.starts_with("node.kubernetes.io/")
    });
    fits && lasting
        .into_iter()
        .all(|taint| tolerated(taint, &settings.tolerations))
}

fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
        let key = toleration.key.as_deref().filter(|key| !key.is_empty());
        effect.is_none_or(|effect| effect == taint.effect)
            && match toleration.operator.as_deref() {
                Some("Exists") => key.is_none_or(|key| key == taint.key),
                _ => {
                    key == Some(taint.key.as_str())
                        && toleration.value.as_deref().unwrap_or_default()
                            == taint.value.as_deref().unwrap_or_default()
                }
            }
    })
}

/// Whether a Pod could start there now, if there is room.
fn usable(node: &Node) -> bool {
    let cordoned = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false);
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    !cordoned
        && conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The facts in the label of a GPU.
#[derive(Debug, Default, PartialEq)]
struct Product {
    name: String,
    memory_gb: Option<f64>,
}

impl Product {
    /// `NVIDIA-A100-SXM4-80GB` is an `A100` of 80 GB.
    fn read(label: &str) -> Self {
        let mut words: Vec<&str> = Vec::new();
        let mut memory_gb = None;
        let tokens: Vec<&str> = label
            .split(['-', '_', ' '])
            .filter(|token| !token.is_empty())
            .collect();
        for token in tokens {
            let upper = token.to_uppercase();
            if upper == "MIG" {
                // A slice of a GPU is another model: keep the rest of the name.
                words.push(token);
            } else if let Some(size) = upper.strip_suffix("GB").and_then(|n| n.parse::<f64>().ok()) {
                memory_gb = memory_gb.or(Some(size));
            } else if ![
                "NVIDIA",
                "TESLA",
                "GEFORCE",
                "QUADRO",
                "GENERATION",
                "SHARED",
                "NVL",
                "PCIE",
                "GRAPHICS",
            ]
            .contains(&upper.as_str())
                && !upper.starts_with("SXM")
                && !upper.starts_with("HBM")
            {
                words.push(token);
            }
        }
        let name: String = words.join("_").chars().take(64).collect();
        Self { name, memory_gb }
    }
}

#[cfg(test)]
#[path = "tests/offers.rs"]
mod tests;
