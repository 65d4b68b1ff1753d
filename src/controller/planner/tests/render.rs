//! Plans as text: one block for each look, one line for each thing that the look comes to.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use jiff::Timestamp;
use k8s_openapi::serde::Serialize;
use serde_json::Value;

use crate::{
    base::requeue::Next,
    events::{EventKind, EventSpec},
    machine::plan::draft as machine,
    pool::plan::draft as pool,
    provider::plan as provider,
};

/// The lines of one look, each with a word for what it is.
#[derive(Default)]
pub(crate) struct Block(Vec<(&'static str, String)>);

impl Block {
    pub(crate) fn line(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push((what, text.into()));
    }

    pub(crate) fn events<'a>(&mut self, events: impl IntoIterator<Item = &'a EventSpec>) {
        for event in events {
            let kind = match event.kind {
                EventKind::Normal => "",
                EventKind::Warning => "Warning ",
            };
            self.line("event", format!("{kind}{}: {}", event.reason, event.note));
        }
    }

    /// What a status that is written changes, field by field.
    pub(crate) fn status(&mut self, old: &impl Serialize, new: &impl Serialize) {
        let (old, new) = (fields(old), fields(new));
        // Conditions that say the same stand in one line.
        let mut told: Vec<(Vec<String>, &str)> = Vec::new();
        for (field, value) in new.iter().filter(|(field, value)| old.get(*field) != Some(value)) {
            let (field, said) = match value.split_once(' ').filter(|_| value.starts_with('=')) {
                Some((status, said)) => (format!("{field}{status}"), said),
                None => (field.clone(), value.as_str()),
            };
            match told
                .iter_mut()
                .find(|(_, other)| *other == said && !said.starts_with(':'))
            {
                Some((fields, _)) => fields.push(field),
                None => told.push((vec![field], said)),
            }
        }
        for (fields, said) in told {
            let space = if said.starts_with(':') { "" } else { " " };
            self.line("status", format!("{}{space}{said}", fields.join(", ")));
        }
        for field in old.keys().filter(|field| !new.contains_key(*field)) {
            self.line("status", format!("{field}(no more)"));
        }
    }

    /// In lines.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (what, said) in &self.0 {
            let mut lines = said.lines();
            let first = lines.next().unwrap_or_default();
            writeln!(text, "  {what:<8}{first}").unwrap();
            for line in lines {
                writeln!(text, "          {line}").unwrap();
            }
        }
        text
    }
}

/// The fields of a status by their paths; a condition is one field.
fn fields(status: &impl Serialize) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    collect("", &serde_json::to_value(status).unwrap(), &mut found);
    found
}

fn collect(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(object) if object.contains_key("lastTransitionTime") => {
            let field = |name: &str| object[name].as_str().unwrap_or_default();
            let said = format!("={} {}: {}", field("status"), field("reason"), field("message"));
            found.insert(
                field("type").to_owned(),
                said.trim_end_matches([':', ' ']).to_owned(),
            );
        }
        Value::Object(object) => {
            for (name, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                collect(&format!("{path}{dot}{name}"), value, found);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                collect(&format!("{path}[{index}]"), value, found);
            }
        }
        Value::Null => {}
        value => drop(found.insert(path.to_owned(), format!(": {}", text(value)))),
    }
}

fn seconds(time: Duration) -> String {
    format!("after {}s", time.as_secs_f64())
}

fn next(next: Next) -> String {
    match next {
        Next::Wait => "when something changes".to_owned(),
        Next::After(time) => seconds(time),
        Next::Again => "at once".to_owned(),
    }
}

/// A Pool's plan, without the reasons that were told before.
pub(super) fn pool(old: &impl Serialize, plan: &pool::Plan, told: &[String]) -> Block {
    let mut block = Block::default();
    for reason in plan.reasons.iter().filter(|reason| !told.contains(reason)) {
        block.line("because", reason);
    }
    block.status(old, &plan.status);
    for action in &plan.actions {
        block.line("does", pool_action(action));
    }
    block.events(&plan.events);
    block.line("looks", next(plan.next));
    block
}

fn pool_action(action: &pool::Action) -> String {
    match action {
        pool::Action::AddFinalizer => "adds the finalizer".to_owned(),
        pool::Action::EnsureKey => "makes the SSH key, if there is none".to_owned(),
        pool::Action::CreateMachine { name, spec } => {
            let at = |region: &str| {
                if region.is_empty() {
                    String::new()
                } else {
                    format!(" in {region}")
                }
            };
            let most = spec.max_hourly_cost.as_deref().unwrap_or("any");
            let mut text = format!(
                "creates Machine {name} (slot {}, attempt {}): Offer {} of Provider {}{}, {:?} at {} USD per hour, at most {most}",
                spec.slot,
                spec.attempt,
                spec.offer,
                spec.provider,
                at(&spec.region),
                spec.market,
                spec.hourly_price,
            );
            if let Some(granted) = &spec.granted_accelerator {
                write!(
                    text,
                    ", {} x {}",
                    serde_json::to_value(granted.count).unwrap(),
                    granted.name
                )
                .unwrap();
            }
            text
        }
        pool::Action::DeleteMachine {
            name,
            why,
            finish_runs,
            ..
        } => {
            let runs = if *finish_runs { "; its runs may finish" } else { "" };
            format!("deletes Machine {name}: {}{runs}", why.words())
        }
        pool::Action::DeleteUnrecorded(provider, machine) => {
            let id = machine.id.as_deref().unwrap_or_default();
            format!("ends {id} at Provider {provider}, which has no record")
        }
        pool::Action::Release { provider, scope } => format!(
            "returns what its machines shared at Provider {provider}, in regions [{}]",
            scope.regions.join(", ")
        ),
        pool::Action::DeleteLogs => "deletes the stored logs of bootstraps".to_owned(),
        pool::Action::ReleaseKey => "deletes the SSH key".to_owned(),
        pool::Action::RemoveFinalizer => "removes the finalizer".to_owned(),
    }
}

/// A Machine's plan, with those of its actions that change anything.
pub(super) fn machine(
    old: &impl Serialize,
    plan: &machine::Plan,
    actions: &[&machine::Action],
    now: Timestamp,
) -> Block {
    let mut block = Block::default();
    for reason in &plan.reasons {
        block.line("because", reason);
    }
    if let Some((what, why)) = &plan.shortage {
        block.line("notes", format!("unavailable: {what:?}: {why}"));
    }
    if plan.keep_log {
        block.line("keeps", "the log of its bootstrap");
    }
    if let Some(new) = &plan.status {
        block.status(old, new);
    }
    for action in actions {
        block.line("does", machine_action(action));
    }
    block.events(&plan.events);
    if let Some(at) = plan.order_not_before {
        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        block.line("orders", seconds(wait));
    }
    block.line("looks", next(plan.next));
    block
}

fn machine_action(action: &machine::Action) -> String {
    match action {
        machine::Action::Order => "orders it".to_owned(),
        machine::Action::Connect {
            endpoint,
            trust,
            environment,
        } => {
            let key = match trust {
                machine::Trust::Key(key) => key,
                machine::Trust::Proof => "its host key must be proved",
                machine::Trust::FirstContact => "learns its host key",
            };
            let made = environment
                .as_ref()
                .map_or_else(String::new, |hash| format!(", and makes the environment {hash}"));
            format!(
                "connects to {:?} as {} ({key}){made}",
                endpoint.dial, endpoint.user
            )
        }
        machine::Action::Disconnect => "disconnects".to_owned(),
        machine::Action::Delete => "asks the cloud to end it".to_owned(),
        machine::Action::RemoveFinalizer => "removes the finalizer".to_owned(),
        machine::Action::DoubtLeadership => "asks whether this process leads still".to_owned(),
    }
}

/// A Provider's plan.
pub(super) fn provider(old: &impl Serialize, plan: &provider::Plan) -> Block {
    let mut block = Block::default();
    if plan.add_finalizer {
        block.line("does", "adds the finalizer");
    }
    for offer in &plan.apply {
        let name = offer.metadata.name.as_deref().unwrap_or_default();
        let price = |price: &Option<String>| price.clone().unwrap_or_else(|| "none".to_owned());
        let (demand, spot) = (price(&offer.spec.on_demand_price), price(&offer.spec.spot_price));
        block.line(
            "does",
            format!("writes Offer {name}: on demand {demand}, spot {spot}"),
        );
    }
    for name in &plan.delete {
        block.line("does", format!("deletes Offer {name}"));
    }
    if let Some(new) = &plan.status {
        block.status(old, new);
    }
    for scope in &plan.release {
        block.line("does", format!("returns what Pool {} shared", scope.pool_uid));
    }
    block.events(&plan.event);
    if plan.remove_finalizer {
        block.line("does", "removes the finalizer");
    }
    block.line("looks", seconds(plan.again));
    block
}
