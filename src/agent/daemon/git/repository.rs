//! Runs git: without a work tree, so that a repository has no hooks, filters, attributes or links to act with;
//! without the settings of the system or a user; over https and ssh alone, and to the URL's host alone.
//!
//! The credential is in the memory of the helper. Git asks for a password through a pipe that only this one call
//! has, and ssh reads the key from memory of the helper: it is in no argument, no environment and no file.

use std::{
    fs::{self, File},
    io::{self, BufReader, ErrorKind, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::pipe2,
};

use super::{
    super::processes::RUN_VARIABLE,
    fault::{Fault, last_words},
    order::{Credential, Order, Place, is_commit},
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of what git and ssh print that are kept.
const SAID_BYTES: u64 = 64 * 1024;
/// Bytes of a short answer.
const ANSWER_BYTES: u64 = 256;
/// How far back a commit is looked for when its server does not give it by its id. The last one is all.
const DEPTHS: [&str; 3] = ["50", "500", "2147483647"];

/// Settings of each call, over all that a repository could have.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "http.followRedirects=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=30",
    "transfer.fsckObjects=true",
    "transfer.bundleURI=false",
    // One file for each fetch, whose size is limited.
    "fetch.unpackLimit=1",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.threads=2",
    "core.bigFileThreshold=16m",
    "core.packedGitWindowSize=32m",
    "core.packedGitLimit=256m",
];

/// What ssh is told: no settings of a user, no host key that the Task does not name, no key but its own.
const SSH_OPTIONS: &[&str] = &[
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no",
    "CheckHostIP=no",
    "PreferredAuthentications=publickey",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "ConnectTimeout=20",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=2",
    "ForwardAgent=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "ProxyCommand=none",
    "ControlMaster=no",
    "ControlPath=none",
    "LogLevel=ERROR",
];

/// A repository of one fetch.
pub(super) struct Repository<'a> {
    order: &'a Order,
    place: &'a Place,
    /// The key, in memory.
    key: Option<OwnedFd>,
}

impl<'a> Repository<'a> {
    /// An empty one.
    pub(super) fn make(order: &'a Order, place: &'a Place) -> Result<Self, Fault> {
        let key = match &order.credential {
            Credential::Key(key) => Some(in_memory(key)?),
            Credential::None | Credential::Password { .. } => None,
        };
        if order.is_ssh() {
            fs::write(
                place.folder.join("known_hosts"),
                format!("{}\n", order.known_hosts),
            )?;
        }
        let repository = Self { order, place, key };
        repository.answer(&["init", "--quiet", "--bare", "--template="])?;
        Ok(repository)
    }

    fn folder(&self) -> PathBuf {
        self.place.folder.join("repository")
    }

    /// Git, without a command yet.
    fn git(&self) -> Command {
        let mut git = Command::new("git");
        git.env_clear()
            .env("PATH", PATH)
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_DIR", self.folder())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOW_PROTOCOL", "https:ssh")
            .env("GIT_SSH_VARIANT", "ssh")
            .env("GIT_SSH_COMMAND", self.ssh())
            // By which the daemon finds all processes of this fetch.
            .env(RUN_VARIABLE, &self.place.folder)
            .current_dir(&self.place.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(certificates) = &self.place.certificates {
            git.env("GIT_SSL_CAINFO", certificates);
        }
        for setting in SETTINGS {
            git.args(["-c", setting]);
        }
        git
    }

    /// A shell reads this: the folder is the agent's, and quoted.
    fn ssh(&self) -> String {
        let options = SSH_OPTIONS.join(" -o ");
        let known_hosts = self.place.folder.join("known_hosts");
        let known_hosts = known_hosts.to_string_lossy().replace('\'', r"'\''");
        // Ssh closes what it inherits, but not what it may open.
        let key = self.key.as_ref().map_or_else(
            || "none".to_owned(),
            |key| format!("/proc/{}/fd/{}", std::process::id(), key.as_raw_fd()),
        );
        format!(
            "ssh -F /dev/null -a -x -T -o {options} -o 'UserKnownHostsFile={known_hosts}' -o IdentityFile={key}"
        )
    }

    /// Brings what `refspecs` name, with so many commits of their history; the error is what git said.
    fn fetch(&self, depth: &str, refspecs: &[&str]) -> Result<Result<(), String>, Fault> {
        let mut git = self.git();
        // Open as long as the call is made: git's helper reads from it.
        let mut pipe = None;
        if let Credential::Password { username, password } = &self.order.credential {
            let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
            // It fits into the pipe as a whole.
            File::from(theirs).write_all(format!("username={username}\npassword={password}\n").as_bytes())?;
            fcntl(&ours, FcntlArg::F_SETFD(FdFlag::empty()))?;
            let ask = format!(
                "credential.helper=!f() {{ cat /proc/self/fd/{}; }}; f",
                ours.as_raw_fd()
            );
            git.args(["-c", &ask]);
            pipe = Some(ours);
        }
        git.args([
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            "--depth",
            depth,
            "--",
        ]);
        git.arg(&self.order.url).args(refspecs);
        let called = Call::start(&mut git);
        drop(git);
        drop(pipe);
        let said = called?.end(&mut io::sink())?;
        let large = self.bytes() >= self.place.most_bytes;
        if large {
            return Err(Fault::Invalid(format!(
                "the repository is larger than the {} MiB that a fetch may take on the machine",
                self.place.most_bytes / 1024 / 1024
            )));
        }
        Ok(said.map_err(|said| last_words(&said, &self.order.credential.secrets())))
    }

    /// Bytes that the repository has on the disk; a file that reached its limit counts as all of it.
    fn bytes(&self) -> u64 {
        let packs = fs::read_dir(self.folder().join("objects/pack"));
        let sizes = packs
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
        sizes.sum()
    }

    /// Fetches the commit that the order names, and answers with its id.
    pub(super) fn commit(&self) -> Result<String, Fault> {
        let (reference, commit) = (self.order.reference.as_str(), self.order.commit.as_str());
        let id = if commit.is_empty() { reference } else { commit };
        if !is_commit(id) {
            self.fetch("1", &[reference])?
                .map_err(|said| self.judged(&said))?;
            let found = self.answer(&["rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}"]);
            return found.map_err(|_| Fault::Invalid(format!("ref {reference:?} names no commit")));
        }
        match self.fetch("1", &[id])? {
            Ok(()) => {}
            // Servers may refuse what no branch or tag names; then it is looked for in their history.
            Err(said) if is_refused(&said) => {
                let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
                let named = [reference];
                let refspecs: &[&str] = if is_commit(reference) { &all } else { &named };
                for depth in DEPTHS {
                    self.fetch(depth, refspecs)?.map_err(|said| self.judged(&said))?;
                    if self.has(id) {
                        break;
                    }
                }
            }
            Err(said) => return Err(self.judged(&said)),
        }
        let commit = format!("{id}^{{commit}}");
        let found = self.answer(&["rev-parse", "--verify", "--quiet", &commit]);
        found.map_err(|_| {
            Fault::Invalid(format!(
                "the repository has no commit {id} that its host gives out"
            ))
        })
    }

    fn has(&self, id: &str) -> bool {
        self.answer(&["cat-file", "-t", id]).is_ok()
    }

    /// What a failed fetch says about the repository.
    fn judged(&self, said: &str) -> Fault {
        let Order { reference, url, .. } = self.order;
        if said.contains("couldn't find remote ref") {
            let is_cut =
                matches!(reference.len(), 4..40) && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
            let hint = if is_cut {
                format!("; if it is a commit, name its whole id, which git rev-parse {reference} prints")
            } else {
                String::new()
            };
            return Fault::Invalid(format!("{url} has no branch or tag {reference:?}{hint}"));
        }
        if said.contains("Host key verification failed") {
            return Fault::Unavailable(format!(
                "git cannot fetch {url}: Host key verification failed. No key that its host has is in knownHosts: compare what ssh-keyscan prints of the host with the keys that it publishes, and create another Task with these"
            ));
        }
        if said.contains("fsck error") {
            return Fault::Invalid(format!(
                "the repository has objects that git does not take: {said}"
            ));
        }
        Fault::Unavailable(format!("git cannot fetch {url}: {said}"))
    }

    /// The short answer of a call that speaks to no host.
    fn answer(&self, arguments: &[&str]) -> Result<String, Fault> {
        let mut answer = Vec::new();
        let said = Call::start(self.git().args(arguments))?.end(&mut answer)?;
        said.map_err(|said| Fault::Unavailable(format!("git failed: {}", last_words(&said, &[]))))?;
        Ok(String::from_utf8_lossy(&answer).trim().to_owned())
    }

    /// A call whose output is read while it runs.
    pub(super) fn reading(&self, arguments: &[&str], input: Stdio) -> Result<Call, Fault> {
        Call::start(self.git().args(arguments).stdin(input))
    }
}

/// Whether a server has, or gives, no commit of that id. `JGit`, with which Gerrit serves, has words of its own for that.
fn is_refused(said: &str) -> bool {
    let is_jgit = said
        .split_once("remote error: want ")
        .is_some_and(|(_, rest)| rest.contains(" not valid"));
    is_jgit
        || ["not our ref", "unadvertised object", "does not allow request for"]
            .iter()
            .any(|words| said.contains(words))
}

/// A file in memory that only our user may open.
fn in_memory(text: &str) -> Result<OwnedFd, Fault> {
    let mut file = File::from(memfd_create("key", MFdFlags::MFD_CLOEXEC)?);
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    // A key whose last line does not end is none for ssh.
    if !text.ends_with('\n') {
        file.write_all(b"\n")?;
    }
    Ok(file.into())
}

/// A call of git under way.
pub(super) struct Call {
    child: Child,
    pub(super) output: BufReader<std::process::ChildStdout>,
    said: JoinHandle<String>,
}

impl Call {
    fn start(git: &mut Command) -> Result<Self, Fault> {
        let mut child = git.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Fault::Unavailable(
                "there is no git on the machine: add git, and openssh-client for ssh, to image.apt of the Pool".to_owned(),
            ),
            _ => error.into(),
        })?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::from(ErrorKind::BrokenPipe).into());
        };
        Ok(Self {
            child,
            output: BufReader::new(output),
            said: std::thread::spawn(move || hear(errors)),
        })
    }

    /// Reads the rest of a short output and waits for the end; the inner error is what it printed.
    pub(super) fn end(mut self, output: &mut impl Write) -> Result<Result<(), String>, Fault> {
        io::copy(&mut self.output.by_ref().take(ANSWER_BYTES), output)?;
        // A program that says more is not asked on: its pipe breaks.
        drop(self.output);
        let status = self.child.wait()?;
        let said = self.said.join().unwrap_or_default();
        Ok(if status.success() {
            Ok(())
        } else if said.trim().is_empty() {
            Err(format!("it ended with {status}"))
        } else {
            Err(said)
        })
    }
}

/// The last of what a program prints.
fn hear(mut errors: impl Read) -> String {
    let mut kept = Vec::new();
    // An endless line, or endless lines, must neither fill our memory nor block the program.
    while errors
        .by_ref()
        .take(SAID_BYTES)
        .read_to_end(&mut kept)
        .is_ok_and(|read| read > 0)
    {
        let surplus = kept.len().saturating_sub(SAID_BYTES as usize);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            url: "https://git.example/fsck-tools".into(),
            reference: "main".into(),
            commit: String::new(),
            path: String::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            known_hosts: String::new(),
            credential: Credential::None,
        }
    }

    fn place() -> Place {
        Place {
            folder: PathBuf::from("/nowhere"),
            identity: None,
            certificates: None,
            most_bytes: 0,
        }
    }

    #[test]
    fn of_endless_words_the_last_are_kept() {
        let noise = "x\n".repeat(SAID_BYTES as usize);
        let heard = hear(format!("{noise}fatal: the end\n").as_bytes());
        assert!(heard.len() as u64 <= SAID_BYTES && heard.ends_with("fatal: the end\n"));
        assert_eq!(hear(&b""[..]), "");
    }

    #[test]
    fn a_host_that_is_not_reached_says_nothing_of_its_objects_whatever_the_repository_is_called() {
        let (order, place) = (order(), place());
        let repository = Repository {
            order: &order,
            place: &place,
            key: None,
        };
        let unreached = "fatal: unable to access 'https://git.example/fsck-tools/': Could not resolve host";
        for (said, is_invalid) in [
            (unreached, false),
            ("fatal: fsck error in packed object", true),
            ("fatal: fsck error in pack objects", true),
        ] {
            let fault = repository.judged(said);
            assert_eq!(matches!(fault, Fault::Invalid(_)), is_invalid, "{fault}");
        }
    }

    #[test]
    fn who_names_the_beginning_of_a_commits_id_is_told_to_name_all_of_it() {
        for (reference, is_cut) in [("3f6c1d2", true), ("3f6c1d2g", false), ("main", false)] {
            let order = Order {
                reference: reference.into(),
                ..order()
            };
            let place = place();
            let repository = Repository {
                order: &order,
                place: &place,
                key: None,
            };
            let said = format!("fatal: couldn't find remote ref {reference}");
            let fault = repository.judged(&said).to_string();
            assert!(
                fault.contains(&format!("no branch or tag \"{reference}\"")),
                "{fault}"
            );
            assert_eq!(fault.contains("git rev-parse"), is_cut, "{fault}");
        }
    }

    #[test]
    fn a_refusal_by_id_is_told_from_other_failures() {
        for said in [
            "fatal: remote error: upload-pack: not our ref 0001",
            "error: Server does not allow request for unadvertised object 0001",
            "fatal: remote error: want 0001 not valid",
        ] {
            assert!(is_refused(said), "{said}");
        }
        for said in [
            "fatal: couldn't find remote ref main",
            "fatal: Authentication failed",
            "fatal: remote error: the token is not valid",
        ] {
            assert!(!is_refused(said), "{said}");
        }
    }
}
