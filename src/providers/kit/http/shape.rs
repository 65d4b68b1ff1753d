//! Compares the answers of a cloud with the types that read them, for `skyward check-provider`: the names of fields
//! alone, never a value.
//!
//! Nothing is compared outside of [`watched`], so the controller pays nothing for it. An answer is judged by the type
//! that reads it: each struct tells its fields, so no list of fields is kept beside the types. Values that no struct
//! reads are not looked into, and maps that a user fills are shown as `*`: their keys are data.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, slice,
    sync::Arc,
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
/// Longest name that is shown.
const LONGEST_NAME: usize = 64;

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
    /// Fields that at least one of them has, and that are not read.
    pub unread: Vec<String>,
    /// Further such fields: too many of them, or with names that are no names of fields.
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
pub(super) fn is_watched() -> bool {
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
    // Outside of a watch there is none.
    let _ = WATCH.try_with(|watch| {
        let place = place.to_owned();
        let reader = Reader {
            value,
            place,
            call,
            watch,
        };
        // The true reader tells its failure itself.
        drop(T::deserialize(reader));
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
        watch.at(call, &lack.place, |seen| {
            seen.objects += 1;
            for name in &lack.beside {
                seen.unread(name);
            }
        });
        watch.deviates(call, &lack.place, &lack.field, What::Missing);
    });
}

/// What was seen while calls were watched.
#[derive(Default)]
struct Watch(Mutex<BTreeMap<(&'static str, String), Seen>>);

/// What was seen at one place.
#[derive(Default)]
struct Seen {
    objects: usize,
    /// Fields that are read, and whether any object has them.
    read: BTreeMap<&'static str, bool>,
    wrong: BTreeMap<String, What>,
    unread: BTreeSet<String>,
    unread_more: usize,
}

impl Seen {
    fn unread(&mut self, name: &str) {
        if self.unread.contains(name) {
            return;
        }
        if self.unread.len() < MOST_NAMES && is_name(name) {
            self.unread.insert(name.to_owned());
        } else {
            self.unread_more = self.unread_more.saturating_add(1);
        }
    }
}

impl Watch {
    fn at(&self, call: &'static str, place: &str, note: impl FnOnce(&mut Seen)) {
        let mut all = self.0.lock();
        let key = (call, place.to_owned());
        if all.len() < MOST_PLACES || all.contains_key(&key) {
            note(all.entry(key).or_default());
        }
    }

    /// An object that a struct of these fields reads.
    fn saw(&self, call: &'static str, place: &str, fields: &[&'static str], object: &Map<String, Value>) {
        self.at(call, place, |seen| {
            seen.objects += 1;
            for field in fields {
                *seen.read.entry(*field).or_default() |= object.contains_key(*field);
            }
            for name in object.keys().filter(|name| !fields.contains(&name.as_str())) {
                seen.unread(name);
            }
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
        let all = self.0.lock();
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
    let unread: Vec<String> = seen.unread.iter().cloned().collect();
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
        unread,
        unread_more: seen.unread_more,
    }
}

/// Whether a key of an object looks like the name of a field, and not like data.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(fits)
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
    let letters = |name: &str| -> Vec<char> {
        let kept = name.chars().filter(char::is_ascii_alphanumeric);
        kept.map(|c| c.to_ascii_lowercase()).collect()
    };
    let (one, other) = (letters(one), letters(other));
    let (short, long) = if one.len() < other.len() {
        (&one, &other)
    } else {
        (&other, &one)
    };
    let distance = distance(&one, &other);
    let is_part = long.starts_with(short) || long.ends_with(short);
    (short.len() > 1 && (is_part || distance <= long.len() / 4)).then_some(distance)
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
    watch: &'de Watch,
}

impl<'de> Reader<'de> {
    fn inner(&self, value: &'de Value, place: String) -> Self {
        Self {
            value,
            place,
            call: self.call,
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
        self.watch.saw(self.call, &self.place, fields, object);
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
