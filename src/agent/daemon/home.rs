//! The names of the files in the agent's home, in one place. `docs/agent.md` has the table.

use std::path::{Path, PathBuf};

/// The agent's folder, `/opt/skyward` or `~/.skyward`.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// The home at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the agent listens.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// The daemon's own log.
    pub fn log(&self) -> PathBuf {
        self.0.join("agent.log")
    }

    /// Locked by the daemon as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("agent.lock")
    }

    /// Locked by the supervisor as long as it lives; holds its process id.
    pub(crate) fn supervisor_lock(&self) -> PathBuf {
        self.0.join("supervisor.lock")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// Room that is given up when the disk is full.
    pub(crate) fn reserve(&self) -> PathBuf {
        self.0.join("journal/reserve")
    }

    /// The limits of the last lease.
    pub(crate) fn lease(&self) -> PathBuf {
        self.0.join("lease.json")
    }

    /// Environment that bootstrap adds to every run.
    pub(crate) fn environment(&self) -> PathBuf {
        self.0.join("env.json")
    }

    /// Folder of the Python package `skyward`.
    pub(crate) fn python_path(&self) -> PathBuf {
        self.0.join("python")
    }

    /// The environment of runs, by its own name: the link to it may lead elsewhere before a run has ended.
    pub(crate) fn venv(&self) -> PathBuf {
        let link = self.0.join("venv");
        std::fs::read_link(&link).map_or(link, |leads_to| self.0.join(leads_to))
    }

    pub(crate) fn venv_bin(&self) -> PathBuf {
        self.venv().join("bin")
    }

    /// The interpreter that functions run with: that of bootstrap, or the machine's own.
    pub(crate) fn python(&self) -> PathBuf {
        let own = self.venv_bin().join("python");
        if own.exists() { own } else { "python3".into() }
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// Bundles that runs take their files from.
    pub(crate) fn bundles(&self) -> PathBuf {
        self.0.join("bundles")
    }

    /// Folders of fetches from git, each as long as its fetch.
    pub(crate) fn fetches(&self) -> PathBuf {
        self.0.join("git")
    }

    /// Certificates to trust, where bootstrap was given some for the environment in use: the machine's own are among
    /// them. Where `venv` is no link, a release that knew no environments put them there.
    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        let folder = match std::fs::read_link(self.0.join("venv")) {
            Ok(leads_to) => self.0.join(leads_to),
            Err(_) => self.0.clone(),
        };
        Some(folder.join("certificates/bundle.crt")).filter(|path| path.exists())
    }

    /// Where the keepers of warm parents listen.
    pub(crate) fn warm(&self) -> PathBuf {
        self.0.join("warm")
    }

    /// Folders of forgotten runs that are being deleted.
    pub(crate) fn trash(&self) -> PathBuf {
        self.0.join("trash")
    }

    pub(crate) fn run(&self, run_id: &str) -> RunFolder {
        RunFolder(self.runs().join(run_id))
    }
}

/// The folder of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// What to run, for the shim.
    pub(crate) fn spec(&self) -> PathBuf {
        self.0.join("spec")
    }

    /// Locked from before the shim starts until it is gone.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Exists from just before the work starts: from then on it must not start again.
    pub(crate) fn begun(&self) -> PathBuf {
        self.0.join("begun")
    }

    /// Which process was forked for it from a warm parent.
    pub(crate) fn forked(&self) -> PathBuf {
        self.0.join("forked")
    }

    /// What the place of a map's worker was given, and how each item ended.
    pub(crate) fn share(&self) -> PathBuf {
        self.0.join("share")
    }

    /// An item that is too long for an argument of a command, while that runs.
    pub(crate) fn item(&self) -> PathBuf {
        self.0.join("item")
    }

    /// How it ended.
    pub(crate) fn exit(&self) -> PathBuf {
        self.0.join("exit")
    }

    /// Where the shim listens once the daemon that started it is gone.
    pub(crate) fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// Encoded output; of a long log the beginning.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The newest part of a long log, in several files.
    pub(crate) fn log_tail(&self) -> PathBuf {
        self.0.join("tail")
    }

    /// A function's return value.
    pub(crate) fn result(&self) -> PathBuf {
        self.0.join("result")
    }

    /// The function runner's record of the end.
    pub(crate) fn outcome(&self) -> PathBuf {
        self.0.join("outcome")
    }

    /// Temporary files of the work, until it ends.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// How far the work is, as its program says.
    pub(crate) fn progress(&self) -> PathBuf {
        self.0.join("progress")
    }

    /// The working directory, when the Task names none.
    pub(crate) fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// Sources and arguments; not the working directory, so that a Task named `json` does not
    /// hide Python's module of that name.
    pub(crate) fn task(&self) -> PathBuf {
        self.0.join("task")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_run_finds_its_environment_by_a_name_that_leads_there_also_when_another_one_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        assert_eq!(
            home.venv_bin(),
            folder.path().join("venv/bin"),
            "of an older release, or none"
        );
        assert_eq!(home.python(), PathBuf::from("python3"));
        std::fs::create_dir_all(folder.path().join("envs/a/bin")).unwrap();
        std::fs::write(folder.path().join("envs/a/bin/python"), "").unwrap();
        symlink("envs/a", folder.path().join("venv")).unwrap();
        let python = home.python();
        assert_eq!(python, folder.path().join("envs/a/bin/python"));
        std::fs::remove_file(folder.path().join("venv")).unwrap();
        symlink("envs/b", folder.path().join("venv")).unwrap();
        assert!(python.exists() && home.venv_bin().ends_with("envs/b/bin"));
    }

    #[test]
    fn certificates_are_those_of_the_environment_in_use_and_of_no_former_one() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        assert_eq!(home.certificates(), None);
        for place in ["certificates", "envs/a/certificates"] {
            std::fs::create_dir_all(folder.path().join(place)).unwrap();
            std::fs::write(folder.path().join(place).join("bundle.crt"), "").unwrap();
        }
        let there = |place: &str| Some(folder.path().join(place).join("certificates/bundle.crt"));
        assert_eq!(home.certificates(), there(""), "of an older release");
        symlink("envs/a", folder.path().join("venv")).unwrap();
        assert_eq!(home.certificates(), there("envs/a"));
        std::fs::remove_file(folder.path().join("venv")).unwrap();
        symlink("envs/b", folder.path().join("venv")).unwrap();
        assert_eq!(home.certificates(), None);
    }
}
