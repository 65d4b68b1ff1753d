//! Slices as the search describes them.

use jiff::Timestamp;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;
use serde_json::{Map, Value, json};

use super::market::{Ask, Market, Offering};

impl Market {
    /// All slices that can be rented, as the search describes them.
    pub fn offers(&self, offering: Offering, storage: Decimal, now: Timestamp) -> Vec<Map<String, Value>> {
        self.asks
            .values()
            .filter(|ask| self.can_be_had(ask, offering))
            .filter_map(|ask| self.describe(ask, offering, storage, now))
            .collect()
    }

    /// One slice as the search describes it.
    pub fn describe(
        &self,
        ask: &Ask,
        offering: Offering,
        storage: Decimal,
        now: Timestamp,
    ) -> Option<Map<String, Value>> {
        let host = self.host(ask.machine_id)?;
        let fraction = Decimal::from(ask.gpus) / Decimal::from(host.gpus);
        let share = |whole: u32| number(Decimal::from(whole) * fraction);
        let min_bid = self.min_bid(ask);
        let base = match offering {
            Offering::OnDemand => self.price(ask),
            Offering::Bid => min_bid,
        };
        let disk = self.disk_price(ask.machine_id, storage);
        // In two parts: one would be too long for the macro.
        let mut offer = json!({
            "id": ask.id,
            "ask_contract_id": ask.id,
            "bundle_id": ask.machine_id * 100 + i64::from(ask.gpus),
            "machine_id": host.machine_id,
            "host_id": host.host_id,
            "cluster_id": host.cluster_id,
            "gpu_name": host.gpu_name,
            "gpu_arch": if host.gpu_name.starts_with("MI") { "amd" } else { "nvidia" },
            "num_gpus": ask.gpus,
            "gpu_ram": host.gpu_ram,
            "gpu_total_ram": host.gpu_ram * ask.gpus,
            "gpu_frac": number(fraction.round_dp(6)),
            "cpu_arch": "amd64",
            "cpu_cores": host.cpu_cores,
            "cpu_cores_effective": share(host.cpu_cores),
            "cpu_ram": host.cpu_ram,
            "disk_space": share(host.disk_space),
            "disk_bw": 2_000.0,
            "dph_base": number(base),
            "dph_total": number(base + disk),
            "storage_cost": number(host.storage_cost),
            "storage_total_cost": number(disk),
            "min_bid": number(min_bid),
            "is_bid": offering == Offering::Bid,
        });
        let rest = json!({
            "cuda_max_good": number(host.cuda),
            "driver_version": "570.86.15",
            "reliability": number(host.reliability),
            "reliability2": number(host.reliability),
            "verified": host.verified,
            "verification": if host.verified { "verified" } else { "unverified" },
            "external": host.external,
            "hosting_type": i32::from(host.datacenter),
            "datacenter": host.datacenter,
            "geolocation": host.geolocation,
            "inet_down": 900.0,
            "inet_up": 700.0,
            "inet_down_cost": 0.002,
            "inet_up_cost": 0.003,
            "direct_port_count": host.direct_ports,
            "static_ip": host.direct_ports > 0,
            "vms_enabled": false,
            "duration": (host.listed_until.as_second() - now.as_second()).max(0) as f64,
            "end_date": host.listed_until.as_second() as f64,
            "start_date": ask.since.as_second() as f64,
            "rentable": true,
            "rented": false,
            "score": 100.0,
            "dlperf": 50.0,
            "public_ipaddr": host.public_ip,
            "resource_type": "gpu",
            "search": {
                "gpuCostPerHour": number(base),
                "diskHour": number(disk),
                "totalHour": number(base + disk),
            },
        });
        if let (Value::Object(offer), Value::Object(rest)) = (&mut offer, rest) {
            offer.extend(rest);
        }
        offer.as_object().cloned()
    }
}

/// A decimal as a JSON number.
pub fn number(value: Decimal) -> Value {
    json!(value.to_f64().unwrap_or_default())
}
