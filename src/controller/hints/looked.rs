//! When namespaces that wait for room in the result store were last looked at for what deleted Tasks left there.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often a namespace is looked at, however many of its runs wait.
const INTERVAL: Duration = Duration::from_secs(10);

/// When each waiting namespace was last looked at.
#[derive(Debug, Default)]
pub(crate) struct Looked(Mutex<HashMap<String, Instant>>);

impl Looked {
    /// Whether it is time for another look, which is noted.
    pub(crate) fn is_due(&self, namespace: &str, now: Instant) -> bool {
        let mut looked = self.0.lock();
        looked.retain(|_, at| now.duration_since(*at) < INTERVAL);
        if looked.contains_key(namespace) {
            return false;
        }
        looked.insert(namespace.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_looked_at_again_after_a_while() {
        let looked = Looked::default();
        let now = Instant::now();
        assert!(looked.is_due("a", now) && looked.is_due("b", now));
        assert!(!looked.is_due("a", now + Duration::from_secs(9)));
        assert!(looked.is_due("a", now + INTERVAL));
    }
}
