//! The versions of the Python packages of an environment: found by one machine, installed by all.
//!
//! A machine says them, and any machine may lie. So a list is only pairs of a name and a version: a machine that was
//! taken over cannot name another place for the others to get a package from. What `image.pip` names by a URL
//! is resolved by each machine: the commit that a machine says a branch has is no more to be believed than a URL, since
//! hosts such as GitHub give out, by its id, a commit that only a fork of the repository has. So users name a commit there.
//!
//! Machines of one Pool may have different architectures and Pythons, and what is there for one need not be there for
//! the other. So each kind of machine has a list of its own, which begins with a line that names the kind.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::script::Said;

/// Most bytes of a list.
pub(crate) const MOST: usize = 128 * 1024;
/// Lists that are kept for the next machine, by this process, besides those that machines look for just now.
const KEPT: usize = 16;

/// The list that the script found; none where the machine sent something else.
pub(super) fn read(said: &Said) -> Option<String> {
    let mut bytes = Vec::new();
    for part in said.all("lock") {
        if part.len() % 2 != 0 {
            return None;
        }
        for pair in part.as_bytes().chunks(2) {
            let digits = std::str::from_utf8(pair).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        }
        if bytes.len() > MOST {
            return None;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    Some(pinned(&text))
}

/// The list of that kind of machine, with the line that names the kind: also a file of constraints.
pub(super) fn of_kind(kind: &str, pins: &str) -> String {
    format!("# {kind}\n{pins}")
}

/// Among lists of several kinds that of this one.
pub(super) fn among(lists: &str, kind: &str) -> Option<String> {
    let head = format!("# {kind}");
    let mut lines = lists.lines().skip_while(|line| *line != head);
    lines.next()?;
    let own: Vec<&str> = lines.take_while(|line| !line.starts_with('#')).collect();
    Some(of_kind(kind, &pinned(&own.join("\n"))))
}

/// The lines that are a name and a version, without a line feed at the end.
pub(super) fn pinned(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| is_pin(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_pin(line: &str) -> bool {
    let is_made_of = |text: &str, others: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    line.split_once("==").is_some_and(|(name, version)| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && is_made_of(name, "._-")
            && is_made_of(version, "._-+!")
    })
}

/// The list of one environment, once a machine has found it. The machine that holds this finds it.
pub(crate) type Found = OwnedMutexGuard<Option<Arc<str>>>;

/// The list of one environment, and the turn to find it.
type Slot = Arc<Turn<Option<Arc<str>>>>;

/// The lists of environments that are being made.
#[derive(Default)]
pub(crate) struct Locks(Mutex<VecDeque<(String, Slot)>>);

impl Locks {
    /// Waits until no other machine of this kind looks for the versions of this environment.
    pub(crate) async fn turn(&self, environment: &str, kind: String) -> Found {
        self.of(&format!("{environment} {kind}")).lock_owned().await
    }

    fn of(&self, environment: &str) -> Slot {
        let mut known = self.0.lock();
        if let Some((_, found)) = known.iter().find(|(name, _)| name == environment) {
            return found.clone();
        }
        let new = Slot::default();
        // A list that a machine looks for or waits for stays: there are at most as many as machines.
        let idle = |(_, slot): &(String, Slot)| Arc::strong_count(slot) == 1;
        if known.len() >= KEPT
            && let Some(oldest) = known.iter().position(idle)
        {
            known.remove(oldest);
        }
        known.push_back((environment.to_owned(), new.clone()));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(parts: &[&str]) -> Said {
        Said {
            lines: parts
                .iter()
                .map(|part| ("lock".to_owned(), (*part).to_owned()))
                .collect(),
            ..Said::default()
        }
    }

    fn kind() -> String {
        "x86_64 3.12".to_owned()
    }

    fn hex(text: &str) -> String {
        text.bytes()
            .fold(String::new(), |hex, b| hex + &format!("{b:02x}"))
    }

    #[test]
    fn a_list_is_read_from_its_parts_wherever_they_are_cut() {
        let whole = hex("numpy==2.3.1\ntorch==2.8.0+cpu\n");
        let (first, second) = whole.split_at(10);
        assert_eq!(
            read(&said(&[first, second])).as_deref(),
            Some("numpy==2.3.1\ntorch==2.8.0+cpu")
        );
        assert_eq!(read(&said(&[])).as_deref(), Some(""));
    }

    #[test]
    fn a_machine_that_lies_can_name_versions_and_nothing_else() {
        let text = "numpy==2\nevil @ https://evil.example/x.whl\n-r /etc/passwd\n--index-url https://evil\nx==1 --hash=sha256:0\n==3\na==\n-e==1\nb==1;os\n";
        assert_eq!(read(&said(&[&hex(text)])).as_deref(), Some("numpy==2"));
        for nonsense in ["zz", "0", "ff"] {
            assert_eq!(read(&said(&[nonsense])), None, "{nonsense}");
        }
        let long = "61".repeat(30_000);
        assert_eq!(read(&said(&[long.as_str(); 5])), None);
    }

    /// As uv writes what it found for `exp @ git+https://git.example/exp@main`.
    #[test]
    fn a_commit_that_one_machine_says_a_branch_has_is_installed_on_no_other_one() {
        let commit = "3f6c".repeat(10);
        let text = format!(
            "exp @ git+https://git.example/exp@{commit}\nexp@git+https://git.example/exp@{commit}\nnumpy==2\n"
        );
        assert_eq!(read(&said(&[&hex(&text)])).as_deref(), Some("numpy==2"));
    }

    #[test]
    fn each_kind_of_machine_has_a_list_of_its_own_and_no_list_names_a_kind_for_another() {
        let first = of_kind("x86_64 3.12", &pinned("numpy==2.3\n# aarch64 3.12\nevil==1"));
        assert_eq!(first, "# x86_64 3.12\nnumpy==2.3\nevil==1");
        let lists = format!("{first}\n{}", of_kind("x86_64 3.10", "numpy==2.2"));
        assert_eq!(
            among(&lists, "x86_64 3.10").as_deref(),
            Some("# x86_64 3.10\nnumpy==2.2")
        );
        assert_eq!(among(&lists, "x86_64 3.12"), Some(first));
        assert_eq!(among(&lists, "aarch64 3.12"), None);
    }

    #[tokio::test]
    async fn the_second_machine_waits_for_what_the_first_one_finds() {
        let locks = Arc::new(Locks::default());
        let mut first = locks.turn("a", kind()).await;
        let other = locks.clone();
        let second = tokio::spawn(async move { other.turn("a", kind()).await.clone() });
        assert!(
            locks.turn("b", kind()).await.is_none(),
            "another environment waits for nobody"
        );
        assert!(
            locks.turn("a", "aarch64 3.12".into()).await.is_none(),
            "nor does another kind"
        );
        *first = Some("numpy==2".into());
        drop(first);
        assert_eq!(second.await.unwrap().as_deref(), Some("numpy==2"));
    }

    #[tokio::test]
    async fn a_list_that_a_machine_looks_for_is_not_looked_for_by_a_second_one_however_many_others_there_are()
    {
        let locks = Locks::default();
        let first = locks.turn("first", kind()).await;
        for number in 0..2 * KEPT {
            *locks.turn(&number.to_string(), kind()).await = Some("x".into());
        }
        assert!(futures::FutureExt::now_or_never(locks.turn("first", kind())).is_none());
        drop(first);
        assert_eq!(locks.0.lock().len(), KEPT);
    }

    #[tokio::test]
    async fn few_lists_are_kept() {
        let locks = Locks::default();
        for number in 0..100 {
            *locks.turn(&number.to_string(), kind()).await = Some("x".into());
        }
        assert_eq!(locks.0.lock().len(), KEPT);
        assert!(locks.turn("0", kind()).await.is_none());
    }
}
