//! SSH keys, each once in an account; firewalls; tags, which an account keeps when nothing carries them.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{DigitalOcean, date, found, listed, missing};
use crate::core::cloud::{Refusal, Visit};
use crate::core::fingerprint;
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::rest::{bad, body, has};

/// The kind of an SSH key.
pub(super) const KEY: &str = "ssh_key";
/// The kind of a firewall.
pub(super) const FIREWALL: &str = "firewall";
/// How long a firewall waits until it is set.
const WAITS: SignedDuration = SignedDuration::from_secs(5);

/// A key to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    name: String,
    public_key: String,
}

/// A firewall to be made. The description judges its rules.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Firewall {
    name: String,
    inbound_rules: Option<Vec<Value>>,
    outbound_rules: Option<Vec<Value>>,
    droplet_ids: Option<Vec<u64>>,
    tags: Option<Vec<String>>,
}

/// A tag to be made.
#[derive(Debug, Deserialize)]
struct NewTag {
    name: String,
}

fn shown(visit: &Visit<'_>, thing: &Resource) -> Value {
    let mut value = thing.detail.clone();
    if thing.kind == FIREWALL {
        let waits = visit.now().duration_since(thing.created) < WAITS;
        value["id"] = thing.id.clone().into();
        value["status"] = if waits { "waiting" } else { "succeeded" }.into();
        value["created_at"] = date(thing.created).into();
        value["pending_changes"] = json!([]);
    }
    value
}

/// A key by its number or fingerprint, or a firewall by its id.
pub(super) fn own<'a>(visit: &'a Visit<'_>, kind: &'a str, named: &str) -> Option<&'a Resource> {
    let mut things = visit.resources(kind);
    things.find(|thing| thing.id == named || thing.detail["fingerprint"] == named)
}

pub(super) fn list(visit: &mut Visit<'_>, kind: &str) -> Result<Answer, Refusal> {
    let things = visit.resources(kind).map(|thing| shown(visit, thing));
    listed(visit, &format!("{kind}s"), things)
}

pub(super) fn get(visit: &mut Visit<'_>, kind: &str, named: &str) -> Result<Answer, Refusal> {
    found(kind, own(visit, kind, named).map(|thing| shown(visit, thing)))
}

pub(super) fn delete(visit: &mut Visit<'_>, kind: &str, named: &str) -> Result<Answer, Refusal> {
    let id = own(visit, kind, named).ok_or_else(missing)?.id.clone();
    visit.end(kind, &id);
    Ok(Answer::empty(204))
}

pub(super) fn create_key(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewKey { name, public_key } = body(visit.request)?;
    let Some(print) = fingerprint::md5(&public_key).filter(|_| !name.is_empty()) else {
        return bad("Key invalid, key should be of the format `ssh-<algorithm> <key> [<comment>]`");
    };
    if own(visit, KEY, &print).is_some() {
        return bad("SSH Key is already in use on your account");
    }
    let id = 10_000_000 + visit.world.chance.below(90_000_000);
    let detail = json!({ "id": id, "fingerprint": print, "public_key": public_key, "name": name });
    let key = visit.add(KEY, &id.to_string(), &name, detail);
    Ok(Answer::json(201, &json!({ KEY: key.detail })))
}

pub(super) fn create_firewall(api: &mut DigitalOcean, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let new: Firewall = body(visit.request)?;
    let mut rules = new.inbound_rules.iter().chain(&new.outbound_rules);
    if rules.all(Vec::is_empty) {
        return bad("must have at least one rule");
    }
    let mut tags = new.tags.iter().flatten();
    if let Some(unknown) = tags.find(|tag| !api.has_tag(&visit.account, tag)) {
        return bad(&format!("tag {unknown} does not exist"));
    }
    let id = visit.world.chance.uuid();
    let firewall = visit.add(FIREWALL, &id, &new.name, json!(new));
    Ok(Answer::json(202, &json!({ FIREWALL: shown(visit, &firewall) })))
}

impl DigitalOcean {
    /// A tag of an account in the case that it was made with.
    fn known_tag(&self, account: &str, tag: &str) -> Option<&String> {
        self.tags.get(&(account.to_owned(), tag.to_lowercase()))
    }

    /// Whether there is a tag of exactly this name.
    fn has_tag(&self, account: &str, tag: &str) -> bool {
        self.known_tag(account, tag).is_some_and(|known| known == tag)
    }

    /// Tags in the case that they were made with.
    pub(super) fn named_tags(&self, account: &str, tags: &[String]) -> Result<Vec<String>, Refusal> {
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-:".contains(letter);
        let is_valid = |tag: &String| (1..=255).contains(&tag.len()) && tag.chars().all(allowed);
        if !tags.iter().all(is_valid) {
            return bad("Tag name can only contain letters, numbers, colons, dashes and underscores.");
        }
        let named = |tag: &String| self.known_tag(account, tag).unwrap_or(tag).clone();
        Ok(tags.iter().map(named).collect())
    }

    /// Makes the tags that are not there.
    pub(super) fn keep_tags(&mut self, account: &str, tags: &[String]) {
        let key = |tag: &String| (account.to_owned(), tag.to_lowercase());
        self.tags.extend(tags.iter().map(|tag| (key(tag), tag.clone())));
    }
}

fn shown_tag(api: &DigitalOcean, visit: &Visit<'_>, tag: &str) -> Value {
    let machines = visit.world.machines_of(&visit.account);
    let tagged = machines.filter(|machine| machine.exists() && has(&machine.detail["tags"], tag));
    let count = tagged.filter(|_| !api.sees_no_droplets).count();
    json!({ "name": tag, "resources": { "count": count, "droplets": { "count": count } } })
}

pub(super) fn tags(api: &mut DigitalOcean, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let own = api
        .tags
        .iter()
        .filter(|((account, _), _)| *account == visit.account);
    listed(visit, "tags", own.map(|(_, tag)| shown_tag(api, visit, tag)))
}

pub(super) fn tag(api: &DigitalOcean, visit: &Visit<'_>, tag: &str) -> Option<Value> {
    api.has_tag(&visit.account, tag)
        .then(|| shown_tag(api, visit, tag))
}

pub(super) fn create_tag(api: &mut DigitalOcean, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let NewTag { name } = body(visit.request)?;
    let named = api.named_tags(&visit.account, &[name])?;
    api.keep_tags(&visit.account, &named);
    let tag = shown_tag(api, visit, &named.concat());
    Ok(Answer::json(201, &json!({ "tag": tag })))
}

/// A tag that goes leaves all that carried it.
pub(super) fn delete_tag(
    api: &mut DigitalOcean,
    visit: &mut Visit<'_>,
    tag: &str,
) -> Result<Answer, Refusal> {
    if !api.has_tag(&visit.account, tag) {
        return Err(missing());
    }
    api.tags.remove(&(visit.account.clone(), tag.to_lowercase()));
    let machines = visit.world.machines.values_mut();
    for machine in machines.filter(|machine| machine.account == visit.account) {
        if let Some(tags) = machine.detail["tags"].as_array_mut() {
            tags.retain(|own| own != tag);
        }
    }
    Ok(Answer::empty(204))
}
