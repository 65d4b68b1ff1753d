//! How many streams one user may hold open: one runaway script must not take them all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Open streams of each user.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    each: usize,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

/// One stream, or several of one request; dropped, it makes room for others.
#[derive(Debug)]
pub(crate) struct Permit {
    user: String,
    streams: usize,
    each: usize,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

impl Limits {
    pub(crate) fn new(each: usize) -> Self {
        Self {
            each,
            open: Arc::default(),
        }
    }

    /// Most streams of one user.
    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// Room for one more stream, if there is any.
    pub(crate) fn take(&self, user: &str) -> Option<Permit> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(user.to_owned()).or_default();
        if *count >= self.each {
            return None;
        }
        *count += 1;
        Some(Permit {
            user: user.to_owned(),
            streams: 1,
            each: self.each,
            open: Arc::clone(&self.open),
        })
    }
}

impl Permit {
    /// Room for so many streams in all, for a request that reads several; whether there is.
    pub(crate) fn widen(&mut self, streams: usize) -> bool {
        let more = streams.saturating_sub(self.streams);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(self.user.clone()).or_default();
        let fits = *count + more <= self.each;
        if fits {
            *count += more;
            self.streams += more;
        }
        fits
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count = count.saturating_sub(self.streams);
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_room_of_its_own_and_gets_it_back() {
        let limits = Limits::new(2);
        let held = [limits.take("ana"), limits.take("ana")];
        assert!(held.iter().all(Option::is_some));
        assert!(limits.take("ana").is_none());
        assert!(limits.take("ben").is_some());
        drop(held);
        assert!(limits.take("ana").is_some());
        assert!(
            limits.open.lock().unwrap().is_empty(),
            "nothing is kept of who has left"
        );
    }

    #[test]
    fn a_request_that_reads_several_logs_counts_for_each_of_them() {
        let limits = Limits::new(4);
        let mut followed = limits.take("ana").unwrap();
        assert!(followed.widen(3));
        let one = limits.take("ana");
        assert!(one.is_some() && limits.take("ana").is_none());
        assert!(!followed.widen(9));
        drop(followed);
        let mut other = limits.take("ana").unwrap();
        assert!(!other.widen(4) && other.widen(3), "nothing was taken in vain");
        drop((one, other));
        assert!(limits.open.lock().unwrap().is_empty());
    }
}
