//! Boot data as clouds take it: a script, or cloud-init's own format; as text or in base64; up to a
//! size. Pure.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use skyward_core::{ErrorKind, Order, ProviderError};

use crate::quoted;

/// A script that lets the Pool's key in as `root`, for images that let it in as another user only,
/// and then runs the order's boot script. Cloud-init takes it as user data.
pub fn script(order: &Order) -> String {
    format!(
        "#!/bin/sh\n\
         mkdir -p -m 700 /root/.ssh\n\
         printf '%s\\n' {key} >/root/.ssh/authorized_keys\n\
         chmod 600 /root/.ssh/authorized_keys\n\
         {boot}",
        key = quoted(order.authorized_key.trim()),
        boot = order.boot_script,
    )
}

/// The order's boot script alone, for clouds that put the key in; `None` where there is none.
pub fn bare_script(order: &Order) -> Option<String> {
    (!order.boot_script.is_empty()).then(|| format!("#!/bin/sh\n{}", order.boot_script))
}

/// A cloud-config for a machine that only this key may log in to, as this user, and that runs the
/// order's boot script. Written as JSON, which is YAML too and needs no quoting of ours.
pub fn cloud_config(user: &str, order: &Order) -> String {
    let key = order.authorized_key.trim();
    let mut files: Vec<Value> = Vec::new();
    let mut config = if user == "root" {
        // Written before cloud-init adds keys: it replaces the image's keys, and no other user is
        // made.
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
    if !order.boot_script.trim().is_empty() {
        config["runcmd"] = json!([["sh", "-c", order.boot_script]]);
    }
    format!("#cloud-config\n{config}\n")
}

/// Boot data in base64.
pub fn base64(data: &str) -> String {
    BASE64_STANDARD.encode(data)
}

/// Refuses boot data of more bytes, as they are sent, than the cloud takes.
pub fn at_most(bytes: usize, cloud: &str, data: String) -> Result<String, ProviderError> {
    if data.len() > bytes {
        return Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "create the instance",
            format!(
                "the start-up script has {} characters, and {cloud} takes {bytes}",
                data.len()
            ),
        ));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::fixtures::order;

    #[test]
    fn what_a_machine_is_told_at_its_first_boot_is_a_script_that_a_shell_accepts() {
        for text in [script(&order()), bare_script(&order()).unwrap()] {
            let read = Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
            assert!(read.success(), "{text}");
            assert!(
                text.starts_with("#!/bin/sh\n") && text.contains("sleep 5"),
                "{text}"
            );
        }
        assert!(script(&order()).contains(r"pool'\''s"));
        assert_eq!(bare_script(&Order::default()), None);
    }

    fn config(user: &str, boot_script: &str) -> Value {
        let order = Order {
            boot_script: boot_script.to_owned(),
            ..order()
        };
        let text = cloud_config(user, &order);
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(first, "#cloud-config");
        let as_yaml: Value = serde_yaml::from_str(rest).unwrap();
        assert_eq!(as_yaml, serde_json::from_str::<Value>(rest).unwrap());
        as_yaml
    }

    #[test]
    fn root_has_exactly_one_key_and_there_is_no_other_user() {
        let config = config("root", "");
        assert_eq!(config["users"], json!([]));
        assert_eq!(config["disable_root"], json!(false));
        assert_eq!(config["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA pool's"]));
        assert_eq!(
            config["write_files"][0]["content"],
            json!("ssh-ed25519 AAAA pool's\n")
        );
        assert_eq!(config.get("runcmd"), None);
    }

    #[test]
    fn another_user_gets_the_key_and_root_does_not() {
        let config = config("ubuntu", "");
        assert_eq!(config["disable_root"], json!(true));
        assert_eq!(
            config["users"][0]["ssh_authorized_keys"],
            json!(["ssh-ed25519 AAAA pool's"])
        );
        assert_eq!(config.get("ssh_authorized_keys"), None);
        assert_eq!(config.get("write_files"), None);
    }

    #[test]
    fn the_script_is_run_as_it_is_whatever_it_contains() {
        let script = "echo \"it's: #1\"\n\t(sleep 1; true) &\n";
        assert_eq!(config("root", script)["runcmd"], json!([["sh", "-c", script]]));
    }

    #[test]
    fn boot_data_that_a_cloud_would_refuse_is_never_sent() {
        assert_eq!(at_most(4, "Somewhere", base64("abc")).unwrap(), "YWJj");
        let refused = at_most(3, "Somewhere", base64("abc")).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidOrder);
    }
}
