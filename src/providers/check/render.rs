//! The report as text and as JSON, without what is in the credentials. Pure.

use std::fmt::Write as _;

use skyward_core::Credentials;
use skyward_provider_kit::http::shape::{Deviation, Shape, What};

use super::{Answered, Catalogue, Listed, Price, Report};

/// Stands for a part of the credentials.
const HIDDEN: &str = "[hidden]";
/// Shortest value of a Secret that is looked for as a whole.
const SHORTEST_VALUE: usize = 6;
/// Shortest word of a Secret that is looked for by itself, such as a line of a key.
const SHORTEST_WORD: usize = 16;

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Report {
    /// The report, in which every part of these credentials is hidden, wherever the cloud repeated it.
    pub fn render(&self, format: Format, credentials: &Credentials) -> String {
        let text = match format {
            Format::Text => self.text(),
            Format::Json => serde_json::to_string_pretty(self).unwrap_or_default() + "\n",
        };
        let visible = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
        without(&text.chars().map(visible).collect::<String>(), credentials)
    }

    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        line(format!(
            "Account of kind {}, looked at by skyward {} at {}. Nothing was changed.",
            self.kind, self.version, self.checked_at
        ));
        line(String::new());
        if let Some(source) = &self.credentials {
            line(format!("credentials: {source}"));
        }
        line(answered("account", &self.account, Clone::clone));
        line(answered("the API tells of it", &self.account_facts, |facts| {
            let told = facts.iter().map(|fact| format!("{}: {}", fact.what, fact.value));
            some(told.collect())
        }));
        line(answered("offers", &self.offers, catalogue));
        line(answered("machines of this installation", &self.machines, |all| {
            listed(all, |machine| {
                let price = machine.hourly_price.as_deref().unwrap_or("unknown");
                format!(
                    "{} ({}/{}, {}, {price} USD per hour)",
                    machine.id, machine.namespace, machine.name, machine.phase
                )
            })
        }));
        line(answered(
            "shared by its Pools, or left by them",
            &self.leftovers,
            |all| {
                listed(all, |left| {
                    format!("{} {} of Pool {}", left.kind, left.id, left.pool_uid)
                })
            },
        ));
        line(format!(
            "permissions that these calls lack: {}",
            some(self.permissions_lacking.clone())
        ));
        line(String::new());
        for text in self.answers() {
            line(text);
        }
        line(String::new());
        line(if self.is_well() {
            "Every call was answered, and every answer could be read.".to_owned()
        } else {
            "Something is wrong; see above.".to_owned()
        });
        out
    }

    /// The lines about the shapes of answers.
    fn answers(&self) -> Vec<String> {
        if self.shapes.is_empty() {
            return vec![
                "answers: none was compared; those of this kind are read by a library, or no call came so far"
                    .to_owned(),
            ];
        }
        let mut lines = vec![format!(
            "answers: {} kinds of objects were read",
            self.shapes.len()
        )];
        for shape in &self.shapes {
            lines.extend(deviations(shape));
        }
        lines.push("fields that are not read, by name alone:".to_owned());
        for shape in &self.shapes {
            let mut told = shape.unread.clone();
            if shape.unread_more > 0 {
                told.push(format!("{} more, whose names may be data", shape.unread_more));
            }
            if !told.is_empty() {
                lines.push(format!("  {}: {}", of(shape), told.join(", ")));
            }
        }
        lines
    }
}

/// The call and the place of an object.
fn of(shape: &Shape) -> String {
    match shape.place.as_str() {
        "" => shape.call.to_owned(),
        place => format!("{}, at {place}", shape.call),
    }
}

fn deviations(shape: &Shape) -> Vec<String> {
    let told = |found: &Deviation| {
        let field = &found.field;
        let what = match found.what {
            What::Missing => {
                format!("BROKEN: field `{field}` is missing, and the answer cannot be read without it")
            }
            What::Unreadable => format!("BROKEN: the value of field `{field}` cannot be read"),
            What::Absent => format!("field `{field}` is in none of {} objects", shape.objects),
        };
        let renamed = found.renamed.as_ref();
        let renamed = renamed.map(|name| format!("; `{name}` may be its new name"));
        format!("  {}: {what}{}", of(shape), renamed.unwrap_or_default())
    };
    shape.deviations.iter().map(told).collect()
}

fn answered<T>(what: &str, answer: &Answered<T>, tell: impl Fn(&T) -> String) -> String {
    match answer {
        Answered::Answer(answer) => format!("{what}: {}", tell(answer)),
        Answered::Refused(refusal) => format!("{what}: FAILED ({}): {}", refusal.kind, refusal.message),
        Answered::NotAsked(why) => format!("{what}: not asked, since {why}"),
    }
}

fn some(all: Vec<String>) -> String {
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join("; ")
    }
}

fn listed<T>(list: &Listed<T>, tell: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = list.entries.iter().map(tell).collect();
    match list.total - list.entries.len() {
        0 => some(shown),
        more => format!("{}; and {more} more", some(shown)),
    }
}

fn catalogue(offers: &Catalogue) -> String {
    let mut text = format!(
        "{}: {} on demand, {} spot, {} without a price; {} available, {} sold out, {} unknown",
        offers.offers,
        offers.on_demand,
        offers.spot,
        offers.without_a_price,
        offers.available,
        offers.sold_out,
        offers.availability_unknown
    );
    // Writing to a String cannot fail.
    let mut line = |more: String| {
        let _ = write!(text, "\n  {more}");
    };
    line(format!("regions: {}", listed(&offers.regions, Clone::clone)));
    let price = |price: Option<&Price>| {
        price.map_or("–".to_owned(), |price| {
            format!("{} USD per hour ({})", price.hourly, price.instance_type)
        })
    };
    for sold in &offers.accelerators.entries {
        line(format!(
            "{}: {} offers, on demand from {}, spot from {}",
            sold.name,
            sold.offers,
            price(sold.cheapest_on_demand.as_ref()),
            price(sold.cheapest_spot.as_ref())
        ));
    }
    let unknown = &offers.unknown_accelerators;
    line(format!(
        "accelerators whose names are not known: {}",
        listed(unknown, Clone::clone)
    ));
    text
}

/// A text in which every part of the credentials is hidden.
fn without(text: &str, credentials: &Credentials) -> String {
    let mut parts: Vec<String> = Vec::new();
    let values = credentials.names().filter_map(|name| credentials.get(name));
    for value in values {
        let value = value.expose().trim();
        if value.len() >= SHORTEST_VALUE {
            parts.push(value.to_owned());
            let escaped = serde_json::Value::from(value).to_string();
            parts.push(escaped.trim_matches('"').to_owned());
        }
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '_' | '-');
        // A key in JSON has its line breaks escaped.
        let lines = value.replace("\\n", "\n");
        let words = lines.split(|c: char| !is_of_word(c));
        parts.extend(
            words
                .filter(|word| word.len() >= SHORTEST_WORD)
                .map(str::to_owned),
        );
    }
    // A part of another must not keep that from being found.
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    parts.iter().fold(text.to_owned(), |text, part| hide(&text, part))
}

/// A text without this part of the credentials.
fn hide(text: &str, part: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = repeated(rest, part);
        if length == 0 {
            out.push(first);
        } else {
            out.push_str(HIDDEN);
        }
        rest = rest.get(length.max(first.len_utf8())..).unwrap_or_default();
    }
    out
}

/// How many bytes of a text's beginning repeat this part of the credentials: as it is, or as an address or a form has it,
/// where any of its bytes may be percent-encoded.
fn repeated(text: &str, part: &str) -> usize {
    if text.starts_with(part) {
        return part.len();
    }
    let after = part.bytes().try_fold(text.as_bytes(), |rest, byte| match rest {
        [b'%', high, low, rest @ ..] if encoded(*high, *low) == Some(byte.into()) => Some(rest),
        [b'+', rest @ ..] if byte == b' ' => Some(rest),
        [first, rest @ ..] if *first == byte => Some(rest),
        _ => None,
    });
    after.map_or(0, |after| text.len() - after.len())
}

/// The byte that two hexadecimal digits stand for.
fn encoded(high: u8, low: u8) -> Option<u32> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    Some(digit(high)? * 16 + digit(low)?)
}
