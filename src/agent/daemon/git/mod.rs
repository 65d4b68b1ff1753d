//! Fetches from git, on the machine: a controller would reach what a tenant may not.
//!
//! Each fetch is a process of its own (`helper`), as a user that has nothing else, with limits of size, memory
//! and time. It runs git without a work tree (`repository`), chooses files from git's list (`tree`), and gives
//! a bundle to the daemon (`collect`), which believes it no more than a bundle that a controller sends. `order`
//! checks the words of users, `fault` finds words for what fails. Nothing of the credential outlives the
//! process, and the caller that hangs up ends it.

mod collect;
mod fault;
pub(super) mod helper;
mod order;
mod repository;
mod tree;

use std::{
    fs::{self, Permissions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;
use skyward_bundle::Digest;
use tokio::sync::Semaphore;
use tonic::Status;

pub(super) use self::order::Order;
use self::order::{Place, Verdict};
use super::{
    bundles::{LEAST_FREE, PutError},
    files,
    home::Home,
    processes,
    reserve::free_bytes,
    runs::Runs,
    users::{self, User},
};
use crate::protocol::{FETCH, FetchGitReply, MESSAGE_BYTES, fetch_git_reply::Fault};

/// Fetches at the same time: each may take [`MOST_BYTES`] of the disk.
const AT_ONCE: usize = 4;
/// Bytes of a repository: twice a bundle, for what is left out, and for packs.
const MOST_BYTES: u64 = 512 * 1024 * 1024;
/// With less room than this on the disk a fetch does not begin.
const LEAST_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes of a helper's verdict.
const VERDICT_BYTES: u64 = 16 * 1024;

/// A bundle that was fetched.
pub(super) type Taken = Result<(Digest, u64), PutError>;

/// All fetches of this machine.
#[derive(Debug)]
pub(super) struct Fetches {
    home: Home,
    runs: Runs,
    turns: Arc<Semaphore>,
    number: AtomicU64,
    /// Name of the user that they run as.
    user: String,
}

impl Fetches {
    /// Makes their folder, and throws away what fetches of an earlier daemon left.
    pub(super) fn open(home: &Home, runs: &Runs, user: String) -> io::Result<Self> {
        let folder = home.fetches();
        files::make_folders(&folder, 0o711)?;
        fs::set_permissions(&folder, Permissions::from_mode(0o711))?;
        for entry in fs::read_dir(&folder)? {
            runs.throw(&entry?.path());
        }
        Ok(Self {
            home: home.clone(),
            runs: runs.clone(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            number: AtomicU64::new(super::unix_ms()),
            user,
        })
    }

    /// Fetches, and hands the bundle to `take`. A caller that drops the future ends the fetch.
    pub(super) async fn fetch(
        &self,
        order: Order,
        take: impl FnOnce(&mut dyn Read) -> Taken + Send + 'static,
    ) -> Result<FetchGitReply, Status> {
        let turn = self.turns.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("the machine has {AT_ONCE} fetches from git under way"))
        })?;
        let user = match identity(users::own(), &self.user) {
            Ok(user) => user,
            Err(why) => return Ok(fault(Fault::Unavailable, &why)),
        };
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let folder = self.home.fetches().join(number.to_string());
        let certificates = self.home.certificates();
        let (helper, runs) = (Arc::new(Helper::default()), self.runs.clone());
        let ends = EndsHelper(helper.clone());
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let answer = work(&helper, &order, &folder, user.as_ref(), certificates, take);
            runs.throw(&folder);
            answer
        });
        let answer = tokio::time::timeout(FETCH, working).await;
        drop(ends);
        match answer {
            Ok(Ok(Ok(reply))) => Ok(reply),
            Ok(Ok(Err(Failed::Take(error)))) => Err(error.into()),
            Ok(Ok(Err(Failed::Io(error)))) => Ok(fault(
                Fault::Unavailable,
                &format!("the machine cannot fetch it: {error}"),
            )),
            Ok(Err(_)) => Err(Status::unavailable("the agent is stopping")),
            Err(_) => Ok(fault(
                Fault::Unavailable,
                &format!(
                    "git was not done after {} s, and was ended: the host is slow, or the repository large",
                    FETCH.as_secs()
                ),
            )),
        }
    }
}

fn fault(fault: Fault, why: &str) -> FetchGitReply {
    FetchGitReply {
        fault: fault.into(),
        message: why[..why.floor_char_boundary(MESSAGE_BYTES)].to_owned(),
        ..FetchGitReply::default()
    }
}

/// The user that a fetch takes on; `None`: an agent that is not root has its own user alone.
fn identity(own: User, name: &str) -> Result<Option<User>, String> {
    if own.uid != 0 {
        return Ok(None);
    }
    match users::find(name) {
        Some(user) if user.uid != 0 => Ok(Some(user)),
        _ => Err(format!(
            "the machine has no user \"{name}\", as which git is run: its image has neither useradd nor adduser, or it was prepared by an earlier version of the operator; replace the machine, or make that user in the image"
        )),
    }
}

/// How many files of a list become part of a bundle, for tests that make up lists.
pub(super) fn chosen(list: &[u8], folder: &str, target: &str) -> Result<usize, String> {
    let chosen = tree::read(list).and_then(|tree| {
        let names = tree::select(&tree, folder, |_| true)?;
        let links = tree::links(&tree, &names).into_iter();
        let targets = links.map(|link| (link, target.to_owned())).collect();
        tree::choose(&tree, &names, &targets).map(|chosen| chosen.len())
    });
    chosen.map_err(|fault| fault.to_string())
}

/// Why there is neither a reply nor a verdict.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Take(#[from] PutError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The process of a fetch, from before it starts until it is gone.
#[derive(Debug, Default)]
struct Helper(Mutex<Process>);

#[derive(Debug, Default)]
enum Process {
    #[default]
    Awaited,
    Alive(Pid),
    Over,
}

impl Helper {
    /// Starts it, unless its caller has hung up already.
    fn start(&self, command: &mut Command) -> io::Result<Child> {
        let mut process = self.0.lock();
        if matches!(*process, Process::Over) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let child = command.spawn()?;
        *process = Process::Alive(Pid::from_raw(child.id() as i32));
        Ok(child)
    }

    /// Ends all of its group. It is not waited for before this, so that its number is no other process's.
    fn end(&self) {
        let process = std::mem::replace(&mut *self.0.lock(), Process::Over);
        if let Process::Alive(pid) = process {
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }
}

/// Ends a helper whose caller hangs up.
struct EndsHelper(Arc<Helper>);

impl Drop for EndsHelper {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// One fetch, from the making of its folder to the end of its last process.
fn work(
    helper: &Helper,
    order: &Order,
    folder: &Path,
    user: Option<&User>,
    certificates: Option<PathBuf>,
    take: impl FnOnce(&mut dyn Read) -> Taken,
) -> Result<FetchGitReply, Failed> {
    files::make_folder(folder, 0o700)?;
    if let Some(user) = user {
        chown(folder, Some(user.uid), Some(user.gid))?;
    }
    // Half of the room, for the repository and its contents.
    let room = free_bytes(folder).map_or(MOST_BYTES, |free| free.saturating_sub(LEAST_FREE) / 2);
    if room < LEAST_BYTES {
        return Ok(fault(Fault::Unavailable, "the disk of the machine is full"));
    }
    let place = Place {
        folder: folder.to_owned(),
        identity: user.map(|user| (user.uid, user.gid, vec![user.gid])),
        certificates,
        most_bytes: MOST_BYTES.min(room),
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("skyward-agent")
        .arg("git")
        .env_clear()
        // By which all processes of this fetch are found.
        .env(processes::RUN_VARIABLE, folder)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = helper.start(&mut command)?;
    let answer = ask(&mut child, order, &place, take);
    helper.end();
    let _ = child.wait();
    processes::kill_all(|| processes::of_run(folder));
    answer
}

/// Tells the helper what to do and takes its answer.
fn ask(
    child: &mut Child,
    order: &Order,
    place: &Place,
    take: impl FnOnce(&mut dyn Read) -> Taken,
) -> Result<FetchGitReply, Failed> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    };
    let mut line = serde_json::to_vec(&(order, place)).map_err(io::Error::from)?;
    line.push(b'\n');
    input.write_all(&line)?;
    drop(line);
    let mut output = BufReader::new(output);
    let mut verdict = Vec::new();
    output
        .by_ref()
        .take(VERDICT_BYTES)
        .read_until(b'\n', &mut verdict)?;
    let Ok(verdict) = serde_json::from_slice(&verdict) else {
        let lost = "the process that fetches was killed; the machine may have too little memory";
        return Ok(fault(Fault::Unavailable, lost));
    };
    match verdict {
        Verdict::Unavailable(why) => Ok(fault(Fault::Unavailable, &why)),
        Verdict::Invalid(why) => Ok(fault(Fault::Invalid, &why)),
        Verdict::Commit(commit) => {
            let (digest, bytes) = take(&mut output)?;
            // Open until here: its end would end the helper.
            drop(input);
            Ok(FetchGitReply {
                commit,
                digest: digest.to_string(),
                bytes,
                ..FetchGitReply::default()
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_has_a_user_of_its_own_where_the_agent_is_root() {
        let own = User {
            name: "someone".into(),
            uid: 1000,
            gid: 1000,
            home: "/".into(),
            groups: vec![1000],
        };
        assert_eq!(identity(own.clone(), "nobody"), Ok(None));
        let root = User { uid: 0, ..own };
        let user = identity(root.clone(), "nobody").unwrap();
        assert!(user.is_some_and(|user| user.uid != 0));
        for name in ["no-such-user", "root"] {
            let why = identity(root.clone(), name).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn a_helper_whose_caller_has_hung_up_is_not_started_or_is_ended() {
        let helper = Helper::default();
        helper.end();
        assert!(helper.start(&mut Command::new("true")).is_err());
        let helper = Helper::default();
        let mut command = Command::new("sleep");
        let mut child = helper.start(command.arg("1000").process_group(0)).unwrap();
        drop(EndsHelper(Arc::new(helper)));
        assert!(!child.wait().unwrap().success());
    }
}
