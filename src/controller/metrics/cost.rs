//! Live costs: settled costs from the statuses, and the costs up to now of existing machines, which
//! statuses have only as of their last transition.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use skyward_api::{Machine, Pool, Provider, machine::Market};
use skyward_core::Usd;
use skyward_planner::{
    accounts::cost::{settled, spent_this_month},
    money::{self, Cost, Tariff},
};

use super::{Labels, Sources, by, register, register_in};

type Amounts = Family<Labels, Gauge<f64, AtomicU64>>;

/// Amounts of money, each by its labels.
pub(super) struct CostMetrics {
    pool_hourly: Amounts,
    pool_billed: Amounts,
    pool_spent: Amounts,
    pool_savings: Amounts,
    provider_spent: Amounts,
    provider_spent_this_month: Amounts,
    provider_savings: Amounts,
}

impl CostMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut usd = |name: &str, help: &str| -> Amounts {
            let unit = Unit::Other("usd".to_owned());
            register_in(registry, unit, name, help, Amounts::default())
        };
        Self {
            pool_hourly: usd(
                "pool_hourly_cost",
                "What machines that are billed cost per hour, by Pool, provider and market",
            ),
            pool_spent: usd("pool_spent", "What was spent until now, by Pool and market"),
            pool_savings: usd(
                "pool_savings",
                "How much more that would have cost on demand, by Pool",
            ),
            provider_spent: usd(
                "provider_spent",
                "What was spent until now, by provider and market",
            ),
            provider_spent_this_month: usd(
                "provider_spent_this_month",
                "What was spent in this month (UTC), by provider",
            ),
            provider_savings: usd(
                "provider_savings",
                "How much more what was spent would have cost on demand, by provider",
            ),
            pool_billed: register(
                registry,
                "pool_billed_machines",
                "Machines that are billed, by Pool, provider and market",
            ),
        }
    }

    pub(super) fn families(&self) -> [&Amounts; 7] {
        [
            &self.pool_hourly,
            &self.pool_billed,
            &self.pool_spent,
            &self.pool_savings,
            &self.provider_spent,
            &self.provider_spent_this_month,
            &self.provider_savings,
        ]
    }

    pub(super) fn observe(&self, sources: &Sources, now: Timestamp) {
        for family in self.families() {
            family.clear();
        }
        for pool in sources.caches.pools.state() {
            let (machines, _) = sources.fleet.of_pool(&pool.uid().unwrap_or_default());
            self.pool(&pool, machines.iter().map(AsRef::as_ref), now);
        }
        for provider in sources.caches.providers.state() {
            let machines = sources.fleet.of_provider(&provider.name_any());
            let status = provider.status.as_ref().and_then(|status| status.cost.as_ref());
            let this_month = spent_this_month(status, &machines, None, now);
            self.provider(&provider, machines.iter().map(AsRef::as_ref), this_month, now);
        }
    }

    fn pool<'a>(&self, pool: &Pool, machines: impl Iterator<Item = &'a Machine> + Clone, now: Timestamp) {
        let labels = |more: &[(&'static str, &str)]| -> Labels {
            let own = [
                ("namespace", pool.namespace().unwrap_or_default()),
                ("pool", pool.name_any()),
            ];
            let more = more.iter().map(|(label, value)| (*label, (*value).to_owned()));
            own.into_iter().chain(more).collect()
        };
        let mut live: BTreeMap<(&str, &str), (u32, Usd)> = BTreeMap::new();
        for machine in machines.clone().filter(|machine| is_billed(machine)) {
            let (count, hourly) = live
                .entry((&machine.spec.provider, market(machine.spec.market)))
                .or_default();
            *count += 1;
            *hourly += Tariff::of(machine).hourly;
        }
        for ((provider, market), (count, hourly)) in live {
            let labels = labels(&[("provider", provider), ("market", market)]);
            self.pool_billed.get_or_create(&labels).set(f64::from(count));
            self.pool_hourly.get_or_create(&labels).set(hourly.to_f64());
        }
        let cost = pool.status.as_ref().and_then(|status| status.cost.clone());
        let running = unsettled(machines, cost.as_ref().map(|cost| cost.counted.as_slice()), now);
        if cost.is_none() && running == Cost::default() {
            return;
        }
        let settled = cost.unwrap_or_default();
        for (market, settled, running) in [
            (Market::Spot, &settled.spot, running.spot),
            (Market::OnDemand, &settled.on_demand, running.on_demand),
        ] {
            self.pool_spent
                .get_or_create(&labels(&[("market", self::market(market))]))
                .set((Usd::or_zero(settled) + running).to_f64());
        }
        self.pool_savings
            .get_or_create(&labels(&[]))
            .set((Usd::or_zero(&settled.savings_vs_on_demand) + running.savings).to_f64());
    }

    fn provider<'a>(
        &self,
        provider: &Provider,
        machines: impl Iterator<Item = &'a Machine>,
        this_month: Usd,
        now: Timestamp,
    ) {
        let cost = provider.status.as_ref().and_then(|status| status.cost.clone());
        let running = unsettled(machines, cost.as_ref().map(|cost| cost.counted.as_slice()), now);
        if cost.is_none() && running == Cost::default() {
            return;
        }
        let all = settled(&cost.unwrap_or_default()) + running;
        let labels = by("provider", provider.name_any());
        for (market, spent) in [(Market::Spot, all.spot), (Market::OnDemand, all.on_demand)] {
            let mut labels = labels.clone();
            labels.push(("market", self::market(market).to_owned()));
            self.provider_spent.get_or_create(&labels).set(spent.to_f64());
        }
        self.provider_spent_this_month
            .get_or_create(&labels)
            .set(this_month.to_f64());
        self.provider_savings
            .get_or_create(&labels)
            .set(all.savings.to_f64());
    }
}

/// The costs of machines that are not settled yet.
fn unsettled<'a>(
    machines: impl Iterator<Item = &'a Machine>,
    counted: Option<&[String]>,
    now: Timestamp,
) -> Cost {
    machines
        .filter(|machine| {
            let uid = machine.uid().unwrap_or_default();
            !counted.is_some_and(|counted| counted.contains(&uid))
        })
        .map(|machine| money::so_far(machine, now))
        .sum()
}

fn is_billed(machine: &Machine) -> bool {
    money::billed_since(machine).is_some() && money::billed_until(machine).is_none()
}

const fn market(market: Market) -> &'static str {
    match market {
        Market::OnDemand => "on-demand",
        Market::Spot => "spot",
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;

    fn machine(uid: &str, market: &str, status: serde_json::Value) -> Machine {
        let mut machine: Machine = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": uid, "uid": uid },
            "spec": { "pool": "train", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o",
                "instanceType": "x", "market": market, "hourlyPrice": "1", "onDemandPrice": "3",
                "token": "t", "templateHash": "h" },
        }))
        .unwrap();
        machine.status = Some(serde_json::from_value(status).unwrap());
        machine
    }

    #[test]
    fn what_is_settled_and_what_runs_are_told_together_and_nothing_twice() {
        let pool: Pool = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
            "metadata": { "name": "train", "namespace": "team", "uid": "u" }, "spec": { "provider": "a" },
            "status": { "cost": { "spot": "10", "onDemand": "4", "savingsVsOnDemand": "20", "counted": ["gone"] } },
        }))
        .unwrap();
        let machines = [
            machine(
                "gone",
                "Spot",
                json!({ "acceptedAt": "2026-11-21T10:00:00Z", "goneAt": "2026-11-21T11:00:00Z" }),
            ),
            machine("runs", "Spot", json!({ "acceptedAt": "2026-11-21T10:00:00Z" })),
            machine("ordered", "OnDemand", json!({})),
        ];
        let mut registry = Registry::default();
        let metrics = CostMetrics::register(&mut registry);
        metrics.pool(&pool, machines.iter(), "2026-11-21T12:00:00Z".parse().unwrap());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"pool_hourly_cost_usd{namespace="team",pool="train",provider="a",market="spot"} 1.0"#,
            r#"pool_billed_machines{namespace="team",pool="train",provider="a",market="spot"} 1.0"#,
            r#"pool_spent_usd{namespace="team",pool="train",market="spot"} 12.0"#,
            r#"pool_spent_usd{namespace="team",pool="train",market="on-demand"} 4.0"#,
            r#"pool_savings_usd{namespace="team",pool="train"} 24.0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
