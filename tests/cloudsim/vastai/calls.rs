//! The calls, and which description has them.

use http::Method;

use crate::core::cloud::{Call, Effect};
use crate::core::http::Request;

/// Where a call is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Described {
    /// In the corrected part of the official description.
    Corrected,
    /// In the official one only.
    Official,
    /// In no file; the service's own client uses it.
    Used,
}

type Entry = (Method, &'static str, Call, Described);

const fn entry(
    method: Method,
    path: &'static str,
    name: &'static str,
    effect: Effect,
    described: Described,
) -> Entry {
    (method, path, Call::new(name, effect), described)
}

use Described::{Corrected, Official, Used};
use Effect::{Change, Create, Delete, Read};

const CALLS: [Entry; 57] = [
    entry(Method::POST, "api/v0/bundles", "offers.search", Read, Corrected),
    entry(Method::PUT, "api/v0/search/asks", "offers.search-new", Read, Used),
    entry(
        Method::PUT,
        "api/v0/asks/{}",
        "instances.create",
        Create,
        Corrected,
    ),
    entry(
        Method::POST,
        "api/v0/asks/bulk",
        "instances.create-many",
        Create,
        Used,
    ),
    entry(
        Method::PUT,
        "api/v0/launch_instance",
        "instances.launch",
        Create,
        Used,
    ),
    entry(Method::GET, "api/v0/instances", "instances.list-all", Read, Used),
    entry(
        Method::PUT,
        "api/v0/instances",
        "instances.change-many",
        Change,
        Used,
    ),
    entry(
        Method::DELETE,
        "api/v0/instances",
        "instances.delete-many",
        Delete,
        Used,
    ),
    entry(
        Method::GET,
        "api/v0/instances/filters",
        "instances.filters",
        Read,
        Used,
    ),
    entry(Method::GET, "api/v1/instances", "instances.list", Read, Corrected),
    entry(
        Method::PUT,
        "api/v0/instances/bid_price/{}",
        "instances.bid",
        Change,
        Corrected,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/request_logs/{}",
        "instances.logs",
        Read,
        Official,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/command/{}",
        "instances.execute",
        Change,
        Official,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/reboot/{}",
        "instances.reboot",
        Change,
        Official,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/recycle/{}",
        "instances.recycle",
        Change,
        Official,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/prepay/{}",
        "deposits.add",
        Change,
        Official,
    ),
    entry(
        Method::GET,
        "api/v0/instances/balance/{}",
        "deposits.get",
        Read,
        Official,
    ),
    entry(
        Method::GET,
        "api/v0/instances/{}",
        "instances.get",
        Read,
        Corrected,
    ),
    entry(
        Method::PUT,
        "api/v0/instances/{}",
        "instances.change",
        Change,
        Corrected,
    ),
    entry(
        Method::DELETE,
        "api/v0/instances/{}",
        "instances.delete",
        Delete,
        Corrected,
    ),
    entry(
        Method::GET,
        "api/v0/instances/{}/ssh",
        "instances.keys",
        Read,
        Corrected,
    ),
    entry(
        Method::POST,
        "api/v0/instances/{}/ssh",
        "instances.attach-key",
        Change,
        Corrected,
    ),
    entry(
        Method::DELETE,
        "api/v0/instances/{}/ssh/{}",
        "instances.detach-key",
        Change,
        Corrected,
    ),
    entry(
        Method::PUT,
        "api/v0/commands/copy_direct",
        "copies.start",
        Change,
        Official,
    ),
    entry(
        Method::DELETE,
        "api/v0/commands/copy_direct",
        "copies.cancel",
        Change,
        Official,
    ),
    entry(Method::PUT, "api/v0/commands/rsync", "copies.local", Change, Used),
    entry(
        Method::POST,
        "api/v0/commands/rclone",
        "syncs.start",
        Change,
        Official,
    ),
    entry(
        Method::DELETE,
        "api/v0/commands/rclone",
        "syncs.cancel",
        Change,
        Official,
    ),
    entry(Method::GET, "api/v0/ssh", "keys.list", Read, Corrected),
    entry(Method::POST, "api/v0/ssh", "keys.create", Change, Corrected),
    entry(Method::PUT, "api/v0/ssh/{}", "keys.change", Change, Corrected),
    entry(Method::DELETE, "api/v0/ssh/{}", "keys.delete", Change, Corrected),
    entry(Method::GET, "api/v0/overlay", "overlays.list", Read, Corrected),
    entry(
        Method::POST,
        "api/v0/overlay",
        "overlays.create",
        Change,
        Corrected,
    ),
    entry(Method::PUT, "api/v0/overlay", "overlays.join", Change, Corrected),
    entry(
        Method::DELETE,
        "api/v0/overlay",
        "overlays.delete",
        Delete,
        Corrected,
    ),
    entry(
        Method::POST,
        "api/v0/volumes/search",
        "volumes.search",
        Read,
        Official,
    ),
    entry(Method::GET, "api/v0/volumes", "volumes.list", Read, Official),
    entry(Method::PUT, "api/v0/volumes", "volumes.rent", Change, Official),
    entry(
        Method::DELETE,
        "api/v0/volumes",
        "volumes.delete",
        Change,
        Official,
    ),
    entry(Method::POST, "api/v0/volumes/copy", "volumes.copy", Change, Used),
    entry(Method::GET, "api/v0/template", "templates.search", Read, Official),
    entry(
        Method::POST,
        "api/v0/template",
        "templates.create",
        Change,
        Official,
    ),
    entry(Method::PUT, "api/v0/template", "templates.edit", Change, Official),
    entry(Method::PUT, "api/v1/template", "templates.replace", Change, Used),
    entry(
        Method::DELETE,
        "api/v0/template",
        "templates.delete",
        Change,
        Official,
    ),
    entry(Method::GET, "api/v0/secrets", "secrets.list", Read, Official),
    entry(Method::POST, "api/v0/secrets", "secrets.create", Change, Official),
    entry(Method::PUT, "api/v0/secrets", "secrets.change", Change, Official),
    entry(
        Method::DELETE,
        "api/v0/secrets",
        "secrets.delete",
        Change,
        Official,
    ),
    entry(Method::GET, "api/v0/charges", "charges.list", Read, Official),
    entry(Method::GET, "api/v1/invoices", "invoices.list", Read, Official),
    entry(
        Method::GET,
        "api/v0/users/me/invoices",
        "invoices.history",
        Read,
        Used,
    ),
    entry(Method::GET, "api/v0/users/current", "account.get", Read, Official),
    entry(
        Method::GET,
        "api/v0/users/cloud_integrations",
        "connections.list",
        Read,
        Official,
    ),
    entry(
        Method::GET,
        "api/v0/users/{}/ipaddrs",
        "addresses.list",
        Read,
        Official,
    ),
    entry(Method::GET, "_logs/{}", "logs.download", Read, Used),
];

/// Prefixes of paths that the service has, and that renters of instances do not need.
const OUTSIDE: [(&str, &str); 32] = [
    ("auth", "keys of the account"),
    ("audit_logs", "logs of the account"),
    ("autojobs", "serverless endpoints"),
    ("benchmarks", "benchmarks"),
    ("cluster", "clusters of hosts"),
    ("clusters", "clusters of hosts"),
    ("commands/reset_apikey", "keys of the account"),
    ("commands/schedule_job", "scheduled calls"),
    ("commands/transfer_credit", "transfers of credit"),
    ("contracts", "lists of contracts by label"),
    ("deployment", "serverless deployments"),
    ("deployments", "serverless deployments"),
    ("endptjobs", "serverless endpoints"),
    ("instance_backups", "backups of instances"),
    ("instances/take_snapshot", "snapshots of instances"),
    ("instances/update_template", "instances that change their image"),
    ("invoices", "the search of invoices"),
    ("machines", "the hosts' own calls"),
    ("metrics", "metrics of the market"),
    ("network_disk", "disks of a network"),
    ("network_volumes", "volumes of a network"),
    ("notification-types", "notifications"),
    ("subaccounts", "accounts of others"),
    ("team", "teams"),
    ("tfa", "second factors"),
    ("users", "settings and earnings of users"),
    ("volumes", "the hosts' own calls about volumes"),
    ("webhooks", "notifications"),
    ("workergroups", "serverless endpoints"),
    ("get_endpoint", "serverless endpoints"),
    ("get_workergroup", "serverless endpoints"),
    ("route", "serverless endpoints"),
];

/// The part of the service that a request is about, where it is not simulated at all.
pub fn outside(request: &Request) -> Option<&'static str> {
    let path = request.path.trim_matches('/');
    let path = ["api/v0/", "api/v1/"]
        .iter()
        .find_map(|version| path.strip_prefix(version))
        .unwrap_or(path);
    OUTSIDE
        .iter()
        .find(|(known, _)| {
            path.strip_prefix(known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '_']))
        })
        .map(|(_, what)| *what)
}

/// The call that a request is, where it is described, and the holes of its path.
pub fn of(request: &Request) -> Option<(Call, Described, Vec<String>)> {
    let segments = request.segments();
    CALLS.iter().find_map(|(method, path, call, described)| {
        let parts: Vec<&str> = path.split('/').collect();
        let fits = *method == request.method
            && parts.len() == segments.len()
            && parts
                .iter()
                .zip(&segments)
                .all(|(part, segment)| *part == "{}" || part == segment);
        if !fits {
            return None;
        }
        let holes = parts
            .iter()
            .zip(&segments)
            .filter(|(part, _)| **part == "{}")
            .map(|(_, segment)| segment.clone());
        Some((call.clone(), *described, holes.collect()))
    })
}
