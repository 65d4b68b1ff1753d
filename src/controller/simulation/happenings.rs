//! What users, clouds and chance do while the process works.

use kube::ResourceExt;
use rand::Rng;
use serde_json::json;
use skyward_api::{
    Pool, labels,
    pool::{PoolSpec, Topology},
    shared::Cpu,
};

use super::{
    cloud::NEVER,
    process::Work,
    world::{Secret, World},
};

impl World {
    /// A user makes a Pool.
    pub(super) fn add_pool(&mut self, name: &str, providers: &[&str], desired: u32) {
        let reaches = providers
            .iter()
            .all(|provider| self.kind_of(provider).capabilities.connected);
        let candidates: Vec<_> = providers.iter().map(|name| json!({ "provider": name })).collect();
        let topology = if reaches && self.random.random_bool(0.6) {
            Topology::Connected
        } else {
            Topology::Independent
        };
        let allocation = self.one_of(&["OnDemand", "SpotIfAvailable", "Cheapest"]);
        let spec: PoolSpec = serde_json::from_value(json!({
            "candidates": candidates,
            "nodes": { "desired": desired },
            "allocation": allocation,
            "topology": topology,
            "maxProvisionAttempts": 4,
            "provisionRetryDelay": "5s",
        }))
        .expect("this is a Pool");
        let mut pool = Pool::new(name, spec);
        pool.metadata.namespace = Some("team".into());
        let now = self.time();
        let _made = self.server.pools.create(&mut self.server.version, pool, now);
        self.change();
    }

    pub(super) fn change_pool(&mut self, name: &str, change: impl FnOnce(&mut PoolSpec)) {
        let _changed = self.server.pools.change(&mut self.server.version, name, |pool| {
            change(&mut pool.spec);
            *pool.metadata.generation.get_or_insert(0) += 1;
        });
        self.change();
    }

    pub(super) fn delete_pools(&mut self) {
        let now = self.time();
        for name in self.server.pools.names() {
            self.server
                .pools
                .delete(&mut self.server.version, &name, None, now);
        }
        self.tell(|| "all Pools are deleted".to_owned());
        self.change();
    }

    /// Limits of every Provider.
    pub(super) fn limit(&mut self, machines: Option<u32>) {
        for name in self.server.providers.names() {
            let _changed = self
                .server
                .providers
                .change(&mut self.server.version, &name, |provider| {
                    provider.spec.limits = machines.map(|machines| skyward_api::provider::Limits {
                        machines: Some(machines),
                        ..Default::default()
                    });
                    *provider.metadata.generation.get_or_insert(0) += 1;
                });
        }
        self.tell(|| format!("limits are {machines:?}"));
        self.change();
    }

    /// The Secret of a Provider holds other credentials.
    pub(super) fn give_credentials(&mut self, provider: &str, account: &str) {
        let secret = &self.secrets[provider];
        let secret = Secret {
            account: account.to_owned(),
            version: secret.version + u32::from(secret.account != account),
        };
        self.tell(|| format!("the credentials of {provider} are those of {account}"));
        self.secrets.insert(provider.to_owned(), secret);
        let now = self.now;
        self.process.wake(Work::Provider(provider.to_owned()), now);
        // The account is asked anew at once, as after a restart or at the next refresh.
        if let Some((_, look)) = self.process.looks.get_mut(provider) {
            look.asked_at = None;
        }
        self.change();
    }

    /// Which regions a Provider orders in.
    pub(super) fn give_regions(&mut self, provider: &str, regions: &[&str]) {
        let kind = self.kind_of(provider).name();
        let _changed = self
            .server
            .providers
            .change(&mut self.server.version, provider, |object| {
                if let Some(settings) = object.spec.clouds.get_mut(kind) {
                    *settings = json!({ "regions": regions });
                }
                *object.metadata.generation.get_or_insert(0) += 1;
            });
        self.tell(|| format!("{provider} orders in {regions:?}"));
        self.change();
    }

    /// Everything is sold out everywhere, or everything is available.
    pub(super) fn sell_out(&mut self, out: bool) {
        for cloud in self.clouds.values_mut() {
            let regions: Vec<String> = cloud.kind.regions.iter().map(|&r| r.to_owned()).collect();
            cloud.sold_out = cloud
                .kind
                .offers(&regions)
                .into_iter()
                .filter(|_| out)
                .flat_map(|offer| [(offer.id.clone(), false), (offer.id, true)])
                .collect();
        }
        self.tell(|| format!("everything is sold out: {out}"));
    }

    /// Perhaps something happens.
    pub(super) fn happen(&mut self) {
        if !self.chance(self.odds.happens) {
            return;
        }
        match self.random.random_range(0..20) {
            0..6 => self.happen_to_a_machine(),
            6..10 => self.want_something_else(),
            10 | 11 => self.delete_a_record(),
            12 => self.tear_off_a_record(),
            13 => {
                let machines = self.one_of(&[None, None, Some(1), Some(2), Some(4)]);
                self.limit(machines);
            }
            14 | 15 => self.change_accounts(),
            16 => self.change_regions(),
            _ => self.change_stock(),
        }
    }

    fn happen_to_a_machine(&mut self) {
        let now = self.now;
        let alive: Vec<(String, usize)> = self
            .clouds
            .iter()
            .flat_map(|(account, cloud)| {
                let there = cloud.rented.iter().enumerate();
                let alive = there.filter(|(_, machine)| machine.exists(now));
                alive.map(|(index, _)| (account.clone(), index))
            })
            .collect();
        if alive.is_empty() {
            return;
        }
        let (account, index) = alive[self.random.random_range(0..alive.len())].clone();
        let what = self.random.random_range(0..4);
        let Some(cloud) = self.clouds.get_mut(&account) else {
            return;
        };
        let Some(machine) = cloud.rented.get_mut(index) else {
            return;
        };
        let (name, id) = (machine.mark.machine.clone(), machine.id.clone());
        match what {
            0 => machine.fails_at = machine.fails_at.min(now),
            1 => machine.gone = now,
            2 if machine.spot => {
                machine.reclaim = Some((now, now + 30));
                cloud.halt(index, now + 30);
                // Its agent tells.
                self.process.wake(Work::Machine(name), now);
            }
            _ => cloud.halt(index, now),
        }
        self.tell(|| format!("{id}: {}", ["fails", "vanishes", "is taken back", "halts"][what]));
        self.change();
    }

    fn want_something_else(&mut self) {
        let pools = self.server.pools.names();
        if pools.is_empty() {
            return;
        }
        let pool = pools[self.random.random_range(0..pools.len())].clone();
        let (what, number) = (self.random.random_range(0..6), self.random.random_range(0..4_u32));
        self.tell(|| format!("somebody changes {pool}: {what} {number}"));
        self.change_pool(&pool, |spec| match what {
            0 => spec.cpu = Some(Cpu::of(f64::from(number.max(1)))),
            1 => spec.suspend = Some(number == 0),
            2 => {
                let budget = json!({ "maxTotalCost": format!("0.{number}1") });
                spec.budget = Some(budget)
                    .filter(|_| number > 0)
                    .map(|budget| serde_json::from_value(budget).expect("this is a budget"));
            }
            _ => spec.nodes.desired = number,
        });
    }

    fn some_record(&mut self) -> Option<String> {
        let records = self.server.machines.names();
        (!records.is_empty()).then(|| records[self.random.random_range(0..records.len())].clone())
    }

    fn delete_a_record(&mut self) {
        let Some(name) = self.some_record() else { return };
        let now = self.time();
        self.tell(|| format!("somebody deletes Machine {name}"));
        self.server
            .machines
            .delete(&mut self.server.version, &name, None, now);
        self.change();
    }

    /// Somebody deletes a Machine, and takes away the finalizer that is in the way.
    fn tear_off_a_record(&mut self) {
        if !self.random.random_ratio(1, 3) {
            return;
        }
        let Some(name) = self.some_record() else { return };
        let Some(machine) = self.server.machines.get(&name) else {
            return;
        };
        if machine
            .status
            .as_ref()
            .is_some_and(|status| status.gone_at.is_some())
        {
            return;
        }
        let now = self.time();
        self.torn.insert(machine.uid().unwrap_or_default());
        self.tell(|| format!("somebody tears off Machine {name}"));
        self.server
            .machines
            .delete(&mut self.server.version, &name, None, now);
        let _gone = self
            .server
            .machines
            .change(&mut self.server.version, &name, |machine| {
                machine.finalizers_mut().retain(|name| name != labels::FINALIZER);
            });
        self.change();
    }

    fn change_accounts(&mut self) {
        let providers = self.server.providers.names();
        let provider = providers[self.random.random_range(0..providers.len())].clone();
        let account = format!("{provider}-{}", self.random.random_range(1..3));
        if self.random.random_bool(0.3) {
            let revoked = self.random.random_bool(0.5);
            self.tell(|| format!("{account} is revoked: {revoked}"));
            if let Some(cloud) = self.clouds.get_mut(&account) {
                cloud.revoked = revoked;
            }
        } else {
            self.give_credentials(&provider, &account);
        }
    }

    fn change_regions(&mut self) {
        let providers = self.server.providers.names();
        let provider = providers[self.random.random_range(0..providers.len())].clone();
        let all = self.kind_of(&provider).regions;
        let from = self.random.random_range(0..all.len());
        let until = self.random.random_range(from..all.len());
        self.give_regions(&provider, &all[from..=until]);
    }

    fn change_stock(&mut self) {
        let out = self.random.random_bool(0.3);
        if !out {
            return self.sell_out(false);
        }
        let accounts: Vec<String> = self.clouds.keys().cloned().collect();
        let account = accounts[self.random.random_range(0..accounts.len())].clone();
        let Some(cloud) = self.clouds.get_mut(&account) else {
            return;
        };
        let regions: Vec<String> = cloud.kind.regions.iter().map(|&r| r.to_owned()).collect();
        let small = cloud
            .kind
            .offers(&regions)
            .into_iter()
            .filter(|offer| offer.instance_type == "small");
        cloud
            .sold_out
            .extend(small.flat_map(|offer| [(offer.id.clone(), false), (offer.id, true)]));
    }

    /// The next moment at which something happens by itself.
    pub(super) fn next_event(&self) -> Option<i64> {
        let now = self.now;
        let due = self.process.due.values().copied();
        let connections = self.process.sessions.values().map(|session| session.next);
        let lives = self
            .clouds
            .values()
            .flat_map(|cloud| &cloud.rented)
            .flat_map(|machine| {
                let reclaim = machine.reclaim.map_or(NEVER, |(said, _)| said);
                [
                    machine.created,
                    machine.runs_at,
                    machine.halts_at,
                    machine.gone,
                    reclaim,
                ]
            });
        due.chain(connections)
            .chain(lives)
            .filter(|at| *at > now && *at < NEVER)
            .min()
    }
}
