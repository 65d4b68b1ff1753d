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

const CALLS: [Entry; 24] = [
    entry(Method::POST, "api/v0/bundles", "offers.search", Read, Corrected),
    entry(
        Method::PUT,
        "api/v0/asks/{}",
        "instances.create",
        Create,
        Corrected,
    ),
    entry(Method::GET, "api/v0/instances", "instances.list-all", Read, Used),
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
    entry(Method::GET, "api/v0/users/current", "account.get", Read, Official),
    entry(Method::GET, "_logs/{}", "logs.download", Read, Used),
];

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
