//! What a Pool asks of a machine: its defaults, with each candidate's overrides.

use serde_json::Value;
use skyward_api::{
    Amount,
    offer::Architecture,
    pool::{Allocation, Image, PoolSpec},
    shared::{Accelerator, Cpu, Size},
};
use skyward_core::{Usd, accelerator};

use crate::{accelerators::filled, base::digest::short_digest};

/// One candidate of a Pool with all defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedCandidate {
    /// Which candidate of the Pool, from 0.
    pub position: usize,
    /// Name of the Provider.
    pub provider: String,
    /// Exactly this type of machine.
    pub instance_type: Option<String>,
    /// Its accelerator.
    pub accelerator: Option<Accelerator>,
    /// Canonical name of the accelerator; `""` without one.
    pub accelerator_name: String,
    /// Least memory of each accelerator in GB, as [`Size::card_gb`] reads it.
    pub accelerator_memory_gb: Option<f64>,
    /// Least CPUs.
    pub cpu: Option<Cpu>,
    /// Least memory in bytes.
    pub memory: Option<u64>,
    /// Least disk in bytes.
    pub disk: Option<u64>,
    /// Architecture of the CPU; `None`: see [`ResolvedCandidate::architecture`].
    pub architecture: Option<Architecture>,
    /// Whether its machines stand on nodes of the cluster, whose architecture they have.
    pub own_nodes: bool,
    /// Whether Offers of its Provider without a price are ordered for `max_hourly_cost`.
    pub unpriced: bool,
    /// Only this region, or zones of it.
    pub region: Option<String>,
    /// On which markets.
    pub allocation: Allocation,
    /// Most that one machine may cost in USD per hour.
    pub max_hourly_cost: Option<Usd>,
    /// Settings of the Provider that it overrides.
    pub settings: Value,
    /// Digest of what it asks of a machine.
    pub template: String,
    /// The same digest as releases made it whose machines do not change their environment in place: with
    /// the image.
    pub legacy_template: String,
}

impl ResolvedCandidate {
    /// The architecture that a machine must have. An instance type, an accelerator and the nodes of
    /// a cluster have an architecture of their own; without these it is amd64, for which most
    /// machines and images are made.
    pub fn architecture(&self) -> Option<Architecture> {
        let is_given = self.instance_type.is_some() || self.accelerator.is_some() || self.own_nodes;
        self.architecture.or((!is_given).then_some(Architecture::Amd64))
    }
}

/// The candidates of a Pool in their order; a Pool without any is its only candidate.
pub fn candidates(pool: &PoolSpec) -> Vec<ResolvedCandidate> {
    let mut candidates = merged(pool);
    for candidate in &mut candidates {
        candidate.accelerator_memory_gb = candidate.accelerator.as_ref().and_then(Accelerator::memory_gb);
        candidate.template = template_hash(pool, candidate);
        candidate.legacy_template = legacy_template_hash(pool, candidate);
    }
    candidates
}

/// Digest of what one candidate of a Pool asks of its machines; [`ResolvedCandidate::template`] is it.
/// A machine with another digest is replaced when it is idle. Numbers of machines, waits, prices and
/// limits are not part of it, nor is the image, which changes in place.
pub fn template_hash(spec: &PoolSpec, candidate: &ResolvedCandidate) -> String {
    digest(spec, candidate, None)
}

/// [`ResolvedCandidate::legacy_template`].
fn legacy_template_hash(spec: &PoolSpec, candidate: &ResolvedCandidate) -> String {
    digest(spec, candidate, spec.image.as_ref())
}

/// The order of the fields is part of the digest, also that of the image among them: records of older releases
/// have that digest.
fn digest(spec: &PoolSpec, candidate: &ResolvedCandidate, image: Option<&Image>) -> String {
    let template = serde_json::json!({
        "provider": candidate.provider,
        "instanceType": candidate.instance_type,
        "region": candidate.region,
        "settings": candidate.settings,
        "accelerator": candidate.accelerator,
        "cpu": candidate.cpu,
        "memory": candidate.memory,
        "disk": candidate.disk,
        "architecture": candidate.architecture,
        "topology": spec.topology.unwrap_or_default(),
        "image": image,
        "shmSize": spec.shm_size,
        "user": spec.worker.as_ref().and_then(|worker| worker.user.as_ref()),
    });
    short_digest(template.to_string().as_bytes())
}

/// The digests of a Pool's candidates.
#[cfg(test)]
pub(crate) fn template_hashes(spec: &PoolSpec) -> Vec<String> {
    let candidates = candidates(spec).into_iter();
    candidates.map(|candidate| candidate.template).collect()
}

fn merged(pool: &PoolSpec) -> Vec<ResolvedCandidate> {
    let whole = ResolvedCandidate {
        position: 0,
        provider: pool.provider.clone().unwrap_or_default(),
        instance_type: pool.instance_type.clone(),
        accelerator_name: canonical(pool.accelerator.as_ref()),
        accelerator: pool.accelerator.as_ref().map(filled),
        accelerator_memory_gb: None,
        cpu: pool.cpu,
        memory: bytes(pool.memory.as_ref()),
        disk: bytes(pool.disk.as_ref()),
        architecture: pool.architecture,
        own_nodes: false,
        unpriced: false,
        region: pool.region.clone(),
        allocation: pool.allocation.unwrap_or_default(),
        max_hourly_cost: pool.max_hourly_cost.as_ref().and_then(Amount::usd),
        settings: Value::Null,
        template: String::new(),
        legacy_template: String::new(),
    };
    if pool.candidates.is_empty() {
        return vec![whole];
    }
    pool.candidates
        .iter()
        .enumerate()
        .map(|(position, own)| {
            let accelerator = own.accelerator.as_ref().map(filled).or(whole.accelerator.clone());
            ResolvedCandidate {
                position,
                provider: own.provider.clone().unwrap_or_else(|| whole.provider.clone()),
                instance_type: own.instance_type.clone().or_else(|| whole.instance_type.clone()),
                accelerator_name: canonical(accelerator.as_ref()),
                accelerator,
                accelerator_memory_gb: None,
                cpu: own.cpu.or(whole.cpu),
                memory: bytes(own.memory.as_ref()).or(whole.memory),
                disk: bytes(own.disk.as_ref()).or(whole.disk),
                architecture: own.architecture.or(whole.architecture),
                own_nodes: false,
                unpriced: false,
                region: own.region.clone().or_else(|| whole.region.clone()),
                allocation: own.allocation.unwrap_or(whole.allocation),
                max_hourly_cost: (own.max_hourly_cost.as_ref())
                    .and_then(Amount::usd)
                    .or(whole.max_hourly_cost),
                settings: own.settings.clone().map_or(Value::Null, Value::Object),
                template: String::new(),
                legacy_template: String::new(),
            }
        })
        .collect()
}

fn canonical(accelerator: Option<&Accelerator>) -> String {
    accelerator
        .map(|wanted| accelerator::canonical(&wanted.name))
        .unwrap_or_default()
}

/// A field of an accelerator that says something else than its name, in words.
pub fn contradiction(wanted: &Accelerator) -> Option<String> {
    let said = filled(&Accelerator {
        name: wanted.name.clone(),
        ..Accelerator::default()
    });
    let wanted = &Accelerator {
        memory: wanted.memory_gb().map(Size::of_card_gb),
        ..wanted.clone()
    };
    fn differ<T: PartialEq>(
        field: &'static str,
        said: Option<T>,
        written: Option<T>,
        text: impl Fn(T) -> String,
    ) -> Option<(&'static str, String, String)> {
        match (said, written) {
            (Some(said), Some(written)) if said != written => Some((field, text(said), text(written))),
            _ => None,
        }
    }
    let (field, said, written) = differ("count", said.count, wanted.count, |count| count.to_string())
        .or_else(|| {
            differ("memory", said.memory.as_ref(), wanted.memory.as_ref(), |size| {
                size.to_string()
            })
        })
        .or_else(|| {
            differ("formFactor", said.form_factor, wanted.form_factor, |built| {
                built.as_str().to_owned()
            })
        })?;
    Some(format!(
        "accelerator.name \"{}\" says {field} {said}, and accelerator.{field} is {written}. Leave one of them out.",
        wanted.name
    ))
}

/// A number in the name of a [`filled`] accelerator that its field would not take, in words: the
/// record of a machine has the same bounds.
pub fn out_of_bounds(wanted: &Accelerator) -> Option<String> {
    let name = &wanted.name;
    let count = wanted
        .count
        .filter(|count| !(0.125..=16.0).contains(&count.number()));
    let memory = wanted
        .memory_gb()
        .filter(|size| !(0.0625..=1024.0).contains(size));
    let (field, said, bounds) = match (count, memory) {
        (Some(count), _) => ("count", count.to_string(), "from 0.125 to 16"),
        (None, Some(size)) => ("memory", Size::of_card_gb(size).to_string(), "from 64Mi to 1Ti"),
        (None, None) => return None,
    };
    Some(format!(
        "accelerator.name \"{name}\" says {field} {said}; it must be {bounds}. Correct the name, or set accelerator.{field} and leave it out there."
    ))
}

fn bytes(size: Option<&Size>) -> Option<u64> {
    size.and_then(Size::bytes)
}
