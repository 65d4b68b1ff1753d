//! What users, clouds and chance do while the processes work.

use rand::Rng;
use serde_json::{Value, json};
use skyward_api::labels;

use crate::{
    play::Play,
    rules::text,
    time::{MINUTE, SECOND, now},
    world::{TEAM, credentials, one_of, percent},
};

impl Play {
    /// A user makes a Pool.
    pub(crate) fn add_pool(&mut self, name: &str, providers: &[&str], desired: u32) {
        let reaches = providers
            .iter()
            .all(|provider| self.world.kind_of(provider).capabilities.connected);
        let candidates: Vec<_> = providers.iter().map(|name| json!({ "provider": name })).collect();
        let topology = if reaches && self.random.random_bool(0.6) {
            "Connected"
        } else {
            "Independent"
        };
        let allocation = one_of(&mut self.random, &["OnDemand", "SpotIfAvailable", "Cheapest"]);
        let pool = json!({ "metadata": { "name": name }, "spec": {
            "candidates": candidates,
            "nodes": { "desired": desired },
            "allocation": allocation,
            "topology": topology,
            "maxProvisionAttempts": 4,
            "provisionRetryDelay": "5s",
        }});
        self.tell(format!(
            "somebody makes Pool {name} of {desired}, {topology}, {allocation}"
        ));
        self.world
            .server
            .put("pools", TEAM, pool)
            .expect("it is not there yet");
        self.note();
    }

    /// A user changes the spec of a Pool.
    pub(crate) fn change_pool(&mut self, name: &str, spec: Value) {
        self.tell(format!("somebody changes Pool {name}: {spec}"));
        let _gone = self
            .world
            .server
            .change("pools", TEAM, name, json!({ "spec": spec }));
        self.note();
    }

    pub(crate) fn names(&self, plural: &str) -> Vec<String> {
        let all = self.world.server.all(plural);
        all.iter()
            .filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned))
            .collect()
    }

    pub(crate) fn delete_all(&mut self, plural: &str, namespace: &str) {
        self.tell(format!("somebody deletes all {plural}"));
        for name in self.names(plural) {
            let _gone = self.world.server.delete(plural, namespace, &name);
        }
        self.note();
    }

    /// Limits of every Provider.
    pub(crate) fn limit(&mut self, machines: Option<u32>) {
        self.tell(format!("limits are {machines:?}"));
        let limits = machines.map_or(Value::Null, |machines| json!({ "machines": machines }));
        for name in self.names("providers") {
            let spec = json!({ "spec": { "limits": limits } });
            let _gone = self.world.server.change("providers", "", &name, spec);
        }
        self.note();
    }

    /// The Secret of a Provider holds other credentials.
    pub(crate) fn give_credentials(&mut self, provider: &str, account: &str) {
        let former = self.world.account_of(provider);
        if former == account {
            return;
        }
        self.world.truth().former.insert(former);
        self.tell(format!("the credentials of {provider} are those of {account}"));
        let secret = credentials(provider, account);
        let name = format!("of-{provider}");
        let _gone = self
            .world
            .server
            .change("secrets", crate::world::OPERATOR, &name, secret);
        self.note();
    }

    pub(crate) fn other_accounts(&mut self) {
        for name in self.names("providers") {
            let is_first = self.world.account_of(&name).ends_with('1');
            let other = if is_first {
                format!("{name}-2")
            } else {
                format!("{name}-1")
            };
            self.give_credentials(&name, &other);
        }
    }

    /// Which regions a Provider orders in.
    pub(crate) fn give_regions(&mut self, provider: &str, regions: &[&str]) {
        let kind = self.world.kind_of(provider).name();
        let spec = json!({ "spec": { kind: { "regions": regions } } });
        self.tell(format!("{provider} orders in {regions:?}"));
        let _gone = self.world.server.change("providers", "", provider, spec);
        self.note();
    }

    /// Everything is sold out everywhere, or everything is available.
    pub(crate) fn sell_out(&mut self, out: bool) {
        for cloud in self.world.truth().clouds.values_mut() {
            let regions: Vec<String> = cloud.kind.regions.iter().map(|&r| r.to_owned()).collect();
            cloud.sold_out = cloud
                .kind
                .offers(&regions)
                .into_iter()
                .filter(|_| out)
                .flat_map(|offer| [(offer.id.clone(), false), (offer.id, true)])
                .collect();
        }
        self.tell(format!("everything is sold out: {out}"));
    }

    /// Undoes what chance did.
    pub(crate) fn put_right(&mut self) {
        self.sell_out(false);
        self.limit(None);
        self.resume_tasks();
        for name in self.names("pools") {
            self.change_pool(&name, json!({ "suspend": null, "budget": null }));
        }
        for name in self.names("providers") {
            let kind = self.world.kind_of(&name);
            self.give_regions(&name, kind.regions);
            for account in [format!("{name}-1"), format!("{name}-2")] {
                if let Some(cloud) = self.world.truth().clouds.get_mut(&account) {
                    cloud.revoked = false;
                }
            }
        }
        self.mark_again();
        self.give_known_credentials();
    }

    /// People put the marks of machines right that the Pools complain about.
    pub(crate) fn mark_again(&mut self) {
        let mut truth = self.world.truth();
        for machine in truth.clouds.values_mut().flat_map(|cloud| &mut cloud.rented) {
            machine.is_unmarked = false;
        }
    }

    /// A list forgets a machine for a while, or a person takes its mark away, where the cloud is such a one. Nobody could
    /// tell a machine whose id is not on record from one that was not made, so that one is shown. The chances are of
    /// their own, so that histories of other clouds are as they were.
    fn lose_sight_of_a_machine(&self) {
        let at = now();
        let mut random = self.world.chance(&format!("sight of machines at {at}"));
        if !percent(&mut random, 12) {
            return;
        }
        let records = self.world.server.all("machines");
        let mut truth = self.world.truth();
        if truth.restored.is_some() {
            return;
        }
        let ids = records.iter().map(|record| text(record, "/status/id").to_owned());
        let ids: Vec<String> = ids.filter(|id| !id.is_empty()).collect();
        if ids.is_empty() {
            return;
        }
        let id = &ids[random.random_range(0..ids.len())];
        let mut clouds = truth.clouds.values();
        let cloud = clouds.find(|cloud| cloud.rented.iter().any(|machine| machine.id == *id));
        let Some(habits) = cloud.map(|cloud| cloud.kind.habits) else {
            return;
        };
        let (unmarks, time) = (random.random_bool(0.5), random.random_range(SECOND..MINUTE));
        let Some(machine) = truth.rented(id) else { return };
        let words = if habits.unmarks && unmarks {
            machine.is_unmarked = true;
            "loses its mark".to_owned()
        } else if habits.forgets {
            machine.forgotten = (at, at + time);
            format!("is forgotten by lists for {time} ms")
        } else {
            return;
        };
        truth.tell(format!("{id} {words}"));
    }

    /// The credentials of the account where the machines are, as the Provider says.
    fn give_known_credentials(&mut self) {
        for name in self.names("providers") {
            let provider = self.world.server.get("providers", "", &name);
            let known = provider.map(|provider| text(&provider, "/status/account").to_owned());
            let known = known.filter(|account| self.world.truth().clouds.contains_key(account));
            self.give_credentials(&name, &known.unwrap_or_else(|| format!("{name}-1")));
        }
    }

    /// The same, and looks again once orders under way had the time to end: they may be at the account whose
    /// credentials a Provider had until now.
    pub(crate) fn put_right_for_good(&mut self) {
        self.put_right();
        self.pass(MINUTE);
        self.give_known_credentials();
    }

    /// Perhaps something happens.
    pub(crate) fn happen(&mut self) {
        let tasks = self.world.truth().odds.tasks;
        if percent(&mut self.random, tasks) {
            self.happen_to_a_task();
        }
        self.lose_sight_of_a_machine();
        let odds = self.world.truth().odds.happens;
        if !percent(&mut self.random, odds) {
            return;
        }
        match self.random.random_range(0..21) {
            0..6 => self.happen_to_a_machine(),
            6..10 => self.want_something_else(),
            10 | 11 => self.delete_a_record(),
            12 => self.tear_off_a_record(),
            13 => {
                let machines = one_of(&mut self.random, &[None, None, Some(1), Some(2), Some(4)]);
                self.limit(machines);
            }
            14 | 15 => self.change_accounts(),
            16 => self.change_regions(),
            17 => self.happen_to_an_agent(),
            _ => self.change_stock(),
        }
    }

    fn happen_to_a_machine(&mut self) {
        let what = self.random.random_range(0..5);
        self.befall_a_machine(what);
    }

    /// One of five things happens to a machine.
    pub(crate) fn befall_a_machine(&mut self, what: usize) {
        let now = now();
        let which = self.random.random_range(0..1000);
        let mut truth = self.world.truth();
        let mut alive = Vec::new();
        for (account, cloud) in &truth.clouds {
            let there = cloud.rented.iter().enumerate();
            let ours = there
                .filter(|(_, machine)| machine.exists(now) && machine.mark.cluster == crate::world::CLUSTER);
            alive.extend(ours.map(|(index, _)| (account.clone(), index)));
        }
        if alive.is_empty() {
            return;
        }
        let (account, index) = alive[which % alive.len()].clone();
        let Some(cloud) = truth.clouds.get_mut(&account) else {
            return;
        };
        let machine = &mut cloud.rented[index];
        let id = machine.id.clone();
        match what {
            0 => machine.fails_at = machine.fails_at.min(now),
            1 => machine.gone = now,
            2 if machine.spot => {
                machine.reclaim = Some((now, now + 30 * SECOND));
                cloud.halt(index, now + 30 * SECOND);
            }
            3 => machine.host_key = format!("ssh-ed25519 not-{id}"),
            _ => cloud.halt(index, now),
        }
        let words = ["fails", "vanishes", "is taken back", "is impersonated", "halts"];
        truth.tell(format!("{id}: {}", words[what]));
    }

    fn want_something_else(&mut self) {
        let Some(pool) = self.one_named("pools") else {
            return;
        };
        let (what, number) = (self.random.random_range(0..6), self.random.random_range(0..4_u32));
        let budget = json!({ "maxTotalCost": format!("0.{number}1") });
        let spec = match what {
            0 => json!({ "cpu": number.max(1) }),
            1 => json!({ "suspend": number == 0 }),
            2 => json!({ "budget": Some(budget).filter(|_| number > 0) }),
            _ => json!({ "nodes": { "desired": number } }),
        };
        self.change_pool(&pool, spec);
    }

    pub(crate) fn one_named(&mut self, plural: &str) -> Option<String> {
        let names = self.names(plural);
        (!names.is_empty()).then(|| names[self.random.random_range(0..names.len())].clone())
    }

    fn delete_a_record(&mut self) {
        let Some(name) = self.one_named("machines") else {
            return;
        };
        self.tell(format!("somebody deletes Machine {name}"));
        let _gone = self.world.server.delete("machines", TEAM, &name);
        self.note();
    }

    /// Somebody deletes a Machine, and takes away the finalizer that is in the way.
    fn tear_off_a_record(&mut self) {
        if !self.random.random_ratio(1, 3) {
            return;
        }
        let Some(name) = self.one_named("machines") else {
            return;
        };
        let Some(machine) = self.world.server.get("machines", TEAM, &name) else {
            return;
        };
        if !machine["status"]["goneAt"].is_null() {
            return;
        }
        let uid = machine["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.tell(format!("somebody tears off Machine {name}"));
        self.world.truth().torn.insert(uid);
        let _gone = self.world.server.delete("machines", TEAM, &name);
        let others: Vec<&Value> = machine["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|finalizer| *finalizer != labels::FINALIZER)
            .collect();
        let bare = json!({ "metadata": { "finalizers": others } });
        let _gone = self.world.server.change("machines", TEAM, &name, bare);
        self.note();
    }

    fn change_accounts(&mut self) {
        let Some(provider) = self.one_named("providers") else {
            return;
        };
        let account = format!("{provider}-{}", self.random.random_range(1..3));
        if self.random.random_bool(0.3) {
            let revoked = self.random.random_bool(0.5);
            self.tell(format!("{account} is revoked: {revoked}"));
            if let Some(cloud) = self.world.truth().clouds.get_mut(&account) {
                cloud.revoked = revoked;
            }
        } else {
            self.give_credentials(&provider, &account);
        }
    }

    fn change_regions(&mut self) {
        let Some(provider) = self.one_named("providers") else {
            return;
        };
        let all = self.world.kind_of(&provider).regions;
        let from = self.random.random_range(0..all.len());
        let until = self.random.random_range(from..all.len());
        self.give_regions(&provider, &all[from..=until]);
    }

    pub(crate) fn change_stock(&mut self) {
        let out = self.random.random_bool(0.3);
        if !out {
            return self.sell_out(false);
        }
        let accounts: Vec<String> = self.world.truth().clouds.keys().cloned().collect();
        let account = accounts[self.random.random_range(0..accounts.len())].clone();
        self.tell(format!("small machines are sold out at {account}"));
        if let Some(cloud) = self.world.truth().clouds.get_mut(&account) {
            let regions: Vec<String> = cloud.kind.regions.iter().map(|&r| r.to_owned()).collect();
            let offers = cloud.kind.offers(&regions).into_iter();
            let small = offers.filter(|offer| offer.instance_type == "small");
            cloud
                .sold_out
                .extend(small.flat_map(|offer| [(offer.id.clone(), false), (offer.id, true)]));
        }
    }
}
