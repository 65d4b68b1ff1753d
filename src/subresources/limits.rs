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

/// One stream; dropped, it makes room for another.
#[derive(Debug)]
pub(crate) struct Permit {
    user: String,
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
            open: Arc::clone(&self.open),
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
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
}
