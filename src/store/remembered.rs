//! What this process knows of logs that it is writing, so that it need not list a log before each piece.
//!
//! An entry may be wrong where another process wrote meanwhile. That does no harm: a piece that is there already is
//! not written again, and the log is listed; one that is there in part is stored twice (`segments.rs`). An entry is
//! taken out while a log is changed, so that a change that failed leaves none.

use std::collections::HashMap;

use object_store::path::Path;
use parking_lot::Mutex;

use crate::segments::Layout;

/// Logs that are remembered. One of 2 GiB takes about 100 KiB.
const MOST: usize = 64;

/// The logs, by their folders.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<HashMap<Path, Layout>>);

impl Remembered {
    /// Takes an entry out.
    pub(crate) fn take(&self, folder: &Path) -> Option<Layout> {
        self.0.lock().remove(folder)
    }

    /// Notes the state of a log after a change.
    pub(crate) fn keep(&self, folder: &Path, layout: Layout) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            // A log that is written to comes back with its next piece.
            all.clear();
        }
        all.insert(folder.clone(), layout);
    }

    /// Forgets the logs in a folder.
    pub(crate) fn forget(&self, within: &Path) {
        self.0.lock().retain(|folder, _| !folder.prefix_matches(within));
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
        for task in 0..1000 {
            remembered.keep(&log(&task.to_string()), layout.clone());
        }
        assert!(remembered.0.lock().len() <= MOST);
        assert!(remembered.take(&log("999")).is_some());
    }
}
