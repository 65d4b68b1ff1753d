//! Which certificates the bundle of an environment has.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::*;

/// Where Debian's ca-certificates has its list.
const LIST: &str = "etc/ssl/certs/ca-certificates.crt";

/// A Debian machine without certificates, where each installation of packages brings the list of ca-certificates.
struct Bare {
    home: tempfile::TempDir,
    spec: Spec,
    facts: Facts,
}

impl Bare {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for folder in ["bin", "bootstrap", "envs/default/.skyward", "etc/ssl/certs"] {
            fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        let facts = Facts {
            home: home.path().display().to_string(),
            ..facts()
        };
        let spec = Spec {
            ca_bundle: Some("-----BEGIN CERTIFICATE-----\nprivate".into()),
            apt: vec!["ca-certificates".into()],
            ..Spec::default()
        };
        let bare = Self { home, spec, facts };
        let list = bare.path(LIST).display().to_string();
        bare.program("id", "echo 0");
        bare.program("apt-cache", "exit 0");
        bare.program("dpkg-query", &format!("[ ! -s {list} ] || echo installed 1"));
        bare.program(
            "apt-get",
            &format!("case \" $* \" in *' install '*) echo public >{list} ;; esac"),
        );
        bare
    }

    fn path(&self, name: impl AsRef<Path>) -> std::path::PathBuf {
        self.home.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a script that sees this machine's files in the place of the real ones; returns the bundle afterwards.
    fn after(&self, script: &Script) -> String {
        let home = self.home.path().display();
        let text = script
            .text("x")
            .replace("/etc/", &format!("{home}/etc/"))
            .replace("command -v uv", "command -v no-uv");
        let output = Command::new("/bin/sh")
            .args(["-c", &text])
            .env("PATH", format!("{home}/bin:/usr/bin:/bin"))
            .env("HOME", self.home.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        fs::read_to_string(self.path("envs/default/certificates/bundle.crt")).unwrap()
    }
}

const PRIVATE: &str = "-----BEGIN CERTIFICATE-----\nprivate\n";

#[test]
fn certificates_of_the_machine_that_come_as_a_debian_package_are_trusted_too() {
    let machine = Bare::new();
    let Bare { spec, facts, .. } = &machine;
    let alone = machine.after(&certificates(spec, facts).script);
    assert_eq!(alone, format!("\n{PRIVATE}"));
    let apt = apt(spec, facts, Duration::from_secs(60)).script;
    let both = format!("public\n\n{PRIVATE}");
    assert_eq!(machine.after(&apt), both);
    // The controller ended between the installation and the bundle.
    assert_eq!(machine.after(&certificates(spec, facts).script), both);
    fs::write(machine.path("envs/default/certificates/bundle.crt"), &alone).unwrap();
    assert_eq!(machine.after(&apt), both);
}

#[test]
fn certificates_of_the_machine_that_come_with_the_python_for_uv_are_trusted_too() {
    let machine = Bare::new();
    let Bare { spec, facts, .. } = &machine;
    machine.after(&certificates(spec, facts).script);
    // A Python without venv and pip, until Debian's package is there.
    let uv = machine.path("uv/bin");
    let list = machine.path(LIST).display().to_string();
    machine.program(
        "python3",
        &format!(
            "[ -s {list} ] || exit 1\nmkdir -p {folder}\nprintf '#!/bin/sh\\n' >{folder}/uv\ncp {folder}/uv {folder}/python\nchmod 755 {folder}/*",
            folder = uv.display()
        ),
    );
    let script = in_environment(spec, facts).then(UV);
    assert_eq!(machine.after(&script), format!("public\n\n{PRIVATE}"));
}

#[test]
fn debian_packages_of_a_machine_without_certificates_of_its_pool_make_no_bundle() {
    let machine = Bare::new();
    let without = Spec {
        ca_bundle: None,
        ..machine.spec.clone()
    };
    fs::create_dir_all(machine.path("envs/default/certificates")).unwrap();
    fs::write(machine.path("envs/default/certificates/bundle.crt"), "untouched").unwrap();
    let script = apt(&without, &machine.facts, Duration::from_secs(60)).script;
    assert_eq!(machine.after(&script), "untouched");
}
