//! Lists that come in pages, read to the last one: a list that fails in the middle is an error, never
//! a shorter list (P4).
//!
//! A [`List`] says where the entries of a page stand and what leads to the next page; `Rest::list`
//! asks. A repeated page is an error, and so is a list without an end. A counted list that changes
//! meanwhile is read again: a deletion moves later entries to a page that was read already.

use std::{borrow::Cow, collections::BTreeSet};

use reqwest::Url;
use serde_json::Value;

/// Most pages of one list.
const MOST_PAGES: usize = 1000;
/// Most entries of one list.
const MOST_ENTRIES: usize = 100_000;

/// How a list is read.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// JSON pointer (RFC 6901) to the entries of a page, `""` where the page is the list. Entries by
    /// name (a JSON object) become pairs of name and entry.
    pub entries: &'static str,
    /// What leads to the next page.
    pub next: Next,
    /// Whether a page without the list has no entries; else it is an error.
    pub may_lack: bool,
    /// JSON pointer to the places that the cloud could not ask, where it names them: with one of them the list is an
    /// error, since what stands there would look as if it were gone.
    pub unasked: Option<&'static str>,
}

/// What leads to the next page of a list.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// There is one page.
    None,
    /// A cursor or page token, which is absent, null or empty at the end.
    Cursor {
        /// Parameter of the query that carries it.
        query: &'static str,
        /// JSON pointer to it.
        at: &'static str,
        /// JSON pointer to `true` where more follows, if the cloud says that as well: more without a
        /// cursor is an error.
        more: Option<&'static str>,
    },
    /// A link, which is absent, null or empty at the end. Only its query is taken: a page never
    /// leads to another address.
    Link {
        /// JSON pointer to it.
        at: &'static str,
    },
    /// The number of the page.
    Number {
        /// Parameter of the query that carries it.
        query: &'static str,
        /// Number of the first page. Where it is 0, a cloud that counts from 1 after all is understood.
        first: usize,
        /// What tells that a page is the last one.
        end: End,
    },
}

/// What tells that a numbered page is the last one.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The number of all entries, at this JSON pointer.
    Total(&'static str),
    /// A page of fewer entries than this: as many as were asked for, which the cloud must grant.
    Shorter(usize),
    /// A number at this JSON pointer, of a cloud that does not say whether it counts all entries or those of the page. A
    /// page of as many entries as this, which were asked for, leads to another one where the number may be the page's.
    Counted(&'static str, usize),
}

impl List {
    const fn of(entries: &'static str, next: Next) -> Self {
        Self {
            entries,
            next,
            may_lack: false,
            unasked: None,
        }
    }

    /// For clouds that leave an empty list out.
    #[must_use]
    pub const fn or_none(mut self) -> Self {
        self.may_lack = true;
        self
    }

    /// For clouds that name at this JSON pointer the places that they could not ask.
    #[must_use]
    pub const fn whole_unless(mut self, pointer: &'static str) -> Self {
        self.unasked = Some(pointer);
        self
    }

    /// A list of one page, with its entries at this JSON pointer.
    pub const fn one(entries: &'static str) -> Self {
        Self::of(entries, Next::None)
    }

    /// A list of pages with a cursor or token.
    pub const fn cursor(entries: &'static str, query: &'static str, at: &'static str) -> Self {
        let next = Next::Cursor {
            query,
            at,
            more: None,
        };
        Self::of(entries, next)
    }

    /// Adds a JSON pointer to `true` where more follows.
    #[must_use]
    pub const fn more(mut self, pointer: &'static str) -> Self {
        if let Next::Cursor { more, .. } = &mut self.next {
            *more = Some(pointer);
        }
        self
    }

    /// A list of pages with a link to the next one.
    pub const fn link(entries: &'static str, at: &'static str) -> Self {
        Self::of(entries, Next::Link { at })
    }

    /// A list of numbered pages, the first of them 1.
    pub const fn numbered(entries: &'static str, query: &'static str, end: End) -> Self {
        Self::of(entries, Next::Number { query, first: 1, end })
    }

    /// The first numbered page is 0.
    #[must_use]
    pub const fn from_zero(mut self) -> Self {
        if let Next::Number { first, .. } = &mut self.next {
            *first = 0;
        }
        self
    }
}

/// Parameters of a query.
pub(super) type Query = Vec<(Cow<'static, str>, String)>;

/// What comes after a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The page with these parameters.
    Page(Query),
    /// The first page again: the list changed.
    Again,
    /// Nothing: the list is complete.
    Done,
}

/// The pages of a list that were read so far.
pub(super) struct Walk {
    list: List,
    entries: Vec<Value>,
    pages: usize,
    /// Entries of the page before.
    before: Vec<Value>,
    /// Cursors and links that were followed.
    followed: BTreeSet<String>,
    total: Option<u64>,
}

impl Walk {
    pub(super) fn new(list: List) -> Self {
        Self {
            list,
            entries: Vec::new(),
            pages: 0,
            before: Vec::new(),
            followed: BTreeSet::new(),
            total: None,
        }
    }

    /// Parameters of the first page.
    pub(super) fn first(&self) -> Query {
        match self.list.next {
            Next::Number { query, first, .. } => vec![(query.into(), first.to_string())],
            _ => Vec::new(),
        }
    }

    /// All entries, once the list is complete.
    pub(super) fn entries(self) -> Vec<Value> {
        self.entries
    }

    /// Takes a page; an error says what is wrong with it.
    pub(super) fn add(&mut self, mut page: Value) -> Result<Step, String> {
        let unasked = self.list.unasked.and_then(|at| page.pointer(at)?.as_array());
        if unasked.is_some_and(|places| !places.is_empty()) {
            return Err("lacks what stands in places that could not be asked".to_owned());
        }
        let mut by_name = false;
        let entries = match page.pointer_mut(self.list.entries).map(Value::take) {
            Some(Value::Array(entries)) => entries,
            Some(Value::Object(entries)) => {
                by_name = true;
                let pair = |(name, entry): (String, Value)| Value::Array(vec![name.into(), entry]);
                entries.into_iter().map(pair).collect()
            }
            None if self.list.may_lack && page.is_object() => Vec::new(),
            _ => return Err(format!("has no list at {:?}", self.list.entries)),
        };
        self.pages += 1;
        // Pages by name may have nothing under any name, one after the other.
        if !by_name && !entries.is_empty() && entries == self.before {
            // A cloud that counts from 1 gives its first page for 0, too.
            return match self.list.next {
                Next::Number { query, first: 0, .. } if self.pages == 2 => {
                    Ok(Step::Page(vec![(query.into(), self.pages.to_string())]))
                }
                _ => Err("gave the same page twice".to_owned()),
            };
        }
        if self.pages > MOST_PAGES || self.entries.len() + entries.len() > MOST_ENTRIES {
            return Err(format!("did not come to an end within {} pages", self.pages));
        }
        let found = entries.len();
        self.before.clone_from(&entries);
        self.entries.extend(entries);
        let text = |at: &str| match page.pointer(at) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        match self.list.next {
            Next::None => Ok(Step::Done),
            Next::Cursor { query, at, more } => {
                let more = more.is_some_and(|at| page.pointer(at) == Some(&Value::Bool(true)));
                let to = text(at);
                if more && to.is_empty() {
                    return Err("has more after it and does not say where".to_owned());
                }
                self.follow(to, |to| Some(vec![(query.into(), to)]))
            }
            Next::Link { at } => self.follow(text(at), |to| query_of(&to)),
            Next::Number { query, first, end } => {
                let next = Step::Page(vec![(query.into(), (first + self.pages).to_string())]);
                match end {
                    End::Shorter(size) if found < size => Ok(Step::Done),
                    End::Shorter(_) => Ok(next),
                    End::Total(at) => self.count(number(&text(at), at)?, found, next),
                    End::Counted(at, full) => {
                        let told = number(&text(at), at)?;
                        let is_own = told == found as u64;
                        if is_own && found >= full {
                            return Ok(next);
                        }
                        if is_own && self.pages > 1 {
                            return Ok(Step::Done);
                        }
                        self.count(told, found, next)
                    }
                }
            }
        }
    }

    fn follow(&mut self, to: String, query: impl Fn(String) -> Option<Query>) -> Result<Step, String> {
        if to.is_empty() {
            return Ok(Step::Done);
        }
        if !self.followed.insert(to.clone()) {
            return Err("leads to the same page twice".to_owned());
        }
        query(to)
            .map(Step::Page)
            .ok_or_else(|| "leads to a page that is no address".to_owned())
    }

    fn count(&mut self, total: u64, found: usize, next: Step) -> Result<Step, String> {
        if *self.total.get_or_insert(total) != total {
            return Ok(Step::Again);
        }
        if self.entries.len() as u64 >= total {
            return Ok(Step::Done);
        }
        if found == 0 {
            return Err(format!("ended after {} of {total} entries", self.entries.len()));
        }
        Ok(next)
    }
}

/// The number that a page has at this JSON pointer.
fn number(text: &str, at: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("has no number at {at:?}"))
}

/// The query of a link, which may leave out the address.
fn query_of(link: &str) -> Option<Query> {
    let url = Url::parse("http://localhost").ok()?.join(link).ok()?;
    let pairs = url.query_pairs();
    let query: Query = pairs
        .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
        .collect();
    Some(query).filter(|query| !query.is_empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const CURSOR: List = List::cursor("/things", "cursor", "/meta/next");
    const LINK: List = List::link("/things", "/links/next");
    const TOTAL: List = List::numbered("/things", "page", End::Total("/total"));
    const SHORTER: List = List::numbered("", "page", End::Shorter(2));
    const COUNTED: List = List::numbered("/things", "page", End::Counted("/count", 2));
    const FROM_ZERO: List = TOTAL.from_zero();

    /// Walks over these pages: a text for each of them.
    fn walk(list: List, pages: &[Value]) -> (Vec<String>, Vec<Value>) {
        let mut walk = Walk::new(list);
        let steps = pages
            .iter()
            .map(|page| match walk.add(page.clone()) {
                Ok(Step::Page(query)) => query
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect::<Vec<_>>()
                    .join("&"),
                Ok(Step::Again) => "again".to_owned(),
                Ok(Step::Done) => "done".to_owned(),
                Err(error) => error,
            })
            .collect();
        (steps, walk.entries())
    }

    #[rstest]
    #[case::one_page(List::one("/data"), &[json!({ "data": [1, 2] })], &["done"])]
    #[case::pages_from_zero(
        FROM_ZERO,
        &[json!({ "things": [1], "total": 2 }), json!({ "things": [2], "total": 2 })],
        &["page=1", "done"]
    )]
    #[case::pages_from_one_asked_for_from_zero(
        FROM_ZERO,
        &[
            json!({ "things": [1], "total": 2 }),
            json!({ "things": [1], "total": 2 }),
            json!({ "things": [2], "total": 2 }),
        ],
        &["page=1", "page=2", "done"]
    )]
    #[case::an_empty_list_that_is_left_out(
        List::cursor("/items", "pageToken", "/nextPageToken").or_none(),
        &[json!({ "nextPageToken": "b" }), json!({ "items": [1] })],
        &["pageToken=b", "done"]
    )]
    #[case::a_list_that_may_be_left_out_of_an_object_alone(
        List::one("/items").or_none(),
        &[json!([])],
        &["has no list at \"/items\""]
    )]
    #[case::a_list_that_is_something_else(
        List::one("/items").or_none(),
        &[json!({ "items": null })],
        &["has no list at \"/items\""]
    )]
    #[case::places_that_were_all_asked(
        List::one("/items").whole_unless("/unreachables"),
        &[json!({ "items": {}, "unreachables": [] })],
        &["done"]
    )]
    #[case::a_place_that_could_not_be_asked(
        List::one("/items").whole_unless("/unreachables"),
        &[json!({ "items": {}, "unreachables": ["zones/a"] })],
        &["lacks what stands in places that could not be asked"]
    )]
    #[case::pages_by_name_with_nothing_in_them(
        List::cursor("/items", "pageToken", "/nextPageToken"),
        &[
            json!({ "items": { "zones/a": {} }, "nextPageToken": "b" }),
            json!({ "items": { "zones/a": {} }, "nextPageToken": "c" }),
            json!({ "items": { "zones/a": {} } }),
        ],
        &["pageToken=b", "pageToken=c", "done"]
    )]
    #[case::cursors(
        CURSOR,
        &[json!({ "things": [1], "meta": { "next": "b" } }), json!({ "things": [2], "meta": { "next": "" } })],
        &["cursor=b", "done"]
    )]
    #[case::a_cursor_that_is_a_number(
        CURSOR,
        &[json!({ "things": [1], "meta": { "next": 7 } }), json!({ "things": [2] })],
        &["cursor=7", "done"]
    )]
    #[case::links(
        LINK,
        &[
            json!({ "things": [1], "links": { "next": "https://elsewhere.example/v2/things?page=2&per_page=1" } }),
            json!({ "things": [2], "links": { "next": "/v2/things?page=3" } }),
            json!({ "things": [3], "links": { "next": null } }),
        ],
        &["page=2&per_page=1", "page=3", "done"]
    )]
    #[case::numbers_and_a_total(
        TOTAL,
        &[json!({ "things": [1, 2], "total": 3 }), json!({ "things": [3], "total": "3" })],
        &["page=2", "done"]
    )]
    #[case::no_entry_at_all(TOTAL, &[json!({ "things": [], "total": 0 })], &["done"])]
    #[case::a_shorter_page(SHORTER, &[json!([1, 2]), json!([3])], &["page=2", "done"])]
    #[case::an_empty_page(SHORTER, &[json!([1, 2]), json!([])], &["page=2", "done"])]
    #[case::a_count_of_all(
        COUNTED,
        &[json!({ "things": [1, 2], "count": 3 }), json!({ "things": [3], "count": 3 })],
        &["page=2", "done"]
    )]
    #[case::a_count_of_all_that_fill_their_pages(
        COUNTED,
        &[json!({ "things": [1, 2], "count": 4 }), json!({ "things": [3, 4], "count": 4 })],
        &["page=2", "done"]
    )]
    #[case::a_count_of_the_page(
        COUNTED,
        &[json!({ "things": [1, 2], "count": 2 }), json!({ "things": [3], "count": 1 })],
        &["page=2", "done"]
    )]
    #[case::a_count_of_full_pages_alone(
        COUNTED,
        &[
            json!({ "things": [1, 2], "count": 2 }),
            json!({ "things": [3, 4], "count": 2 }),
            json!({ "things": [], "count": 0 }),
        ],
        &["page=2", "page=3", "done"]
    )]
    #[case::a_count_of_all_on_one_full_page(
        COUNTED,
        &[json!({ "things": [1, 2], "count": 2 }), json!({ "things": [], "count": 2 })],
        &["page=2", "done"]
    )]
    #[case::pages_that_are_smaller_than_asked_for(
        COUNTED,
        &[json!({ "things": [1], "count": 2 }), json!({ "things": [2], "count": 2 })],
        &["page=2", "done"]
    )]
    #[case::a_counted_list_that_changes_is_read_again(
        COUNTED,
        &[json!({ "things": [1, 2], "count": 5 }), json!({ "things": [4, 5], "count": 4 })],
        &["page=2", "again"]
    )]
    #[case::no_count(COUNTED, &[json!({ "things": [1] })], &["has no number at \"/count\""])]
    #[case::a_list_that_changes_is_read_again(
        TOTAL,
        &[json!({ "things": [1, 2], "total": 5 }), json!({ "things": [4, 5], "total": 4 })],
        &["page=2", "again"]
    )]
    #[case::a_list_that_ends_too_early_is_an_error(
        TOTAL,
        &[json!({ "things": [1, 2], "total": 5 }), json!({ "things": [], "total": 5 })],
        &["page=2", "ended after 2 of 5 entries"]
    )]
    #[case::a_page_that_repeats_is_an_error(
        TOTAL,
        &[json!({ "things": [1, 2], "total": 5 }), json!({ "things": [1, 2], "total": 5 })],
        &["page=2", "gave the same page twice"]
    )]
    #[case::a_cursor_that_repeats_is_an_error(
        CURSOR,
        &[
            json!({ "things": [1], "meta": { "next": "b" } }),
            json!({ "things": [2], "meta": { "next": "c" } }),
            json!({ "things": [3], "meta": { "next": "b" } }),
        ],
        &["cursor=b", "cursor=c", "leads to the same page twice"]
    )]
    #[case::more_without_a_cursor_is_an_error(
        CURSOR.more("/more"),
        &[json!({ "things": [1], "more": true, "meta": { "next": null } })],
        &["has more after it and does not say where"]
    )]
    #[case::nothing_more(CURSOR.more("/more"), &[json!({ "things": [1], "more": false })], &["done"])]
    #[case::a_page_without_a_list_is_no_empty_page(
        CURSOR,
        &[json!({ "error": "busy" })],
        &["has no list at \"/things\""]
    )]
    #[case::null_is_no_empty_page(CURSOR, &[json!({ "things": null })], &["has no list at \"/things\""])]
    #[case::a_total_that_is_not_there(TOTAL, &[json!({ "things": [1] })], &["has no number at \"/total\""])]
    #[case::a_link_to_nowhere(
        LINK,
        &[json!({ "things": [1], "links": { "next": "https://elsewhere.example/" } })],
        &["leads to a page that is no address"]
    )]
    fn a_list_is_read_to_its_last_page(
        #[case] list: List,
        #[case] pages: &[Value],
        #[case] expected: &[&str],
    ) {
        let (steps, entries) = walk(list, pages);
        assert_eq!(steps, expected);
        // The entries of a list by name are pairs, which another test reads.
        if steps.last().is_some_and(|step| step == "done") && entries.iter().all(Value::is_number) {
            let numbers: Vec<_> = (1..=entries.len()).map(Value::from).collect();
            assert_eq!(entries, numbers);
        }
    }

    #[test]
    fn entries_by_name_become_pairs() {
        let (_, entries) = walk(
            List::one("/servers"),
            &[json!({ "servers": { "L4": { "gpu": 1 } } })],
        );
        let read: Vec<(String, Value)> = serde_json::from_value(Value::Array(entries)).unwrap();
        assert_eq!(read, [("L4".to_owned(), json!({ "gpu": 1 }))]);
    }

    #[test]
    fn a_list_without_an_end_is_an_error() {
        let mut walk = Walk::new(CURSOR);
        let ended = (0..=MOST_PAGES).map(|n| walk.add(json!({ "things": [n], "meta": { "next": n + 1 } })));
        assert!(ended.last().unwrap().is_err());
    }
}
