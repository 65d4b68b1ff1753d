//! Tags of existing machines and resources.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{Pages, check_tag_count, filtered, page, read_tags, texts};
use super::instances::visible;
use super::{fleets, parts};

/// Something with tags, by where they are kept.
enum Bearer {
    Machine,
    /// What belongs to this machine.
    Part(String),
    Resource,
    Fleet,
}

/// The resource with this id. A client that has it from a launch need not wait until lists show it.
fn bearer(context: &Context<'_, '_>, id: &str) -> Result<Bearer, Failure> {
    let (world, account) = (&context.visit.world, &context.visit.account);
    let mut machines = world
        .machines_of(account)
        .filter(|machine| machine.exists() && machine.detail["region"] == context.region.as_str());
    let whole = machines.find_map(|machine| {
        if machine.id == id {
            return Some(Bearer::Machine);
        }
        let part = parts::of(machine).iter().any(|(part, _)| *part == id);
        part.then(|| Bearer::Part(machine.id.clone()))
    });
    let resource = || {
        let resource = world.resources.get(id)?;
        let own = resource.exists() && resource.account == *account && resource.region == context.region;
        own.then_some(Bearer::Resource)
    };
    let fleet = || fleets::tags_of(context, id).map(|_| Bearer::Fleet);
    whole.or_else(resource).or_else(fleet).ok_or_else(|| {
        let code = match id.split_once('-').map(|(kind, _)| kind) {
            Some("i") => "InvalidInstanceID.NotFound",
            Some("sg") => "InvalidGroup.NotFound",
            Some("key") => "InvalidKeyPair.NotFound",
            Some("lt") => "InvalidLaunchTemplateId.NotFound",
            Some("vol") => "InvalidVolume.NotFound",
            Some("eni") => "InvalidNetworkInterfaceID.NotFound",
            Some("sir") => "InvalidSpotInstanceRequestID.NotFound",
            Some("fleet") => "InvalidFleetId.NotFound",
            _ => "InvalidID",
        };
        Failure::client(code, format!("The ID '{id}' does not exist"))
    })
}

/// The tags with others added, which replace those of the same key.
fn together(
    mut old: BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Failure> {
    old.extend(new.clone());
    check_tag_count(&old)?;
    Ok(old)
}

/// `CreateTags`: of all that are named or, with one that is not known, of none.
pub fn create_tags(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let tags = read_tags(input)?;
    if tags.is_empty() {
        return Err(Failure::missing("Tag"));
    }
    let mut bearers = Vec::new();
    for id in texts(input, "Resources") {
        bearers.push((bearer(context, &id)?, id));
    }
    for (bearer, id) in bearers {
        let world = &mut *context.visit.world;
        match bearer {
            Bearer::Machine => {
                if let Some(machine) = world.machines.get_mut(&id) {
                    machine.mark.tags = together(machine.mark.tags.clone(), &tags)?;
                    machine.mark.name = machine.mark.tags.get("Name").cloned().unwrap_or_default();
                }
            }
            Bearer::Part(owner) => {
                if let Some(machine) = world.machines.get_mut(&owner) {
                    let all = together(parts::tags_of(machine, &id), &tags)?;
                    parts::set_tags(machine, &id, &all);
                }
            }
            Bearer::Resource => {
                if let Some(resource) = world.resources.get_mut(&id) {
                    resource.tags = together(resource.tags.clone(), &tags)?;
                }
            }
            Bearer::Fleet => {
                let old = fleets::tags_of(context, &id).unwrap_or_default();
                let all = together(old, &tags)?;
                if let Some(fleet) = context.state.fleets.get_mut(&id) {
                    fleet["tags"] = json!(all);
                }
            }
        }
        context.visit.subject = Some(id);
    }
    Ok(json!({}))
}

/// A tag of something of a kind.
struct Tag {
    id: String,
    kind: &'static str,
    key: String,
    value: String,
}

fn all(context: &Context<'_, '_>) -> Vec<Tag> {
    let mut all = Vec::new();
    let mut add = |id: &str, kind, tags: &BTreeMap<String, String>| {
        all.extend(tags.iter().map(|(key, value)| Tag {
            id: id.to_owned(),
            kind,
            key: key.clone(),
            value: value.clone(),
        }));
    };
    for (machine, _) in visible(context) {
        add(&machine.id, "instance", &machine.mark.tags);
        for (part, kind) in parts::of(machine) {
            // Volumes and interfaces go with their machine, or are counted below.
            if machine.exists() || kind == "spot-instances-request" {
                add(part, kind, &parts::tags_of(machine, part));
            }
        }
    }
    for kind in ["security-group", "key-pair", "launch-template", "volume"] {
        for resource in context.visit.world.resources_of(&context.visit.account, kind) {
            if resource.region == context.region {
                add(&resource.id, kind, &resource.tags);
            }
        }
    }
    for id in fleets::ids(context) {
        add(&id, "fleet", &fleets::tags_of(context, &id).unwrap_or_default());
    }
    all
}

/// `DescribeTags`.
pub fn describe_tags(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let known = ["key", "resource-id", "resource-type", "value"];
    let found = filtered(
        input,
        &known,
        true,
        all(context),
        |tag: &Tag, filter| match filter {
            "key" | "tag-key" => vec![tag.key.clone()],
            "resource-id" => vec![tag.id.clone()],
            "resource-type" => vec![tag.kind.to_owned()],
            "value" => vec![tag.value.clone()],
            other => (other.strip_prefix("tag:") == Some(tag.key.as_str()))
                .then(|| tag.value.clone())
                .into_iter()
                .collect(),
        },
    )?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )?;
    let tags: Vec<Value> = found
        .into_iter()
        .map(
            |tag| json!({"ResourceId": tag.id, "ResourceType": tag.kind, "Key": tag.key, "Value": tag.value}),
        )
        .collect();
    Ok(json!({"Tags": tags, "NextToken": next}))
}
