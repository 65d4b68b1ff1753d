//! Tags of what exists already.

use serde_json::{Value, json};

use super::context::Context;
use super::failure::{Failure, Outcome};
use super::input::{Pages, check_tag_count, filtered, page, read_tags, texts};
use super::instances::visible;

/// `CreateTags`.
pub fn create_tags(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let tags = read_tags(input)?;
    for id in texts(input, "Resources") {
        let account = context.visit.account.clone();
        let known = visible(context).iter().any(|(machine, _)| machine.id == id)
            || context
                .visit
                .world
                .resources
                .get(&id)
                .is_some_and(|resource| resource.exists() && resource.account == account);
        if !known {
            let code = match id.split_once('-').map(|(kind, _)| kind) {
                Some("i") => "InvalidInstanceID.NotFound",
                Some("sg") => "InvalidGroup.NotFound",
                Some("key") => "InvalidKeyPair.NotFound",
                Some("lt") => "InvalidLaunchTemplateId.NotFound",
                _ => "InvalidID",
            };
            return Err(Failure::client(code, format!("The ID '{id}' does not exist")));
        }
    }
    for id in texts(input, "Resources") {
        let world = &mut *context.visit.world;
        let own = match world.machines.get_mut(&id) {
            Some(machine) => Some(&mut machine.mark.tags),
            None => world.resources.get_mut(&id).map(|resource| &mut resource.tags),
        };
        if let Some(own) = own {
            own.extend(tags.clone());
            check_tag_count(own)?;
        }
        if let Some(machine) = world.machines.get_mut(&id) {
            machine.mark.name = machine.mark.tags.get("Name").cloned().unwrap_or_default();
        }
        context.visit.subject = Some(id);
    }
    Ok(json!({}))
}

/// `DescribeTags`.
pub fn describe_tags(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let mut all: Vec<(String, &'static str, String, String)> = Vec::new();
    for (machine, _) in visible(context) {
        for (key, value) in &machine.mark.tags {
            all.push((machine.id.clone(), "instance", key.clone(), value.clone()));
        }
    }
    for kind in ["security-group", "key-pair", "launch-template", "volume"] {
        for resource in context.visit.world.resources_of(&context.visit.account, kind) {
            for (key, value) in resource.tags.iter().filter(|_| resource.region == context.region) {
                all.push((resource.id.clone(), kind, key.clone(), value.clone()));
            }
        }
    }
    let known = ["key", "resource-id", "resource-type", "value"];
    let found = filtered(
        input,
        &known,
        true,
        all,
        |(id, kind, key, value), filter| match filter {
            "key" | "tag-key" => vec![key.clone()],
            "resource-id" => vec![id.clone()],
            "resource-type" => vec![(*kind).to_owned()],
            "value" => vec![value.clone()],
            other => (other.strip_prefix("tag:") == Some(key))
                .then(|| value.clone())
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
        .map(|(id, kind, key, value)| json!({"ResourceId": id, "ResourceType": kind, "Key": key, "Value": value}))
        .collect();
    Ok(json!({"Tags": tags, "NextToken": next}))
}
