//! Boot data as clouds take it: a script, or cloud-init's own format; as text or in base64; up to a
//! size. Pure.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use skyward_core::{ErrorKind, Order, ProviderError, proof};

use crate::quoted;

/// The path of the script of the proof where boot data are no script: in memory, and removed by the
/// script itself.
const PROOF_SCRIPT: &str = "/run/skyward-host-key-proof";

/// The order's boot script, behind that of the proof of the host key where one is asked for. Only
/// for boot data that reach the machine as a file: a command line is shown to every user.
pub fn first_boot(order: &Order) -> String {
    let proof = order.host_token.as_ref().map(proof::script);
    proof.unwrap_or_default() + &order.boot_script
}

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
        boot = first_boot(order),
    )
}

/// What is done at the first boot alone, for clouds that put the key in; `None` where that is
/// nothing.
pub fn bare_script(order: &Order) -> Option<String> {
    Some(first_boot(order))
        .filter(|boot| !boot.is_empty())
        .map(|boot| format!("#!/bin/sh\n{boot}"))
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
    let mut commands: Vec<Value> = Vec::new();
    if let Some(token) = &order.host_token {
        // A command of `runcmd` stands in the list of processes, so the token comes in a file. The
        // file is run by `runcmd` all the same: that comes after cloud-init made new host keys.
        files.push(json!({
            "path": PROOF_SCRIPT,
            "owner": "root:root",
            "permissions": "0600",
            "content": format!("rm -f {PROOF_SCRIPT}\n{}", proof::script(token)),
        }));
        commands.push(json!(["sh", PROOF_SCRIPT]));
    }
    if !order.boot_script.trim().is_empty() {
        commands.push(json!(["sh", "-c", order.boot_script]));
    }
    if !files.is_empty() {
        config["write_files"] = Value::Array(files);
    }
    if !commands.is_empty() {
        config["runcmd"] = Value::Array(commands);
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

    use skyward_core::Secret;

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

    const TOKEN: &str = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffee1234";

    fn with_token() -> Order {
        Order {
            host_token: Some(Secret::new(TOKEN)),
            ..order()
        }
    }

    #[test]
    fn boot_data_have_the_token_once_and_only_where_one_is_asked_for() {
        let makers: [fn(&Order) -> String; 4] = [
            script,
            |order| bare_script(order).unwrap(),
            |order| cloud_config("root", order),
            |order| cloud_config("ubuntu", order),
        ];
        for make in makers {
            let (with, without) = (make(&with_token()), make(&order()));
            assert_eq!(with.matches(TOKEN).count(), 1, "{with}");
            assert!(!without.contains("skyward_host_key_proof") && without.contains("sleep 5"));
        }
        let only_token = Order {
            host_token: Some(Secret::new(TOKEN)),
            ..Order::default()
        };
        assert!(bare_script(&only_token).unwrap().contains(TOKEN));
    }

    #[test]
    fn the_token_stands_in_no_command_of_a_cloud_config() {
        for user in ["root", "ubuntu"] {
            let text = cloud_config(user, &with_token());
            let config: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
            assert!(!config["runcmd"].to_string().contains(TOKEN));
            assert_eq!(config["runcmd"][0], json!(["sh", PROOF_SCRIPT]));
            assert_eq!(config["runcmd"][1][2], json!(order().boot_script));
            let files = config["write_files"].as_array().unwrap();
            let file = files.iter().find(|file| file["path"] == PROOF_SCRIPT).unwrap();
            assert_eq!(file["permissions"], "0600");
            let content = file["content"].as_str().unwrap();
            assert!(content.starts_with(&format!("rm -f {PROOF_SCRIPT}\n")) && content.contains(TOKEN));
            let read = Command::new("sh").args(["-n", "-c", content]).status().unwrap();
            assert!(read.success(), "{content}");
        }
    }

    #[test]
    fn an_order_that_is_printed_shows_no_token() {
        let printed = format!("{:?}", with_token());
        assert!(
            !printed.contains(TOKEN) && printed.contains("host_token"),
            "{printed}"
        );
    }

    #[test]
    fn boot_data_that_a_cloud_would_refuse_is_never_sent() {
        assert_eq!(at_most(4, "Somewhere", base64("abc")).unwrap(), "YWJj");
        let refused = at_most(3, "Somewhere", base64("abc")).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidOrder);
    }
}
