//! When a call may go. Pure: the time is an argument.
//!
//! One mechanism serves both kinds of limit: one call in so many seconds, and so many calls in a
//! minute. Each call takes the next free instant, so waiting calls are served in order.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::Method;
use tokio::time::Instant;

/// How often something may happen: so many calls in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub calls: usize,
    /// In how long.
    pub window: Duration,
}

impl Rate {
    /// At most one call in this time.
    pub const fn every(window: Duration) -> Self {
        Self { calls: 1, window }
    }

    /// So many calls in a minute, and one second more: answers and requests do not take
    /// equally long.
    pub const fn per_minute(calls: usize) -> Self {
        Self {
            calls,
            window: Duration::from_secs(61),
        }
    }
}

/// Which calls a rate is about.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// All when `None`.
    pub method: Option<&'static str>,
    /// The path with names instead of values; all when `None`.
    pub pattern: Option<&'static str>,
    /// Whether calls of different method or pattern count together.
    pub together: bool,
    /// How often.
    pub rate: Rate,
}

impl Rule {
    /// All calls together.
    pub const fn account(rate: Rate) -> Self {
        Self {
            method: None,
            pattern: None,
            together: true,
            rate,
        }
    }

    /// Each method and path by itself.
    pub const fn each(rate: Rate) -> Self {
        Self {
            method: None,
            pattern: None,
            together: false,
            rate,
        }
    }

    /// This call.
    pub const fn call(method: &'static str, pattern: &'static str, rate: Rate) -> Self {
        Self {
            method: Some(method),
            pattern: Some(pattern),
            together: false,
            rate,
        }
    }

    fn is_about(&self, method: &Method, pattern: &str) -> bool {
        self.method.is_none_or(|m| m == method.as_str()) && self.pattern.is_none_or(|p| p == pattern)
    }
}

/// The answer to whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Now,
    /// At this instant, which is kept free for it.
    At(Instant),
    /// Not before the deadline, but this long from now.
    TooLate(Duration),
}

/// The limits of one account, shared by all its users.
#[derive(Default)]
pub struct Limits {
    rules: Vec<Rule>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By rule and, where they do not count together, call: when the last ones went or
    /// will go, as many as a window holds.
    gone: BTreeMap<(usize, String), VecDeque<Instant>>,
    /// By call: closed until then, because the cloud said so.
    closed: BTreeMap<String, Instant>,
}

fn name(method: &Method, pattern: &str) -> String {
    format!("{method} {pattern}")
}

impl Limits {
    /// These rules. For a call the first rule that names it counts, and all rules for the account.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            state: Mutex::default(),
        }
    }

    /// Takes the next free instant, if that is before `until`.
    pub fn reserve(&self, method: &Method, pattern: &'static str, now: Instant, until: Instant) -> Turn {
        let mut state = self.state.lock();
        let call = name(method, pattern);
        let mut at = state.closed.get(&call).copied().unwrap_or(now).max(now);
        let mut keys = Vec::new();
        let mut own = false;
        for (index, rule) in self.rules.iter().enumerate() {
            if !rule.is_about(method, pattern) || (!rule.together && std::mem::replace(&mut own, true)) {
                continue;
            }
            let key = (
                index,
                if rule.together {
                    String::new()
                } else {
                    call.clone()
                },
            );
            if let Some(gone) = state.gone.get(&key)
                && gone.len() >= rule.rate.calls
                && let Some(first) = gone.front()
            {
                at = at.max(*first + rule.rate.window);
            }
            keys.push((key, rule.rate.calls));
        }
        if at >= until {
            return Turn::TooLate(at.saturating_duration_since(now));
        }
        for (key, calls) in keys {
            let gone = state.gone.entry(key).or_default();
            gone.push_back(at);
            while gone.len() > calls {
                gone.pop_front();
            }
        }
        if at <= now { Turn::Now } else { Turn::At(at) }
    }

    /// Closes the way for a call until then.
    pub fn block(&self, method: &Method, pattern: &'static str, until: Instant) {
        let mut state = self.state.lock();
        let closed = state.closed.entry(name(method, pattern)).or_insert(until);
        *closed = (*closed).max(until);
    }

    /// Until when the way is closed for a call, if it is.
    pub fn blocked(&self, method: &Method, pattern: &'static str, now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        state
            .closed
            .get(&name(method, pattern))
            .copied()
            .filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn late() -> Instant {
        Instant::now() + seconds(3600)
    }

    #[test]
    fn calls_of_one_kind_keep_their_distance_and_others_do_not_wait_for_them() {
        let limits = Limits::new(vec![
            Rule::call("PUT", "/asks/{id}", Rate::every(seconds(5))),
            Rule::each(Rate::every(seconds(2))),
        ]);
        let now = Instant::now();
        let put = |pattern| limits.reserve(&Method::PUT, pattern, now, late());
        assert_eq!(put("/asks/{id}"), Turn::Now);
        assert_eq!(put("/asks/{id}"), Turn::At(now + seconds(5)));
        assert_eq!(put("/asks/{id}"), Turn::At(now + seconds(10)));
        // The general rule is for calls that no other rule names.
        assert_eq!(put("/other"), Turn::Now);
        assert_eq!(put("/other"), Turn::At(now + seconds(2)));
        assert_eq!(limits.reserve(&Method::GET, "/other", now, late()), Turn::Now);
    }

    #[test]
    fn no_window_holds_more_calls_than_it_may() {
        let limits = Limits::new(vec![Rule::each(Rate {
            calls: 3,
            window: seconds(10),
        })]);
        let now = Instant::now();
        let get = |at| limits.reserve(&Method::GET, "/a", at, late());
        assert_eq!([get(now), get(now)], [Turn::Now, Turn::Now]);
        let later = now + seconds(4);
        assert_eq!(get(later), Turn::Now);
        assert_eq!(get(later), Turn::At(now + seconds(10)));
        assert_eq!(get(later), Turn::At(now + seconds(10)));
        assert_eq!(get(later), Turn::At(now + seconds(14)));
        assert_eq!(get(later), Turn::At(now + seconds(20)));
        // After a silence there is room again.
        assert_eq!(get(now + seconds(60)), Turn::Now);
    }

    #[test]
    fn the_account_counts_all_calls_together() {
        let limits = Limits::new(vec![
            Rule::account(Rate {
                calls: 2,
                window: seconds(5),
            }),
            Rule::each(Rate::per_minute(60)),
        ]);
        let now = Instant::now();
        assert_eq!(limits.reserve(&Method::GET, "/a", now, late()), Turn::Now);
        assert_eq!(limits.reserve(&Method::GET, "/b", now, late()), Turn::Now);
        assert_eq!(
            limits.reserve(&Method::PUT, "/c", now, late()),
            Turn::At(now + seconds(5))
        );
    }

    #[test]
    fn who_would_wait_past_the_deadline_takes_no_place() {
        let limits = Limits::new(vec![Rule::each(Rate::every(seconds(10)))]);
        let now = Instant::now();
        let until = now + seconds(15);
        let get = |until| limits.reserve(&Method::GET, "/a", now, until);
        assert_eq!(get(until), Turn::Now);
        assert_eq!(get(until), Turn::At(now + seconds(10)));
        assert_eq!(get(until), Turn::TooLate(seconds(20)));
        assert_eq!(get(until), Turn::TooLate(seconds(20)));
        assert_eq!(get(late()), Turn::At(now + seconds(20)));
    }

    #[test]
    fn a_closed_way_is_closed_for_all_and_opens_again() {
        let limits = Limits::new(Vec::new());
        let now = Instant::now();
        limits.block(&Method::GET, "/a", now + seconds(7));
        limits.block(&Method::GET, "/a", now + seconds(3));
        assert_eq!(
            limits.reserve(&Method::GET, "/a", now, late()),
            Turn::At(now + seconds(7))
        );
        assert_eq!(
            limits.blocked(&Method::GET, "/a", now + seconds(6)),
            Some(now + seconds(7))
        );
        assert_eq!(limits.blocked(&Method::GET, "/a", now + seconds(8)), None);
        assert_eq!(limits.reserve(&Method::GET, "/b", now, late()), Turn::Now);
    }
}
