//! The kinds of clouds, with the properties of the real ones.

use std::time::Duration;

use skyward_core::{
    Capabilities, Market, Offer, Usd,
    offer::{Architecture, Availability},
    provider::{Halted, HostKeys, Idempotency, MarkWriters, Marking, ReclaimNotice, SelfStop},
};

use crate::time::{Moment, SECOND};

/// One kind of cloud.
pub(crate) struct Kind {
    pub(crate) capabilities: Capabilities,
    /// Its regions; a list has only the regions that are asked for.
    pub(crate) regions: &'static [&'static str],
    /// Whether machines of a Pool share resources (keys, groups, scripts) that must be returned.
    pub(crate) shares: bool,
    /// Whether a machine is found by its id even where lists lag. Where it is not, and lists are not those of one region,
    /// the client takes no machine for gone that was not shown for less than the settle time.
    pub(crate) finds_by_id: bool,
    /// Whether a machine that halts or is taken back stays, and is billed, until it is deleted.
    pub(crate) keeps_halted: bool,
    /// Whether the cloud tells since when a machine is billed.
    pub(crate) tells_start: bool,
    /// What else such clouds do.
    pub(crate) habits: Habits,
}

/// What some clouds do beside what their capabilities say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Whether a list may forget a machine for a minute.
    pub(crate) forgets: bool,
    /// Whether people can take the mark of a machine away: it is in a name or in labels alone.
    pub(crate) unmarks: bool,
    /// What its client makes of an order that is answered by an error after its effect; `None`: there is no such answer.
    pub(crate) errs: Option<AfterError>,
}

/// What a client does after an order that was answered by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterError {
    /// It says that the order is in doubt.
    Doubts,
    /// It compares with a list first.
    Compares,
}

impl Habits {
    const NONE: Self = Self {
        forgets: false,
        unmarks: false,
        errs: None,
    };
    /// A small cloud with a thin interface.
    const THIN: Self = Self {
        forgets: true,
        unmarks: false,
        errs: Some(AfterError::Doubts),
    };
}

const BOTH: &[Market] = &[Market::OnDemand, Market::Spot];

/// Amazon EC2: tokens, regions, groups and templates; new instances may not be found for a
/// while, even by their ids.
const AWS: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        idempotency: Idempotency::Token,
        poll_interval: Duration::from_secs(5),
        self_stop: SelfStop::EndsBilling,
        billing_minimum: Duration::from_secs(60),
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("aws")
    },
    regions: &["eu", "us"],
    shares: true,
    finds_by_id: false,
    keeps_halted: false,
    tells_start: true,
    habits: Habits::NONE,
};

/// RunPod: containers; marks in the environment, looked for before an order.
const RUNPOD: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Environment,
        settle_time: Duration::from_secs(30),
        poll_interval: Duration::from_secs(5),
        self_stop: SelfStop::EndsBilling,
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("runpod")
    },
    regions: &[""],
    shares: false,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// Vast.ai: a marketplace; marks are labels, billed by the minute.
const VASTAI: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Name,
        settle_time: Duration::from_secs(30),
        self_stop: SelfStop::EndsBilling,
        billing_step: Duration::from_secs(60),
        boot_script: true,
        ..Capabilities::of("vastai")
    },
    regions: &["eu", "us"],
    shares: false,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// Verda: virtual machines over REST; keys and scripts are shared.
const VERDA: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        settle_time: Duration::from_secs(30),
        connected: true,
        boot_script: true,
        ..Capabilities::of("verda")
    },
    regions: &["fin"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// DigitalOcean: Droplets with tags; keys, firewalls and tags are shared.
const DIGITALOCEAN: Kind = Kind {
    capabilities: Capabilities {
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        poll_interval: Duration::from_secs(15),
        billing_minimum: Duration::from_secs(60),
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("digitalocean")
    },
    regions: &["nyc", "tor"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// Scaleway: Instances with tags, billed by the minute; every key of a project is on them.
const SCALEWAY: Kind = Kind {
    capabilities: Capabilities {
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        poll_interval: Duration::from_secs(15),
        billing_step: Duration::from_secs(60),
        billing_minimum: Duration::from_secs(60),
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("scaleway")
    },
    regions: &["par"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// Hyperstack: virtual machines with labels in environments, which are shared as their keys are; both markets,
/// billed by the minute.
const HYPERSTACK: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        billing_step: Duration::from_secs(60),
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("hyperstack")
    },
    regions: &["canada", "norway"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// TensorDock: virtual machines whose marks are their names; nothing is shared, and lists lag for minutes.
const TENSORDOCK: Kind = Kind {
    capabilities: Capabilities {
        mark_writers: MarkWriters::Account,
        settle_time: Duration::from_secs(180),
        poll_interval: Duration::from_secs(20),
        marketplace: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("tensordock")
    },
    regions: &["dallas", "frankfurt"],
    shares: false,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: false,
    habits: Habits {
        unmarks: true,
        errs: Some(AfterError::Compares),
        ..Habits::THIN
    },
};

/// JarvisLabs: containers whose marks are their names and the keys of their Pools; both markets, billed by the minute;
/// nothing is run at the first boot.
const JARVISLABS: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        mark_writers: MarkWriters::Account,
        settle_time: Duration::from_secs(120),
        billing_step: Duration::from_secs(60),
        ..Capabilities::of("jarvislabs")
    },
    regions: &["in", "eu"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: false,
    habits: Habits {
        unmarks: true,
        ..Habits::THIN
    },
};

/// Novita: containers behind a proxy; marks in names and environments, both markets, and no boot data.
const NOVITA: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        mark_writers: MarkWriters::Account,
        settle_time: Duration::from_secs(90),
        self_stop: SelfStop::Partial,
        reclaim_notice: ReclaimNotice::Reported,
        halted: Halted::Disk,
        ..Capabilities::of("novita")
    },
    regions: &[""],
    shares: false,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::THIN,
};

/// Massed Compute: virtual machines with marks in names and start-up commands; keys are shared; both markets, billed by
/// the minute. A machine that is not shown, by its id neither, counts as there for the settle time.
const MASSEDCOMPUTE: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Name,
        mark_writers: MarkWriters::Account,
        settle_time: Duration::from_secs(90),
        billing_step: Duration::from_secs(60),
        connected: true,
        ..Capabilities::of("massedcompute")
    },
    regions: &[""],
    shares: true,
    finds_by_id: false,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::THIN,
};

/// Google Cloud: instances with labels, whose orders are accepted before a host is found; the firewall rules of a
/// Pool are shared. A machine that shuts itself down keeps its disk.
const GCP: Kind = Kind {
    capabilities: Capabilities {
        markets: BOTH,
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        self_stop: SelfStop::Partial,
        billing_minimum: Duration::from_secs(60),
        halted: Halted::Disk,
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("gcp")
    },
    regions: &["us-a", "us-b"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits {
        forgets: false,
        unmarks: true,
        ..Habits::THIN
    },
};

/// Lambda: instances with tags, billed by the minute; keys are shared, and no machine reaches another.
const LAMBDA: Kind = Kind {
    capabilities: Capabilities {
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        poll_interval: Duration::from_secs(15),
        billing_step: Duration::from_secs(60),
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("lambda")
    },
    regions: &["texas", "utah"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: false,
    habits: Habits::NONE,
};

/// Vultr: instances with tags; each hour that has begun is billed. Keys are shared.
const VULTR: Kind = Kind {
    capabilities: Capabilities {
        marking: Marking::Tags,
        mark_writers: MarkWriters::Account,
        poll_interval: Duration::from_secs(15),
        billing_step: Duration::from_hours(1),
        billing_minimum: Duration::from_hours(1),
        connected: true,
        boot_script: true,
        host_keys: HostKeys::Proved,
        ..Capabilities::of("vultr")
    },
    regions: &["ewr", "fra"],
    shares: true,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: true,
    habits: Habits::NONE,
};

/// Pods of a cluster: nothing lags, and there is no bill.
const CONTAINER: Kind = Kind {
    capabilities: Capabilities {
        marking: Marking::Tags,
        mark_writers: MarkWriters::Namespaces,
        idempotency: Idempotency::Token,
        settle_time: Duration::ZERO,
        poll_interval: Duration::from_secs(2),
        self_stop: SelfStop::EndsBilling,
        connected: true,
        ..Capabilities::of("container")
    },
    regions: &[""],
    shares: false,
    finds_by_id: true,
    keeps_halted: true,
    tells_start: false,
    habits: Habits::NONE,
};

/// All of them.
pub(crate) const ALL: [&Kind; 15] = [
    &AWS,
    &RUNPOD,
    &VASTAI,
    &VERDA,
    &CONTAINER,
    &DIGITALOCEAN,
    &SCALEWAY,
    &HYPERSTACK,
    &TENSORDOCK,
    &JARVISLABS,
    &NOVITA,
    &MASSEDCOMPUTE,
    &GCP,
    &LAMBDA,
    &VULTR,
];

impl Kind {
    pub(crate) const fn name(&self) -> &'static str {
        self.capabilities.kind
    }

    /// The kind of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// How long its answers may lag.
    pub(crate) const fn settle(&self) -> Moment {
        self.capabilities.settle_time.as_secs() as i64 * SECOND
    }

    /// Lists are of one region each.
    pub(crate) fn is_regional(&self) -> bool {
        self.name() == "aws"
    }

    /// What it sells in these regions.
    pub(crate) fn offers(&self, regions: &[String]) -> Vec<Offer> {
        let mut offers = Vec::new();
        for region in regions {
            for (size, cents) in [("small", 36), ("large", 72)] {
                let place = if region.is_empty() {
                    String::new()
                } else {
                    format!("-{region}")
                };
                let price = Usd::new(cents + i64::from(region == "us"), 1);
                offers.push(Offer {
                    id: format!("{size}{place}"),
                    instance_type: size.to_owned(),
                    region: region.clone(),
                    accelerators: None,
                    vcpus: 4.0,
                    memory_gb: 16.0,
                    disk_gb: None,
                    architecture: Architecture::Amd64,
                    on_demand: Some(price),
                    spot: self
                        .capabilities
                        .markets
                        .contains(&Market::Spot)
                        .then(|| price / 4),
                    availability: Availability::Unknown,
                    connected: self.capabilities.connected,
                    rate_as_of: None,
                });
            }
        }
        offers
    }
}
