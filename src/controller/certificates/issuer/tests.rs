//! The life of our certificates, with their clock.

use super::*;

/// The world of the certificates, with its clock.
struct World {
    secrets: Secrets,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        Self {
            secrets: Secrets::default(),
            now: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.secrets, "skyward-system", self.now)
    }

    fn step(&mut self) -> Plan {
        let plan = self.plan();
        issue(&plan, &mut self.secrets, "skyward-system", self.now).unwrap();
        plan
    }

    fn after(&mut self, time: SignedDuration) -> &mut Self {
        self.now += time;
        self
    }

    fn authorities(&self) -> usize {
        let text = String::from_utf8(self.secrets.apiserver[key::AUTHORITIES].clone()).unwrap();
        text.matches("BEGIN CERTIFICATE").count()
    }
}

fn nothing() -> Plan {
    Plan::default()
}

#[test]
fn the_first_leader_makes_everything_and_then_nothing() {
    let mut world = World::new();
    let first = world.step();
    assert_eq!(first.authority, Authority::Create);
    assert_eq!(first.leaves, Leaf::ALL.into());
    assert_eq!(world.plan(), nothing());
    assert_eq!(world.after(DAY * 59).plan(), nothing());
}

#[test]
fn leaves_are_renewed_a_month_before_they_expire() {
    let mut world = World::new();
    world.step();
    let plan = world.after(DAY * 61).step();
    assert_eq!(
        plan,
        Plan {
            authority: Authority::Keep,
            leaves: Leaf::ALL.into(),
            bundle: false,
            ..nothing()
        }
    );
    assert_eq!(world.plan(), nothing());
}

#[test]
fn one_damaged_leaf_is_made_anew_alone() {
    for damage in ["missing", "rubbish", "key of another"] {
        let mut world = World::new();
        world.step();
        match damage {
            "missing" => drop(world.secrets.controller.remove(key::SERVER_CERTIFICATE)),
            "rubbish" => drop(
                world
                    .secrets
                    .controller
                    .insert(key::SERVER_CERTIFICATE.into(), b"rubbish".to_vec()),
            ),
            _ => {
                let other = world.secrets.apiserver[key::CLIENT_KEY].clone();
                world.secrets.controller.insert(key::SERVER_KEY.into(), other);
            }
        }
        let plan = world.step();
        assert_eq!(
            plan,
            Plan {
                leaves: [Leaf::Server].into(),
                ..nothing()
            },
            "{damage}"
        );
        assert_eq!(world.plan(), nothing());
    }
}

#[test]
fn another_namespace_needs_other_names() {
    let mut world = World::new();
    world.step();
    let plan = plan(&world.secrets, "elsewhere", world.now);
    assert_eq!(
        plan,
        Plan {
            leaves: [Leaf::Api, Leaf::Metrics].into(),
            ..nothing()
        }
    );
}

#[test]
fn a_lost_authority_is_replaced_with_all_it_signed() {
    let mut world = World::new();
    world.step();
    world.secrets.authority.clear();
    let plan = world.step();
    assert_eq!(
        plan,
        Plan {
            authority: Authority::Create,
            leaves: Leaf::ALL.into(),
            bundle: true,
            ..nothing()
        }
    );
    assert_eq!(world.plan(), nothing());
}

#[test]
fn a_lost_bundle_is_written_again() {
    let mut world = World::new();
    world.step();
    world.secrets.apiserver.remove(key::AUTHORITIES);
    assert_eq!(
        world.step(),
        Plan {
            bundle: true,
            ..nothing()
        }
    );
    assert_eq!(world.plan(), nothing());
}

#[test]
fn an_authority_is_replaced_with_overlap() {
    let mut world = World::new();
    world.step();
    world.after(DAY * (3650 - 364));
    world.secrets.apiserver.clear();
    world.secrets.controller.clear();
    // Trusted first …
    assert_eq!(world.step().authority, Authority::Prepare);
    assert_eq!(world.authorities(), 2);
    let signed_by_the_old = world.secrets.apiserver[key::API_CERTIFICATE].clone();
    assert_eq!(world.after(HOUR / 2).plan(), nothing());
    // … then it signs …
    let plan = world.after(HOUR).step();
    assert_eq!(
        plan,
        Plan {
            authority: Authority::Promote,
            leaves: Leaf::ALL.into(),
            bundle: true,
            ..nothing()
        }
    );
    assert_ne!(world.secrets.apiserver[key::API_CERTIFICATE], signed_by_the_old);
    assert_eq!(
        world.authorities(),
        2,
        "what the old one signed may still be in use"
    );
    assert_eq!(world.after(HOUR).plan(), nothing());
    // … then the old one goes.
    assert_eq!(
        world.after(DAY * 2).step(),
        Plan {
            authority: Authority::Forget,
            bundle: true,
            ..nothing()
        }
    );
    assert_eq!(world.authorities(), 1);
    assert_eq!(world.plan(), nothing());
}

#[test]
fn a_crash_between_the_two_writes_is_made_good() {
    // Only the authority's Secret was written, or that and one of the others, at each step
    // of its life.
    let mut world = World::new();
    let again = Plan {
        leaves: Leaf::ALL.into(),
        bundle: true,
        ..nothing()
    };
    let lost = |world: &mut World| {
        let before = world.secrets.clone();
        world.step();
        world.secrets.apiserver = before.apiserver;
        world.secrets.controller = before.controller;
    };
    lost(&mut world);
    assert_eq!(world.plan(), again);
    let before = world.secrets.controller.clone();
    world.step();
    world.secrets.controller = before;
    let plan = world.step();
    assert_eq!(plan.leaves, [Leaf::Server, Leaf::Metrics].into());
    assert_eq!(world.plan(), nothing());
    world.after(DAY * (3650 - 364)).step();
    world.after(HOUR * 2);
    assert_eq!(world.plan().authority, Authority::Promote);
    lost(&mut world);
    assert_eq!(world.step(), again);
    assert_eq!(world.plan(), nothing());
}

#[test]
fn each_process_has_the_keys_that_it_shows_and_no_others_after_an_upgrade_too() {
    let keys = |data: &Data| data.keys().cloned().collect::<Vec<_>>();
    let mut world = World::new();
    world.step();
    // As an earlier version kept them: all in one Secret.
    let of_controller = std::mem::take(&mut world.secrets.controller);
    world.secrets.apiserver.extend(of_controller);
    let (api, client) = (
        world.secrets.apiserver[key::API_CERTIFICATE].clone(),
        world.secrets.apiserver[key::CLIENT_CERTIFICATE].clone(),
    );
    let plan = world.step();
    assert_eq!(
        plan,
        Plan {
            leaves: [Leaf::Server, Leaf::Metrics].into(),
            bundle: true,
            tidy: true,
            ..nothing()
        }
    );
    assert_eq!(
        keys(&world.secrets.apiserver),
        [
            "apiserver.crt",
            "apiserver.key",
            "ca.crt",
            "client.crt",
            "client.key"
        ]
    );
    assert_eq!(
        keys(&world.secrets.controller),
        ["ca.crt", "metrics.crt", "metrics.key", "server.crt", "server.key"]
    );
    assert_eq!(
        world.secrets.apiserver[key::API_CERTIFICATE],
        api,
        "what is in use stays"
    );
    assert_eq!(world.secrets.apiserver[key::CLIENT_CERTIFICATE], client);
    assert_eq!(world.plan(), nothing());
}

#[test]
fn what_is_made_works_in_tls() {
    use skyward_subresources::tls::{self, Clients};
    let mut world = World::new();
    world.now = Timestamp::now();
    world.step();
    let own = |key: &str| world.secrets.controller[key].as_slice();
    tls::server(
        own(key::SERVER_CERTIFICATE),
        own(key::SERVER_KEY),
        Some(own(key::AUTHORITIES)),
        Clients::Required,
    )
    .unwrap();
    tls::server(
        own(key::METRICS_CERTIFICATE),
        own(key::METRICS_KEY),
        None,
        Clients::Optional,
    )
    .unwrap();
    let get = |key: &str| world.secrets.apiserver[key].as_slice();
    tls::server(
        get(key::API_CERTIFICATE),
        get(key::API_KEY),
        Some(get(key::AUTHORITIES)),
        Clients::Optional,
    )
    .unwrap();
    tls::client(
        get(key::CLIENT_CERTIFICATE),
        get(key::CLIENT_KEY),
        get(key::AUTHORITIES),
    )
    .unwrap();
}
