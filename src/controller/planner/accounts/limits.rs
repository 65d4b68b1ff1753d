//! The limits of a Provider: which of them stand for a namespace, and which one binds. Pure.
//!
//! A limit is either of the whole Provider or of each namespace. For each namespace the first entry
//! of `limits.namespaces` whose selector fits decides; limits that the entry leaves out, and all
//! limits where none fits, are those of `…PerNamespace`. The plan of a Pool and the look before
//! each order ask the same functions, so both name the same limit.

use std::collections::BTreeMap;

use kube_core::{Selector, SelectorExt as _};
use skyward_api::{
    Amount,
    provider::{Limits as Spec, NamespaceLimits},
};
use skyward_core::Usd;

use super::{
    facts::ProviderFacts,
    quota::{Quota, Used},
};
use crate::accounts::quota::QuotaEntry;

/// What stands for one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Machines, and USD per hour.
    pub limits: Quota,
    /// USD in a month of the whole Provider.
    pub monthly: Option<Usd>,
    /// USD in a month of the namespace.
    pub monthly_in_namespace: Option<Usd>,
}

/// The limits that stand for a namespace with these labels. A namespace whose labels are not
/// known has the limits of all others: nothing is ordered for it before its labels are known.
pub fn standing(spec: Option<&Spec>, labels: Option<&BTreeMap<String, String>>) -> Standing {
    let Some(spec) = spec else {
        return Standing::default();
    };
    let usd = |amount: &Option<Amount>| amount.as_ref()?.usd();
    let fits = |own: &NamespaceLimits| match (Selector::try_from(own.selector.clone()), labels) {
        (Ok(selector), Some(labels)) => selector.matches(labels).then_some(true),
        (Ok(_), None) => None,
        (Err(_), _) => Some(false),
    };
    let mut entries = spec.namespaces.iter().enumerate();
    let found = entries.find_map(|(at, own)| Some((at, own, fits(own)?)));
    let own = found.map(|(_, own, _)| own);
    let entry = found.map(|(at, own, readable)| QuotaEntry {
        at,
        readable,
        machines: own.machines.is_some() || !readable,
        hourly: own.hourly_cost.is_some(),
        monthly: own.monthly_cost.is_some(),
    });
    let machines = match &entry {
        Some(entry) if !entry.readable => Some(0),
        _ => own.and_then(|own| own.machines).or(spec.machines_per_namespace),
    };
    Standing {
        limits: Quota {
            total: spec.machines,
            in_namespace: machines,
            hourly: usd(&spec.hourly_cost),
            hourly_in_namespace: own
                .and_then(|own| usd(&own.hourly_cost))
                .or_else(|| usd(&spec.hourly_cost_per_namespace)),
            entry,
        },
        monthly: usd(&spec.monthly_cost),
        monthly_in_namespace: own
            .and_then(|own| usd(&own.monthly_cost))
            .or_else(|| usd(&spec.monthly_cost_per_namespace)),
    }
}

/// What a limit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Month,
    Machines,
    Hour,
}

/// A limit that is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    name: String,
    of: Of,
    /// Whether it is a limit of the namespace.
    here: bool,
    most: String,
    used: String,
    /// USD per hour that were asked for beside what is used.
    hourly: Usd,
    /// Whether the machine in question is counted as used already.
    with_it: bool,
    /// Whether the entry's selector can be read.
    readable: bool,
}

/// The limit that keeps out `more` machines that cost at least `hourly` USD per hour beside what
/// is used: the one that lasts longest, and of two such the narrower one, for what the namespace
/// returns is returned to the Provider as well.
pub fn binding(facts: &ProviderFacts, used: Used, more: u32, hourly: Usd) -> Option<Binding> {
    let (limits, readable) = (
        facts.limits,
        facts.limits.entry.is_none_or(|entry| entry.readable),
    );
    let months = [(true, facts.month_in_namespace), (false, facts.month)];
    let month = months.into_iter().find_map(|(here, month)| {
        // Spending grows every second: with its amount the status would be written at each look.
        let (most, _) = month.filter(|(most, spent)| spent >= most)?;
        Some((Of::Month, here, most.to_string(), String::new()))
    });
    let machines = || {
        let counts = [
            (true, limits.in_namespace, used.in_namespace),
            (false, limits.total, used.total),
        ];
        counts.into_iter().find_map(|(here, most, used)| {
            let most = most.filter(|most| used.saturating_add(more) > *most)?;
            Some((Of::Machines, here, most.to_string(), used.to_string()))
        })
    };
    let hour = || {
        let costs = [
            (true, limits.hourly_in_namespace, used.hourly_in_namespace),
            (false, limits.hourly, used.hourly),
        ];
        costs.into_iter().find_map(|(here, most, used)| {
            let most = most.filter(|most| used + hourly > *most)?;
            let with_it = if more == 0 { hourly } else { Usd::ZERO };
            Some((Of::Hour, here, most.to_string(), (used + with_it).to_string()))
        })
    };
    let (of, here, most, used) = month.or_else(machines).or_else(hour)?;
    let readable = readable || of != Of::Machines || !here;
    Some(Binding {
        name: name(limits.entry.filter(|_| here), of, here),
        of,
        here,
        most,
        used,
        hourly,
        with_it: more == 0,
        readable,
    })
}

/// The field of the Provider's spec that the limit stands in.
fn name(entry: Option<QuotaEntry>, of: Of, here: bool) -> String {
    let of_entry = entry.filter(|entry| match of {
        Of::Month => entry.monthly,
        Of::Machines => entry.machines,
        Of::Hour => entry.hourly,
    });
    let field = match of {
        Of::Month => "monthlyCost",
        Of::Machines => "machines",
        Of::Hour => "hourlyCost",
    };
    match of_entry {
        Some(QuotaEntry {
            at, readable: true, ..
        }) => format!("limits.namespaces[{at}].{field}"),
        Some(QuotaEntry { at, .. }) => format!("limits.namespaces[{at}].selector"),
        None if here => format!("limits.{field}PerNamespace"),
        None => format!("limits.{field}"),
    }
}

impl Binding {
    /// Which limit it is, and what is used of it: the first words of a condition.
    pub fn words(&self, provider: &str, namespace: &str) -> String {
        let Self { name, most, used, .. } = self;
        let of = format!("{name} of Provider \"{provider}\"");
        let here = if self.here {
            format!(" in namespace \"{namespace}\"")
        } else {
            String::new()
        };
        match self.of {
            _ if !self.readable => {
                format!(
                    "{of} cannot be read, so nobody knows whether it is meant for namespace \"{namespace}\""
                )
            }
            Of::Month => format!("{of} is {most} USD, and that is spent{here} in this month (UTC)"),
            Of::Machines if self.with_it => {
                format!("{of} is {most}, and with this machine {used} are in use{here}")
            }
            Of::Machines => format!("{of} is {most}, and {used} are in use{here}"),
            Of::Hour if self.with_it => {
                format!("{of} is {most} USD per hour, and with this machine it may be {used} USD{here}")
            }
            Of::Hour => format!(
                "{of} is {most} USD per hour, {used} USD are in use{here}, and what fits costs {} USD or more",
                self.hourly
            ),
        }
    }

    /// What helps, as the rest of a sentence that says who can do it.
    pub fn remedy(&self) -> &'static str {
        match (self.readable, self.of, self.here) {
            (false, ..) => "Ask a platform engineer to mend it.",
            (_, Of::Month, _) => "Wait for the next month, or ask a platform engineer to raise it.",
            (_, _, true) => {
                "Lower nodes.desired, free machines of other Pools of this namespace, or ask a platform engineer to raise it."
            }
            (_, _, false) => {
                "Lower nodes.desired, free machines of other Pools, or ask a platform engineer to raise it."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::pool::tests::provider;

    fn limits() -> Value {
        json!({
            "machines": 100, "machinesPerNamespace": 2, "hourlyCost": "500", "hourlyCostPerNamespace": "10",
            "monthlyCost": "9000", "monthlyCostPerNamespace": "900",
            "namespaces": [
                { "selector": { "matchLabels": { "kubernetes.io/metadata.name": "ops" } }, "machines": 0 },
                { "selector": { "matchLabels": { "team": "research" } },
                  "machines": 16, "hourlyCost": "80", "monthlyCost": "7000" },
                { "selector": { "matchExpressions": [{ "key": "team", "operator": "Exists" }] }, "hourlyCost": "20" },
            ],
        })
    }

    fn of(limits: Value, labels: Option<&[(&str, &str)]>) -> Standing {
        let spec = serde_json::from_value(limits).unwrap();
        let labels = labels.map(|labels| {
            let owned = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            owned.collect()
        });
        standing(Some(&spec), labels.as_ref())
    }

    fn facts(standing: Standing, spent: i64) -> ProviderFacts {
        let month = |limit: Option<Usd>| limit.map(|limit| (limit, Usd::from(spent)));
        ProviderFacts {
            limits: standing.limits,
            month: month(standing.monthly),
            month_in_namespace: month(standing.monthly_in_namespace),
            ..provider()
        }
    }

    fn used(total: u32, here: u32, hourly: i64, hourly_here: i64) -> Used {
        Used {
            total,
            in_namespace: here,
            hourly: hourly.into(),
            hourly_in_namespace: hourly_here.into(),
        }
    }

    #[rstest]
    #[case::no_entry_fits(Some(&[][..]), 2, 10, 900)]
    #[case::its_labels_are_not_known(None, 2, 10, 900)]
    #[case::one_entry_fits(Some(&[("team", "research")][..]), 16, 80, 7000)]
    #[case::the_first_of_two_that_fit_decides(Some(&[("kubernetes.io/metadata.name", "ops"), ("team", "research")][..]), 0, 10, 900)]
    #[case::what_an_entry_leaves_out_is_that_of_all_others(Some(&[("team", "web")][..]), 2, 20, 900)]
    fn the_first_entry_whose_selector_fits_decides(
        #[case] labels: Option<&[(&str, &str)]>,
        #[case] machines: u32,
        #[case] hourly: i64,
        #[case] monthly: i64,
    ) {
        let found = of(limits(), labels);
        assert_eq!(found.limits.in_namespace, Some(machines));
        assert_eq!(found.limits.hourly_in_namespace, Some(hourly.into()));
        assert_eq!(found.monthly_in_namespace, Some(monthly.into()));
        // Limits of the whole Provider stand for all namespaces.
        assert_eq!(
            (found.limits.total, found.limits.hourly),
            (Some(100), Some(500.into()))
        );
        assert_eq!(found.monthly, Some(9000.into()));
    }

    #[test]
    fn a_provider_without_limits_has_none() {
        assert_eq!(standing(None, None), Standing::default());
        assert_eq!(of(json!({}), Some(&[])), Standing::default());
        assert_eq!(
            binding(&provider(), used(9999, 9999, 9999, 9999), 1, 1.into()),
            None
        );
    }

    #[rstest]
    #[case::nothing_binds(used(1, 1, 1, 1), 0, 1, "")]
    #[case::machines_of_the_namespace(
        used(2, 2, 2, 2),
        0,
        1,
        r#"limits.machinesPerNamespace of Provider "p" is 2, and 2 are in use in namespace "n""#
    )]
    #[case::machines_of_all(
        used(100, 1, 2, 2),
        0,
        1,
        r#"limits.machines of Provider "p" is 100, and 100 are in use"#
    )]
    #[case::the_narrower_of_two(used(100, 2, 2, 2), 0, 1, "limits.machinesPerNamespace of")]
    #[case::money_of_the_namespace(
        used(1, 1, 8, 8), 0, 3,
        r#"limits.hourlyCostPerNamespace of Provider "p" is 10 USD per hour, 8 USD are in use in namespace "n", and what fits costs 3 USD or more"#
    )]
    #[case::money_of_all(used(1, 1, 498, 1), 0, 3, r#"limits.hourlyCost of Provider "p" is 500 USD per hour, 498 USD are in use, and what fits costs 3 USD or more"#)]
    #[case::a_machine_that_costs_what_is_left(used(1, 1, 7, 7), 0, 3, "")]
    #[case::machines_before_money(used(2, 2, 10, 10), 0, 3, "limits.machinesPerNamespace of")]
    #[case::a_month_before_all_else(
        used(100, 2, 500, 10), 900, 3,
        r#"limits.monthlyCostPerNamespace of Provider "p" is 900 USD, and that is spent in namespace "n" in this month (UTC)"#
    )]
    fn the_limit_that_binds_is_named_first_and_alone(
        #[case] used: Used,
        #[case] spent: i64,
        #[case] price: i64,
        #[case] words: &str,
    ) {
        let facts = facts(of(limits(), Some(&[])), spent);
        let said = binding(&facts, used, 1, price.into()).map(|binding| binding.words("p", "n"));
        let said = said.unwrap_or_default();
        assert!(
            said.starts_with(words) && said.is_empty() == words.is_empty(),
            "{said}"
        );
        assert_eq!(
            said.matches("limits.").count(),
            usize::from(!words.is_empty()),
            "{said}"
        );
    }

    #[test]
    fn the_month_of_the_whole_provider_binds_where_the_namespace_has_spent_less() {
        let mut facts = facts(of(limits(), Some(&[])), 9000);
        facts.month_in_namespace = Some((900.into(), Usd::from(1)));
        let found = binding(&facts, Used::default(), 1, Usd::ZERO).unwrap();
        assert_eq!(
            found.words("p", "n"),
            r#"limits.monthlyCost of Provider "p" is 9000 USD, and that is spent in this month (UTC)"#
        );
        assert!(found.remedy().starts_with("Wait for the next month"));
    }

    #[rstest]
    #[case(&[("team", "research")], used(16, 16, 1, 1), 0, "limits.namespaces[1].machines of")]
    #[case(&[("team", "research")], used(1, 1, 80, 80), 0, "limits.namespaces[1].hourlyCost of")]
    #[case(&[("team", "research")], used(1, 1, 1, 1), 7000, "limits.namespaces[1].monthlyCost of")]
    #[case(&[("team", "web")], used(2, 2, 1, 1), 0, "limits.machinesPerNamespace of")]
    #[case(&[("team", "web")], used(1, 1, 20, 20), 0, "limits.namespaces[2].hourlyCost of")]
    fn a_limit_of_an_entry_is_named_by_its_place(
        #[case] labels: &[(&str, &str)],
        #[case] used: Used,
        #[case] spent: i64,
        #[case] words: &str,
    ) {
        let facts = facts(of(limits(), Some(labels)), spent);
        let said = binding(&facts, used, 1, Usd::from(1)).unwrap().words("p", "n");
        assert!(said.starts_with(words), "{said}");
    }

    #[test]
    fn a_selector_that_cannot_be_read_lets_nothing_be_ordered_and_is_named() {
        let unreadable = json!({ "matchExpressions": [{ "key": "team", "operator": "In" }] });
        let spec =
            json!({ "machinesPerNamespace": 5, "namespaces": [{ "selector": unreadable, "machines": 7 }] });
        for labels in [None, Some(&[][..]), Some(&[("team", "research")][..])] {
            let facts = facts(of(spec.clone(), labels), 0);
            let found = binding(&facts, Used::default(), 1, Usd::ZERO).unwrap();
            let said = found.words("p", "n");
            assert!(
                said.starts_with("limits.namespaces[0].selector of Provider \"p\" cannot be read"),
                "{said}"
            );
            assert_eq!(found.remedy(), "Ask a platform engineer to mend it.");
        }
        // An entry before it that fits decides.
        let first = json!({ "selector": {}, "machines": 3 });
        let spec = json!({ "namespaces": [first, { "selector": unreadable }] });
        assert_eq!(of(spec, Some(&[])).limits.in_namespace, Some(3));
    }
}
