//! How far the work of runs is: what their programs write into a file of their own.
//!
//! The first line is `done` or `done/total`, two whole numbers. The file belongs to the run's user, who may write
//! anything into it, and lies in a folder of the agent's, so that it stays a file. Only its beginning is read.

use std::{collections::BTreeMap, fs::OpenOptions, io::Read, os::unix::fs::OpenOptionsExt, path::Path};

use nix::fcntl::OFlag;

use super::home::Home;
use crate::protocol::{Fact, Progress, fact};

/// The environment variable that names the file.
pub(super) const VARIABLE: &str = "SKYWARD_PROGRESS_FILE";
/// Bytes that are read: two numbers, and space around them.
const BYTES: u64 = 64;

/// What a stream of facts told of each run last.
#[derive(Debug, Default)]
pub(super) struct Progresses(BTreeMap<String, Progress>);

impl Progresses {
    /// The facts of those runs whose programs said something new.
    pub(super) async fn news(&mut self, home: &Home, run_ids: Vec<String>) -> Vec<Fact> {
        let home = home.clone();
        let found = tokio::task::spawn_blocking(move || {
            let found = run_ids.into_iter().filter_map(|run_id| {
                let progress = read(&home.run(&run_id).progress())?;
                Some((run_id, progress))
            });
            found.collect::<Vec<_>>()
        });
        // It neither panics nor is it cancelled, but for the end of the daemon.
        let found = found.await.unwrap_or_default();
        let news = found.into_iter().filter_map(|(run_id, progress)| {
            let before = self.0.insert(run_id.clone(), progress);
            (before != Some(progress)).then(|| Fact {
                run_id,
                fact: Some(fact::Fact::Progress(progress)),
                ..Fact::default()
            })
        });
        news.collect()
    }

    /// The run has ended: nothing will be told of it.
    pub(super) fn forget(&mut self, run_id: &str) {
        self.0.remove(run_id);
    }
}

fn read(path: &Path) -> Option<Progress> {
    // An agent that is not root has the user of its runs: there it may be anything, such as a pipe.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .ok()?;
    let mut text = Vec::new();
    file.take(BYTES).read_to_end(&mut text).ok()?;
    parse(std::str::from_utf8(&text).ok()?)
}

fn parse(text: &str) -> Option<Progress> {
    let line = text.lines().next()?;
    let (done, total) = line.split_once('/').unwrap_or((line, "0"));
    let number = |digits: &str| digits.trim().parse().ok();
    Some(Progress {
        done: number(done)?,
        total: number(total)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_how_much_is_done_and_of_how_much() {
        for (text, expected) in [
            ("3", Some((3, 0))),
            ("3/10\n", Some((3, 10))),
            (" 3 / 10 \nmore", Some((3, 10))),
            ("0/0", Some((0, 0))),
            ("12/10", Some((12, 10))),
            ("18446744073709551615/1", Some((u64::MAX, 1))),
            ("18446744073709551616/1", None),
            ("", None),
            ("\n3", None),
            ("-1/10", None),
            ("3/", None),
            ("30%", None),
            ("3/10/20", None),
        ] {
            let found = parse(text).map(|Progress { done, total }| (done, total));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn only_what_is_new_is_told_of_the_runs_that_say_something() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let write = |run: &str, text: &[u8]| {
            std::fs::create_dir_all(home.run(run).path()).unwrap();
            std::fs::write(home.run(run).progress(), text).unwrap();
        };
        let mut progress = Progresses::default();
        let told = async |progress: &mut Progresses| {
            let runs = ["a", "b", "c", "d"].map(ToOwned::to_owned).to_vec();
            let facts = progress.news(&home, runs).await.into_iter();
            let told = facts.map(|fact| match fact.fact {
                Some(fact::Fact::Progress(Progress { done, total })) => {
                    format!("{} {done}/{total}", fact.run_id)
                }
                other => panic!("{other:?}"),
            });
            told.collect::<Vec<_>>()
        };
        write("a", b"1/9\n");
        write("b", b"\xff\xfe");
        write("c", &b"7".repeat(1_000_000));
        assert_eq!(told(&mut progress).await, ["a 1/9"]);
        write("b", b"5\n");
        assert_eq!(told(&mut progress).await, ["b 5/0"]);
        assert!(told(&mut progress).await.is_empty());
        write("a", b"2/9\n");
        assert_eq!(told(&mut progress).await, ["a 2/9"]);
        progress.forget("a");
        assert_eq!(told(&mut progress).await, ["a 2/9"]);
    }

    #[test]
    fn a_pipe_or_a_link_that_took_the_place_of_the_file_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/proc/self/stat", &link).unwrap();
        assert_eq!((read(&pipe), read(&link)), (None, None));
    }
}
