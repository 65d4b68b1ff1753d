//! The instance metadata service, version 2, of each machine.
//!
//! On a real machine it answers at 169.254.169.254. Here it answers at the address
//! of this cloud under `/_imds/MACHINE/`, so that tests can ask it as the machine
//! would. A machine that is a Pod gets there in one of two ways: by
//! `AWS_EC2_METADATA_SERVICE_ENDPOINT`, the override that Amazon's own SDKs know,
//! or by `imds-proxy.py` of this folder, which listens at the real address inside
//! the Pod. A proxy or a container network between counts as a hop: it says so with
//! `X-Sim-Hops`, and an answer that would travel further than the hop limit is 504,
//! which the proxy turns into the silence of a lost packet.

use std::collections::BTreeMap;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::described::hostname;
use super::input::{flag, int, text};
use crate::core::http::{Answer, Request};
use crate::core::machine::{Machine, Phase};
use crate::core::market::Market;
use crate::core::world::World;

/// Where the metadata of all machines is.
pub const PREFIX: &str = "/_imds/";
/// The longest life of a token.
const LONGEST: i64 = 21_600;

/// Tokens with the machine they belong to and their end.
#[derive(Debug, Default)]
pub struct Sessions(BTreeMap<String, (String, Timestamp)>);

/// Answers as the metadata service of a machine.
pub fn answer(sessions: &mut Sessions, world: &mut World, request: &Request) -> Answer {
    let rest = request.path.strip_prefix(PREFIX).unwrap_or_default();
    let (id, path) = rest.split_once('/').unwrap_or((rest, ""));
    let now = world.now();
    let plain = |status: u16, body: &str| Answer::new(status, "text/plain", body.to_owned());
    let Some(machine) = world.machines.get(id).filter(|machine| machine.exists()).cloned() else {
        return plain(404, "no such machine");
    };
    if machine.detail["metadata"] == "disabled" {
        return plain(403, "");
    }
    let hops = request
        .header("x-sim-hops")
        .and_then(|hops| hops.parse::<i64>().ok())
        .unwrap_or(1);
    if path == "latest/api/token" {
        if request.method != Method::PUT {
            return plain(405, "");
        }
        // Proxies are kept from getting tokens.
        if request.header("x-forwarded-for").is_some() {
            return plain(403, "");
        }
        if hops > int(&machine.detail, "hopLimit").unwrap_or(1) {
            return plain(504, "the answer's hop limit is used up");
        }
        let lifetime = request
            .header("x-aws-ec2-metadata-token-ttl-seconds")
            .and_then(|seconds| seconds.parse::<i64>().ok())
            .filter(|seconds| (1..=LONGEST).contains(seconds));
        let Some(lifetime) = lifetime else {
            return plain(400, "");
        };
        let token = world.chance.text(
            56,
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        );
        sessions.0.insert(
            token.clone(),
            (id.to_owned(), now + SignedDuration::from_secs(lifetime)),
        );
        return plain(200, &token).with("x-aws-ec2-metadata-token-ttl-seconds", lifetime.to_string());
    }
    if request.method != Method::GET {
        return plain(405, "");
    }
    match request.header("x-aws-ec2-metadata-token") {
        Some(token) => {
            let valid = sessions
                .0
                .get(token)
                .is_some_and(|(owner, until)| owner == id && *until > now);
            if !valid {
                return plain(401, "");
            }
        }
        None if machine.detail["tokens"] == "required" => return plain(401, ""),
        None => {}
    }
    match value(&machine, path.trim_end_matches('/')) {
        Some(body) => plain(200, &body),
        None => plain(
            404,
            "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?><html><head><title>404 - Not Found</title></head></html>",
        ),
    }
}

fn value(machine: &Machine, path: &str) -> Option<String> {
    let detail = &machine.detail;
    let address = machine.endpoint.as_ref().map(|endpoint| endpoint.address.clone());
    let action = text(detail, "interruption").unwrap_or("terminate");
    let at = machine
        .reclaim_at
        .filter(|_| machine.noticed.is_some() && machine.phase == Phase::Running);
    let zulu = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let tags = || flag(detail, "tagsInMetadata").then_some(&machine.mark.tags);
    let found = match path {
        "latest/user-data" => return text(detail, "userData").filter(|data| !data.is_empty()).map(str::to_owned),
        "latest/dynamic/instance-identity/document" => json!({
            "accountId": machine.account,
            "architecture": detail["architecture"],
            "availabilityZone": machine.region,
            "imageId": detail["image"],
            "instanceId": machine.id,
            "instanceType": machine.instance_type,
            "region": detail["region"],
            "version": "2017-09-30",
        })
        .to_string(),
        "latest/meta-data" => "ami-id\nhostname\ninstance-id\ninstance-life-cycle\ninstance-type\nlocal-ipv4\nplacement/\npublic-ipv4\npublic-keys/\nspot/".to_owned(),
        "latest/meta-data/instance-id" => machine.id.clone(),
        "latest/meta-data/instance-type" => machine.instance_type.clone(),
        "latest/meta-data/instance-life-cycle" => {
            if machine.market == Market::Spot { "spot" } else { "on-demand" }.to_owned()
        }
        "latest/meta-data/ami-id" => text(detail, "image")?.to_owned(),
        "latest/meta-data/hostname" | "latest/meta-data/local-hostname" => hostname(&machine.id),
        "latest/meta-data/local-ipv4" => return address,
        "latest/meta-data/public-ipv4" => return address.filter(|_| flag(detail, "public")),
        "latest/meta-data/placement/availability-zone" => machine.region.clone(),
        "latest/meta-data/placement/region" => text(detail, "region")?.to_owned(),
        "latest/meta-data/public-keys" => format!("0={}", text(detail, "key")?),
        "latest/meta-data/public-keys/0/openssh-key" => return machine.boot.authorized_keys.first().cloned(),
        "latest/meta-data/spot/instance-action" => json!({"action": action, "time": zulu(at?)}).to_string(),
        "latest/meta-data/spot/termination-time" => {
            return at.filter(|_| action == "terminate").map(zulu);
        }
        "latest/meta-data/events/recommendations/rebalance" => {
            let noticed = text(detail, "rebalance").map(str::to_owned).or(machine.noticed.map(zulu))?;
            json!({"noticeTime": noticed}).to_string()
        }
        "latest/meta-data/tags/instance" => tags()?.keys().cloned().collect::<Vec<_>>().join("\n"),
        other => {
            let key = other.strip_prefix("latest/meta-data/tags/instance/")?;
            return tags()?.get(key).cloned();
        }
    };
    Some(found)
}
