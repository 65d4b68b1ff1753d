//! The money of the account: costs of instances, and payments in advance.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::contracts::decimal;
use super::filter;
use super::offers::number;
use super::reply::{Failure, Outcome};
use crate::core::billing::{Billing, Tab};
use crate::core::market::Market;
use crate::core::meter::Meter;

/// What was paid ahead for an instance.
#[derive(Debug, Clone)]
pub struct Deposit {
    /// How much in all.
    pub amount: Decimal,
    /// How many months of it that covers.
    pub months: Decimal,
    /// By how much the instance is cheaper, of 1.
    pub discount: Decimal,
    /// When the last of it came.
    pub since: Timestamp,
}

/// Hours of a month.
const MONTH: i64 = 720;

/// `GET /api/v0/users/current/`.
pub fn account(context: &Context<'_, '_>) -> Outcome {
    let account = &context.visit.account;
    let paid = context.visit.world.accounts.get(account);
    let paid = paid.and_then(|account| account.balance);
    let spent = Meter::new(context.visit.world).bill(account);
    let left = paid.map_or(Decimal::ONE_HUNDRED, |paid| paid - spent);
    Ok(json!({
        "id": context.user(),
        "username": account,
        "email": format!("{account}@example.org"),
        "balance": number(left),
        "credit": number(left),
        "ssh_key": "",
        "sid": "",
    }))
}

/// `GET /api/v0/users/{id}/ipaddrs`: nobody has logged in by a browser.
pub fn addresses(_context: &Context<'_, '_>) -> Outcome {
    Ok(json!({"success": true, "results": []}))
}

/// `GET /api/v0/users/cloud_integrations/`: nobody has any.
pub fn connections(_context: &Context<'_, '_>) -> Outcome {
    Ok(json!([]))
}

/// `PUT /api/v0/instances/prepay/{id}/`: the more months, the cheaper, down to 60 %.
pub fn prepay(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let body = context.body()?;
    let refused = |status, text: &str| Err(Failure::new(status, "invalid_args", text));
    let Ok(machine) = context.instance(id) else {
        return refused(400, "No such instance");
    };
    let amount = body.get("amount").and_then(decimal).unwrap_or_default();
    if machine.market == Market::Spot || amount <= Decimal::ZERO {
        return refused(
            400,
            "Only on-demand instances can be paid ahead, with some amount",
        );
    }
    let balance = context.visit.world.accounts.get(&context.visit.account);
    let balance = balance.and_then(|account| account.balance);
    let there = own_deposits(context).filter(|(id, _)| context.instance(id).is_ok());
    let ahead: Decimal = there.map(|(_, deposit)| deposit.amount).sum();
    if balance.is_some_and(|balance| amount + ahead > balance) {
        return refused(411, "Insufficient credit");
    }
    let (full, disk) = (machine.on_demand_price - machine.disk_price, machine.disk_price);
    let amount = amount
        + context
            .state
            .deposits
            .get(id)
            .map_or(Decimal::ZERO, |old| old.amount);
    let months = (amount / ((full + disk) * Decimal::from(MONTH))).round_dp(4);
    let discount = discount(months);
    let deposit = Deposit {
        amount,
        months,
        discount,
        since: context.visit.now(),
    };
    context.state.deposits.insert(id.to_owned(), deposit);
    context
        .visit
        .world
        .reprice(id, full * (Decimal::ONE - discount) + disk);
    context.visit.subject = Some(id.to_owned());
    Ok(json!({"success": true, "timescale": number(months), "discount_rate": number(discount)}))
}

/// A fifth for a month, three tenths for three, two fifths at most; in between assumed.
fn discount(months: Decimal) -> Decimal {
    let rate = if months < Decimal::ONE {
        months * Decimal::new(2, 1)
    } else {
        Decimal::new(15, 2) + months * Decimal::new(5, 2)
    };
    rate.min(Decimal::new(4, 1)).round_dp(4)
}

fn own_deposits<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = (&'a String, &'a Deposit)> {
    context.state.deposits.iter().filter(move |(id, _)| {
        let machine = context.visit.world.machines.get(*id);
        machine.is_some_and(|machine| machine.account == context.visit.account)
    })
}

/// `GET /api/v0/instances/balance/{id}/`.
pub fn deposit(context: &Context<'_, '_>, id: &str) -> Outcome {
    context.instance(id)?;
    let deposit = context.state.deposits.get(id);
    let of = |part: fn(&Deposit) -> Decimal| deposit.map_or(Decimal::ZERO, part);
    Ok(json!({
        "success": true,
        "refundable_deposit": number(of(|deposit| deposit.amount)),
        "total_discount": number(of(|deposit| deposit.discount)),
        "discount_months": i64::try_from(of(|deposit| deposit.months).trunc()).unwrap_or_default(),
    }))
}

/// What something cost in a period, as the lists of charges have it.
struct Charge<'a> {
    kind: &'static str,
    id: &'a str,
    label: &'a str,
    tab: &'a Tab,
}

impl Charge<'_> {
    fn amount(&self, from: Timestamp, to: Timestamp, billing: &Billing) -> Decimal {
        let amount = self.tab.between(from, to, billing);
        amount.max(Decimal::ZERO).round_dp(6)
    }

    /// When the first period began that costs, and the last one ended.
    fn bounds(&self, from: Timestamp, to: Timestamp) -> (i64, i64) {
        let begun = self.tab.spans().first().map_or(from, |span| span.from);
        let ended = self.tab.spans().last().and_then(|span| span.to).unwrap_or(to);
        (begun.max(from).as_second(), ended.min(to).as_second())
    }

    /// Its parts: the periods in which it cost the same.
    fn periods(&self, from: Timestamp, to: Timestamp) -> Vec<Value> {
        let spans = self.tab.spans().iter().filter_map(|span| {
            let (start, end) = (span.from.max(from), span.to.unwrap_or(to).min(to));
            let seconds = end.duration_since(start).as_secs();
            let amount = span.rate * Decimal::from(seconds) / Decimal::from(3_600);
            (seconds > 0).then(|| {
                json!({
                    "start": start.as_second(), "end": end.as_second(), "source": null, "metadata": {}, "items": [],
                    "type": if self.kind == "volume" { "disk" } else { "gpu" }, "amount": number(amount.round_dp(6)),
                })
            })
        });
        spans.collect()
    }
}

/// All that the account has ever had.
fn charged<'a>(context: &'a Context<'_, '_>) -> Vec<Charge<'a>> {
    let (world, account) = (&context.visit.world, &context.visit.account);
    let machines = world.machines_of(account).map(|machine| Charge {
        kind: "instance",
        id: &machine.id,
        label: &machine.mark.name,
        tab: &machine.tab,
    });
    let volumes = world.resources.values().filter(|thing| thing.kind == "volume");
    let volumes = volumes
        .filter(|volume| volume.account == *account)
        .map(|volume| Charge {
            kind: "volume",
            id: &volume.id,
            label: &volume.name,
            tab: &volume.tab,
        });
    machines.chain(volumes).collect()
}

/// The end of a period among filters, in seconds.
fn bound(filters: &Map<String, Value>, column: &str, operator: &str) -> Option<Timestamp> {
    let seconds = filters.get(column)?.get(operator)?.as_f64()?;
    Timestamp::from_second(seconds as i64).ok()
}

/// `GET /api/v0/charges/`.
pub fn charges(context: &Context<'_, '_>) -> Outcome {
    let mut filters = context.filters("select_filters")?;
    let (Some(from), Some(to)) = (bound(&filters, "day", "gte"), bound(&filters, "day", "lte")) else {
        return Err(Failure::arguments(
            "Must provide both 'day' gte and lte filters for instance charges",
        ));
    };
    filters.remove("day");
    let (now, billing) = (context.visit.now(), context.visit.world.billing());
    let tree = context.visit.request.parameter("format") == Some("tree");
    let mut found = Vec::new();
    for charge in charged(context) {
        let to = to.min(now);
        let amount = charge.amount(from, to, billing);
        let (start, end) = charge.bounds(from, to);
        let row = json!({
            "start": start, "end": end, "type": charge.kind, "source": format!("{}-{}", charge.kind, charge.id),
            "amount": number(amount), "metadata": { "label": charge.label },
            "items": if tree { charge.periods(from, to) } else { Vec::new() },
        });
        let row = row.as_object().cloned().unwrap_or_default();
        if !amount.is_zero() && filter::matches(&row, &filters).map_err(Failure::arguments)? {
            found.push(row);
        }
    }
    page(context, found, 100)
}

/// `GET /api/v1/invoices/`: what was paid, of which only what was paid ahead is known here.
pub fn invoices(context: &Context<'_, '_>) -> Outcome {
    let filters = context.filters("select_filters")?;
    let (Some(from), Some(to)) = (bound(&filters, "when", "gte"), bound(&filters, "when", "lte")) else {
        return Ok(json!({"success": false, "msg": "Must provide both 'when' gte and lte filters"}));
    };
    let services = filters.get("service").and_then(|service| service.get("in"));
    let wanted = services.is_none_or(|list| {
        let mut list = list.as_array().into_iter().flatten();
        list.any(|service| service == "instance_prepay")
    });
    let found = own_deposits(context)
        .filter(|(_, deposit)| {
            // The moments that are asked for are whole seconds.
            let at = deposit.since.as_second();
            wanted && (from.as_second()..=to.as_second()).contains(&at)
        })
        .map(|(id, deposit)| {
            let at = deposit.since.as_second();
            let row = json!({
                "start": at, "end": null, "type": "credit", "source": "instance_prepay", "items": [],
                "description": format!("Paid ahead for instance {id}"), "amount": number(-deposit.amount),
                "metadata": { "invoice_id": id.parse::<i64>().unwrap_or_default(), "service": "instance_prepay" },
            });
            row.as_object().cloned().unwrap_or_default()
        })
        .collect();
    page(context, found, 60)
}

/// A page of rows by their beginning, the newest first unless asked otherwise.
fn page(context: &Context<'_, '_>, mut rows: Vec<Map<String, Value>>, usual: usize) -> Outcome {
    let asked = |name: &str| context.visit.request.parameter(name);
    let newest = asked("latest_first") != Some("false");
    rows.sort_by_key(|row| row["start"].as_i64());
    if newest {
        rows.reverse();
    }
    let start = match asked("after_token").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => STANDARD
            .decode(token)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| text.parse::<usize>().ok())
            .ok_or_else(|| Failure::new(400, "invalid_token", "Invalid pagination token"))?,
    };
    let limit = asked("limit").and_then(|text| text.parse().ok()).unwrap_or(usual);
    let total = rows.len();
    let size = limit.min(context.visit.keep.unwrap_or(usize::MAX)).max(1);
    let rows: Vec<Map<String, Value>> = rows.into_iter().skip(start).take(size).collect();
    let end = start + rows.len();
    let next = (end < total).then(|| STANDARD.encode(end.to_string()));
    Ok(json!({"success": true, "count": rows.len(), "total": total, "next_token": next, "results": rows}))
}

/// `GET /api/v0/users/me/invoices`: the list of old, by days.
pub fn history(context: &Context<'_, '_>) -> Outcome {
    let asked = |name: &str| {
        let seconds: f64 = context.visit.request.parameter(name)?.parse().ok()?;
        Timestamp::from_second(seconds as i64).ok()
    };
    let now = context.visit.now();
    let from = asked("sdate").unwrap_or(Timestamp::UNIX_EPOCH);
    let to = asked("edate").unwrap_or(now).min(now);
    let billing = context.visit.world.billing();
    let mut sum = Decimal::ZERO;
    let mut rows = Vec::new();
    for charge in charged(context) {
        let amount = charge.amount(from, to, billing);
        sum += amount;
        if amount.is_zero() || context.visit.request.parameter("inc_charges") == Some("false") {
            continue;
        }
        let id: i64 = charge.id.parse().unwrap_or_default();
        rows.push(json!({
            "id": id, "type": "charge", "timestamp": charge.bounds(from, to).1, "instance_id": id,
            "description": format!("{} {}", charge.kind, charge.label), "quantity": "1", "rate": number(amount),
            "amount": number(amount), "is_credit": false,
        }));
    }
    let current = json!({"charges": number(sum), "service_fee": 0.0, "total": number(sum), "credit": 0.0});
    Ok(json!({"invoices": context.cut(rows), "current": current}))
}
