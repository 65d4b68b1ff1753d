//! Python and its packages, installed by the real uv from an index and a mirror on this machine alone: `index.py`.
//!
//! The tests need uv, which `hack/python.sh` installs; `SKYWARD_TEST_UV` names it. Without it they print so.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use skyward_core::Secret;

use super::{
    bootstrap::{bootstrap, environment, failure},
    fake::{FakeAgent, Server},
    spec,
    sshd::Sshd,
};
use crate::{SessionSpec, bootstrap::PipIndex};

const INDEX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testing/index.py");
const PASSWORD: &str = "canary-password";

fn index(args: &[&str]) -> String {
    let output = Command::new("python3").arg(INDEX).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Packages and interpreters in a folder, and what serves them.
pub(crate) struct Index {
    folder: tempfile::TempDir,
    address: String,
    server: Child,
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Index {
    /// Serves that folder: `more` are the arguments after it.
    fn serve(folder: tempfile::TempDir, scheme: &str, more: &[&str]) -> Self {
        let mut server = Command::new("python3")
            .arg(INDEX)
            .arg("serve")
            .arg(folder.path())
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        let address = format!("{scheme}://localhost:{}", port.trim());
        Self {
            folder,
            address,
            server,
        }
    }

    /// An index that everybody may read.
    pub(crate) fn public() -> Self {
        Self::serve(tempfile::tempdir().unwrap(), "http", &[])
    }

    /// An index behind a private authority, whose certificate comes with it, and a password if that is wanted.
    fn private(login: &[&str]) -> (Self, String) {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &issuer).unwrap().pem();
        let files = [("certificate", certificate), ("key", key.serialize_pem())].map(|(name, text)| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        });
        let mut more = vec![files[0].as_str(), files[1].as_str()];
        more.extend(login);
        (Self::serve(folder, "https", &more), authority)
    }

    pub(crate) fn path(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn has(&self, name: &str, version: &str) {
        index(&["wheel", &self.path(), name, version]);
    }

    /// It has a package with a program of its name.
    pub(crate) fn has_program(&self, name: &str, text: &str) {
        index(&["wheel", &self.path(), name, "1.0", text]);
    }

    pub(crate) fn simple(&self) -> String {
        format!("{}/simple", self.address)
    }

    /// Status and path of each request.
    fn requests(&self) -> String {
        fs::read_to_string(self.folder.path().join("requests")).unwrap_or_default()
    }
}

fn uv() -> Option<PathBuf> {
    let named = std::env::var_os("SKYWARD_TEST_UV").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut known = named
        .into_iter()
        .chain(std::env::split_paths(&path).map(|folder| folder.join("uv")));
    let uv = known.find(|uv| {
        let output = Command::new(uv).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    });
    if uv.is_none() {
        eprintln!("skipped: there is no uv here; SKYWARD_TEST_UV can name one");
    }
    uv
}

/// A machine with uv and an agent that does nothing.
struct MachineWithUv {
    sshd: Sshd,
    fake: FakeAgent,
    _server: Server,
}

impl MachineWithUv {
    fn start(uv: &Path) -> Self {
        let (sshd, fake) = (Sshd::start(), FakeAgent::new());
        fs::create_dir_all(sshd.path("agent/uv/bin")).unwrap();
        symlink(uv, sshd.path("agent/uv/bin/uv")).unwrap();
        let server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
        Self {
            sshd,
            fake,
            _server: server,
        }
    }

    /// A spec with these variables of the steps, and nothing from outside of this machine.
    fn spec(&self, variables: &[(&str, &str)]) -> SessionSpec {
        let mut spec = spec(&self.sshd, "m");
        spec.bootstrap.total_timeout = Duration::from_mins(3);
        let inside = ("no_proxy", "localhost,127.0.0.1");
        spec.bootstrap.env_for_steps = variables
            .iter()
            .chain([&inside])
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        spec
    }

    /// What a program says that stands in the environment `name`.
    fn says(&self, name: &str, program: &str, args: &[&str]) -> String {
        let program = self.sshd.path(&format!("agent/envs/{name}/bin/{program}"));
        let output = Command::new(program).args(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Files below a folder that hold a text.
fn holding(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(holding(&entry.path(), text));
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_python_that_the_machine_lacks_comes_from_a_mirror_in_a_folder_or_behind_a_private_authority() {
    let Some(uv) = uv() else { return };
    let (mirror, authority) = Index::private(&[]);
    let version = index(&["python", &mirror.path()]);
    let folder = format!("file://{}/python", mirror.path());
    let far = format!("{}/python", mirror.address);
    for (place, ca_bundle) in [(&folder, None), (&far, Some(authority.as_str().into()))] {
        let machine = MachineWithUv::start(&uv);
        let list = format!("{place}/downloads.json");
        let mut spec = machine.spec(&[
            ("UV_PYTHON_INSTALL_MIRROR", place.as_str()),
            // The list with the checksum of what this test has packed takes the place of uv's own.
            ("UV_PYTHON_DOWNLOADS_JSON_URL", list.as_str()),
        ]);
        spec.bootstrap.python = Some(version.clone());
        spec.bootstrap.ca_bundle = ca_bundle;
        bootstrap(&machine.fake, &spec).await;
        let base = machine.says("default", "python", &["-c", "import sys; print(sys.base_prefix)"]);
        let pythons = format!("{}/pythons/", machine.sshd.agent_home());
        assert!(base.starts_with(&pythons), "{base}");
        assert!(
            environment(&machine.sshd)["PATH"]
                .starts_with(&format!("{}/envs/default/bin:", machine.sshd.agent_home()))
        );
        let links = machine.sshd.path("home/.local/bin");
        assert!(!links.exists(), "nothing is left in the home of the login");
    }
    assert!(mirror.requests().contains("/python/"), "{}", mirror.requests());
}

#[tokio::test]
async fn a_python_that_there_is_no_way_to_is_named_with_the_setting_that_mends_it() {
    let Some(uv) = uv() else { return };
    let machine = MachineWithUv::start(&uv);
    let nowhere = format!("file://{}/nowhere", machine.sshd.agent_home());
    let mut spec = machine.spec(&[("UV_PYTHON_INSTALL_MIRROR", nowhere.as_str())]);
    // Older than what any machine of the tests has, so that it must be fetched.
    spec.bootstrap.python = Some("3.10.0".into());
    let said = failure(&machine.fake, &spec).await;
    assert_eq!(said.step.as_deref(), Some("python"));
    for part in ["Python 3.10.0", "UV_PYTHON_INSTALL_MIRROR", "image.stepsEnvFrom"] {
        assert!(said.message.contains(part), "{}", said.message);
    }
}

#[tokio::test]
async fn an_index_with_a_password_behind_a_private_authority_and_the_public_one_serve_one_environment() {
    let Some(uv) = uv() else { return };
    let (private, authority) = Index::private(&["robot", PASSWORD]);
    let public = Index::public();
    private.has("ours", "1.0");
    // A package of the same name at the public index must not get onto the machine.
    public.has("ours", "9.0");
    public.has("theirs", "2.0");
    let machine = MachineWithUv::start(&uv);
    let mut spec = machine.spec(&[("UV_DEFAULT_INDEX", public.simple().as_str())]);
    spec.bootstrap.pip = vec!["ours".into(), "theirs".into()];
    spec.bootstrap.ca_bundle = Some(authority.as_str().into());
    let with = |password: &str| {
        let mut spec = spec.clone();
        spec.bootstrap.pip_indexes = vec![PipIndex {
            url: private.simple(),
            packages: vec!["ours".into()],
            credentials: Some((Secret::new("robot"), Secret::new(password))),
        }];
        spec.bootstrap.masked = vec![Secret::new(password)].into();
        spec
    };
    let refused = failure(&machine.fake, &with("canary-wrong")).await;
    assert_eq!(refused.step.as_deref(), Some("packages"));
    assert!(
        refused.message.contains("ours") && !refused.message.contains("canary"),
        "{}",
        refused.message
    );
    bootstrap(&machine.fake, &with(PASSWORD)).await;
    let versions = "import ours, theirs; print(ours.VERSION, theirs.VERSION)";
    assert_eq!(
        machine.says("default", "python", &["-c", versions]).trim(),
        "1.0 2.0"
    );
    let agent = machine.sshd.path("agent");
    assert_eq!(holding(&agent, "canary"), [] as [PathBuf; 0]);
}

/// The spec of an environment with a variable and these packages.
fn of(machine: &MachineWithUv, index: &Index, name: &str, pip: &[&str]) -> SessionSpec {
    let mut spec = machine.spec(&[("UV_DEFAULT_INDEX", index.simple().as_str())]);
    spec.bootstrap.environment = name.into();
    spec.bootstrap.pip = pip.iter().map(|&package| package.to_owned()).collect();
    spec.bootstrap.shell_vars = [("LEVEL".to_owned(), format!("echo {name}"))].into();
    spec
}

/// What runs find in an environment: its packages, its Python, its files, and its variables.
fn what_runs_find(
    machine: &MachineWithUv,
    uv: &Path,
    name: &str,
) -> (String, String, Vec<String>, BTreeMap<String, String>) {
    let folder = machine.sshd.path(&format!("agent/envs/{name}"));
    let freeze = Command::new(uv)
        .args(["pip", "freeze", "--python"])
        .arg(folder.join("bin/python"))
        .output()
        .unwrap();
    let list = "import os, sys; print(*sorted(os.path.relpath(os.path.join(at, file), sys.prefix) \
                for at, _, files in os.walk(sys.prefix + '/lib') for file in files if not file.endswith('.pyc')), sep='\\n')";
    let files = machine.says(name, "python", &["-c", list]);
    let home = machine.sshd.agent_home();
    let variables = environment(&machine.sshd)
        .into_iter()
        .map(|(variable, value)| (variable, value.replace(&home, "HOME")));
    (
        String::from_utf8(freeze.stdout).unwrap(),
        machine.says(name, "python", &["-c", "import sys; print(sys.version)"]),
        files.lines().map(str::to_owned).collect(),
        variables.collect(),
    )
}

#[tokio::test]
async fn after_changes_that_were_killed_on_the_way_runs_find_what_they_find_on_a_new_machine() {
    let Some(uv) = uv() else { return };
    let index = Index::public();
    for (name, version) in [("one", "1.0"), ("one", "2.0"), ("two", "1.0"), ("three", "1.0")] {
        index.has(name, version);
    }
    let machine = MachineWithUv::start(&uv);
    bootstrap(&machine.fake, &of(&machine, &index, "a", &["one<2", "two"])).await;
    bootstrap(&machine.fake, &of(&machine, &index, "b", &["two"])).await;
    let c = |machine: &MachineWithUv| of(machine, &index, "c", &["one", "three"]);
    let fresh = MachineWithUv::start(&uv);
    bootstrap(&fresh.fake, &c(&fresh)).await;
    let wanted = what_runs_find(&fresh, &uv, "c");
    assert_eq!(wanted.0, "one==2.0\nthree==1.0\n");
    let in_c = |path: &str| machine.sshd.path(&format!("agent/envs/c/{path}"));
    let short = "import sys; print('%d.%d' % sys.version_info[:2])";
    let short = machine.says("b", "python", &["-c", short]);
    let module = in_c(&format!("lib/python{}/site-packages/one.py", short.trim()));
    let done = |step: &str| in_c(&format!(".skyward/{step}.done"));
    // What a kill leaves behind: nothing; an environment without packages; half of the packages; packages without
    // variables; and all but the last rename.
    let left = [
        vec![in_c("")],
        vec![
            in_c("lib"),
            in_c(".skyward/installed.txt"),
            done("packages"),
            done("shell_vars"),
        ],
        vec![module, done("packages"), done("shell_vars")],
        vec![in_c(".skyward/shell_vars.values"), done("shell_vars")],
        vec![],
    ];
    for gone in left {
        bootstrap(&machine.fake, &c(&machine)).await;
        for path in &gone {
            let removed = if path.is_dir() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
            removed.unwrap();
        }
        fs::remove_file(machine.sshd.path("agent/venv")).unwrap();
        symlink("envs/b", machine.sshd.path("agent/venv")).unwrap();
        fs::create_dir_all(machine.sshd.path("agent/envs/b/.skyward")).unwrap();
        bootstrap(&machine.fake, &c(&machine)).await;
        assert_eq!(what_runs_find(&machine, &uv, "c"), wanted, "{gone:?}");
    }
}
