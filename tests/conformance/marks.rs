//! Recorded machines whose mark was removed at the cloud, as when they are renamed: they exist, and
//! do not show whose they are.

use std::{collections::BTreeMap, mem::swap};

use serde_json::{Value, json};
use skyward_conformance::{Bench, can_be_tried, machine, passes, shown};
use skyward_core::Market;

use crate::in_virtual_time;

/// The fields of a machine that may carry its mark.
#[derive(Clone)]
pub(crate) struct Mark {
    label: String,
    tags: BTreeMap<String, String>,
    /// The machine's environment.
    environment: BTreeMap<String, String>,
    /// Tags that are plain texts.
    texts: Value,
    /// The start-up command.
    command: Value,
}

impl Default for Mark {
    fn default() -> Self {
        Self {
            label: String::new(),
            tags: BTreeMap::new(),
            environment: BTreeMap::new(),
            texts: json!([]),
            command: json!(""),
        }
    }
}

impl Mark {
    /// The same with the name of somebody else's machine.
    pub(crate) fn renamed(mut self) -> Self {
        "a person's".clone_into(&mut self.label);
        self
    }

    /// The same without an environment.
    pub(crate) fn without_environment(mut self) -> Self {
        self.environment.clear();
        self
    }
}

/// Exchanges the mark of a machine.
pub(crate) fn exchange(bench: &Bench, kind: &str, id: &str, other: &mut Mark) {
    bench.sim.world(|world| {
        let machine = world.machines.get_mut(id).unwrap();
        match kind {
            "jarvislabs" | "tensordock" | "vastai" => swap(&mut machine.mark.name, &mut other.label),
            // Marks stand in two places.
            "novita" => {
                swap(&mut machine.mark.name, &mut other.label);
                swap(&mut machine.mark.env, &mut other.environment);
            }
            "massedcompute" => {
                swap(&mut machine.mark.name, &mut other.label);
                swap(&mut machine.detail["command"], &mut other.command);
            }
            "digitalocean" | "hyperstack" | "scaleway" | "vultr" => {
                swap(&mut machine.detail["tags"], &mut other.texts);
            }
            _ => swap(&mut machine.mark.tags, &mut other.tags),
        }
    });
}

#[test]
fn p6_a_machine_that_lost_its_mark_is_neither_gone_nor_ended() {
    for kind in [
        "aws",
        "digitalocean",
        "gcp",
        "hyperstack",
        "jarvislabs",
        "lambda",
        "massedcompute",
        "novita",
        "scaleway",
        "tensordock",
        "vastai",
        "vultr",
    ] {
        if !can_be_tried(kind) {
            continue;
        }
        in_virtual_time(async || {
            let bench = Bench::start(kind, None).await;
            let provider = &bench.provider;
            let order = bench.order(Market::OnDemand, 0).await;
            let (running, _) = bench.bring_up(&order).await;
            let reference = machine(&order, Some(&running.id));
            let mut mark = Mark::default();
            exchange(&bench, kind, &running.id, &mut mark);
            for error in [
                provider.get(&reference).await.unwrap_err(),
                provider.delete(&reference).await.unwrap_err(),
            ] {
                assert!(passes(&error), "{kind}: {error}");
                assert!(error.message.contains(&running.id), "{kind}: {error}");
            }
            assert_eq!(bench.list().await.unwrap(), [], "{kind}: whose is it?");
            assert_eq!(bench.machines(), 1, "{kind}");
            // With its mark it is found as before.
            exchange(&bench, kind, &running.id, &mut mark);
            let found = provider.get(&reference).await.unwrap();
            assert_eq!(
                found.map(|found| found.mark),
                Some(shown(kind, &order.mark)),
                "{kind}"
            );
            bench.bring_down(&order, Some(&running.id)).await;
            bench.judge(kind);
        });
    }
}

#[test]
fn a_machine_whose_mark_comes_after_its_order_is_found_when_it_is_there() {
    in_virtual_time(async || {
        let bench = Bench::start("vastai", None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let id = bench.provider.create(&order).await.unwrap().id;
        bench.list_with(&id).await;
        let mut mark = Mark::default();
        exchange(&bench, "vastai", &id, &mut mark);
        // Neither "there is none", after which it would be ordered again, nor "it is gone".
        let reference = machine(&order, Some(&id));
        assert!(bench.provider.get(&reference).await.is_err());
        assert!(bench.provider.delete(&reference).await.is_err());
        exchange(&bench, "vastai", &id, &mut mark);
        let (running, _) = bench.bring_up(&order).await;
        assert_eq!(running.id, id);
        bench.bring_down(&order, Some(&id)).await;
        bench.judge("a mark that is late");
    });
}
