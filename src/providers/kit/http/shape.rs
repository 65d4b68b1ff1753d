//! Compares the answers of a cloud with the types that read them, for `skyward check-provider`: the names of fields
//! alone, never a value.
//!
//! A report may become public, and a key that no type of ours reads may be data: the name of a machine or a project,
//! where a cloud keeps its objects by their names. Such a key is shown only where two objects of one answer have it and it
//! is written as APIs write their fields, or where it is nearly the name of a field that is lacking. Others are counted.
//!
//! Nothing is compared outside of [`watched`], so the controller pays nothing for it. An answer is judged by the type
//! that reads it: each struct tells its fields, so no list of fields is kept beside the types. Values that no struct
//! reads are not looked into, and maps that a user fills are shown as `*`: their keys are data.

use std::{
    collections::BTreeMap,
    fmt, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{
    Serialize,
    de::{
        self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor,
        value::{BorrowedStrDeserializer, MapAccessDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Map, Value};

/// Most places of which names are kept.
const MOST_PLACES: usize = 512;
/// Most names of fields that are not read, of each place.
const MOST_NAMES: usize = 256;
/// Longest name that is kept.
const LONGEST_NAME: usize = 64;
/// Longest name that is shown although it is like no name that we know.
const LONGEST_UNKNOWN: usize = 40;
/// Most digits in a row of such a name: longer numbers are ids.
const MOST_DIGITS: usize = 2;

tokio::task_local! {
    static WATCH: Arc<Watch>;
}

/// The objects at one place of the answers to one call, compared with the type that reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// Which call, in words.
    pub call: &'static str,
    /// Where the objects stand in its answer: a JSON pointer, with `[]` for each entry of a list and `*` for each
    /// value of a map.
    pub place: String,
    /// How many objects there were.
    pub objects: usize,
    /// Fields that are read, and that at least one of them has.
    pub present: Vec<String>,
    /// Fields that are read, and that are not as expected.
    pub deviations: Vec<Deviation>,
    /// Fields that are not read, and whose names are certainly no data.
    pub unread: Vec<String>,
    /// Further fields that are not read: too many of them, or with names that may be data.
    pub unread_more: usize,
}

/// A field that is not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// Its name.
    pub field: String,
    /// What is wrong with it.
    pub what: What,
    /// A field that is not read and may be it under another name.
    pub renamed: Option<String>,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum What {
    /// It is not there, and the answer cannot be read without it.
    Missing,
    /// It is there, and its value cannot be read.
    Unreadable,
    /// No object has it; the answer is read without it.
    Absent,
}

impl What {
    /// Whether the answer cannot be read.
    pub const fn breaks(self) -> bool {
        matches!(self, Self::Missing | Self::Unreadable)
    }
}

/// Runs calls, and answers with the shapes of all that was read meanwhile.
pub async fn watched<T>(work: impl Future<Output = T>) -> (T, Vec<Shape>) {
    let watch = Arc::new(Watch::default());
    let result = WATCH.scope(watch.clone(), work).await;
    let shapes = watch.shapes();
    (result, shapes)
}

/// Whether answers are compared now.
pub fn is_watched() -> bool {
    WATCH.try_with(|_| ()).is_ok()
}

/// Reads an object whose fields are looked up by their names, as where one field has several names. These names are
/// compared as those of a struct are.
pub fn object<'de, D: Deserializer<'de>>(
    deserializer: D,
    fields: &'static [&'static str],
    needed: Option<&'static str>,
) -> Result<Value, D::Error> {
    deserializer.deserialize_struct("object", fields, Whole { needed })
}

/// An object as it is.
struct Whole {
    /// The field without which it cannot be read.
    needed: Option<&'static str>,
}

impl<'de> Visitor<'de> for Whole {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Value, A::Error> {
        let object: Map<String, Value> = Map::deserialize(MapAccessDeserializer::new(fields))?;
        match self.needed {
            Some(needed) if !object.contains_key(needed) => Err(de::Error::missing_field(needed)),
            Some(_) | None => Ok(Value::Object(object)),
        }
    }
}

/// Compares the value at this place of an answer with the type that reads it. [`Rest`](super::Rest) compares what it
/// reads; a client compares what it reads out of that in a further step.
pub fn compare<T: DeserializeOwned>(call: &'static str, place: &str, value: &Value) {
    each::<T>(call, place, slice::from_ref(value));
}

/// The same for entries of one answer that are read one by one.
pub fn each<T: DeserializeOwned>(call: &'static str, place: &str, values: &[Value]) {
    // Outside of a watch there is none.
    let _ = WATCH.try_with(|watch| {
        let answer = watch.answer();
        for value in values {
            let reader = Reader {
                value,
                place: place.to_owned(),
                call,
                answer,
                watch,
            };
            // The true reader tells its failure itself.
            drop(T::deserialize(reader));
        }
    });
}

/// What an answer lacks that is to stand at a JSON pointer.
pub(super) struct Lack {
    place: String,
    field: String,
    beside: Vec<String>,
}

/// Whether an answer lacks what is to stand at this JSON pointer; `None` also where answers are not compared.
pub(super) fn lack(body: &Value, pointer: &str) -> Option<Lack> {
    if !is_watched() || body.pointer(pointer).is_some() {
        return None;
    }
    let (place, field) = pointer.rsplit_once('/')?;
    let beside = body.pointer(place).and_then(Value::as_object);
    Some(Lack {
        place: place.to_owned(),
        field: field.to_owned(),
        beside: beside
            .map(|object| object.keys().cloned().collect())
            .unwrap_or_default(),
    })
}

/// Notes what an answer lacks.
pub(super) fn note(call: &'static str, lack: Option<Lack>) {
    let Some(lack) = lack else { return };
    // Outside of a watch there is none.
    let _ = WATCH.try_with(|watch| {
        let answer = watch.answer();
        watch.at(call, &lack.place, |seen| {
            seen.objects += 1;
            seen.unread(lack.beside.iter(), answer);
        });
        watch.deviates(call, &lack.place, &lack.field, What::Missing);
    });
}

/// What was seen while calls were watched.
#[derive(Default)]
struct Watch {
    places: Mutex<BTreeMap<(&'static str, String), Seen>>,
    /// How many answers were compared.
    answers: AtomicU64,
}

/// What was seen at one place.
#[derive(Default)]
struct Seen {
    objects: usize,
    /// Fields that are read, and whether any object has them.
    read: BTreeMap<&'static str, bool>,
    wrong: BTreeMap<String, What>,
    unread: BTreeMap<String, Spread>,
    /// The most names of one object that are not in `unread`.
    unread_more: usize,
}

/// How many objects of one answer have a field. One object that is asked for twice is no second one.
struct Spread {
    /// The number of the answer that had it last.
    answer: u64,
    /// How many objects of that answer have it so far.
    here: usize,
    /// The most of any answer.
    most: usize,
}

impl Seen {
    /// An object of this answer has these fields, which are not read.
    fn unread<'a>(&mut self, names: impl Iterator<Item = &'a String>, answer: u64) {
        let more = names.filter(|name| !self.keeps(name, answer)).count();
        self.unread_more = self.unread_more.max(more);
    }

    /// Keeps the name of a field, and tells whether it is kept.
    fn keeps(&mut self, name: &str, answer: u64) -> bool {
        if let Some(spread) = self.unread.get_mut(name) {
            let before = if spread.answer == answer { spread.here } else { 0 };
            spread.answer = answer;
            spread.here = before + 1;
            spread.most = spread.most.max(spread.here);
            return true;
        }
        let is_kept = self.unread.len() < MOST_NAMES && is_name(name);
        if is_kept {
            let first = Spread {
                answer,
                here: 1,
                most: 1,
            };
            self.unread.insert(name.to_owned(), first);
        }
        is_kept
    }
}

impl Watch {
    /// The number of a further answer.
    fn answer(&self) -> u64 {
        self.answers.fetch_add(1, Ordering::Relaxed)
    }

    fn at(&self, call: &'static str, place: &str, note: impl FnOnce(&mut Seen)) {
        let mut all = self.places.lock();
        let key = (call, place.to_owned());
        if all.len() < MOST_PLACES || all.contains_key(&key) {
            note(all.entry(key).or_default());
        }
    }

    /// An object that a struct of these fields reads.
    fn saw(&self, at: &Reader<'_>, fields: &[&'static str], object: &Map<String, Value>) {
        self.at(at.call, &at.place, |seen| {
            seen.objects += 1;
            for field in fields {
                *seen.read.entry(*field).or_default() |= object.contains_key(*field);
            }
            let unread = object.keys().filter(|name| !fields.contains(&name.as_str()));
            seen.unread(unread, at.answer);
        });
    }

    fn deviates(&self, call: &'static str, place: &str, field: &str, what: What) {
        if is_name(field) {
            self.at(call, place, |seen| {
                seen.wrong.insert(field.to_owned(), what);
            });
        }
    }

    fn shapes(&self) -> Vec<Shape> {
        let all = self.places.lock();
        all.iter()
            .map(|((call, place), seen)| shape(call, place, seen))
            .collect()
    }
}

fn shape(call: &'static str, place: &str, seen: &Seen) -> Shape {
    let named = |is_there: bool| {
        let fields = seen.read.iter().filter(move |(_, there)| **there == is_there);
        fields.map(|(name, _)| (*name).to_owned())
    };
    let mut wrong = seen.wrong.clone();
    for absent in named(false) {
        wrong.entry(absent).or_insert(What::Absent);
    }
    let lacking: Vec<&String> = wrong
        .iter()
        .filter(|(_, what)| **what != What::Unreadable)
        .map(|(field, _)| field)
        .collect();
    let is_shown = |(name, spread): &(&String, &Spread)| {
        let is_of_api = spread.most > 1 && is_identifier(name);
        is_of_api || lacking.iter().any(|field| is_respelled(field, name))
    };
    let shown = seen.unread.iter().filter(is_shown);
    let unread: Vec<String> = shown.map(|(name, _)| name.clone()).collect();
    let deviations = wrong.into_iter().map(|(field, what)| Deviation {
        renamed: match what {
            What::Missing | What::Absent => closest(&field, &unread),
            What::Unreadable => None,
        },
        field,
        what,
    });
    Shape {
        call,
        place: place.to_owned(),
        objects: seen.objects,
        present: named(true).collect(),
        deviations: deviations.collect(),
        unread_more: seen.unread_more + seen.unread.len() - unread.len(),
        unread,
    }
}

/// Whether a key of an object looks like the name of a field, and not like data.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(fits)
}

/// Whether a key is written as APIs write the names of their fields: `gpuCount`, `gpu_count`.
fn is_identifier(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let is_id = numbers.any(|digits| digits.len() > MOST_DIGITS);
    begins && text.len() <= LONGEST_UNKNOWN && text.chars().all(fits) && !is_id
}

/// The name that most resembles a field, if any does.
fn closest(field: &str, names: &[String]) -> Option<String> {
    let resembling = names
        .iter()
        .filter_map(|name| Some((resemblance(field, name)?, name)));
    resembling.min().map(|(_, name)| name.clone())
}

/// How many letters differ between two names that may mean one field: apart from case and separators they are the
/// same or nearly so, or one begins or ends with the other.
fn resemblance(one: &str, other: &str) -> Option<usize> {
    let is_near = is_respelled(one, other);
    let (one, other) = (letters(one), letters(other));
    let (short, long) = if one.len() < other.len() {
        (&one, &other)
    } else {
        (&other, &one)
    };
    let distance = distance(&one, &other);
    let is_part = long.starts_with(short) || long.ends_with(short);
    (short.len() > 1 && (is_part || is_near)).then_some(distance)
}

/// The letters of a name, apart from case and separators.
fn letters(name: &str) -> Vec<char> {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// Whether two names are the same or nearly so, apart from case and separators: the one tells hardly more than the other.
fn is_respelled(one: &str, other: &str) -> bool {
    let (one, other) = (letters(one), letters(other));
    !one.is_empty() && distance(&one, &other) <= one.len().max(other.len()) / 4
}

/// How many letters must be changed, added or left out to make one word of the other.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut before = at;
        let mut left = at + 1;
        let mut next = vec![left];
        for (above, wanted) in row.iter().skip(1).zip(other) {
            left = (before + usize::from(letter != wanted))
                .min(above + 1)
                .min(left + 1);
            before = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Reads a value for a type, and notes what each struct in the type reads.
#[derive(Clone)]
struct Reader<'de> {
    value: &'de Value,
    place: String,
    call: &'static str,
    /// The number of the answer.
    answer: u64,
    watch: &'de Watch,
}

impl<'de> Reader<'de> {
    fn inner(&self, value: &'de Value, place: String) -> Self {
        Self {
            value,
            place,
            call: self.call,
            answer: self.answer,
            watch: self.watch,
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        Ok(self.value.deserialize_any(visitor)?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Array(entries) => visitor.visit_seq(Entries {
                rest: entries.iter(),
                of: self,
            }),
            other => Ok(other.deserialize_seq(visitor)?),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.value {
            Value::Object(fields) => visitor.visit_map(Fields {
                rest: fields.iter(),
                at: None,
                named: false,
                of: self,
            }),
            other => Ok(other.deserialize_map(visitor)?),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let Value::Object(object) = self.value else {
            return Ok(self.value.deserialize_struct(name, fields, visitor)?);
        };
        self.watch.saw(&self, fields, object);
        let here = self.clone();
        let read = visitor.visit_map(Fields {
            rest: object.iter(),
            at: None,
            named: true,
            of: self,
        });
        read.map_err(|mut wrong| {
            if let Some(field) = wrong.missing.take() {
                here.watch.deviates(here.call, &here.place, field, What::Missing);
                wrong.noted = true;
            }
            wrong
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        Ok(self.value.deserialize_enum(name, variants, visitor)?)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        tuple_struct identifier ignored_any
    }
}

/// The entries of a list.
struct Entries<'de> {
    rest: slice::Iter<'de, Value>,
    of: Reader<'de>,
}

impl<'de> SeqAccess<'de> for Entries<'de> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        let Some(value) = self.rest.next() else {
            return Ok(None);
        };
        let place = format!("{}/[]", self.of.place);
        seed.deserialize(self.of.inner(value, place)).map(Some)
    }
}

/// The fields of an object.
struct Fields<'de> {
    rest: serde_json::map::Iter<'de>,
    /// The field whose value comes next.
    at: Option<(&'de str, &'de Value)>,
    /// Whether a struct reads them, so that their names are known.
    named: bool,
    of: Reader<'de>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        let Some((name, value)) = self.rest.next() else {
            return Ok(None);
        };
        let name = name.as_str();
        self.at = Some((name, value));
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let Some((name, value)) = self.at.take() else {
            return Err(Wrong::default());
        };
        let part = if self.named { name } else { "*" };
        let place = format!("{}/{part}", self.of.place);
        seed.deserialize(self.of.inner(value, place))
            .map_err(|mut wrong| {
                // Only the innermost field is told.
                if self.named && !wrong.noted {
                    let of = &self.of;
                    of.watch.deviates(of.call, &of.place, name, What::Unreadable);
                    wrong.noted = true;
                }
                wrong
            })
    }
}

/// A value that cannot be read. It holds nothing of the value.
#[derive(Debug, Default)]
struct Wrong {
    /// The field that is not there, until its place is noted.
    missing: Option<&'static str>,
    /// Whether the field was noted.
    noted: bool,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be read")
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::default()
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            missing: Some(field),
            noted: false,
        }
    }
}

impl From<serde_json::Error> for Wrong {
    fn from(_: serde_json::Error) -> Self {
        Self::default()
    }
}

#[cfg(test)]
#[path = "shape/tests.rs"]
mod tests;
