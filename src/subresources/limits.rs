//! Limits how many streams may be open at once: neither one runaway script nor one tenant with
//! many users may take them all. So each user has a limit, and each namespace whose logs are read.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Of {
    /// The user who reads.
    User,
    /// The namespace of the Task that is read.
    Namespace,
}

type Open = HashMap<(Of, Arc<str>), usize>;

/// Open streams of each user and each namespace.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Most streams of one user, and of one namespace.
    pub(crate) each: usize,
    open: Arc<Mutex<Open>>,
}

/// One stream, or several of one request; dropped, it makes room for others.
#[derive(Debug)]
pub(crate) struct Permit {
    holders: [(Of, Arc<str>); 2],
    streams: usize,
    limits: Limits,
}

impl Limits {
    pub(crate) fn new(each: usize) -> Self {
        Self {
            each,
            open: Arc::default(),
        }
    }

    /// Takes room for one more stream; the error says whose limit is reached.
    pub(crate) fn take(&self, user: &str, namespace: &str) -> Result<Permit, Of> {
        let mut permit = Permit {
            holders: [(Of::User, user.into()), (Of::Namespace, namespace.into())],
            streams: 0,
            limits: self.clone(),
        };
        permit.widen(1)?;
        Ok(permit)
    }
}

impl Permit {
    /// Takes room for so many streams in all, for a request that reads several. The error says
    /// whose limit is reached; then nothing is taken.
    pub(crate) fn widen(&mut self, streams: usize) -> Result<(), Of> {
        let more = streams.saturating_sub(self.streams);
        let mut open = self.limits.open.lock();
        for holder in &self.holders {
            let count = open.get(holder).copied().unwrap_or_default();
            if count + more > self.limits.each {
                return Err(holder.0);
            }
        }
        for holder in &self.holders {
            *open.entry(holder.clone()).or_default() += more;
        }
        self.streams += more;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock();
        for holder in &self.holders {
            if let Some(count) = open.get_mut(holder) {
                *count = count.saturating_sub(self.streams);
                if *count == 0 {
                    open.remove(holder);
                }
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
        let held = [limits.take("ana", "a"), limits.take("ana", "b")];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(limits.take("ana", "a").unwrap_err(), Of::User);
        assert!(limits.take("ben", "a").is_ok());
        drop(held);
        assert!(limits.take("ana", "a").is_ok());
        assert!(
            limits.open.lock().is_empty(),
            "nothing is kept of users who have left"
        );
    }

    #[test]
    fn a_namespace_that_is_read_under_many_names_takes_no_more_than_its_part() {
        let limits = Limits::new(4);
        let user = |number| format!("system:serviceaccount:loud:reader-{number}");
        let held: Vec<_> = (0..4)
            .map(|number| limits.take(&user(number), "loud").unwrap())
            .collect();
        assert_eq!(limits.take(&user(4), "loud").unwrap_err(), Of::Namespace);
        let mut quiet = limits.take("ana", "quiet").unwrap();
        assert!(quiet.widen(4).is_ok());
        // A user who reads there has lost no stream elsewhere.
        assert!(limits.take(&user(4), "other").is_ok());
        drop((held, quiet));
        assert!(limits.open.lock().is_empty());
    }

    #[test]
    fn a_request_that_reads_several_logs_counts_for_each_of_them() {
        let limits = Limits::new(4);
        let mut followed = limits.take("ana", "a").unwrap();
        assert!(followed.widen(3).is_ok());
        let one = limits.take("ana", "b");
        assert!(one.is_ok() && limits.take("ana", "b").is_err());
        assert_eq!(followed.widen(9), Err(Of::User));
        drop(followed);
        let mut other = limits.take("ana", "a").unwrap();
        assert!(
            other.widen(4).is_err() && other.widen(3).is_ok(),
            "nothing was taken in vain"
        );
        drop((one, other));
        assert!(limits.open.lock().is_empty());
    }
}
