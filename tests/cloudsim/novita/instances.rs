//! Instances: lists, states, SSH, ends; the balance.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Novita, PAGES_BEGIN_TWICE, PASSWORD_ABOVE, PASSWORD_ONCE, catalogue, is_like, number};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::market::Market;
use crate::core::rest::pages::PageSize;
use crate::core::rest::{bad, body, numbered};
use crate::core::world::World;

#[rustfmt::skip]
const PAGE_SIZE: PageSize = PageSize { parameter: "pageSize", usual: 20, most: 100 };
/// Seconds for which an instance that is gone is still told to be `removed`.
const REMEMBERED: i64 = 60;

/// The body of a call about one instance.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Named {
    instance_id: String,
}

fn missing() -> Refusal {
    Refusal::NotFound("instance".to_owned())
}

/// How many seconds ago something was; very many where it never was.
fn age(since: Option<Timestamp>, now: Timestamp) -> i64 {
    since.map_or(i64::MAX, |at| now.duration_since(at).as_secs())
}

/// The instance that the body of a call names, with its id.
fn named<'a>(visit: &'a mut Visit<'_>) -> Result<(String, &'a Machine), Refusal> {
    let Named { instance_id: id } = body(visit.request)?;
    visit.subject = Some(id.clone());
    let machine = visit.machine(&id).ok_or_else(missing)?;
    Ok((id, machine))
}

/// The status of an instance. `again` is what it was asked after it had run.
fn status(machine: &Machine, phase: Phase, now: Timestamp) -> &'static str {
    let age = |phase| age(machine.since(phase), now);
    let again = machine.detail["again"].as_str();
    match phase {
        Phase::Pending => match (again, age(Phase::Pending)) {
            (None, ..=1) => "toCreate",
            (None, 2..=4) => "creating",
            (None, _) => "pulling",
            (Some("restart"), ..=1) => "toRestart",
            (Some("restart"), _) => "restarting",
            (Some(_), ..=1) => "toStart",
            (Some(_), _) => "starting",
        },
        Phase::Running => "running",
        Phase::Halted if machine.detail["frozen"] == true => "freezing",
        Phase::Halted => match age(Phase::Halted) {
            _ if machine.cause == Some(Cause::Itself) => "exited",
            ..=1 => "toStop",
            2..=3 => "stopping",
            _ => "exited",
        },
        Phase::Failed if machine.cause == Some(Cause::Died) => "exited",
        Phase::Failed if machine.cause == Some(Cause::NoCapacity) => "creating",
        Phase::Failed => "pulling",
        Phase::Ending if age(Phase::Ending) < 2 => "toRemove",
        Phase::Ending => "removing",
        Phase::Ended => "removed",
    }
}

/// What is wrong with an instance.
fn status_error(machine: &Machine, phase: Phase) -> Value {
    let (state, message) = match &machine.cause {
        _ if phase != Phase::Failed => ("", ""),
        Some(Cause::NoCapacity) => ("INSUFFICIENT_RESOURCE", "There are not enough resources"),
        Some(Cause::Installation(why)) => ("CREATE_CONTAINER_FAILED", why.as_str()),
        Some(Cause::Died) => ("NODE_LOST", "The host of the instance is lost"),
        _ => ("CREATE_CONTAINER_FAILED", "The container could not be started"),
    };
    json!({ "state": state, "message": message })
}

/// The way to the SSH of an instance, and its password where that is told.
fn ssh(machine: &Machine, phase: Phase, password: &str, now: Timestamp) -> Value {
    if phase == Phase::Pending && machine.endpoint.is_none() {
        return Value::Null;
    }
    let since = age(machine.since(Phase::Running), now);
    let is_told = phase == Phase::Running && since >= 2;
    let at = machine.endpoint.as_ref().filter(|_| is_told);
    json!({
        "sshCommand": at.map_or_else(String::new, |at| format!("ssh -p {} root@{}", at.port, at.address)),
        "password": at.map_or("", |_| password), "isRunning": at.is_some() && since >= 4,
    })
}

/// The ports that an order named, as the proxy has them.
fn ports(machine: &Machine) -> Value {
    let Some(at) = &machine.endpoint else {
        return json!([]);
    };
    let shown = |listed: &Value| {
        let (port, kind) = (listed[0].as_u64().unwrap_or_default(), &listed[1]);
        let endpoint = match (port, kind == "http") {
            (_, true) => format!("https://{}-{port}.proxy.example", machine.id),
            (22, false) => format!("{}:{}", at.address, at.port),
            (_, false) => format!("{}:{}", at.address, 20_000 + port % 40_000),
        };
        json!({ "port": port, "endpoint": endpoint, "type": kind })
    };
    let listed = machine.detail["ports"].as_array();
    listed.into_iter().flatten().map(shown).collect()
}

/// The spot status, and when the instance is taken back.
fn spot(machine: &Machine, now: Timestamp) -> [String; 2] {
    let words = match (machine.market, machine.reclaim_at) {
        (Market::OnDemand, _) => return [String::new(), "0".to_owned()],
        (Market::Spot, None) => "running",
        (Market::Spot, Some(at)) if at > now => "notified",
        (Market::Spot, Some(_)) if age(machine.since(Phase::Halted), now) < 4 => "reclaiming",
        (Market::Spot, Some(_)) => "terminated",
    };
    let at = machine.reclaim_at.map_or(0, Timestamp::as_second);
    [words.to_owned(), at.to_string()]
}

fn shown(api: &Novita, world: &World, machine: &Machine, phase: Phase, in_list: bool) -> Value {
    let (detail, now) = (&machine.detail, world.now());
    let count = u32::try_from(detail["gpus"].as_u64().unwrap_or_default()).unwrap_or_default();
    let kind = world.types.get(&machine.instance_type);
    let [cpus, memory] = kind.map_or([0, 0], |kind| [kind.vcpus * count, kind.memory_gb * count]);
    let is_told = !api.has(PASSWORD_ONCE) || !(in_list || detail["told"] == true);
    let password = machine.boot.password.as_deref().filter(|_| is_told);
    let [spot_status, spot_time] = spot(machine, now);
    let variables = machine.mark.env.iter();
    let variables: Vec<Value> = variables
        .map(|(key, value)| json!({ "key": key, "value": value }))
        .collect();
    let mut ssh = ssh(machine, phase, password.unwrap_or_default(), now);
    let above = api.has(PASSWORD_ABOVE) && ssh.is_object();
    let above = above.then(|| std::mem::replace(&mut ssh["password"], json!("")));
    let mut shown = json!({
        "id": machine.id, "name": machine.mark.name, "clusterId": catalogue::cluster_id(&machine.region),
        "clusterName": machine.region, "status": status(machine, phase, now),
        "statusError": status_error(machine, phase), "imageUrl": detail["image"], "command": detail["command"],
        "cpuNum": cpus.to_string(), "memory": memory.to_string(), "gpuNum": count.to_string(),
        "portMappings": ports(machine), "productId": machine.instance_type,
        "productName": kind.map_or("", |kind| kind.gpu.as_str()), "rootfsSize": detail["disk"],
        "network": { "id": "", "ip": "" }, "envs": variables, "kind": "gpu",
        "billingMode": if machine.market == Market::Spot { "spot" } else { "onDemand" }, "endTime": "-1",
        "spotStatus": spot_status, "spotReclaimTime": spot_time, "connectComponentSSH": ssh,
        "createdAt": machine.created().as_second().to_string(),
    });
    if let Some(password) = above {
        shown["sshPassword"] = password;
    }
    shown
}

pub(super) fn list(api: &Novita, visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let machines = visit.world.machines_of(&visit.account).filter_map(|machine| {
        let phase = visit.world.listed(machine)?;
        (phase != Phase::Ended).then(|| shown(api, visit.world, machine, phase, true))
    });
    let asked = |name: &str| visit.request.parameter(name);
    let has = |machine: &Value, field: &str, part| is_like(machine[field].as_str().unwrap_or_default(), part);
    let is_meant = |machine: &Value| {
        has(machine, "name", asked("name"))
            && has(machine, "productName", asked("productName"))
            && asked("status").is_none_or(|status| status.is_empty() || machine["status"] == status)
    };
    let machines = machines.filter(is_meant).collect();
    let asked = number(visit, "pageNum")? as usize;
    let page = asked + usize::from(!api.has(PAGES_BEGIN_TWICE));
    let page = numbered(visit, page, PAGE_SIZE, machines)?;
    let shown =
        json!({ "instances": page.items, "pageSize": page.size, "pageNum": asked, "total": page.total });
    Ok(Answer::json(200, &shown))
}

pub(super) fn get(api: &Novita, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = visit.request.parameter("instanceId").unwrap_or_default();
    let id = id.to_owned();
    visit.subject = Some(id.clone());
    let own = |machine: &&Machine| machine.account == visit.account;
    let machine = visit.world.machines.get(&id).filter(own).ok_or_else(missing)?;
    if machine.phase == Phase::Ended && age(machine.since(Phase::Ended), visit.now()) >= REMEMBERED {
        return Err(missing());
    }
    let shown = shown(api, visit.world, machine, machine.phase, false);
    let told = shown["connectComponentSSH"]["sshCommand"].as_str();
    let is_told = told.is_some_and(|command| !command.is_empty());
    if let Some(machine) = visit.world.machines.get_mut(&id).filter(|_| is_told) {
        machine.detail["told"] = json!(true);
    }
    Ok(Answer::json(200, &shown))
}

/// The answer of calls that only do something.
fn done() -> Answer {
    Answer::json(200, &json!({}))
}

pub(super) fn delete(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let (id, _) = named(visit)?;
    let takes = visit.world.end_takes;
    visit.world.end(&id, Cause::Asked, takes);
    Ok(done())
}

/// The id of the instance that the body of a call names, which must run.
fn running(visit: &mut Visit<'_>) -> Result<String, Refusal> {
    let (id, machine) = named(visit)?;
    if machine.phase == Phase::Running {
        return Ok(id);
    }
    bad("The instance is not running")
}

pub(super) fn stop(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = running(visit)?;
    visit.world.halt(&id, Cause::Asked);
    visit.world.release_stock(&id);
    Ok(done())
}

pub(super) fn start(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let (id, machine) = named(visit)?;
    if machine.detail["frozen"] == true {
        return Err(Refusal::Funds);
    }
    if machine.phase != Phase::Halted || machine.cause == Some(Cause::Reclaimed) {
        return bad("The instance is not stopped, or was taken back");
    }
    if !visit.world.hold_stock(&id) {
        return Err(Refusal::NoCapacity);
    }
    run_again(visit, &id, "start");
    Ok(done())
}

pub(super) fn restart(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let id = running(visit)?;
    visit.world.halt(&id, Cause::Asked);
    run_again(visit, &id, "restart");
    Ok(done())
}

/// Boots a stopped instance again.
fn run_again(visit: &mut Visit<'_>, id: &str, what: &str) {
    if let Some(machine) = visit.world.machines.get_mut(id) {
        machine.detail["again"] = json!(what);
    }
    let plan = visit.boot.clone();
    visit.world.resume(id, plan);
}

/// Stops an instance whose account owes money.
pub(super) fn freeze(world: &mut World, body: &Value) -> Result<Value, String> {
    let id = body["instance"].as_str().ok_or("give {\"instance\": ID}")?;
    let machine = world.machines.get_mut(id).ok_or("there is no such instance")?;
    machine.detail["frozen"] = json!(true);
    world.halt(id, Cause::Asked);
    Ok(body.clone())
}

/// What an account may still spend; much where its bills come later.
pub(super) fn balance(visit: &Visit<'_>) -> Answer {
    let account = visit.world.accounts.get(&visit.account);
    let usd = account.and_then(|account| account.balance);
    let told = usd.unwrap_or(Decimal::ONE_HUNDRED) * Decimal::from(10_000);
    let told = told.trunc().to_string();
    let shown = json!({
        "availableBalance": told, "cashBalance": told, "creditLimit": "0", "pendingCharges": "0",
        "outstandingInvoices": "0",
    });
    Answer::json(200, &shown)
}
