//! How a mark (P5) is written into tags, labels or a name; and a Pool into the names of its shared
//! resources. Pure.

use serde::{Deserialize, Serialize};
use skyward_core::{ErrorKind, Mark, ProviderError};

use crate::{cut, digest, dns_label};

/// Names of the parts of a mark, the same at every cloud.
const CLUSTER: &str = "cluster";
const NAMESPACE: &str = "namespace";
const POOL: &str = "pool";
const POOL_UID: &str = "pool-uid";
const MACHINE: &str = "machine";
const MACHINE_UID: &str = "machine-uid";
const SLOT: &str = "slot";
const ATTEMPT: &str = "attempt";

fn parts(mark: &Mark) -> [(&'static str, String); 8] {
    [
        (CLUSTER, mark.cluster.clone()),
        (NAMESPACE, mark.namespace.clone()),
        (POOL, mark.pool.clone()),
        (POOL_UID, mark.pool_uid.clone()),
        (MACHINE, mark.machine.clone()),
        (MACHINE_UID, mark.machine_uid.clone()),
        (SLOT, mark.slot.to_string()),
        (ATTEMPT, mark.attempt.to_string()),
    ]
}

/// The names in it are for people and may be missing.
fn from_parts(value: impl Fn(&str) -> Option<String>) -> Option<Mark> {
    Some(Mark {
        cluster: value(CLUSTER)?,
        namespace: value(NAMESPACE).unwrap_or_default(),
        pool: value(POOL).unwrap_or_default(),
        pool_uid: value(POOL_UID)?,
        machine: value(MACHINE).unwrap_or_default(),
        machine_uid: value(MACHINE_UID)?,
        slot: value(SLOT)?.parse().ok()?,
        attempt: value(ATTEMPT)?.parse().ok()?,
    })
}

/// A tag, as most clouds write it in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: Option<String>,
}

/// Marks as tags or labels of one cloud.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    prefix: &'static str,
    longest: usize,
    admits: fn(char) -> bool,
}

impl Tags {
    /// Tags whose keys begin with `prefix` (`skyward-`), with values of at most so many bytes.
    /// Longer values are cut, which may hit names: only the UIDs beside them count.
    pub const fn new(prefix: &'static str, longest: usize) -> Self {
        let admits = |_| true;
        Self {
            prefix,
            longest,
            admits,
        }
    }

    /// The same for clouds whose values have an alphabet: another character becomes `-`.
    #[must_use]
    pub const fn only(mut self, admits: fn(char) -> bool) -> Self {
        self.admits = admits;
        self
    }

    /// The key of a part of the mark, such as `pool-uid`.
    pub fn key(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// The tags of a machine.
    pub fn write(&self, mark: &Mark) -> Vec<Tag> {
        let tag = |(part, value): (&str, String)| {
            let value: String = value
                .chars()
                .map(|c| if (self.admits)(c) { c } else { '-' })
                .collect();
            Tag {
                key: self.key(part),
                value: Some(cut(&value, self.longest).to_owned()),
            }
        };
        parts(mark).into_iter().map(tag).collect()
    }

    /// The mark in these tags; `None` when it is not ours.
    pub fn read(&self, tags: &[Tag]) -> Option<Mark> {
        self.read_by(|key| tags.iter().find(|tag| tag.key == key)?.value.clone())
    }

    /// The same, by the value of each key.
    pub fn read_by(&self, value: impl Fn(&str) -> Option<String>) -> Option<Mark> {
        from_parts(|part| value(&self.key(part)))
    }

    /// The tags of a machine where tags are plain texts: key and value with this character between.
    pub fn write_texts(&self, mark: &Mark, between: char) -> Vec<String> {
        let text = |tag: Tag| format!("{}{between}{}", tag.key, tag.value.unwrap_or_default());
        self.write(mark).into_iter().map(text).collect()
    }

    /// The mark in these plain texts; `None` when it is not ours.
    pub fn read_texts<T: AsRef<str>>(&self, texts: &[T], between: char) -> Option<Mark> {
        self.read_by(|key| {
            let value = |text: &T| {
                text.as_ref()
                    .strip_prefix(key)?
                    .strip_prefix(between)
                    .map(str::to_owned)
            };
            texts.iter().find_map(value)
        })
    }
}

/// Marks in a name or a free text: prefix, UIDs and numbers first, then the names as far as there is
/// room.
///
/// Where the parts stand between hyphens, UIDs are written without their own and the names are left
/// out, so that lower-case letters, digits and hyphens are enough: some 115 characters.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    prefix: &'static str,
    between: char,
    longest: usize,
}

impl Name {
    /// Names that begin with `prefix`, of at most so many bytes, with this character between the
    /// parts; it must be no letter and no digit.
    pub const fn new(prefix: &'static str, between: char, longest: usize) -> Self {
        Self {
            prefix,
            between,
            longest,
        }
    }

    /// The name of a machine. A mark that does not fit is an error: a cut one could not be read.
    pub fn write(&self, mark: &Mark) -> Result<String, ProviderError> {
        let compact = self.between == '-';
        let between = self.between.to_string();
        let unfit = |what: String| ProviderError::new(ErrorKind::Unsupported, "name the machine", what);
        let uid = |uid: &String| {
            if compact {
                compacted(uid).ok_or_else(|| not_a_uid(uid))
            } else {
                Ok(uid.clone())
            }
        };
        let parts = [
            self.prefix.to_owned(),
            uid(&mark.cluster)?,
            uid(&mark.pool_uid)?,
            uid(&mark.machine_uid)?,
            mark.slot.to_string(),
            mark.attempt.to_string(),
        ];
        let mut name = parts.join(&between);
        if name.len() > self.longest {
            let what = format!(
                "its mark has {} characters, and a name {} at most",
                name.len(),
                self.longest
            );
            return Err(unfit(what));
        }
        for part in [&mark.machine, &mark.namespace, &mark.pool] {
            if compact || name.len() + 1 + part.len() > self.longest {
                break;
            }
            name = format!("{name}{between}{part}");
        }
        Ok(name)
    }

    /// The mark in this name; `None` when it is not ours.
    pub fn read(&self, name: &str) -> Option<Mark> {
        let compact = self.between == '-';
        let mut parts = name
            .strip_prefix(self.prefix)?
            .strip_prefix(self.between)?
            .split(self.between);
        let mut uid = || {
            let part = parts.next()?;
            if compact {
                expanded(part)
            } else {
                Some(part.to_owned())
            }
        };
        let (cluster, pool_uid, machine_uid) = (uid()?, uid()?, uid()?);
        let slot = parts.next()?.parse().ok()?;
        let attempt = parts.next()?.parse().ok()?;
        let mut name = || parts.next().unwrap_or_default().to_owned();
        let (machine, namespace, pool) = (name(), name(), name());
        Some(Mark {
            cluster,
            namespace,
            pool,
            pool_uid,
            machine,
            machine_uid,
            slot,
            attempt,
        })
    }
}

/// The refusal of a text without a short form that could be read again.
fn not_a_uid(uid: &str) -> ProviderError {
    let what = format!("{uid} is no UID, and no name can hold it");
    ProviderError::new(ErrorKind::Unsupported, "name the machine", what)
}

/// Where the hyphens of a UID stand.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// A UID without its hyphens; `None` for another text, which could not be restored.
pub fn compacted(uid: &str) -> Option<String> {
    let compact = uid.replace('-', "");
    (expanded(&compact)? == uid).then_some(compact)
}

/// The UID of these 32 hexadecimal digits.
pub fn expanded(compact: &str) -> Option<String> {
    let hexadecimal = |c: char| c.is_ascii_digit() || matches!(c, 'a'..='f');
    if compact.len() != 32 || !compact.chars().all(hexadecimal) {
        return None;
    }
    let mut uid = compact.to_owned();
    for at in HYPHENS {
        uid.insert(at, '-');
    }
    Some(uid)
}

/// Name of a machine's host: a DNS label with the name of its Machine object.
pub fn hostname(mark: &Mark) -> String {
    dns_label(&format!("skyward-{}", mark.machine))
}

/// Prefix of the names of resources that Pools of this installation share.
fn prefix(cluster: &str) -> String {
    format!("skyward-{}-", digest(cluster, 8))
}

/// Name of a resource that a Pool has once.
pub fn pool_name(cluster: &str, pool_uid: &str) -> String {
    format!("{}{pool_uid}", prefix(cluster))
}

/// Name of a resource by its content, so that one is made for all machines of a Pool, and changed
/// content makes another. At most 62 characters.
pub fn content_name(cluster: &str, pool_uid: &str, content: &str) -> String {
    format!("{}.{}", pool_name(cluster, pool_uid), digest(content, 8))
}

/// UID of the Pool of a resource with this name, if it is ours.
pub fn pool_of(cluster: &str, name: &str) -> Option<String> {
    let rest = name.strip_prefix(&prefix(cluster))?;
    let uid = rest.split_once('.').map_or(rest, |(uid, _)| uid);
    (!uid.is_empty()).then(|| uid.to_owned())
}

/// Name of a machine of at most so many characters, by which no other machine of any installation is called.
pub fn unique_name(mark: &Mark, longest: usize) -> String {
    let unique = digest(&format!("{} {}", mark.cluster, mark.machine_uid), 12);
    let readable = hostname(mark);
    let readable = cut(&readable, longest.saturating_sub(unique.len() + 1));
    format!("{}-{unique}", readable.trim_end_matches('-'))
}

/// Prefix of the short names of resources that Pools of this installation share.
fn short_prefix(cluster: &str) -> String {
    format!("sky-{}", digest(cluster, 8))
}

/// Name of a resource by its content, in 50 lower-case letters, digits and hyphens, for clouds whose names
/// have no more. It has six digits of the content's digest, so contents must be compared as well.
pub fn short_name(cluster: &str, pool_uid: &str, content: &str) -> Result<String, ProviderError> {
    let uid = compacted(pool_uid).ok_or_else(|| not_a_uid(pool_uid))?;
    Ok(format!("{}{uid}{}", short_prefix(cluster), digest(content, 6)))
}

/// UID of the Pool of a resource with this short name, if it is ours.
pub fn pool_of_short(cluster: &str, name: &str) -> Option<String> {
    expanded(name.strip_prefix(&short_prefix(cluster))?.get(..32)?)
}

/// A short name without its hyphen, for clouds whose names have letters and digits only.
pub fn plain_name(cluster: &str, pool_uid: &str, content: &str) -> Result<String, ProviderError> {
    short_name(cluster, pool_uid, content).map(|name| name.replace('-', ""))
}

/// UID of the Pool of a resource with this plain name, if it is ours.
pub fn pool_of_plain(cluster: &str, name: &str) -> Option<String> {
    let prefix = short_prefix(cluster).replace('-', "");
    expanded(name.strip_prefix(&prefix)?.get(..32)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::order;

    const TAGS: Tags = Tags::new("skyward-", 127);

    fn with_uids() -> Mark {
        Mark {
            cluster: "0c3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
            pool_uid: "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
            machine_uid: "2e3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
            slot: 12,
            attempt: 3,
            ..order().mark
        }
    }

    #[test]
    fn a_mark_comes_back_from_its_tags_and_a_name_that_is_too_long_is_cut() {
        let mut mark = order().mark;
        let back = |mark: &Mark| {
            let tags = TAGS.write(mark);
            assert!(
                tags.iter()
                    .all(|tag| tag.key == tag.key.to_lowercase() && tag.value.as_ref().unwrap().len() <= 127)
            );
            TAGS.read(&tags)
        };
        assert_eq!(back(&mark), Some(mark.clone()));
        mark.pool = "ü".repeat(100);
        assert_eq!(back(&mark).unwrap().machine_uid, mark.machine_uid);
        assert_eq!(TAGS.read(&[]), None);
    }

    #[test]
    fn a_mark_comes_back_from_plain_texts() {
        let mark = order().mark;
        let texts = TAGS.write_texts(&mark, '=');
        assert!(texts.contains(&"skyward-pool-uid=p-uid".to_owned()), "{texts:?}");
        assert_eq!(TAGS.read_texts(&texts, '='), Some(mark));
        assert_eq!(TAGS.read_texts(&["web", "skyward-cluster"], '='), None);
    }

    #[test]
    fn labels_have_their_alphabet() {
        let labels = Tags::new("skyward-", 63)
            .only(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c));
        let mark = Mark {
            pool: "train.v2".into(),
            ..with_uids()
        };
        let written = labels.write(&mark);
        assert!(
            written
                .iter()
                .all(|tag| !tag.value.as_ref().unwrap().contains('.'))
        );
        assert_eq!(labels.read(&written).unwrap().pool, "train-v2");
        assert!(labels.read(&written).unwrap().is(&mark));
    }

    #[test]
    fn a_mark_comes_back_from_a_name_with_its_names_as_far_as_there_is_room() {
        let (label, mark) = (Name::new("skyward", '/', 255), with_uids());
        let name = label.write(&mark).unwrap();
        assert_eq!(label.read(&name), Some(mark.clone()));
        let long = Mark {
            namespace: "n".repeat(200),
            ..mark
        };
        let name = label.write(&long).unwrap();
        assert!(name.len() <= 255, "{name}");
        let back = label.read(&name).unwrap();
        assert!(back.is(&long) && back.machine == long.machine && back.namespace.is_empty());
    }

    #[test]
    fn a_name_between_hyphens_has_lower_case_letters_and_digits_only() {
        let (host, mark) = (Name::new("skyward", '-', 128), with_uids());
        let name = host.write(&mark).unwrap();
        assert!(
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{name}"
        );
        let back = host.read(&name).unwrap();
        assert!(back.is(&mark) && back.pool_uid == mark.pool_uid);
        assert_eq!((back.slot, back.attempt), (12, 3));
    }

    #[test]
    fn a_mark_that_fits_no_name_is_refused_and_a_name_of_others_is_nobodys() {
        let mark = with_uids();
        assert!(
            Name::new("skyward", '-', 63).write(&mark).is_err(),
            "it would be cut"
        );
        assert!(
            Name::new("skyward", '-', 128).write(&order().mark).is_err(),
            "it would not come back"
        );
        let host = Name::new("skyward", '-', 128);
        for name in ["", "web-1", "skyward", "skyward-x-y-z-0-1", "skywardly-0-1"] {
            assert_eq!(host.read(name), None, "{name}");
        }
        let label = Name::new("skyward", '/', 255);
        assert_eq!(label.read("skyward-overlay/c/p/m/0/1"), None, "another prefix");
        assert_eq!(label.read("skyward/c/p/m/zero/1"), None);
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
    #[test]
    fn a_unique_name_fits_and_is_of_one_machine() {
        let mark = Mark {
            machine: format!("{}-0-1", "m".repeat(35)),
            ..with_uids()
        };
        let name = unique_name(&mark, 50);
        assert!(name.len() <= 50 && name.starts_with("skyward-mmm"), "{name}");
        assert_eq!(name, crate::dns_label(&name));
        let again = Mark {
            machine_uid: "another".into(),
            ..mark.clone()
        };
        assert_ne!(unique_name(&again, 50), name);
        let elsewhere = Mark {
            cluster: "another".into(),
            ..mark
        };
        assert_ne!(unique_name(&elsewhere, 50), name);
    }

    #[test]
    fn short_names_tell_their_pool_and_other_names_do_not() {
        let uid = with_uids().pool_uid;
        let name = short_name("c-uid", &uid, "CANADA-1").unwrap();
        assert!(name.len() <= 50, "{name}");
        assert_eq!(pool_of_short("c-uid", &name), Some(uid.clone()));
        assert_eq!(pool_of_short("another", &name), None);
        assert_ne!(name, short_name("c-uid", &uid, "NORWAY-1").unwrap());
        let refused = short_name("c-uid", "p-uid", "CANADA-1").unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unsupported);
        let prefix = short_prefix("c-uid");
        let other = content_name("c-uid", &uid, "x");
        for foreign in [
            "sky-1",
            "",
            &prefix,
            &format!("{prefix}{}", "-".repeat(38)),
            &other,
        ] {
            assert_eq!(pool_of_short("c-uid", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn plain_names_have_letters_and_digits_only_and_tell_their_pool() {
        let uid = with_uids().pool_uid;
        let name = plain_name("c-uid", &uid, "ssh-ed25519 AAAA").unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        assert_eq!(pool_of_plain("c-uid", &name), Some(uid.clone()));
        assert_eq!(pool_of_plain("another", &name), None);
        assert_ne!(name, plain_name("c-uid", &uid, "ssh-ed25519 BBBB").unwrap());
        let short = short_name("c-uid", &uid, "ssh-ed25519 AAAA").unwrap();
        for foreign in ["", "sky", "laptop", &short] {
            assert_eq!(pool_of_plain("c-uid", foreign), None, "{foreign}");
        }
    }
}
