//! Searching offers.

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::contracts::{self, decimal};
use super::filter;
use super::market::Offering;
use super::reply::{Failure, Outcome};

/// Gigabytes of disk that prices are for where the search names none.
const USUAL_STORAGE: i64 = 8;

/// `POST /api/v0/bundles/`.
pub fn search(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    Ok(json!({"offers": found(context, &body)?}))
}

/// `PUT /api/v0/search/asks/`: its newer twin, with the same under `q`.
pub fn search_new(context: &mut Context<'_, '_>) -> Outcome {
    let query = question(&context.body()?);
    Ok(json!({"offers": found(context, &query)?}))
}

/// `PUT /api/v0/launch_instance/`: orders the first that a search finds.
pub fn launch(context: &mut Context<'_, '_>) -> Outcome {
    let mut body = context.body()?;
    let offers = found(context, &question(&body))?;
    body.remove("q");
    match offers.first().and_then(|offer| offer.get("id")) {
        Some(id) => contracts::order(context, &id.to_string(), body),
        None => Ok(json!({"success": false, "error": "no_offers", "msg": "No offer fits."})),
    }
}

fn question(body: &Map<String, Value>) -> Map<String, Value> {
    let query = body.get("q").and_then(Value::as_object);
    query.cloned().unwrap_or_default()
}

fn found(
    context: &mut Context<'_, '_>,
    body: &Map<String, Value>,
) -> Result<Vec<Map<String, Value>>, Failure> {
    let now = context.visit.now();
    context.state.market.renew_ids(now);
    let offering = match body.get("type").and_then(Value::as_str) {
        None | Some("ondemand" | "on-demand") => Offering::OnDemand,
        Some("bid") => Offering::Bid,
        Some(_) => return Ok(Vec::new()),
    };
    let mut filters: Map<String, Value> = body
        .iter()
        .filter(|(name, _)| !filter::PLAIN.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    // What the service adds by itself.
    for (name, value) in [("verified", true), ("rentable", true), ("rented", false)] {
        filters.entry(name).or_insert_with(|| json!({"eq": value}));
    }
    let storage = body
        .get("allocated_storage")
        .and_then(decimal)
        .unwrap_or_else(|| Decimal::from(USUAL_STORAGE));
    let mut found = Vec::new();
    for offer in context.state.market.offers(offering, storage, now) {
        if filter::matches(&offer, &filters).map_err(Failure::arguments)? {
            found.push(offer);
        }
    }
    let order: Vec<(String, bool)> = body
        .get("order")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)? != "desc")))
        .collect();
    filter::sort(&mut found, &order);
    let limit = body.get("limit").and_then(Value::as_u64).unwrap_or(64) as usize;
    found.truncate(limit.min(context.visit.keep.unwrap_or(usize::MAX)));
    Ok(found)
}
