//! The tables of all kinds of Providers in `docs/providers/README.md`, from what each can do.

use std::fmt::Write as _;

use anyhow::Result;
use skyward_api::{
    machine::Market,
    provider::{HostKeys, SelfStop},
};
use skyward_providers::registry::{self, Capabilities, Idempotency, ReclaimNotice};

use crate::output::{Output, between};

const PAGE: &str = "docs/providers/README.md";
const BEGIN: &str = "<!-- kinds -->";
const END: &str = "<!-- end of kinds -->";

/// Writes (or compares) the tables.
pub(crate) fn generate(output: &mut Output) -> Result<()> {
    let page = output.read(PAGE)?.unwrap_or_default();
    match between(&page, BEGIN, END) {
        Ok((before, after)) => output.file(PAGE, &format!("{before}\n\n{}\n{after}", tables())),
        Err(problem) => {
            output.problem(format!("{PAGE}: {problem}"));
            Ok(())
        }
    }
}

fn tables() -> String {
    let kinds = || registry::kinds().filter_map(registry::capabilities);
    let renting = table(
        &[
            "kind",
            "markets",
            "billed by",
            "at least",
            "a machine that stops itself",
        ],
        kinds().map(|of| [page(of), markets(of), billed(of), minimum(of), self_stop(of)]),
    );
    let machines = table(
        &[
            "kind",
            "reclaim told",
            "reach each other",
            "boot data",
            "host keys",
            "FUSE",
            "an order twice",
        ],
        kinds().map(|of| {
            [
                page(of),
                notice(of),
                yes(of.connected),
                yes(of.boot_script),
                host_keys(of),
                yes(of.fuse),
                idempotency(of),
            ]
        }),
    );
    format!("{renting}\n{machines}")
}

fn table<const COLUMNS: usize>(
    head: &[&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> String {
    let mut table = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(COLUMNS));
    for row in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} |", row.join(" | "));
    }
    table
}

fn page(of: &Capabilities) -> String {
    format!("[`{kind}`]({kind}.md)", kind = of.kind)
}

fn yes(it_is: bool) -> String {
    if it_is { "yes" } else { "–" }.to_owned()
}

fn markets(of: &Capabilities) -> String {
    let name = |market: &Market| match market {
        Market::OnDemand => "on demand",
        Market::Spot => "spot",
    };
    of.markets.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn lasting(seconds: u64) -> String {
    match seconds {
        0 => "–".to_owned(),
        1 => "second".to_owned(),
        60 => "minute".to_owned(),
        3600 => "hour".to_owned(),
        other => format!("{other} s"),
    }
}

fn billed(of: &Capabilities) -> String {
    if of.kind == skyward_providers::container::KIND {
        return "nobody".to_owned();
    }
    lasting(of.billing_step.as_secs())
}

fn minimum(of: &Capabilities) -> String {
    lasting(of.billing_minimum.as_secs())
}

fn self_stop(of: &Capabilities) -> String {
    match of.self_stop {
        SelfStop::EndsBilling => "is billed no more",
        SelfStop::Partial => "is billed in part",
        SelfStop::None => "is billed on",
    }
    .to_owned()
}

fn notice(of: &Capabilities) -> String {
    match of.reclaim_notice {
        _ if !of.markets.contains(&Market::Spot) => "–",
        ReclaimNotice::None => "when it is gone",
        ReclaimNotice::OnMachine(_) => "on the machine, before",
        ReclaimNotice::Reported => "by the API, before",
    }
    .to_owned()
}

fn host_keys(of: &Capabilities) -> String {
    match of.host_keys {
        HostKeys::Reported => "reported",
        HostKeys::Proved => "proved",
        HostKeys::FirstContact => "first contact",
    }
    .to_owned()
}

fn idempotency(of: &Capabilities) -> String {
    match of.idempotency {
        Idempotency::Token => "a token",
        Idempotency::LookUp => "a look before it",
    }
    .to_owned()
}
