//! The tables of all kinds of Providers in `docs/providers/README.md`, from what each can do.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;
use skyward_api::{
    machine::Market,
    provider::{HostKeys, SelfStop},
};
use skyward_providers::registry::{self, Capabilities, Halted, Idempotency, ReclaimNotice, Regions, Rule};

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
            "a halted machine costs",
        ],
        kinds().map(|of| {
            [
                page(of),
                markets(of),
                billed(of),
                minimum(of),
                self_stop(of),
                halted(of),
            ]
        }),
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
    let accounts = table(
        &["kind", "regions", "calls at most", "swept"],
        kinds().map(|of| [page(of), regions(of), calls(registry::limits(of.kind)), swept(of)]),
    );
    format!("{renting}\n{machines}\n{accounts}")
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

fn halted(of: &Capabilities) -> String {
    match of.halted {
        Halted::Nothing => "nothing",
        Halted::Disk => "its disk",
        Halted::Full => "its full price",
    }
    .to_owned()
}

fn notice(of: &Capabilities) -> String {
    let ahead = match of.reclaim_ahead.as_secs() {
        seconds if seconds % 60 == 0 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} seconds"),
    };
    match of.reclaim_notice {
        _ if !of.markets.contains(&Market::Spot) => "–".to_owned(),
        ReclaimNotice::None => "when it is gone".to_owned(),
        ReclaimNotice::OnMachine(_) => format!("by the machine, {ahead} before"),
        ReclaimNotice::Reported if of.reclaim_ahead.is_zero() => "by the API".to_owned(),
        ReclaimNotice::Reported => format!("by the API, {ahead} before"),
    }
}

fn regions(of: &Capabilities) -> String {
    match of.regions {
        Regions::None => "–".to_owned(),
        Regions::Listed => "regions that its API lists".to_owned(),
        Regions::Chosen => "those of the settings".to_owned(),
        Regions::Known(names) => names.join(", "),
    }
}

fn swept(of: &Capabilities) -> String {
    let machines = std::iter::once("machine");
    machines
        .chain(of.swept.iter().copied())
        .collect::<Vec<_>>()
        .join(", ")
}

/// The limits of all calls; of those of single calls that there are some.
fn calls(rules: &[Rule]) -> String {
    let (general, single): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| rule.pattern.is_none());
    let mut said: Vec<String> = general.into_iter().map(limit).collect();
    if !single.is_empty() {
        said.push("some by limits of their own".to_owned());
    }
    if said.is_empty() {
        return "–".to_owned();
    }
    said.join("; ")
}

fn limit(rule: &Rule) -> String {
    let (calls, window) = (rule.rate.calls, rule.rate.window);
    let of = if rule.together { "" } else { " of each kind" };
    // Limits of a minute have a second more, for the way of the calls.
    match window.as_secs() {
        1 if window == Duration::from_secs(1) => format!("{calls} a second{of}"),
        60 | 61 => format!("{calls} a minute{of}"),
        3600 => format!("{calls} an hour{of}"),
        _ => format!("{calls}{of} in {} s", window.as_secs_f32()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_row_in_each_table() {
        let tables = tables();
        for kind in registry::kinds() {
            assert_eq!(
                tables.matches(&format!("| [`{kind}`]({kind}.md) |")).count(),
                3,
                "{kind}"
            );
        }
    }

    #[test]
    fn a_limit_is_said_in_the_unit_that_it_is_published_in() {
        let lambda = calls(registry::limits("lambda"));
        assert_eq!(lambda, "1 in 1.1 s; some by limits of their own");
        let verda = calls(registry::limits("verda"));
        assert_eq!(
            verda,
            "500 a minute; 60 a minute of each kind; some by limits of their own"
        );
        assert_eq!(
            calls(registry::limits("digitalocean")),
            "200 a minute; 4000 an hour"
        );
        assert_eq!(calls(registry::limits("scaleway")), "25 a second");
        assert_eq!(calls(registry::limits("container")), "–");
    }

    #[test]
    fn a_notice_says_how_long_before_and_every_spot_market_has_one() {
        for of in registry::kinds().filter_map(registry::capabilities) {
            let is_silent = matches!(of.reclaim_notice, ReclaimNotice::None);
            assert!(!is_silent || of.reclaim_ahead.is_zero(), "{}", of.kind);
            // An API may tell of a reclaim without a promise how long before.
            let is_promised = matches!(of.reclaim_notice, ReclaimNotice::OnMachine(_));
            assert!(!is_promised || !of.reclaim_ahead.is_zero(), "{}", of.kind);
            assert_eq!(
                notice(of) == "–",
                !of.markets.contains(&Market::Spot),
                "{}",
                of.kind
            );
        }
    }
}
