//! Key pairs: pairs whose public half a client brings, and pairs that the service makes.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::context::{Context, moment};
use super::failure::{Failure, Outcome};
use super::input::{filtered, flag, needed, tag_set, tag_values, tags_for, text, texts};
use super::pairs::{self, Pair};
use crate::core::resource::Resource;

/// The kind of key pairs among resources.
pub const KEY_PAIR: &str = "key-pair";

/// Most key pairs of a region.
const LIMIT: usize = 5_000;

fn keys(context: &Context<'_, '_>) -> Vec<Resource> {
    context
        .visit
        .world
        .resources_of(&context.visit.account, KEY_PAIR)
        .filter(|key| key.region == context.region)
        .cloned()
        .collect()
}

/// The public key of this name.
pub fn public_key(context: &Context<'_, '_>, name: &str) -> Result<String, Failure> {
    keys(context)
        .into_iter()
        .find(|key| key.name == name)
        .and_then(|key| key.detail["public"].as_str().map(str::to_owned))
        .ok_or_else(|| not_found(name))
}

fn not_found(name: &str) -> Failure {
    Failure::client(
        "InvalidKeyPair.NotFound",
        format!("The key pair '{name}' does not exist"),
    )
}

/// The name and the tags of a key pair that is about to be made.
fn named(context: &Context<'_, '_>, input: &Value) -> Result<(String, BTreeMap<String, String>), Failure> {
    let name = needed(input, "KeyName")?.to_owned();
    let tags = tags_for(input, KEY_PAIR, &[KEY_PAIR])?;
    if !tags.is_empty() {
        context.may("ec2:CreateTags")?;
    }
    if name.chars().count() > 255 || !name.is_ascii() || name.trim() != name {
        return Err(Failure::value(format!(
            "Value ({name}) for parameter KeyName is invalid"
        )));
    }
    Ok((name, tags))
}

/// Whether another key pair, with this name, is allowed.
fn room(context: &Context<'_, '_>, name: &str) -> Result<(), Failure> {
    let existing = keys(context);
    if existing.iter().any(|key| key.name == name) {
        return Err(Failure::client(
            "InvalidKeyPair.Duplicate",
            format!("The keypair already exists: {name}"),
        ));
    }
    if existing.len() >= LIMIT {
        return Err(Failure::client(
            "KeyPairLimitExceeded",
            "Maximum of 5000 keypairs reached.",
        ));
    }
    Ok(())
}

/// Remembers the public half; answers as both calls do.
fn add(
    context: &mut Context<'_, '_>,
    name: &str,
    tags: BTreeMap<String, String>,
    line: &str,
    kind: &str,
    fingerprint: &str,
) -> Value {
    let id = context.id("key");
    let mut key = context
        .visit
        .world
        .new_resource(&id, KEY_PAIR, &context.visit.account, name);
    key.region.clone_from(&context.region);
    key.tags = tags;
    key.detail = json!({"public": line, "type": kind, "fingerprint": fingerprint});
    let answer =
        json!({"KeyName": name, "KeyPairId": id, "KeyFingerprint": fingerprint, "Tags": tag_set(&key.tags)});
    context.visit.subject = Some(id);
    context.visit.world.add_resource(key, rust_decimal::Decimal::ZERO);
    answer
}

/// `ImportKeyPair`.
pub fn import(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let (name, tags) = named(context, input)?;
    let (line, kind, fingerprint) = read_material(needed(input, "PublicKeyMaterial")?)?;
    room(context, &name)?;
    Ok(add(context, &name, tags, &line, kind, &fingerprint))
}

/// `CreateKeyPair`: the only answer that has the private half.
pub fn create(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let (name, tags) = named(context, input)?;
    room(context, &name)?;
    let pair = match text(input, "KeyType") {
        Some("ed25519") => Pair::ed25519(&mut context.visit.world.chance),
        _ => Pair::rsa(),
    };
    let failed = || Failure::internal("no key pair could be made");
    let pair = pair.ok_or_else(failed)?;
    let material = match text(input, "KeyFormat") {
        Some("ppk") => pair.ppk(&name).ok_or_else(failed)?,
        _ => pair.pem(&name),
    };
    let line = pair.line(&name);
    let mut answer = add(context, &name, tags, &line, pair.kind(), &pair.fingerprint());
    answer["KeyMaterial"] = json!(material);
    Ok(answer)
}

/// The OpenSSH line of key material, its type and its fingerprint.
fn read_material(material: &str) -> Result<(String, &'static str, String), Failure> {
    let invalid = || {
        Failure::client(
            "InvalidKey.Format",
            "Key is not in valid OpenSSH public key format",
        )
    };
    let line = STANDARD
        .decode(material)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(|line| line.trim().to_owned())
        .ok_or_else(invalid)?;
    let mut words = line.split_whitespace();
    let (algorithm, body) = words.next().zip(words.next()).ok_or_else(invalid)?;
    let blob = STANDARD.decode(body).map_err(|_| invalid())?;
    // The blob begins with the length and the name of the algorithm.
    if blob.get(4..4 + algorithm.len()) != Some(algorithm.as_bytes()) {
        return Err(invalid());
    }
    let kind = match algorithm {
        "ssh-ed25519" => "ed25519",
        "ssh-rsa" => "rsa",
        _ => return Err(invalid()),
    };
    let fingerprint = pairs::imported(algorithm, &blob).ok_or_else(invalid)?;
    Ok((line, kind, fingerprint))
}

/// `DescribeKeyPairs`.
pub fn describe(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let all = keys(context);
    let (names, ids) = (texts(input, "KeyNames"), texts(input, "KeyPairIds"));
    if let Some(unknown) = names
        .iter()
        .find(|name| !all.iter().any(|key| key.name == **name))
    {
        return Err(not_found(unknown));
    }
    if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|key| key.id == **id)) {
        return Err(not_found(unknown));
    }
    let all = all
        .into_iter()
        .filter(|key| names.is_empty() || names.contains(&key.name))
        .filter(|key| ids.is_empty() || ids.contains(&key.id))
        .collect();
    let found = filtered(
        input,
        &["key-name", "key-pair-id", "fingerprint"],
        true,
        all,
        |key: &Resource, filter| match filter {
            "key-name" => vec![key.name.clone()],
            "key-pair-id" => vec![key.id.clone()],
            "fingerprint" => vec![key.detail["fingerprint"].as_str().unwrap_or_default().to_owned()],
            other => tag_values(&key.tags, other),
        },
    )?;
    let pairs: Vec<Value> = found
        .into_iter()
        .map(|key| {
            json!({
                "KeyPairId": key.id,
                "KeyName": key.name,
                "KeyFingerprint": key.detail["fingerprint"],
                "KeyType": key.detail["type"],
                "CreateTime": moment(key.created),
                "PublicKey": if flag(input, "IncludePublicKey") { key.detail["public"].clone() } else { Value::Null },
                "Tags": tag_set(&key.tags),
            })
        })
        .collect();
    Ok(json!({"KeyPairs": pairs}))
}

/// `DeleteKeyPair`. A name that nobody has is no error.
pub fn delete(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let found = match (text(input, "KeyPairId"), text(input, "KeyName")) {
        (Some(id), _) => Some(
            keys(context)
                .into_iter()
                .find(|key| key.id == id)
                .ok_or_else(|| {
                    Failure::client(
                        "InvalidKeyPair.NotFound",
                        format!("The key pair '{id}' does not exist"),
                    )
                })?,
        ),
        (None, Some(name)) => keys(context).into_iter().find(|key| key.name == name),
        (None, None) => return Err(Failure::missing("KeyName")),
    };
    if let Some(key) = &found {
        context.visit.world.end_resource(&key.id);
        context.visit.subject = Some(key.id.clone());
    }
    Ok(json!({"Return": true, "KeyPairId": found.map(|key| key.id)}))
}
