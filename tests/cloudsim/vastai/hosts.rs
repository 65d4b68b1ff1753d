//! Hosts of a usual day at the marketplace.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

use super::market::Host;

/// The hosts. Their first numbers are stable, so that tests can name them.
pub fn usual(now: Timestamp) -> Vec<Host> {
    let one = |machine_id: i64, gpu_name, gpus, gpu_ram, cents: i64, geolocation, public_ip| Host {
        machine_id,
        host_id: 70_000 + machine_id % 7,
        cluster_id: None,
        gpu_name,
        gpus,
        gpu_ram,
        cpu_cores: 16 * gpus.max(2),
        cpu_ram: 65_536 * gpus,
        disk_space: 1_000 * gpus,
        geolocation,
        cuda: Decimal::new(130, 1),
        reliability: Decimal::new(995, 3),
        verified: true,
        external: false,
        datacenter: false,
        direct_ports: 100 * gpus,
        price: Decimal::new(cents, 2),
        min_bid: Decimal::new(cents * 45, 4),
        storage_cost: Decimal::new(15, 2),
        listed_until: now + SignedDuration::from_hours(24 * 60),
        public_ip,
        other_bid: None,
        taken_by_others: false,
        delisted: false,
    };
    vec![
        one(101, "RTX 4090", 1, 24_564, 35, "Oslo, NO", "198.51.100.1"),
        one(102, "RTX 4090", 4, 24_564, 32, "Kansas, US", "198.51.100.2"),
        Host {
            cuda: Decimal::new(114, 1),
            ..one(103, "RTX 4090", 2, 24_564, 25, "Taipei, TW", "198.51.100.3")
        },
        Host {
            reliability: Decimal::new(80, 2),
            ..one(104, "RTX 4090", 1, 24_564, 20, "Texas, US", "198.51.100.4")
        },
        Host {
            verified: false,
            ..one(105, "RTX 4090", 1, 24_564, 18, "Quebec, CA", "198.51.100.5")
        },
        Host {
            direct_ports: 0,
            ..one(106, "RTX 3090", 1, 24_576, 17, "Berlin, DE", "198.51.100.6")
        },
        one(107, "RTX 5090", 2, 32_607, 58, "Utah, US", "198.51.100.7"),
        one(108, "A100 SXM4", 8, 81_920, 110, "Virginia, US", "198.51.100.8"),
        one(109, "A100 PCIE", 2, 40_960, 75, "Paris, FR", "198.51.100.9"),
        Host {
            datacenter: true,
            ..one(110, "H100 SXM", 8, 81_559, 215, "Iceland, IS", "198.51.100.10")
        },
        one(111, "H100 NVL", 2, 95_830, 225, "Ohio, US", "198.51.100.11"),
        one(112, "L40S", 4, 46_068, 72, "Ontario, CA", "198.51.100.12"),
        one(113, "L40", 2, 46_068, 62, "Ontario, CA", "198.51.100.13"),
        Host {
            cluster_id: Some(9),
            ..one(114, "H100 SXM", 8, 81_559, 230, "Oregon, US", "198.51.100.14")
        },
        Host {
            cluster_id: Some(9),
            ..one(115, "H100 SXM", 8, 81_559, 232, "Oregon, US", "198.51.100.15")
        },
        Host {
            cluster_id: Some(12),
            ..one(116, "RTX 4090", 4, 24_564, 40, "Sofia, BG", "198.51.100.16")
        },
        Host {
            external: true,
            ..one(117, "H200", 8, 143_771, 290, "Iowa, US", "198.51.100.17")
        },
        Host {
            listed_until: now + SignedDuration::from_hours(6),
            ..one(118, "RTX A6000", 1, 49_140, 45, "Oslo, NO", "198.51.100.18")
        },
    ]
}
