//! Lists in pages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::core::cloud::{Refusal, Visit};

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its items.
    pub items: Vec<Value>,
    /// Its number, the first one being 1; 0 where pages have no numbers.
    pub number: usize,
    /// How many items a page has at most.
    pub size: usize,
    /// How many items there are on all pages.
    pub total: usize,
    /// What names the next page: a cursor or a number; "" on the last one.
    pub next: String,
    /// What names the page before; "" on the first one.
    pub previous: String,
    /// The number of the last page, at least 1; 0 where pages have no numbers.
    pub last: usize,
}

/// The size of pages.
#[derive(Clone, Copy, Debug)]
pub struct PageSize {
    /// The query parameter that asks for a size.
    pub parameter: &'static str,
    /// The size of a page where no parameter asks for one.
    pub usual: usize,
    /// The largest size that a client may ask for; a larger one is refused.
    pub most: usize,
}

impl PageSize {
    fn of(self, visit: &Visit<'_>) -> Result<usize, Refusal> {
        let asked = number(visit, self.parameter, self.usual)?;
        if asked > self.most {
            return Err(Refusal::Bad(format!("{}: at most {}", self.parameter, self.most)));
        }
        Ok(visit.world.page.unwrap_or(asked).min(asked).max(1))
    }
}

/// A number above zero in the query.
fn number(visit: &Visit<'_>, name: &str, default: usize) -> Result<usize, Refusal> {
    let Some(text) = visit.request.parameter(name) else {
        return Ok(default);
    };
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Refusal::Bad(format!("{name}: not a number above zero")))
}

/// A page by the query parameter `cursor`, opaque text that remembers the key of an item. The next
/// page begins behind that key, whether its item is still there or not, so that an item that goes
/// between two pages hides no other.
pub fn by_cursor(visit: &Visit<'_>, size: PageSize, items: Vec<(String, Value)>) -> Result<Page, Refusal> {
    by_token(visit, "cursor", size, items)
}

/// The same by another query parameter.
pub fn by_token(
    visit: &Visit<'_>,
    parameter: &str,
    size: PageSize,
    mut items: Vec<(String, Value)>,
) -> Result<Page, Refusal> {
    let size = size.of(visit)?;
    items.sort_by(|(one, _), (other, _)| one.cmp(other));
    let asked = visit.request.parameter(parameter).filter(|text| !text.is_empty());
    let start = match asked.map(decode) {
        None => 0,
        Some(Some(Cursor::Next(key))) => items.partition_point(|(own, _)| *own <= key),
        Some(Some(Cursor::Previous(key))) => {
            let end = items.partition_point(|(own, _)| *own < key);
            end.saturating_sub(size)
        }
        Some(None) => return Err(Refusal::Bad(format!("{parameter}: not valid"))),
    };
    let end = (start + size).min(items.len());
    let page = items.get(start..end).unwrap_or_default();
    let cursor = |word: &str, item: Option<&(String, Value)>| {
        item.map_or_else(String::new, |(key, _)| STANDARD.encode(format!("{word}__{key}")))
    };
    Ok(Page {
        next: cursor("next", page.last().filter(|_| end < items.len())),
        previous: cursor("prev", page.first().filter(|_| start > 0)),
        last: 0,
        number: 0,
        size,
        total: items.len(),
        items: visit.truncate(page.iter().map(|(_, item)| item.clone()).collect()),
    })
}

enum Cursor {
    Next(String),
    Previous(String),
}

fn decode(text: &str) -> Option<Cursor> {
    let text = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    match text.split_once("__")? {
        ("next", key) => Some(Cursor::Next(key.to_owned())),
        ("prev", key) => Some(Cursor::Previous(key.to_owned())),
        _ => None,
    }
}

/// A page by its number, the first one being 1, in the query parameter `parameter`.
pub fn by_number(
    visit: &Visit<'_>,
    parameter: &str,
    size: PageSize,
    items: Vec<Value>,
) -> Result<Page, Refusal> {
    numbered(visit, number(visit, parameter, 1)?, size, items)
}

/// The page with this number, the first one being 1, for clouds that count in another way.
pub fn numbered(visit: &Visit<'_>, page: usize, size: PageSize, items: Vec<Value>) -> Result<Page, Refusal> {
    let (page, size) = (page.max(1), size.of(visit)?);
    let (total, start) = (items.len(), (page - 1).saturating_mul(size));
    let neighbour = |there: bool, page: usize| if there { page.to_string() } else { String::new() };
    Ok(Page {
        next: neighbour(start.saturating_add(size) < total, page + 1),
        previous: neighbour(page > 1, page - 1),
        last: total.div_ceil(size).max(1),
        number: page,
        size,
        total,
        items: visit.truncate(items.into_iter().skip(start).take(size).collect()),
    })
}
