//! Which warm parents this machine has: for each user, environment and list of preloaded packages one Python that
//! has imported what runs import, with a keeper (`shim/keeper.rs`) that has runs forked from it.
//!
//! A parent is a saving and nothing more. The first run of its kind starts the parent and does not wait for it; where
//! there is none, or it does not answer, a run gets a fresh interpreter. Keepers are no runs: nothing about them is in
//! the journal, and they keep no machine awake. When the daemon goes away its keepers fork no more, and end with
//! their last fork; the next daemon starts keepers of its own.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, net::UnixStream as StdUnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::unistd::Uid;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::Child,
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

use super::{files, home::Home, runs::PROGRAM, shim, users};
use crate::protocol::{NAME_BYTES, RunSpec, run_spec::Work};

/// Parents of one machine.
const MOST: usize = 4;
/// Packages that one parent imports.
const PRELOADED: usize = 32;
/// Where the machine's own Python has its packages.
const SYSTEM: [&str; 2] = ["/usr/lib", "/usr/local/lib"];
/// Before a parent that was killed, or whose keeper was, has a successor.
const AGAIN: Duration = Duration::from_secs(30);
/// Before the next try where nothing could be forked: the machine may have been short of memory, or busy.
const LATER: Duration = Duration::from_hours(1);

/// What a parent is for. Runs with the same key can be forked from the same parent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    user: String,
    /// Names the interpreter and its packages as they are now.
    environment: String,
    preload: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It imports.
    Starting,
    Ready,
    /// Nothing can be forked from a parent of this kind.
    Refused(String),
    /// It was killed, or its keeper was.
    Gone,
}

#[derive(Clone, Debug)]
struct Record {
    key: Key,
    began: Instant,
    used: Instant,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// Fork from that one.
    Fork(usize),
    /// Take a fresh interpreter, and start a parent for the next run. Those are ended.
    Start(Vec<usize>),
    /// Take a fresh interpreter.
    Fresh,
}

/// A keeper. Dropping it closes the keeper's connection to us.
#[derive(Debug)]
struct Keeper {
    key: Key,
    began: Instant,
    used: Instant,
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    _listening: AbortOnDropHandle<()>,
}

/// The parents of this machine.
#[derive(Debug)]
pub(super) struct Warm {
    home: Home,
    default_user: String,
    keepers: Mutex<Keepers>,
    why_not: watch::Sender<String>,
}

#[derive(Debug, Default)]
struct Keepers {
    all: Vec<Keeper>,
    started: u64,
}

impl Warm {
    pub(super) fn open(home: &Home, default_user: &str) -> Self {
        let folder = home.warm();
        // Sockets of an earlier daemon's keepers, which take no more runs.
        let _ = fs::remove_dir_all(&folder);
        if let Err(error) = files::make_folder(&folder, 0o700) {
            // Runs do without.
            tracing::warn!(%error, "there is no folder for warm parents");
        }
        Self {
            home: home.clone(),
            default_user: default_user.to_owned(),
            keepers: Mutex::default(),
            why_not: watch::Sender::default(),
        }
    }

    /// Why functions get fresh interpreters, as the newest parent has it; `""` where they are forked.
    pub(super) fn why_not(&self) -> watch::Receiver<String> {
        self.why_not.subscribe()
    }

    /// Ends the parents whose environment is not the present one any more. They would not be asked again.
    pub(super) fn end_old(&self) {
        let mut keepers = self.keepers.lock();
        if !keepers.all.is_empty() {
            let present = environment(&self.home);
            keepers.all.retain(|keeper| keeper.key.environment == present);
        }
    }

    /// Where the run can be forked, if it can. Starts a parent for the next one where that would help.
    pub(super) fn parent(&self, spec: &RunSpec, now: Instant) -> Option<PathBuf> {
        if !Uid::effective().is_root() {
            return None;
        }
        let user = users::find(shim::user_name(spec, &self.default_user))?;
        let key = key(&self.home, spec, &user)?;
        let mut keepers = self.keepers.lock();
        let records: Vec<Record> = keepers.all.iter().map(Keeper::record).collect();
        match choose(&records, &key, now) {
            Choice::Fork(index) => {
                let keeper = &mut keepers.all[index];
                keeper.used = now;
                Some(keeper.socket.clone())
            }
            Choice::Start(mut ended) => {
                ended.sort_unstable();
                for index in ended.into_iter().rev() {
                    keepers.all.remove(index);
                }
                keepers.started += 1;
                let name = format!("{}-{}", std::process::id(), keepers.started);
                match start(&self.home, name, key, now, self.why_not.clone()) {
                    Ok(keeper) => keepers.all.push(keeper),
                    Err(error) => tracing::warn!(%error, "the keeper of a warm parent does not start"),
                }
                None
            }
            Choice::Fresh => None,
        }
    }
}

/// The key of a run that could be forked. Work that has the agent's own user could end the keeper, and with it the
/// runs of others: it gets none.
fn key(home: &Home, spec: &RunSpec, user: &users::User) -> Option<Key> {
    // A worker of a map has a Python of its own for all its items.
    let is_function = matches!(spec.work, Some(Work::Function(_))) && spec.worker.is_none();
    if !is_function || user.uid == Uid::effective().as_raw() {
        return None;
    }
    let is_bounded = spec.preload.len() <= PRELOADED && spec.preload.iter().all(|name| is_module(name));
    is_bounded.then(|| Key {
        user: user.name.clone(),
        environment: environment(home),
        preload: spec.preload.clone(),
    })
}

/// Whether that can be the name of a module. It becomes an argument of a program.
fn is_module(name: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
            && word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    name.len() <= NAME_BYTES && name.split('.').all(is_word)
}

/// The environment of functions as it is now. A package that is installed or removed changes the time of the
/// folder that holds packages.
fn environment(home: &Home) -> String {
    let (name, libraries) = match fs::canonicalize(home.venv()) {
        Ok(place) => (place.display().to_string(), vec![place.join("lib")]),
        Err(_) => ("python3".to_owned(), SYSTEM.map(PathBuf::from).to_vec()),
    };
    let mut found: Vec<String> = libraries.iter().flat_map(|library| packages(library)).collect();
    found.sort();
    format!("{name} {}", found.join(" "))
}

/// The folders for packages of the interpreters in that folder, as they are now.
fn packages(library: &Path) -> Vec<String> {
    let entries = fs::read_dir(library).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name)))
        .filter_map(|folder| {
            let metadata = fs::metadata(folder).ok()?;
            let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
            Some(format!("{} {seconds}.{nanoseconds}", metadata.ino()))
        })
        .collect()
}

/// What to do for a run with that key. Pure.
fn choose(records: &[Record], key: &Key, now: Instant) -> Choice {
    let own = records.iter().position(|record| record.key == *key);
    if let Some(own) = own {
        let record = &records[own];
        let since = now.saturating_duration_since(record.began);
        return match record.state {
            State::Ready => Choice::Fork(own),
            State::Gone if since >= AGAIN => Choice::Start(vec![own]),
            State::Refused(_) if since >= LATER => Choice::Start(vec![own]),
            State::Starting | State::Refused(_) | State::Gone => Choice::Fresh,
        };
    }
    // What this user had in another environment will not be asked for again: there is one at a time.
    let is_old = |record: &Record| record.key.user == key.user && record.key.environment != key.environment;
    let mut ended: Vec<usize> = (0..records.len())
        .filter(|index| is_old(&records[*index]))
        .collect();
    if records.len() - ended.len() >= MOST {
        let others = (0..records.len()).filter(|index| !ended.contains(index));
        let oldest = others.min_by_key(|index| records[*index].used);
        ended.extend(oldest);
    }
    Choice::Start(ended)
}

impl Keeper {
    fn record(&self) -> Record {
        Record {
            key: self.key.clone(),
            began: self.began,
            used: self.used,
            state: self.state.lock().clone(),
        }
    }
}

fn start(
    home: &Home,
    name: String,
    key: Key,
    now: Instant,
    why_not: watch::Sender<String>,
) -> io::Result<Keeper> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let mut command = std::process::Command::new(PROGRAM);
    command
        .arg0("skyward-agent")
        .arg("keeper")
        .arg(home.path())
        .args([&name, &key.user])
        .args(&key.preload)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null());
    let child = tokio::process::Command::from(command).spawn()?;
    ours.set_nonblocking(true)?;
    let state = Arc::new(Mutex::new(State::Starting));
    let listening = tokio::spawn(listen(UnixStream::from_std(ours)?, child, state.clone(), why_not));
    Ok(Keeper {
        socket: home.warm().join(name),
        key,
        began: now,
        used: now,
        state,
        _listening: AbortOnDropHandle::new(listening),
    })
}

/// Hears what a keeper says until it closes, and reaps it.
async fn listen(
    connection: UnixStream,
    mut child: Child,
    state: Arc<Mutex<State>>,
    why_not: watch::Sender<String>,
) {
    let mut lines = BufReader::new(connection).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let said = match line.split_once(' ') {
            None if line == "ready" => State::Ready,
            Some(("refused", why)) => {
                tracing::warn!(
                    why,
                    "runs get fresh interpreters: a warm parent cannot be forked from"
                );
                State::Refused(why.to_owned())
            }
            _ => break,
        };
        let why = match &said {
            State::Refused(why) => why.clone(),
            _ => String::new(),
        };
        // Told also where it is the same: the controller may have it from an earlier daemon.
        why_not.send_replace(why);
        *state.lock() = said;
    }
    {
        let mut state = state.lock();
        if !matches!(*state, State::Refused(_)) {
            *state = State::Gone;
        }
    }
    let _ = child.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Function, Script};

    fn key_of(user: &str, environment: &str, preload: &str) -> Key {
        Key {
            user: user.to_owned(),
            environment: environment.to_owned(),
            preload: preload.split_whitespace().map(str::to_owned).collect(),
        }
    }

    fn record(key: Key, state: State, began: Instant) -> Record {
        Record {
            key,
            began,
            used: began,
            state,
        }
    }

    #[test]
    fn the_first_run_of_a_kind_starts_a_parent_and_later_ones_are_forked_from_it() {
        let (now, key) = (Instant::now(), key_of("a", "1", "numpy"));
        assert_eq!(choose(&[], &key, now), Choice::Start(vec![]));
        for (state, expected) in [
            (State::Starting, Choice::Fresh),
            (State::Ready, Choice::Fork(1)),
            (State::Refused("threads".into()), Choice::Fresh),
            (State::Gone, Choice::Fresh),
        ] {
            let other = record(key_of("b", "1", "numpy"), State::Ready, now);
            let records = [other, record(key.clone(), state, now)];
            assert_eq!(choose(&records, &key, now), expected);
        }
        let records = [record(key.clone(), State::Gone, now)];
        assert_eq!(choose(&records, &key, now + AGAIN), Choice::Start(vec![0]));
        // What was refused once would most likely be refused again.
        let records = [record(key.clone(), State::Refused(String::new()), now)];
        assert_eq!(choose(&records, &key, now + LATER / 2), Choice::Fresh);
        assert_eq!(choose(&records, &key, now + LATER), Choice::Start(vec![0]));
    }

    #[test]
    fn parents_end_with_their_environment_and_are_bounded_in_number() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let records = [
            record(key_of("a", "1", ""), State::Ready, at(5)),
            record(key_of("a", "1", "numpy"), State::Refused("old".into()), at(5)),
            record(key_of("b", "1", ""), State::Ready, at(5)),
        ];
        assert_eq!(
            choose(&records, &key_of("a", "2", ""), at(6)),
            Choice::Start(vec![0, 1])
        );
        let full: Vec<Record> = (0..MOST as u64)
            .map(|number| {
                record(
                    key_of("a", "1", &format!("m{number}")),
                    State::Ready,
                    at(10 - number),
                )
            })
            .collect();
        assert_eq!(
            choose(&full, &key_of("a", "1", "new"), at(20)),
            Choice::Start(vec![MOST - 1])
        );
        assert_eq!(choose(&full, &key_of("a", "1", "m2"), at(20)), Choice::Fork(2));
    }

    #[test]
    fn only_functions_of_another_user_than_the_agents_with_names_of_modules_have_a_parent() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let own = users::own();
        let other = users::User {
            uid: own.uid + 1,
            ..own.clone()
        };
        let function = |preload: &[&str]| RunSpec {
            work: Some(Work::Function(Function::default())),
            preload: preload.iter().map(|&name| name.to_owned()).collect(),
            ..RunSpec::default()
        };
        assert!(key(&home, &function(&[]), &other).is_some());
        assert!(key(&home, &function(&["torch", "os.path", "_x1"]), &other).is_some());
        assert_eq!(key(&home, &function(&[]), &own), None);
        let script = RunSpec {
            work: Some(Work::Script(Script::default())),
            ..RunSpec::default()
        };
        assert_eq!(key(&home, &script, &other), None);
        let worker = RunSpec {
            worker: Some(crate::protocol::Worker::default()),
            ..function(&[])
        };
        assert_eq!(key(&home, &worker, &other), None);
        let long = "x".repeat(NAME_BYTES + 1);
        for bad in ["", "-c", "a b", "1a", "a..b", "ä", ".", "a;b", &long] {
            assert_eq!(key(&home, &function(&[bad]), &other), None, "{bad:?}");
        }
        assert_eq!(key(&home, &function(&["a"; PRELOADED + 1]), &other), None);
    }

    #[test]
    fn a_package_that_comes_makes_another_environment() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let own = environment(&home);
        assert!(own.starts_with("python3 ") && environment(&home) == own, "{own}");
        let packages = folder.path().join("one/lib/python3.11/site-packages");
        fs::create_dir_all(&packages).unwrap();
        std::os::unix::fs::symlink("one", home.venv()).unwrap();
        let before = environment(&home);
        assert_eq!(environment(&home), before);
        let time = fs::metadata(&packages).unwrap().modified().unwrap() + Duration::from_secs(1);
        fs::File::open(&packages).unwrap().set_modified(time).unwrap();
        assert_ne!(environment(&home), before);
    }
}
