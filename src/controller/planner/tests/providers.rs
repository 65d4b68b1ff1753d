//! Lives of Providers: credentials, accounts, lists that fail, deletion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use skyward_core::ErrorKind;

use super::{
    lives::later,
    tells,
    world::{World, error, sold},
};

fn one() -> Value {
    json!({ "provider": "acme", "instanceType": "cpu", "nodes": { "desired": 1 } })
}

fn off() -> Value {
    json!({ "provider": "acme", "nodes": { "desired": 0 } })
}

fn refused() -> skyward_core::ProviderError {
    let why = "the API key is not valid; write a new one into Secret \"acme\"";
    error(ErrorKind::Credentials, "use the credentials", why)
}

fn deleted(world: &mut World) {
    let now = world.now;
    let object = world.acme().object.as_mut().unwrap();
    object.metadata.deletion_timestamp = Some(Time(now));
}

#[test]
fn a_new_provider_is_asked_and_writes_its_offers() {
    let mut world = World::unasked(one());
    world.tells_providers = true;
    world.pass(60);
    tells!(world.text());
}

#[test]
fn wrong_credentials_stop_orders_and_right_ones_go_on() {
    let mut world = World::unasked(one());
    world.acme().account = Err(refused());
    world.pass(20);
    world.happens("a person writes another key");
    world.acme().write_secret(Ok("acme".into()));
    world.pass(5);
    tells!(world.text());
}

#[test]
fn a_secret_without_a_key_is_named() {
    let mut world = World::unasked(off());
    let why = "Secret \"acme\" of namespace \"skyward-system\" has no key \"token\"";
    world.acme().account = Err(error(ErrorKind::CredentialsMissing, "read the credentials", why));
    world.pass(20);
    tells!(world.text());
}

#[test]
fn credentials_revoked_while_machines_run_lose_nothing() {
    let mut world = later(one());
    world.happens("the key is revoked");
    world.acme().account = Err(refused());
    world.pass(700);
    world.happens("a person writes another key");
    world.acme().write_secret(Ok("acme".into()));
    world.pass(400);
    tells!(world.text());
}

#[test]
fn another_accounts_credentials_are_refused_while_machines_are_at_the_first() {
    let mut world = later(one());
    world.happens("a person writes the key of another account");
    world.acme().write_secret(Ok("other".into()));
    world.pass(400);
    tells!(world.text());
}

#[test]
fn another_accounts_credentials_are_taken_when_no_machine_is_left() {
    let mut world = later(off());
    world.happens("a person writes the key of another account");
    world.acme().write_secret(Ok("other".into()));
    world.pass(400);
    tells!(world.text());
}

#[test]
fn a_cloud_whose_prices_and_stock_change_has_other_offers() {
    let mut world = later(off());
    world.happens("`cpu` is gone, the H100 costs more, and there is a new machine");
    world.acme().offers = vec![
        sold("h100", Some("H100"), "eu", (Some("2.2"), None)),
        sold("b200", Some("B200"), "eu", (Some("4"), Some("1"))),
    ];
    world.pass(320);
    tells!(world.text());
}

#[test]
fn settings_that_the_cloud_refuses_take_the_offers_away() {
    let mut world = later(off());
    world.happens("a person names a region that does not exist");
    world.acme().edit(json!({ "verda": { "regions": ["moon"] } }));
    world.acme().account = Err(error(
        ErrorKind::InvalidOrder,
        "list the offers",
        "there is no region \"moon\"",
    ));
    world.pass(30);
    tells!(world.text());
}

#[test]
fn a_deleted_provider_waits_for_its_machines_and_its_pool_says_so() {
    let mut world = later(one());
    world.happens("a person deletes the Provider");
    deleted(&mut world);
    world.pass(60);
    world.happens("a person deletes the Pool");
    world.delete_pool();
    world.pass(60);
    tells!(world.text());
}

#[test]
fn a_deleted_provider_whose_account_refuses_it_goes_after_two_minutes() {
    let mut world = later(off());
    world.happens("a person deletes the Provider, and its key is revoked");
    deleted(&mut world);
    world.acme().account = Err(refused());
    world.pass(180);
    tells!(world.text());
}
