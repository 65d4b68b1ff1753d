//! Events since a version.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::{
    refusal,
    request::Call,
    server::{ApiServer, Change, Id, metadata_of},
    wire::Network,
};

/// Until an API server ends a watch by itself, if the client names no time.
const LONGEST: Duration = Duration::from_secs(1_800);

/// One watch.
struct Watching {
    server: Arc<ApiServer>,
    network: Arc<dyn Network>,
    call: Call,
    /// The version that was told last.
    told: u64,
    /// How often the server was restored when the watch began.
    restored: u64,
    /// Events of which the network was not asked yet.
    waiting: std::collections::VecDeque<Value>,
    until: Instant,
    ends: bool,
}

impl ApiServer {
    /// The body of a watch: a line for each event.
    pub(crate) fn watch(
        self: &Arc<Self>,
        call: Call,
        network: Arc<dyn Network>,
    ) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
        let lasting = call.query.seconds.map_or(LONGEST, Duration::from_secs);
        let state = self.state.lock();
        let since = call
            .query
            .version
            .as_deref()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let mut watching = Watching {
            server: self.clone(),
            network,
            told: since,
            restored: self.changed.borrow().1,
            waiting: std::collections::VecDeque::new(),
            until: Instant::now() + lasting,
            ends: false,
            call,
        };
        if since == 0 {
            watching.told = state.version;
            for (id, object) in &state.objects {
                if watching.takes(id) && watching.call.query.selects(object) {
                    let event = watching.event("ADDED", object);
                    watching.waiting.push_back(event);
                }
            }
        } else if since < state.compacted {
            let old = format!("too old resource version: {since} ({})", state.compacted + 1);
            let status = refusal::expired(&old).status;
            watching
                .waiting
                .push_back(json!({ "type": "ERROR", "object": status }));
            watching.ends = true;
        }
        drop(state);
        stream::unfold(watching, |mut watching| async move {
            let event = watching.next().await?;
            let mut line = event.to_string();
            line.push('\n');
            Some((Ok(Bytes::from(line)), watching))
        })
    }
}

impl Watching {
    fn takes(&self, id: &Id) -> bool {
        id.resource == self.call.resource && id.is_in(&self.call.namespace)
    }

    fn event(&self, kind: &str, object: &Value) -> Value {
        let object = if self.call.metadata {
            metadata_of(object)
        } else {
            object.clone()
        };
        json!({ "type": kind, "object": object })
    }

    /// What a change is to this watch: by its selectors an object may come and go.
    fn told_as(&self, change: &Change) -> Option<Value> {
        if !self.takes(&change.id) {
            return None;
        }
        let query = &self.call.query;
        let was = change.before.as_ref().is_some_and(|before| query.selects(before));
        let is = !change.gone && query.selects(&change.object);
        match (was, is) {
            (false, true) => Some(self.event("ADDED", &change.object)),
            (true, true) => Some(self.event("MODIFIED", &change.object)),
            (true, false) => {
                // The object as it was when the watch last took it, with the version of the change.
                let mut last = change.before.as_deref()?.clone();
                last["metadata"]["resourceVersion"] = change.version.to_string().into();
                Some(self.event("DELETED", &last))
            }
            (false, false) => None,
        }
    }

    async fn next(&mut self) -> Option<Value> {
        let mut changed = self.server.changed.subscribe();
        loop {
            if let Some(event) = self.waiting.pop_front() {
                let network = self.network.clone();
                tokio::select! {
                    () = network.event(&self.call) => return Some(event),
                    () = sleep_until(self.until) => return None,
                }
            }
            if self.ends {
                return None;
            }
            self.gather();
            if self.ends || !self.waiting.is_empty() {
                continue;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(self.until) => self.ends = true,
            }
        }
    }

    /// Takes up what was written since.
    fn gather(&mut self) {
        let server = self.server.clone();
        let state = server.state.lock();
        if self.restored != server.changed.borrow().1 {
            self.ends = true;
            return;
        }
        let first = state
            .history
            .partition_point(|change| change.version <= self.told);
        for change in &state.history[first..] {
            self.told = change.version;
            if let Some(event) = self.told_as(change) {
                self.waiting.push_back(event);
            }
        }
    }
}
