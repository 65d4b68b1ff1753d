//! What this process knows of logs that it is writing, so that it need not list a log before each piece.
//!
//! An entry may be wrong where another process wrote meanwhile. That does no harm: a piece that is there already is
//! not written again, and the log is listed; one that is there in part is stored twice (`segments.rs`). An entry is
//! taken out while a log is changed, so that a change that failed leaves none.

use std::collections::HashMap;

use object_store::path::Path;
use parking_lot::Mutex;

use crate::segments::Layout;

/// Logs that are remembered.
const MOST_LOGS: usize = 8 * 1024;
/// Objects of all of them together, which take a few MiB. A log of 2 GiB has some thousands.
const MOST_OBJECTS: usize = 128 * 1024;

/// The logs, by their folders.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Logs>);

#[derive(Debug, Default)]
struct Logs {
    by_folder: HashMap<Path, Layout>,
    /// Objects of all of them.
    objects: usize,
}

impl Logs {
    fn take(&mut self, folder: &Path) -> Option<Layout> {
        let layout = self.by_folder.remove(folder)?;
        self.objects = self.objects.saturating_sub(layout.live.len());
        Some(layout)
    }

    fn keep(&mut self, folder: &Path, layout: Layout) {
        self.take(folder);
        if self.by_folder.len() >= MOST_LOGS || self.objects + layout.live.len() > MOST_OBJECTS {
            // A log that is written to comes back with its next piece.
            *self = Self::default();
        }
        self.objects += layout.live.len();
        self.by_folder.insert(folder.clone(), layout);
    }
}

impl Remembered {
    /// Takes an entry out.
    pub(crate) fn take(&self, folder: &Path) -> Option<Layout> {
        self.0.lock().take(folder)
    }

    /// Looks at an entry.
    pub(crate) fn look<T>(&self, folder: &Path, look: impl FnOnce(&Layout) -> T) -> Option<T> {
        self.0.lock().by_folder.get(folder).map(look)
    }

    /// Notes the state of a log after a change.
    pub(crate) fn keep(&self, folder: &Path, layout: Layout) {
        self.0.lock().keep(folder, layout);
    }

    /// Notes that nothing is stored of a log, unless more is known of it.
    pub(crate) fn keep_empty(&self, folder: &Path) {
        let mut logs = self.0.lock();
        if !logs.by_folder.contains_key(folder) {
            logs.keep(folder, Layout::default());
        }
    }

    /// Forgets the logs in a folder.
    pub(crate) fn forget(&self, within: &Path) {
        let mut logs = self.0.lock();
        logs.by_folder.retain(|folder, _| !folder.prefix_matches(within));
        logs.objects = logs.by_folder.values().map(|layout| layout.live.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::Segment;

    #[test]
    fn what_is_taken_is_gone_what_is_deleted_is_forgotten_and_there_are_never_too_many() {
        let remembered = Remembered::default();
        let mut layout = Layout::default();
        layout.push(Segment::piece(0, 7));
        let log = |task: &str| Path::from_iter([task, "run", "log"]);
        remembered.keep(&log("a"), layout.clone());
        remembered.keep(&log("ab"), layout.clone());
        assert_eq!(remembered.take(&log("a")), Some(layout.clone()));
        assert_eq!(remembered.take(&log("a")), None);
        remembered.keep(&log("a"), layout.clone());
        remembered.forget(&Path::from("a"));
        assert_eq!(remembered.take(&log("a")), None);
        assert_eq!(remembered.take(&log("ab")), Some(layout.clone()));
        for task in 0..MOST_LOGS * 2 {
            remembered.keep(&log(&task.to_string()), layout.clone());
        }
        assert!(remembered.0.lock().by_folder.len() <= MOST_LOGS);
        let last = log(&(MOST_LOGS * 2 - 1).to_string());
        assert!(remembered.take(&last).is_some());
    }

    #[test]
    fn few_logs_of_many_objects_are_no_more_than_many_logs_of_few() {
        let remembered = Remembered::default();
        let mut layout = Layout::default();
        for at in 0..50_000 {
            layout.push(Segment::piece(at, 1));
        }
        for task in ["a", "b", "a", "b"] {
            remembered.keep(&Path::from(task), layout.clone());
        }
        assert_eq!(remembered.0.lock().objects, 100_000, "each counts once");
        remembered.keep(&Path::from("c"), layout.clone());
        assert_eq!(remembered.0.lock().objects, 50_000);
        remembered.forget(&Path::from("c"));
        assert_eq!(remembered.0.lock().objects, 0);
    }

    #[test]
    fn a_log_that_is_known_is_not_taken_for_an_empty_one() {
        let remembered = Remembered::default();
        let log = Path::from("a");
        remembered.keep_empty(&log);
        assert_eq!(remembered.look(&log, Layout::end), Some(0));
        let mut layout = Layout::default();
        layout.push(Segment::piece(0, 7));
        remembered.keep(&log, layout);
        remembered.keep_empty(&log);
        assert_eq!(remembered.look(&log, Layout::end), Some(7));
    }
}
