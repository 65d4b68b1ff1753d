//! How a mark stands in tags (P5), and a Pool in the names of what its machines share. Pure.

use skyward_core::Mark;

use crate::{cut, digest};

/// Tags of a machine. Their keys are in lower case and without dots, as every cloud takes
/// them; values are cut, which may hit names: the UIDs beside them are what counts.
pub fn tags(mark: &Mark, longest: usize) -> Vec<(&'static str, String)> {
    let text = |text: &str| cut(text, longest).to_owned();
    vec![
        ("skyward-cluster", text(&mark.cluster)),
        ("skyward-namespace", text(&mark.namespace)),
        ("skyward-pool", text(&mark.pool)),
        ("skyward-pool-uid", text(&mark.pool_uid)),
        ("skyward-machine", text(&mark.machine)),
        ("skyward-machine-uid", text(&mark.machine_uid)),
        ("skyward-slot", mark.slot.to_string()),
        ("skyward-attempt", mark.attempt.to_string()),
    ]
}

/// Whose something is, by the values of its tags; `None` when it is not ours.
pub fn from_tags(value: impl Fn(&str) -> Option<String>) -> Option<Mark> {
    Some(Mark {
        cluster: value("skyward-cluster")?,
        namespace: value("skyward-namespace").unwrap_or_default(),
        pool: value("skyward-pool").unwrap_or_default(),
        pool_uid: value("skyward-pool-uid")?,
        machine: value("skyward-machine").unwrap_or_default(),
        machine_uid: value("skyward-machine-uid")?,
        slot: value("skyward-slot")?.parse().ok()?,
        attempt: value("skyward-attempt")?.parse().ok()?,
    })
}

/// Beginning of the names of things that Pools of this installation share.
fn prefix(cluster: &str) -> String {
    format!("skyward-{}-", digest(cluster, 8))
}

/// Name of a thing that a Pool has one of.
pub fn pool_name(cluster: &str, pool_uid: &str) -> String {
    format!("{}{pool_uid}", prefix(cluster))
}

/// Name of a thing by its content, so that one is made for all machines of a Pool, and a
/// changed one is another. At most 62 characters.
pub fn content_name(cluster: &str, pool_uid: &str, content: &str) -> String {
    format!("{}.{}", pool_name(cluster, pool_uid), digest(content, 8))
}

/// UID of the Pool that a thing of this name is of, if it is ours.
pub fn pool_of(cluster: &str, name: &str) -> Option<String> {
    let rest = name.strip_prefix(&prefix(cluster))?;
    let uid = rest.split_once('.').map_or(rest, |(uid, _)| uid);
    (!uid.is_empty()).then(|| uid.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::order;

    #[test]
    fn a_mark_comes_back_from_its_tags_and_a_name_that_is_too_long_is_cut() {
        let mut mark = order().mark;
        let back = |mark: &Mark| {
            let tags = tags(mark, 127);
            assert!(
                tags.iter()
                    .all(|(key, value)| *key == key.to_lowercase() && value.len() <= 127)
            );
            from_tags(|key| {
                let found = tags.iter().find(|(name, _)| *name == key);
                found.map(|(_, value)| value.clone())
            })
        };
        assert_eq!(back(&mark), Some(mark.clone()));
        mark.pool = "ü".repeat(100);
        assert_eq!(back(&mark).unwrap().machine_uid, mark.machine_uid);
        assert_eq!(from_tags(|_| None), None);
    }

    #[test]
    fn shared_things_tell_their_pool_by_name() {
        let key = pool_name("c-uid", "p-uid");
        let script = content_name("c-uid", "p-uid", "sleep 1");
        assert_eq!(pool_of("c-uid", &key).as_deref(), Some("p-uid"));
        assert_eq!(pool_of("c-uid", &script).as_deref(), Some("p-uid"));
        assert_eq!(pool_of("another", &key), None);
        assert_eq!(pool_of("c-uid", "laptop"), None);
        assert_ne!(script, content_name("c-uid", "p-uid", "sleep 2"));
        assert!(content_name("c-uid", &"u".repeat(36), "x").len() <= 62);
    }
}
