//! What a machine is told at its first boot, as cloud-config: the user who may log in, and the
//! script of the order. Pure. Written as JSON, which is YAML too and needs no quoting of
//! ours.

use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError};

use crate::config::ROOT;

/// EC2 takes no more than this before it is encoded.
const MOST: usize = 16 * 1024;

/// The user data of a machine that only this key may log in to.
pub fn cloud_config(user: &str, authorized_key: &str, boot_script: &str) -> Result<String, ProviderError> {
    let key = authorized_key.trim();
    let mut files: Vec<Value> = Vec::new();
    let mut config = if user == ROOT {
        // Written before cloud-init adds keys: keys that the image carries are gone, and
        // no other user comes to be.
        files.push(json!({
            "path": "/root/.ssh/authorized_keys",
            "owner": "root:root",
            "permissions": "0600",
            "content": format!("{key}\n"),
        }));
        json!({ "disable_root": false, "users": [], "ssh_authorized_keys": [key] })
    } else {
        json!({
            "disable_root": true,
            "users": [{
                "name": user,
                "lock_passwd": true,
                "shell": "/bin/bash",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": [key],
            }],
        })
    };
    config["ssh_pwauth"] = json!(false);
    config["ssh_deletekeys"] = json!(true);
    // The agent installs what it needs; a machine that upgrades itself holds the lock.
    config["package_update"] = json!(false);
    config["package_upgrade"] = json!(false);
    if !files.is_empty() {
        config["write_files"] = Value::Array(files);
    }
    if !boot_script.trim().is_empty() {
        config["runcmd"] = json!([["sh", "-c", boot_script]]);
    }
    let text = format!("#cloud-config\n{config}\n");
    if text.len() > MOST {
        return Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "create the instance",
            format!(
                "the data for its first boot has {} bytes, and EC2 takes {MOST}; this is a defect of Skyward, report it",
                text.len()
            ),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Value {
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(first, "#cloud-config");
        let as_yaml: Value = serde_yaml::from_str(rest).unwrap();
        assert_eq!(as_yaml, serde_json::from_str::<Value>(rest).unwrap());
        as_yaml
    }

    #[test]
    fn root_has_exactly_one_key_and_there_is_no_other_user() {
        let config = parsed(&cloud_config("root", " ssh-ed25519 AAAA pool\n", "").unwrap());
        assert_eq!(config["users"], json!([]));
        assert_eq!(config["disable_root"], json!(false));
        assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA pool"]));
        assert_eq!(
            config["write_files"][0]["content"],
            json!("ssh-ed25519 AAAA pool\n")
        );
        assert_eq!(config.get("runcmd"), None);
    }

    #[test]
    fn another_user_gets_the_key_and_root_does_not() {
        let config = parsed(&cloud_config("ubuntu", "ssh-ed25519 AAAA", "").unwrap());
        assert_eq!(config["disable_root"], json!(true));
        assert_eq!(
            config["users"][0]["ssh_authorized_keys"],
            json!(["ssh-ed25519 AAAA"])
        );
        assert_eq!(config.get("ssh_authorized_keys"), None);
        assert_eq!(config.get("write_files"), None);
    }

    #[test]
    fn the_script_is_run_as_it_is_whatever_it_contains() {
        let script = "echo \"it's: #1\"\n\t(sleep 1; true) &\n";
        let config = parsed(&cloud_config("root", "k", script).unwrap());
        assert_eq!(config["runcmd"], json!([["sh", "-c", script]]));
    }

    #[test]
    fn what_ec2_would_not_take_is_refused_before_it_is_sent() {
        let error = cloud_config("root", "k", &"x".repeat(MOST)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidOrder);
    }
}
