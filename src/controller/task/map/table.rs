//! The ways from dispatchers to the maps that run, by the UID of their Task.

use std::collections::HashMap;

use parking_lot::Mutex;
use skyward_planner::task::{message::MapNews, model::Uid};
use tokio::sync::mpsc;

/// What a map is told, until the sender is dropped: then it ends.
pub(crate) type News = mpsc::UnboundedReceiver<MapNews>;

#[derive(Debug)]
struct Known {
    news: mpsc::UnboundedSender<MapNews>,
    /// Until the map takes it.
    begins: Option<News>,
}

/// The maps that run, or are about to.
#[derive(Debug, Default)]
pub(crate) struct Maps(Mutex<HashMap<Uid, Known>>);

impl Maps {
    /// From here on a map can be told what changes. One of the same Task that runs ends.
    pub(crate) fn begin(&self, uid: &Uid) {
        // A dispatcher tells the whole each time it changes, which is seldom: nothing piles up.
        let (news, begins) = mpsc::unbounded_channel();
        let known = Known {
            news,
            begins: Some(begins),
        };
        self.0.lock().insert(uid.clone(), known);
    }

    /// What a map that begins is told; `None`: it has been ended already.
    pub(crate) fn take(&self, uid: &Uid) -> Option<News> {
        self.0.lock().get_mut(uid)?.begins.take()
    }

    /// Tells a map what has changed.
    pub(crate) fn tell(&self, uid: &Uid, news: MapNews) {
        if let Some(known) = self.0.lock().get(uid) {
            // A map that has ended needs to know nothing.
            let _ = known.news.send(news);
        }
    }

    /// Ends a map.
    pub(crate) fn end(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use skyward_planner::map::{items::Retries, plan::Spec};

    use super::*;

    fn news() -> MapNews {
        MapNews {
            spec: Spec {
                retries: Retries {
                    on_interruption: 3,
                    on_failure: 0,
                },
                max_failed: None,
                buffer: 0,
                threads: 1,
                runs: true,
            },
            workers: Vec::new(),
            others_are_gone: false,
        }
    }

    #[tokio::test]
    async fn a_map_hears_what_was_told_before_it_began_and_its_end() {
        let maps = Maps::default();
        let uid: Uid = "uid".into();
        maps.tell(&uid, news());
        assert!(maps.take(&uid).is_none());
        maps.begin(&uid);
        maps.tell(&uid, news());
        let mut heard = maps.take(&uid).unwrap();
        assert!(maps.take(&uid).is_none(), "a map runs once");
        assert_eq!(heard.recv().await, Some(news()));
        maps.end(&uid);
        assert_eq!(heard.recv().await, None);
    }
}
