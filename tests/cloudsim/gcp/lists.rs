//! Lists: of a zone or of the project, and aggregated ones with all zones.

use serde_json::{Value, json};

use super::filter::fits;
use super::{Gcp, target, url};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::rest::by_token;
use crate::core::rest::pages::PageSize;

const PAGE_SIZE: PageSize = PageSize {
    parameter: "maxResults",
    usual: 500,
    most: 500,
};

/// An item of a list: its zone, "" where it has none, what it is sorted by, and itself.
pub(super) type Item = (String, String, Value);

/// The items of a list that its filter asks for, in one page.
pub(super) fn list(visit: &Visit<'_>, kind: &str, items: Vec<Item>) -> Result<Answer, Refusal> {
    let (mut list, items) = page(visit, &format!("{kind}List"), items)?;
    // An empty list has no items at all.
    if !items.is_empty() {
        list["items"] = items.into();
    }
    Ok(Answer::json(200, &list))
}

fn page(visit: &Visit<'_>, kind: &str, items: Vec<Item>) -> Result<(Value, Vec<Value>), Refusal> {
    let filter = visit.request.parameter("filter").unwrap_or_default();
    // A filter that cannot be read is refused, be there items or none.
    fits(filter, &Value::Null)?;
    let mut asked = Vec::new();
    for (zone, key, item) in items {
        if fits(filter, &item)? {
            asked.push((format!("{zone}/{key}"), item));
        }
    }
    let page = by_token(visit, "pageToken", PAGE_SIZE, asked)?;
    let own = target(visit.request);
    let mut list = json!({ "kind": format!("compute#{kind}"), "id": own, "selfLink": url(&own) });
    if !page.next.is_empty() {
        list["nextPageToken"] = page.next.into();
    }
    Ok((list, page.items))
}

/// A list of the zone that the call names, or of all zones: then a map, with a warning in the place of items
/// where a zone has none on the page.
pub(super) fn of_zones(
    api: &Gcp,
    visit: &Visit<'_>,
    zone: &str,
    [kind, name]: [&str; 2],
    mut items: Vec<Item>,
) -> Result<Answer, Refusal> {
    if !visit.request.path.contains("/aggregated/") {
        items.retain(|(of, ..)| of == zone);
        return list(visit, kind, items);
    }
    items.retain(|(of, ..)| !api.unreachable.contains(of));
    let (mut list, items) = page(visit, &format!("{kind}AggregatedList"), items)?;
    let scope = |zone: &str| format!("zones/{zone}");
    for zone in &visit.world.regions {
        let is_here = |item: &&Value| {
            let own = item["zone"].as_str().unwrap_or_default();
            own.rsplit('/').next() == Some(zone.as_str())
        };
        let here: Vec<&Value> = items.iter().filter(is_here).collect();
        let warning = |code: &str, text: &str| {
            let data = json!([{ "key": "scope", "value": scope(zone) }]);
            json!({ "warning": { "code": code, "message": text, "data": data } })
        };
        list["items"][scope(zone)] = if api.unreachable.contains(zone) {
            warning("UNREACHABLE", "The zone cannot be reached.")
        } else if here.is_empty() {
            warning("NO_RESULTS_ON_PAGE", "There are no results on this page.")
        } else {
            json!({ name: here })
        };
    }
    if !api.unreachable.is_empty() {
        let zones: Vec<String> = api.unreachable.iter().map(|zone| scope(zone)).collect();
        list["unreachables"] = json!(zones);
    }
    Ok(Answer::json(200, &list))
}
