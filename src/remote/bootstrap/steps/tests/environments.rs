//! The folders of environments on a machine: made, switched to, begun anew and removed.

use super::*;

#[test]
fn an_environment_that_is_right_is_not_switched_to_again() {
    let environment = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    let spec = Spec::default();
    let fresh = switch(&spec, &facts(), &environment).unwrap().text("");
    assert!(fresh.contains("\"A\": \"1\""), "{fresh}");
    let known = Facts {
        environment: "default".into(),
        env_digest: Some(digest_of(&serde_json::to_string_pretty(&environment).unwrap())),
        ..facts()
    };
    assert!(switch(&spec, &known, &environment).is_none());
    let other = Facts {
        environment: "other".into(),
        ..known
    };
    assert!(switch(&spec, &other, &environment).is_some());
}

/// What runs find in a home: where the link leads, and the variables.
#[cfg(unix)]
fn found(home: &std::path::Path) -> (Option<String>, String) {
    let link = std::fs::read_link(home.join("venv")).ok();
    let variables = std::fs::read_to_string(home.join("env.json")).unwrap_or_default();
    (link.map(|link| link.display().to_string()), variables)
}

#[cfg(unix)]
fn switched(home: &std::path::Path, name: &str, value: &str) {
    let spec = Spec {
        environment: name.into(),
        ..Spec::default()
    };
    let facts = Facts {
        home: home.display().to_string(),
        ..facts()
    };
    std::fs::create_dir_all(home.join("envs").join(name).join(".skyward")).unwrap();
    let environment = BTreeMap::from([("A".to_owned(), value.to_owned())]);
    let text = switch(&spec, &facts, &environment).unwrap().text("::t");
    let output = std::process::Command::new("/bin/sh")
        .args(["-c", &text])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains(&format!("::t environment {name}\n")), "{said}");
}

#[cfg(unix)]
#[test]
fn one_rename_makes_runs_find_the_new_environment_with_its_variables_and_again_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    for (name, value) in [("a", "1"), ("b", "2"), ("b", "2"), ("a", "1")] {
        switched(home.path(), name, value);
        let (link, variables) = found(home.path());
        assert_eq!(link, Some(format!("envs/{name}")));
        assert!(variables.contains(&format!("\"A\": \"{value}\"")), "{variables}");
    }
    let left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "envs, venv, env.json: {left:?}");
}

#[cfg(unix)]
#[test]
fn the_folder_of_an_older_release_is_taken_over_and_gone_afterwards() {
    for has_packages in [true, false] {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("env.json"), "old").unwrap();
        if has_packages {
            std::fs::create_dir_all(home.path().join("venv/bin")).unwrap();
        }
        switched(home.path(), "b", "2");
        let (link, variables) = found(home.path());
        assert_eq!(link.as_deref(), Some("envs/b"));
        assert!(variables.contains("\"A\": \"2\""), "{variables}");
    }
}

/// What was killed in the middle leaves packages that have a name and not all of their files.
#[cfg(unix)]
#[test]
fn half_an_installation_is_begun_anew_and_a_whole_one_is_left_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    for name in ["bootstrap", "cache", "uv/bin", "envs/default/.skyward"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    let uv = "#!/bin/sh\nif [ \"$1\" = venv ]; then\n  for last; do :; done\n  mkdir -p \"$last/bin\" && ln -sf \"$(command -v python3)\" \"$last/bin/python\"\nfi\n";
    std::fs::write(path("uv/bin/uv"), uv).unwrap();
    std::fs::set_permissions(path("uv/bin/uv"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = Spec {
        pip: vec!["numpy".into()],
        ..Spec::default()
    };
    let facts = Facts {
        home: home.path().display().to_string(),
        ..facts()
    };
    let text = packages(&spec, &facts, None, "numpy==2").script.text("::t");
    let install = || {
        let output = std::process::Command::new("/bin/sh").args(["-c", &text]).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
    };
    install();
    let left = path("envs/default/lib/left");
    for (is_whole, stays) in [(true, true), (false, false)] {
        std::fs::create_dir_all(left.parent().unwrap()).unwrap();
        std::fs::write(&left, "").unwrap();
        if !is_whole {
            std::fs::remove_file(path("envs/default/.skyward/packages.done")).unwrap();
        }
        install();
        assert_eq!(left.exists(), stays);
        assert!(path("envs/default/bin/python").exists());
    }
}

#[cfg(unix)]
#[test]
fn what_the_environment_in_use_has_compiled_is_not_compiled_again() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let python = "import sys; print(\"lib/python%d.%d/site-packages\" % sys.version_info[:2], sys.implementation.cache_tag)";
    let output = std::process::Command::new("python3")
        .args(["-c", python])
        .output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let (site, tag) = output.trim().split_once(' ').unwrap();
    let (old, new) = (format!("envs/old/{site}"), format!("envs/new/{site}"));
    let compiled = |site: &str, name: &str| path(site).join(format!("__pycache__/{name}.{tag}.pyc"));
    for name in [
        "bootstrap",
        "cache",
        "uv/bin",
        "envs/new/.skyward",
        &format!("{old}/__pycache__"),
    ] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    symlink("envs/old", path("venv")).unwrap();
    for name in ["same", "changed", "added"] {
        std::fs::write(path("cache").join(name), "value = 1\n").unwrap();
    }
    std::fs::hard_link(path("cache/same"), path(&old).join("same.py")).unwrap();
    std::fs::write(path(&old).join("changed.py"), "value = 0\n").unwrap();
    for name in ["same", "changed", "removed"] {
        std::fs::write(compiled(&old, name), "of the environment in use").unwrap();
    }
    let uv = format!(
        "#!/bin/sh
case $1 in
  venv) mkdir -p {env}/bin && ln -sf \"$(command -v python3)\" {env}/bin/python && mkdir -p {site} ;;
  pip) echo \"${{UV_COMPILE_BYTECODE:-}}\" >{env}/asked; for name in same changed added; do ln {cache}/$name {site}/$name.py; done ;;
esac
",
        env = path("envs/new").display(),
        site = path(&new).display(),
        cache = path("cache").display(),
    );
    std::fs::write(path("uv/bin/uv"), uv).unwrap();
    std::fs::set_permissions(path("uv/bin/uv"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = Spec {
        environment: "new".into(),
        worker_user: Some("worker".into()),
        pip: vec!["added".into()],
        ..Spec::default()
    };
    let facts = Facts {
        home: home.path().display().to_string(),
        root: true,
        ..facts()
    };
    let text = packages(&spec, &facts, None, "added==1").script.text("::t");
    let output = run(home.path(), &text);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let inode = |site: &str, name: &str| std::fs::metadata(compiled(site, name)).unwrap().ino();
    assert_eq!(inode(&new, "same"), inode(&old, "same"));
    for name in ["changed", "added"] {
        assert_ne!(
            std::fs::read(compiled(&new, name)).unwrap(),
            b"of the environment in use",
            "{name}"
        );
    }
    assert!(!compiled(&new, "removed").exists());
    assert_eq!(std::fs::read_to_string(path("envs/new/asked")).unwrap(), "\n");
}

/// It may be wanted again while its removal goes on: half of it must not be found with the marks of its steps.
#[cfg(unix)]
#[test]
fn an_environment_that_goes_is_gone_by_its_name_before_its_files_are_removed() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    for name in [
        "envs/a/.skyward",
        "envs/b/.skyward",
        "envs/c",
        "programs",
        "login/.ssh",
    ] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    std::os::unix::fs::symlink("envs/a", path("venv")).unwrap();
    // The removal has not begun yet.
    std::fs::write(path("programs/rm"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(path("programs/rm"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = Spec {
        environment: "c".into(),
        home: Some(home.path().display().to_string()),
        ..Spec::default()
    };
    let text = prepare(&spec, &AgentBinaries::default()).text("::t");
    let output = run(home.path(), &text);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let left = ["a", "b", "c"].map(|name| path("envs").join(name).exists());
    assert_eq!(left, [true, false, true], "{errors}");
}

/// What the script does on a machine with that home of the agent, whose own programs come first.
#[cfg(unix)]
fn run(home: &std::path::Path, text: &str) -> std::process::Output {
    std::process::Command::new("/bin/sh")
        .args(["-c", text])
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", home.join("programs").display()),
        )
        .env("HOME", home.join("login"))
        .output()
        .unwrap()
}

/// Images such as nvidia/cuda bring no Python, and Debian's comes with uv: the next environment must have the one that a new
/// machine gets.
#[cfg(unix)]
#[test]
fn a_python_that_came_after_the_first_look_is_not_the_machines_own() {
    use std::os::unix::fs::PermissionsExt as _;

    let found = |home: &std::path::Path| {
        let path = |name: &str| home.join(name);
        std::fs::create_dir_all(path("programs")).unwrap();
        std::fs::create_dir_all(path("login/.ssh")).unwrap();
        let spec = Spec {
            home: Some(home.display().to_string()),
            ..Spec::default()
        };
        let text = prepare(&spec, &AgentBinaries::default()).text("::t");
        // The machine of this test has a Python.
        let text = text.replace("command -v python3 ", "command -v python3-of-the-test ");
        let output = run(home, &text);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = said.lines().find_map(|line| line.strip_prefix("::t python "));
        version.map(str::to_owned)
    };
    let install = |home: &std::path::Path| {
        let program = home.join("programs/python3-of-the-test");
        std::fs::create_dir_all(home.join("programs")).unwrap();
        std::fs::write(&program, "#!/bin/sh\necho 3.11.2\n").unwrap();
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(found(without.path()), None);
    install(without.path());
    assert_eq!(found(without.path()), None);
    install(with.path());
    for _ in 0..2 {
        assert_eq!(found(with.path()).as_deref(), Some("3.11.2"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_agent_that_the_image_brings_is_taken_from_it_and_measured_like_one_that_was_sent() {
    let machine = tempfile::tempdir().unwrap();
    let path = |name: &str| machine.path().join(name);
    for folder in ["programs", "login/.ssh", "of_image", "built"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    std::fs::write(path("built/skyward-agent"), "an agent").unwrap();
    let binaries = AgentBinaries::of_this_architecture(path("built/skyward-agent")).unwrap();
    let binary = binaries.get(std::env::consts::ARCH).unwrap().clone();
    let digest = |home: &str| {
        let spec = Spec {
            home: Some(path(home).display().to_string()),
            ..Spec::default()
        };
        let text = prepare(&spec, &binaries).text("::t");
        let text = text.replace(OF_IMAGE, &path("of_image").display().to_string());
        let output = run(machine.path(), &text);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let digest = said
            .lines()
            .find_map(|line| line.strip_prefix("::t agent_digest "));
        digest.map(str::to_owned)
    };
    assert_eq!(digest("without"), None);
    let brought = path("of_image").join(binary.file_name());
    std::fs::write(&brought, "another agent").unwrap();
    let damaged = digest("damaged");
    assert!(damaged.is_some() && damaged.as_ref() != Some(&binary.digest));
    std::fs::copy(&binary.path, &brought).unwrap();
    assert_eq!(digest("with").as_ref(), Some(&binary.digest));
    // What the machine has is not made anew, so that one that was sent takes the place of a damaged one.
    assert_eq!(digest("damaged"), damaged);
}
