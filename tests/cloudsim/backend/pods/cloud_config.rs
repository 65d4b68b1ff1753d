//! `#cloud-config` user data as shell scripts for a Pod, by what cloud-init's documentation
//! says of its modules: `write_files`, `users`, `ssh` before sshd starts, `runcmd` at the
//! end of the boot. What is not here is refused, not passed over.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// Before the command that keeps a key of root from doing anything, as cloud-init writes it.
const ROOT_DISABLED: &str = "no-port-forwarding,no-agent-forwarding,no-X11-forwarding,command=\"echo 'Please login as the user \\\"$USER\\\" rather than the user \\\"root\\\".';echo;sleep 10;exit 142\"";

/// What a machine does at its first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FirstBoot {
    /// Before sshd answers.
    pub(super) init: String,
    /// Beside it, at the end of the boot.
    pub(super) last: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    users: Option<Vec<UserEntry>>,
    #[serde(default = "yes")]
    disable_root: bool,
    #[serde(default)]
    ssh_authorized_keys: Vec<String>,
    #[serde(default)]
    ssh_pwauth: bool,
    #[serde(default = "yes")]
    ssh_deletekeys: bool,
    #[serde(default)]
    write_files: Vec<File>,
    #[serde(default)]
    runcmd: Vec<Value>,
    // A Pod installs nothing at its boot; a client may say so, and may not ask for it.
    #[serde(default)]
    package_update: bool,
    #[serde(default)]
    package_upgrade: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum UserEntry {
    /// `default`: the image's own user.
    Named(String),
    Made(User),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    name: String,
    #[serde(default = "yes")]
    lock_passwd: bool,
    shell: Option<String>,
    sudo: Option<String>,
    #[serde(default)]
    ssh_authorized_keys: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: String,
    #[serde(default)]
    content: String,
    #[serde(default = "root")]
    owner: String,
    #[serde(default = "readable")]
    permissions: String,
}

const fn yes() -> bool {
    true
}

fn root() -> String {
    "root:root".to_owned()
}

fn readable() -> String {
    "0644".to_owned()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The scripts of user data, on an image with this user, for a launch with these keys.
pub(super) fn first_boot(
    text: &str,
    default_user: &str,
    launch_keys: &[String],
) -> Result<FirstBoot, String> {
    let config: Config = serde_yaml::from_str(text).map_err(|error| format!("#cloud-config: {error}"))?;
    for (asked, what) in [
        (config.package_update, "package_update"),
        (config.package_upgrade, "package_upgrade"),
        (config.ssh_pwauth, "ssh_pwauth"),
        (!config.ssh_deletekeys, "ssh_deletekeys: false"),
    ] {
        if asked {
            return Err(format!("#cloud-config: no Pod does {what}"));
        }
    }
    let mut init = String::from(AUTHORIZE);
    for file in &config.write_files {
        let path = quoted(&file.path);
        let _ = writeln!(
            init,
            "mkdir -p \"$(dirname {path})\"\nprintf %s {} | base64 -d >{path}\nchown {} {path}\nchmod {} {path}",
            STANDARD.encode(&file.content),
            quoted(&file.owner),
            quoted(&file.permissions),
        );
    }
    let mut keys: Vec<String> = launch_keys.to_vec();
    keys.extend(config.ssh_authorized_keys);
    // Without the word, every image makes its own user; an empty list makes none.
    let users = config
        .users
        .unwrap_or_else(|| vec![UserEntry::Named("default".to_owned())]);
    let mut default = None;
    for entry in users {
        match entry {
            UserEntry::Named(name) if name == "default" => {
                make_user(&mut init, default_user, Some("/bin/bash"), true);
                default = Some(default_user);
            }
            UserEntry::Named(name) => make_user(&mut init, &name, None, false),
            UserEntry::Made(user) => {
                if !user.lock_passwd {
                    return Err(format!("#cloud-config: {} would have a password", user.name));
                }
                make_user(&mut init, &user.name, user.shell.as_deref(), user.sudo.is_some());
                for key in &user.ssh_authorized_keys {
                    let _ = writeln!(init, "authorize {} {}", quoted(&user.name), quoted(key.trim()));
                }
            }
        }
    }
    for key in &keys {
        let key = key.trim();
        if let Some(user) = default {
            let _ = writeln!(init, "authorize {} {}", quoted(user), quoted(key));
        }
        let for_root = if config.disable_root {
            format!(
                "{} {key}",
                ROOT_DISABLED.replace("$USER", default.unwrap_or("NONE"))
            )
        } else {
            key.to_owned()
        };
        let _ = writeln!(init, "authorize root {}", quoted(&for_root));
    }
    let mut last = String::new();
    for command in &config.runcmd {
        match command {
            Value::String(line) => last.push_str(line),
            Value::Array(words) => {
                let words: Option<Vec<String>> =
                    words.iter().map(|word| Some(quoted(word.as_str()?))).collect();
                last.push_str(
                    &words
                        .ok_or("#cloud-config: a word of runcmd is no text")?
                        .join(" "),
                );
            }
            _ => return Err("#cloud-config: a command of runcmd is neither a text nor a list".to_owned()),
        }
        last.push('\n');
    }
    if !last.is_empty() {
        last.insert_str(0, "#!/bin/sh\n");
    }
    Ok(FirstBoot { init, last })
}

fn make_user(init: &mut String, name: &str, shell: Option<&str>, sudo: bool) {
    let name = quoted(name);
    let _ = writeln!(
        init,
        "id {name} >/dev/null 2>&1 || useradd -m -s {} {name}",
        quoted(shell.unwrap_or("/bin/sh"))
    );
    if sudo {
        let _ = writeln!(init, "usermod -aG sudo {name}");
    }
}

/// Adds a key that is not there yet, as cloud-init's ssh module does.
const AUTHORIZE: &str = r#"authorize() {
  home=$(getent passwd "$1" | cut -d: -f6)
  mkdir -p "$home/.ssh"
  touch "$home/.ssh/authorized_keys"
  grep -qxF -- "$2" "$home/.ssh/authorized_keys" || printf '%s\n' "$2" >>"$home/.ssh/authorized_keys"
  chmod 700 "$home/.ssh"
  chmod 600 "$home/.ssh/authorized_keys"
  chown -R "$1:" "$home/.ssh"
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(text: &str) -> FirstBoot {
        first_boot(
            &format!("#cloud-config\n{text}"),
            "ubuntu",
            &["launch-key".to_owned()],
        )
        .unwrap()
    }

    #[test]
    fn without_a_word_about_users_the_images_own_gets_the_keys_and_root_is_told_off() {
        let init = boot("ssh_authorized_keys: [more]\n").init;
        assert!(init.contains("useradd -m -s '/bin/bash' 'ubuntu'"), "{init}");
        for key in ["launch-key", "more"] {
            assert!(init.contains(&format!("authorize 'ubuntu' '{key}'")), "{init}");
            assert!(!init.contains(&format!("authorize root '{key}'")), "{init}");
        }
        assert!(init.contains("Please login as the user"), "{init}");
    }

    #[test]
    fn an_empty_list_makes_no_user_and_root_may_be_let_in() {
        let init = boot("users: []\ndisable_root: false\n").init;
        assert!(
            !init.contains("useradd") && init.contains("authorize root 'launch-key'"),
            "{init}"
        );
    }

    #[test]
    fn a_user_of_the_client_is_made_with_sudo_and_keys() {
        let init = boot("users:\n- name: ann\n  sudo: ALL=(ALL) NOPASSWD:ALL\n  shell: /bin/zsh\n  ssh_authorized_keys: [\"ssh-ed25519 A it's\"]\n").init;
        assert!(
            init.contains("useradd -m -s '/bin/zsh' 'ann'\nusermod -aG sudo 'ann'"),
            "{init}"
        );
        assert!(
            init.contains(r"authorize 'ann' 'ssh-ed25519 A it'\''s'"),
            "{init}"
        );
    }

    #[test]
    fn files_are_written_with_their_owner_and_commands_come_last() {
        let boot = boot(
            "write_files:\n- {path: /root/a, content: \"x\\n\", permissions: '0600'}\nruncmd:\n- [sh, -c, \"echo 'a'\"]\n- touch /b\n",
        );
        assert!(
            boot.init.contains("printf %s eAo= | base64 -d >'/root/a'"),
            "{}",
            boot.init
        );
        assert!(boot.init.contains("chmod '0600' '/root/a'"), "{}", boot.init);
        assert_eq!(boot.last, "#!/bin/sh\n'sh' '-c' 'echo '\\''a'\\'''\ntouch /b\n");
    }

    #[test]
    fn what_a_pod_does_not_do_is_refused_by_its_name() {
        for (text, named) in [
            ("package_upgrade: true", "package_upgrade"),
            ("ssh_pwauth: true", "ssh_pwauth"),
            ("bootcmd: [ls]", "bootcmd"),
            (
                "users: [{name: a, lock_passwd: false}]",
                "a would have a password",
            ),
        ] {
            let error = first_boot(text, "ubuntu", &[]).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
