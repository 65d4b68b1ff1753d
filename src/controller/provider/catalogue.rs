//! What an account offers becomes Offer objects; only what differs is written. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, api::ObjectMeta};
use rust_decimal::Decimal;
use sha2::{Digest, Sha256};
use skyward_api::{
    Offer, OfferSpec, Provider,
    condition::cut,
    labels,
    offer::{Architecture, Availability, OfferedAccelerator},
};
use skyward_core::offer;

/// Most Offers of one Provider: marketplaces have tens of thousands, and the cheapest
/// hundreds are what somebody would choose.
const MOST: usize = 500;
/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// The Offers that a Provider should have.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub objects: Vec<Offer>,
    /// How many these are.
    pub wanted: u32,
    /// How many more the account offers.
    pub left_out: usize,
}

/// Offers of one complete listing.
pub(super) fn catalogue(provider: &Provider, offers: &[offer::Offer], existing: &[Arc<Offer>]) -> Catalogue {
    let mut sorted: Vec<&offer::Offer> = offers.iter().collect();
    sorted.sort_by(|a, b| (price(a), &a.id).cmp(&(price(b), &b.id)));
    sorted.dedup_by(|a, b| a.id == b.id);
    let left_out = sorted.len().saturating_sub(MOST);
    sorted.truncate(MOST);
    let others = existing
        .iter()
        .filter(|other| other.spec.provider != provider.name_any())
        .filter_map(|other| other.metadata.name.as_deref())
        .collect();
    let objects: Vec<Offer> = sorted
        .iter()
        .map(|offer| object(provider, offer, &others))
        .collect();
    Catalogue {
        wanted: objects.len() as u32,
        objects,
        left_out,
    }
}

fn price(offer: &offer::Offer) -> Decimal {
    [offer.on_demand, offer.spot]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(Decimal::MAX)
}

/// `others`: names of the Offers of other Providers.
fn object(provider: &Provider, offer: &offer::Offer, others: &HashSet<&str>) -> Offer {
    let owner = provider.name_any();
    let plain = format!("{owner}-{}", offer.id);
    // `a-b` with `c` and `a` with `b-c` would meet in one name.
    let name = if others.contains(plain.as_str()) || plain.len() > LONGEST_NAME {
        distinct(&plain, &format!("{owner}/{}", offer.id))
    } else {
        plain
    };
    let mut object = Offer::new(&name, spec(&owner, offer));
    object.metadata = ObjectMeta {
        name: Some(name),
        labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
        owner_references: Some(vec![owner_of(provider)]),
        ..ObjectMeta::default()
    };
    object
}

/// The name, cut, with a digest of what it stands for.
fn distinct(name: &str, what: &str) -> String {
    let digest = Sha256::digest(what.as_bytes());
    let short = digest
        .iter()
        .take(5)
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let start = name.get(..name.len().min(LONGEST_NAME - 11)).unwrap_or_default();
    format!(
        "{}-{short}",
        start.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
    )
}

/// The Provider owns its Offers: they go with it.
fn owner_of(provider: &Provider) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/{}", skyward_api::GROUP, skyward_api::VERSION),
        kind: "Provider".to_owned(),
        name: provider.name_any(),
        uid: provider.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn spec(provider: &str, offer: &offer::Offer) -> OfferSpec {
    let offer::Offer {
        id,
        instance_type,
        region,
        accelerators,
        vcpus,
        memory_gb,
        disk_gb,
        architecture,
        on_demand,
        spot,
        availability,
        connected,
    } = offer;
    OfferSpec {
        provider: provider.to_owned(),
        id: cut(id, 64),
        instance_type: cut(instance_type, 256),
        region: cut(region, 128),
        accelerator: accelerators.as_ref().map(|accelerators| OfferedAccelerator {
            name: cut(&accelerators.name, 64),
            count: accelerators.count,
            memory_gb: accelerators.memory_gb,
            form_factor: accelerators.form_factor.map(super::offers::form_factor),
        }),
        vcpus: *vcpus,
        memory_gb: *memory_gb,
        disk_gb: *disk_gb,
        architecture: match architecture {
            offer::Architecture::X86_64 => Architecture::X86_64,
            offer::Architecture::Arm64 => Architecture::Arm64,
        },
        on_demand_price: on_demand.map(|price| price.normalize().to_string()),
        spot_price: spot.map(|price| price.normalize().to_string()),
        availability: match availability {
            offer::Availability::Yes => Availability::Yes,
            offer::Availability::No => Availability::No,
            offer::Availability::Unknown => Availability::Unknown,
        },
        connected: *connected,
    }
}

/// Offers to write, and names of Offers to delete.
pub(super) fn difference(
    provider: &Provider,
    catalogue: Catalogue,
    existing: &[Arc<Offer>],
) -> (Vec<Offer>, Vec<String>) {
    let name = provider.name_any();
    let wanted: BTreeSet<String> = catalogue.objects.iter().map(ResourceExt::name_any).collect();
    let delete = existing
        .iter()
        .filter(|offer| offer.spec.provider == name && !wanted.contains(&offer.name_any()))
        .map(|offer| offer.name_any())
        .collect::<BTreeSet<String>>();
    let by_name: HashMap<&str, &Arc<Offer>> = existing
        .iter()
        .filter_map(|there| Some((there.metadata.name.as_deref()?, there)))
        .collect();
    let same = |object: &Offer| {
        let there = object.metadata.name.as_deref().and_then(|name| by_name.get(name));
        there.is_some_and(|there| {
            there.spec == object.spec && there.metadata.owner_references == object.metadata.owner_references
        })
    };
    let apply = catalogue
        .objects
        .into_iter()
        .filter(|object| !same(object))
        .collect();
    (apply, delete.into_iter().collect())
}
