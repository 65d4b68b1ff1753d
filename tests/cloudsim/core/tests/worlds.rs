//! Machines and their bills as time passes.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

use crate::backend::{Boot, Command, Report};
use crate::core::billing::{Billing, Halted};
use crate::core::machine::{Endpoint, Mark, NewMachine};
use crate::core::meter::Meter;
use crate::core::world::World;
use crate::{BootEnd, BootPlan, Cause, Happening, Left, Market, Phase, Shelf};

fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

fn world() -> World {
    let billing = Billing {
        halted: Halted::Disk,
        ..Billing::per_second()
    };
    let mut world = World::new(Timestamp::UNIX_EPOCH, 1, billing);
    world
        .stock
        .set(Shelf::new("gpu", "here", Market::Spot), Left::Count(1));
    world
}

fn order(world: &mut World, id: &str, plan: BootPlan) {
    assert!(world.take_stock("gpu", "here", Market::Spot));
    world.create(NewMachine {
        id: id.to_owned(),
        account: "acme".to_owned(),
        mark: Mark {
            name: "same".to_owned(),
            ..Mark::default()
        },
        instance_type: "gpu".to_owned(),
        region: "here".to_owned(),
        market: Market::Spot,
        price: Decimal::from(3_600),
        on_demand_price: Decimal::from(7_200),
        disk_price: Decimal::from(360),
        plan,
        boot: Boot::default(),
        detail: serde_json::Value::Null,
    });
    let endpoint = Endpoint {
        address: "198.18.0.1".to_owned(),
        port: 22,
    };
    world.report(Report::Reachable {
        machine: id.to_owned(),
        endpoint,
    });
}

/// Lets time pass; a reclaimed machine is halted, as at some clouds.
fn pass(world: &mut World, until: i64) {
    while let Some(happening) = world.step(Timestamp::from_second(until).unwrap()) {
        if let Happening::Reclaimed(id) = happening {
            world.halt(&id, Cause::Reclaimed);
            world.release_stock(&id);
        }
    }
}

#[test]
fn a_jump_of_the_clock_gives_the_same_bill_as_a_walk() {
    let bill = |steps: &[i64]| {
        let mut world = world();
        order(&mut world, "a", BootPlan::takes(20));
        world.reclaim_later("a", seconds(100), seconds(30));
        for until in steps {
            pass(&mut world, *until);
        }
        Meter::new(&world).bill("acme")
    };
    let walk: Vec<i64> = (1..=1_000).collect();
    // 130 seconds at 1, then 870 at a tenth.
    assert_eq!(bill(&[1_000]), Decimal::from(217));
    assert_eq!(bill(&walk), bill(&[1_000]));
}

#[test]
fn a_halted_machine_may_not_get_its_place_again() {
    let mut world = world();
    order(&mut world, "a", BootPlan::takes(0));
    pass(&mut world, 10);
    world.reclaim("a", SignedDuration::ZERO);
    pass(&mut world, 10);
    assert_eq!(world.machines["a"].phase, Phase::Halted);
    order(&mut world, "b", BootPlan::takes(0));
    assert!(!world.hold_stock("a"));
    world.end("b", Cause::Asked, SignedDuration::ZERO);
    pass(&mut world, 11);
    assert!(world.hold_stock("a"));
    world.resume("a", BootPlan::takes(5));
    let endpoint = Endpoint {
        address: "198.18.0.2".to_owned(),
        port: 22,
    };
    world.report(Report::Reachable {
        machine: "a".to_owned(),
        endpoint,
    });
    pass(&mut world, 16);
    assert_eq!(world.machines["a"].phase, Phase::Running);
}

#[test]
fn a_boot_that_never_ends_costs_until_somebody_ends_it() {
    let mut world = world();
    let plan = BootPlan {
        takes: SignedDuration::ZERO,
        ends: BootEnd::Never,
    };
    order(&mut world, "a", plan);
    pass(&mut world, 3_600);
    assert_eq!(world.machines["a"].phase, Phase::Pending);
    assert_eq!(Meter::new(&world).billed_now().len(), 1);
    world.end("a", Cause::Asked, seconds(5));
    pass(&mut world, 9_999);
    assert_eq!(Meter::new(&world).bill("acme"), Decimal::from(3_600));
    assert_eq!(Meter::new(&world).billed_now().len(), 0);
}

#[test]
fn a_machine_waits_for_its_back_end_as_well_as_for_its_scripted_boot() {
    let mut world = world();
    order(&mut world, "a", BootPlan::takes(20));
    world.machines.get_mut("a").unwrap().endpoint = None;
    pass(&mut world, 20);
    assert_eq!(world.machines["a"].phase, Phase::Pending);
    let endpoint = Endpoint {
        address: "198.18.0.1".to_owned(),
        port: 22,
    };
    world.report(Report::Reachable {
        machine: "a".to_owned(),
        endpoint,
    });
    pass(&mut world, 25);
    assert_eq!(
        world.machines["a"]
            .since(Phase::Running)
            .map(Timestamp::as_second),
        Some(20)
    );
}

#[test]
fn the_back_end_is_told_in_order_and_an_ended_machine_is_not_ended_again() {
    let mut world = world();
    order(&mut world, "a", BootPlan::takes(0));
    pass(&mut world, 1);
    world.halt("a", Cause::Asked);
    world.end("a", Cause::Asked, SignedDuration::ZERO);
    world.end("a", Cause::Asked, SignedDuration::ZERO);
    let commands = world.take_commands();
    assert!(
        matches!(
            commands.as_slice(),
            [Command::Start(..), Command::Halt(_), Command::End(_)]
        ),
        "{commands:?}"
    );
    pass(&mut world, 1);
    assert_eq!(
        world.stock.left(&Shelf::new("gpu", "here", Market::Spot)),
        Left::Count(1)
    );
}

#[test]
fn two_billed_machines_with_one_mark_are_found_and_ended_ones_are_not() {
    let mut world = world();
    world
        .stock
        .set(Shelf::new("gpu", "here", Market::Spot), Left::Plenty);
    order(&mut world, "a", BootPlan::takes(0));
    order(&mut world, "b", BootPlan::takes(0));
    pass(&mut world, 1);
    assert_eq!(Meter::new(&world).doubled("name")["acme/same"], ["a", "b"]);
    world.end("b", Cause::Asked, seconds(1));
    assert!(Meter::new(&world).doubled("name").is_empty());
}

#[test]
fn a_notice_comes_before_the_reclaim_and_none_where_there_is_no_time_for_it() {
    for (notice, expected) in [(120, vec!["noticed", "reclaimed"]), (0, vec!["reclaimed"])] {
        let mut world = world();
        order(&mut world, "a", BootPlan::takes(0));
        pass(&mut world, 1);
        world.reclaim("a", seconds(notice));
        let mut seen = Vec::new();
        while let Some(happening) = world.step(Timestamp::from_second(200).unwrap()) {
            match happening {
                Happening::Noticed(_) => seen.push("noticed"),
                Happening::Reclaimed(_) => seen.push("reclaimed"),
                _ => {}
            }
        }
        assert_eq!(seen, expected);
    }
}
