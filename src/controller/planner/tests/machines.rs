//! What becomes of machines on their way, and of machines that were Ready.

use serde_json::{Value, json};
use skyward_core::{
    ErrorKind,
    machine::FailureKind,
    provider::HostKeys,
    session::{self, SessionFailure},
};

use super::{
    lives::later,
    tells,
    world::{World, error, fails, step_fails},
};

fn one() -> Value {
    json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 1 } })
}

#[test]
fn a_bootstrap_that_fails_twice_stops_the_pool_until_something_changes() {
    let mut world = World::new(one());
    world.bootstrap = Some(step_fails("exit code 100", "E: Unable to locate package nope"));
    world.pass(300);
    world.happens("a person corrects the name of the package");
    world.bootstrap = None;
    world.edit(json!({ "image": { "apt": ["jq"] } }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_bootstrap_that_failed_is_tried_again_when_a_secret_that_it_names_changes() {
    let mut world = World::new(one());
    world.bootstrap = Some(step_fails("exit code 1", "ERROR: 401 Unauthorized"));
    world.pass(300);
    world.forget();
    world.happens("a person corrects the Secret of the index");
    world.bootstrap = None;
    world.references = "2";
    world.pass(5);
    tells!(world.text());
}

#[test]
fn machines_that_never_answer_ssh_are_given_up_until_the_pool_stops() {
    let mut spec = one();
    spec["maxProvisionAttempts"] = json!(2);
    let mut world = World::new(spec);
    world.unreachable = true;
    world.pass(900);
    world.happens("an hour later");
    world.unreachable = false;
    world.pass(3600);
    tells!(world.text());
}

#[test]
fn a_machine_that_never_gets_an_address_is_given_up() {
    let mut world = World::new(one());
    world.acme().takes.0 = 100_000;
    world.pass(315);
    tells!(world.text());
}

#[test]
fn an_image_that_cannot_be_pulled_fails_its_machines_and_then_the_pool() {
    let mut spec = one();
    spec["maxProvisionAttempts"] = json!(2);
    let mut world = World::new(spec);
    for _ in 0..2 {
        world.pass(5);
        let pull = fails(
            FailureKind::ImagePull,
            "image \"nope:1\" cannot be pulled: manifest unknown",
        );
        world.rented(0).phase = pull;
        world.pass(60);
    }
    tells!(world.text());
}

#[test]
fn a_machine_that_runs_out_of_memory_is_replaced_and_says_what_to_ask_for() {
    let mut world = later(one());
    world.happens("the kernel kills the whole machine");
    world.rented(0).phase = fails(
        FailureKind::OutOfMemory,
        "its work used more than its 8Gi; ask for more memory",
    );
    world.pass(15);
    tells!(world.text());
}

#[test]
fn a_machine_that_breaks_the_protocol_is_replaced_although_it_was_ready() {
    let mut world = later(one());
    world.happens("its agent sends more than a call allows");
    world.bootstrap = Some(SessionFailure::new(
        session::FailureKind::ProtocolViolation,
        "the answer of RunState is larger than 65536 bytes".into(),
    ));
    world.pass(5);
    world.bootstrap = None;
    world.pass(15);
    tells!(world.text());
}

#[test]
fn a_host_key_that_nobody_vouches_for_is_refused_where_keys_are_verified() {
    let mut world = World::new(one());
    world.acme().edit(json!({ "hostKeyPolicy": "Verified" }));
    world.pass(40);
    tells!(world.text());
}

#[test]
fn a_host_key_is_proved_where_keys_are_verified_and_boot_data_can_carry_a_proof() {
    let mut world = World::new(one());
    world.acme().capabilities.host_keys = HostKeys::Proved;
    world.acme().edit(json!({ "hostKeyPolicy": "Verified" }));
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_machine_that_never_proves_its_host_key_is_given_up_for_that() {
    let mut world = World::new(one());
    world.acme().capabilities.host_keys = HostKeys::Proved;
    world.acme().edit(json!({ "hostKeyPolicy": "Verified" }));
    world.pass(10);
    world.unproved = true;
    world.pass(340);
    tells!(world.text());
}

#[test]
fn a_proof_that_is_demanded_while_a_machine_boots_replaces_it_at_once_without_a_failed_try() {
    let mut world = World::new(one());
    world.acme().capabilities.host_keys = HostKeys::Proved;
    world.pass(10);
    world.happens("while the machine boots, hostKeyPolicy: Verified is set");
    world.acme().edit(json!({ "hostKeyPolicy": "Verified" }));
    world.pass(90);
    tells!(world.text());
}

#[test]
fn a_proof_that_is_demanded_between_the_record_and_the_order_makes_another_record() {
    let mut world = World::new(one());
    world.acme().capabilities.host_keys = HostKeys::Proved;
    world.look();
    world.look();
    world.happens("before it is ordered, hostKeyPolicy: Verified is set");
    world.acme().edit(json!({ "hostKeyPolicy": "Verified" }));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_lost_connection_is_waited_for_and_the_machine_given_up_in_the_end() {
    let mut spec = one();
    spec["orphanTimeout"] = json!("10m");
    let mut world = later(spec);
    world.load.runs = [("train-0a1b2-0-1".to_owned(), 1)].into();
    world.happens("the connection is lost, and a run is on the machine");
    world.disconnects("train-0a1b2-0-1");
    world.pass(720);
    tells!(world.text());
}

#[test]
fn a_lost_connection_that_comes_back_costs_nothing() {
    let mut world = later(one());
    world.happens("the connection is lost");
    world.disconnects("train-0a1b2-0-1");
    world.pass(120);
    world.happens("the connection is back");
    world.reconnects("train-0a1b2-0-1");
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_cloud_that_does_not_answer_changes_nothing_of_machines_that_are_ready() {
    let mut world = later(one());
    world.happens("the cloud does not answer for half an hour");
    world.acme().account = Err(error(
        ErrorKind::Transient,
        "list the machines",
        "connection timed out",
    ));
    world.pass(1800);
    world.happens("the cloud answers");
    world.acme().account = Ok("acme".into());
    world.pass(400);
    tells!(world.text());
}

#[test]
fn a_machine_that_stops_itself_is_replaced() {
    let mut world = later(one());
    world.happens("its agent stopped it, since no controller came for long");
    world.rented(0).phase = skyward_core::ProviderPhase::Stopped("by itself".into());
    world.pass(15);
    tells!(world.text());
}

#[test]
fn a_machine_whose_id_is_somebody_elses_is_left_alone_and_replaced() {
    let mut world = later(one());
    world.happens("somebody writes another machine's id into the status, and deletes the Machine");
    world.acme().foreign = true;
    world.delete_machine("train-0a1b2-0-1", false);
    world.pass(15);
    tells!(world.text());
}

#[test]
fn two_spot_machines_are_taken_back_in_the_same_minute() {
    let mut world = later(json!({
        "provider": "acme", "accelerator": { "name": "H100" }, "allocation": "Spot", "nodes": { "desired": 2 }
    }));
    world.happens("the cloud has taken both back, without a notice");
    world.rented(0).phase = fails(FailureKind::Reclaimed, "the cloud took it back");
    world.rented(1).phase = fails(FailureKind::Reclaimed, "the cloud took it back");
    world.pass(15);
    tells!(world.text());
}
