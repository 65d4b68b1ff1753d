//! Machines that wait for a decision after a restore.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use skyward_core::Usd;
use skyward_planner::restore::{evidence::Evidence, verdict::MOST_IDS};

use super::{Labels, by, register};

/// Machines of one Provider that are shown with their ids; all others are one sum.
const SHOWN_IDS: usize = 100;

/// The waiting machines, by Provider.
pub(super) struct RestoreMetrics {
    held: Family<Labels, Gauge>,
    machines: Family<Labels, Gauge>,
    hourly: Family<Labels, Gauge<f64, AtomicU64>>,
    /// Ids that are shown, by Provider.
    shown: Mutex<BTreeMap<String, Vec<String>>>,
}

impl RestoreMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            held: register(
                registry,
                "restore_held",
                "Whether a Provider is held after a restore, by provider",
            ),
            machines: register(
                registry,
                "restore_waiting_machines",
                "Machines without a record that wait for a decision after a restore, by provider",
            ),
            hourly: register(
                registry,
                "restore_waiting_usd_per_hour",
                "What each machine that waits for a decision costs per hour as far as the provider says it, by provider and id",
            ),
            shown: Mutex::default(),
        }
    }

    /// Shows the waiting machines of a Provider in the place of the former ones.
    pub(super) fn show(&self, provider: &str, held: bool, evidence: Option<&Evidence>) {
        let labels = by("provider", provider);
        let waiting: Vec<_> = evidence
            .into_iter()
            .flat_map(Evidence::waiting)
            .take(MOST_IDS)
            .collect();
        self.held.get_or_create(&labels).set(i64::from(held));
        self.machines
            .get_or_create(&labels)
            .set(i64::try_from(waiting.len()).unwrap_or(i64::MAX));
        let mut costs: BTreeMap<&str, Usd> = BTreeMap::new();
        for (at, orphan) in waiting.iter().enumerate() {
            let id = if at < SHOWN_IDS {
                orphan.id.as_str()
            } else {
                "others"
            };
            *costs.entry(id).or_default() += orphan.hourly.unwrap_or_default();
        }
        let labels_of = |id: &str| vec![("provider", provider.to_owned()), ("id", id.to_owned())];
        let mut shown = self.shown.lock();
        let before = shown.remove(provider).unwrap_or_default();
        for id in before.iter().filter(|id| !costs.contains_key(id.as_str())) {
            self.hourly.remove(&labels_of(id));
        }
        for (id, hourly) in &costs {
            self.hourly.get_or_create(&labels_of(id)).set(hourly.to_f64());
        }
        if !costs.is_empty() {
            let ids = costs.into_keys().map(str::to_owned).collect();
            shown.insert(provider.to_owned(), ids);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::metrics::Metrics;
    use skyward_planner::restore::evidence::{Evidence, Orphan, Standing};

    /// Machines that wait for a decision, each for 2.5 $/h.
    pub(in super::super) fn waiting(ids: &[&str]) -> Evidence {
        let orphan = |id: &&str| Orphan {
            id: (*id).to_owned(),
            machine: "team/m".to_owned(),
            pool_uid: "never".to_owned(),
            attempt: 1,
            hourly: Some(skyward_core::Usd::new(25, 1)),
            standing: Standing::Strange,
            confirmed: true,
        };
        Evidence {
            orphans: ids.iter().map(orphan).collect(),
            ..Evidence::default()
        }
    }

    #[test]
    fn what_waits_is_shown_with_its_id_for_as_long_as_it_waits() {
        let metrics = Metrics::default();
        let line = |id: &str, usd: &str| {
            format!(r#"skyward_restore_waiting_usd_per_hour{{provider="p",id="{id}"}} {usd}"#)
        };
        metrics.restore("p", true, Some(&waiting(&["a", "b"])));
        let text = metrics.render();
        assert!(
            text.contains(&line("a", "2.5")) && text.contains(&line("b", "2.5")),
            "{text}"
        );
        assert!(text.contains(r#"skyward_restore_waiting_machines{provider="p"} 2"#));
        metrics.restore("p", false, Some(&waiting(&["b"])));
        let text = metrics.render();
        assert!(
            !text.contains(&line("a", "2.5")) && text.contains(&line("b", "2.5")),
            "{text}"
        );
        assert!(text.contains(r#"skyward_restore_held{provider="p"} 0"#));
        let many: Vec<String> = (0..102).map(|n| format!("m{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        metrics.restore("p", true, Some(&waiting(&many)));
        assert!(metrics.render().contains(&line("others", "5.0")));
    }
}
