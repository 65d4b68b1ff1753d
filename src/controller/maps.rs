//! What the log of a map in the store means to the planner, and back. It reads and writes nothing itself.

use bytes::Bytes;
use skyward_planner::map::{
    items::Items,
    leader::Entry,
    record::{self, Cause, Note, UnknownNote},
};
use skyward_store::maps::{Ended, Head, Heads, Record};

/// Takes in what one object of the log says; the error: a newer version wrote it.
pub(crate) fn replay(part: &Heads, items: &mut Items) -> Result<(), String> {
    for head in part.heads.iter() {
        match head {
            Head::Leader(_) => {}
            Head::Note(text) => {
                let note: Note = text.parse().map_err(|error: UnknownNote| error.to_string())?;
                items.apply(&record::Record::Note(note));
            }
            Head::Ended(ended, _) => {
                items.apply(&record::Record::Ended(of_stored(*ended)?));
            }
        }
    }
    Ok(())
}

/// The end of an attempt; the error: a newer version wrote it.
pub(crate) fn of_stored(ended: Ended) -> Result<record::Ended, String> {
    let Ended {
        index,
        attempt,
        cause,
        is_final,
    } = ended;
    let cause = Cause::of_number(cause)
        .ok_or_else(|| "the log of the map has an end that this version does not know".to_owned())?;
    Ok(record::Ended {
        index,
        attempt,
        cause,
        is_final,
    })
}

/// An entry as the store takes it.
pub(crate) fn to_stored(entry: Entry<Bytes>) -> Record {
    match entry.record {
        record::Record::Note(note) => Record::Note(note.to_string()),
        record::Record::Ended(ended) => {
            let stored = Ended {
                index: ended.index,
                attempt: ended.attempt,
                cause: ended.cause.number(),
                is_final: ended.is_final,
            };
            Record::Ended(stored, entry.body.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_means_the_same_after_it_was_stored() {
        for cause in [
            Cause::Success,
            Cause::Failure,
            Cause::Interruption,
            Cause::Uncounted,
        ] {
            let ended = record::Ended {
                index: 7,
                attempt: 2,
                cause,
                is_final: cause == Cause::Failure,
            };
            let entry = Entry {
                record: record::Record::Ended(ended),
                body: Some("{}\n1".into()),
            };
            let Record::Ended(stored, body) = to_stored(entry) else {
                panic!("it is an end");
            };
            assert_eq!((of_stored(stored), body), (Ok(ended), Bytes::from("{}\n1")));
            let newer = Ended { cause: 9, ..stored };
            assert!(of_stored(newer).is_err());
        }
    }
}
