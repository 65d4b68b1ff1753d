//! The Pod of a machine.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::cloud_config::{FirstBoot, first_boot};
use crate::backend::{Boot, SshWay, Start};

/// What all Pods of simulators carry.
pub(super) const LABEL: &str = "cloudsim.skyward.dev/cloud";

const START: &str = include_str!("start.sh");
const FORWARD: &str = include_str!("forward.py");
const INTRUDER: &str = include_str!("intruder.sh");
const IMDS_PROXY: &str = include_str!("../../aws/imds-proxy.py");

/// Where and of what Pods are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cloud.
    pub cloud: &'static str,
    /// The namespace.
    pub namespace: String,
    /// An image with sshd, Python and a shell. What images clients name is not looked at.
    pub image: String,
    /// Where Pods reach this simulator, such as `http://10.0.0.5:7070`; without it no machine
    /// has a metadata service.
    pub base: Option<String>,
    /// Extra environment of each machine (package indexes of the test cluster).
    pub env: Vec<(String, String)>,
}

impl Settings {
    /// The name of the Pod of a machine.
    pub(super) fn name(&self, machine: &str) -> String {
        let safe: String = machine
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        format!("{}-{}", self.cloud, safe.trim_matches('-'))
    }

    /// The port at which SSH of a machine answers from outside.
    pub(super) fn port(machine: &str, boot: &Boot) -> u16 {
        match boot.ssh {
            SshWay::Direct => 22,
            SshWay::At(port) => port,
            // Any number will do; the same machine keeps it.
            SshWay::Mapped => {
                let sum = machine.bytes().fold(0_u32, |sum, byte| {
                    sum.wrapping_mul(31).wrapping_add(u32::from(byte))
                });
                10_000 + (sum % 50_000) as u16
            }
        }
    }

    /// The Pod, or why there cannot be one.
    pub(super) fn pod(&self, machine: &str, boot: &Boot) -> Result<Pod, String> {
        // cloud-init puts the keys where the config says, and makes the users that it names.
        let first = match &boot.start {
            Start::UserData(text) if text.starts_with("#cloud-config") => {
                Some(first_boot(text, &boot.user, &boot.authorized_keys)?)
            }
            _ => None,
        };
        let (mode, script, words): (&str, &str, &[String]) = match &boot.start {
            Start::Nothing => ("nothing", "", &[]),
            Start::UserData(text) if text.is_empty() || text.starts_with("#!") => ("user-data", text, &[]),
            Start::UserData(_) => match &first {
                Some(FirstBoot { last, .. }) => ("user-data", last, &[]),
                None => {
                    return Err(
                        "machines that are Pods run user data that begins with #! or #cloud-config"
                            .to_owned(),
                    );
                }
            },
            Start::OnStart(text) => ("on-start", text, &[]),
            Start::Command(words) if words.is_empty() => {
                return Err("the image has no command of its own".to_owned());
            }
            Start::Command(words) => ("command", "", words),
        };
        let port = match boot.ssh {
            SshWay::Direct => String::new(),
            SshWay::Mapped | SshWay::At(_) => Self::port(machine, boot).to_string(),
        };
        let mut env: Vec<(String, String)> = vec![
            ("SIM_MODE".to_owned(), mode.to_owned()),
            (
                "SIM_USER".to_owned(),
                first.as_ref().map_or(boot.user.as_str(), |_| "root").to_owned(),
            ),
            (
                "SIM_KEYS".to_owned(),
                first
                    .as_ref()
                    .map_or_else(|| boot.authorized_keys.join("\n"), |_| String::new()),
            ),
            (
                "SIM_INIT".to_owned(),
                first.as_ref().map_or("", |first| &first.init).to_owned(),
            ),
            ("SIM_SCRIPT".to_owned(), STANDARD.encode(script)),
            ("SIM_PORT".to_owned(), port),
            ("SIM_GPUS".to_owned(), boot.gpus.join("\n")),
            ("SIM_FORWARD".to_owned(), FORWARD.to_owned()),
            ("SIM_IMDS_PROXY".to_owned(), IMDS_PROXY.to_owned()),
        ];
        if let Some(intruder) = boot.intruder {
            env.push(("SIM_INTRUDER".to_owned(), intruder.word().to_owned()));
            env.push(("SIM_INTRUDER_PROGRAM".to_owned(), INTRUDER.to_owned()));
        }
        if let Some(password) = &boot.password {
            env.push(("SIM_PASSWORD".to_owned(), password.clone()));
        }
        let metadata = self.base.as_ref().filter(|_| boot.metadata);
        if let Some(base) = metadata {
            env.push(("SKYWARD_SIM_IMDS".to_owned(), format!("{base}/_imds/{machine}")));
        }
        env.extend(self.env.iter().cloned());
        env.extend(boot.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        // The kubelet would put values in place of $(NAME).
        let env: Vec<Value> = env
            .into_iter()
            .map(|(name, value)| json!({"name": name, "value": value.replace("$(", "$$(")}))
            .collect();
        let mut command = vec![
            "/bin/sh".to_owned(),
            "-c".to_owned(),
            START.to_owned(),
            "start.sh".to_owned(),
        ];
        command.extend(words.iter().cloned());
        let command: Vec<String> = command
            .into_iter()
            .map(|word| word.replace("$(", "$$("))
            .collect();
        let capabilities = if metadata.is_some() {
            json!({"add": ["NET_ADMIN"]})
        } else {
            json!({})
        };
        // Google's images know their metadata service by its name, too.
        let aliases =
            metadata.map(|_| json!([{"ip": "169.254.169.254", "hostnames": ["metadata.google.internal"]}]));
        let hostname: String = boot
            .hostname
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(63)
            .collect();
        let hostname = hostname.trim_matches('-');
        let pod = json!({
            "metadata": {"name": self.name(machine), "namespace": self.namespace, "labels": {LABEL: self.cloud}},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
                "enableServiceLinks": false, "hostAliases": aliases,
                "hostname": if hostname.is_empty() { None } else { Some(hostname) },
                "containers": [{
                    "name": "machine", "image": self.image, "imagePullPolicy": "IfNotPresent", "command": command, "env": env,
                    "securityContext": {"capabilities": capabilities},
                }],
            },
        });
        serde_json::from_value(pod).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Intruder;

    fn settings() -> Settings {
        Settings {
            cloud: "verda",
            namespace: "n".to_owned(),
            image: "i".to_owned(),
            base: None,
            env: Vec::new(),
        }
    }

    #[test]
    fn a_shared_address_has_an_odd_port_that_a_machine_keeps() {
        let boot = Boot {
            ssh: SshWay::Mapped,
            ..Boot::default()
        };
        let port = Settings::port("abc", &boot);
        assert!(port >= 10_000);
        assert_eq!(port, Settings::port("abc", &boot));
        assert_ne!(port, Settings::port("abd", &boot));
        assert_eq!(Settings::port("abc", &Boot::default()), 22);
    }

    #[test]
    fn a_port_that_the_customer_chose_leads_to_ssh_in_the_pod() {
        let boot = Boot {
            ssh: SshWay::At(20_007),
            ..Boot::default()
        };
        assert_eq!(Settings::port("abc", &boot), 20_007);
        let pod = settings().pod("abc", &boot).unwrap();
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let port = env.iter().find(|entry| entry.name == "SIM_PORT").unwrap();
        assert_eq!(port.value.as_deref(), Some("20007"));
    }

    #[test]
    fn user_data_that_no_pod_can_run_is_refused_with_the_reason() {
        let boot = Boot {
            start: Start::UserData("#include\nhttps://example.com\n".to_owned()),
            ..Boot::default()
        };
        assert!(settings().pod("m", &boot).unwrap_err().contains("#!"));
    }

    #[test]
    fn with_a_cloud_config_only_what_it_says_is_done_with_keys_and_users() {
        let boot = Boot {
            user: "ubuntu".to_owned(),
            authorized_keys: vec!["of-the-launch".to_owned()],
            start: Start::UserData("#cloud-config\n{\"users\": [], \"runcmd\": [[\"true\"]]}\n".to_owned()),
            ..Boot::default()
        };
        let pod = settings().pod("m", &boot).unwrap();
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let value = |name: &str| {
            let found = env.iter().find(|entry| entry.name == name);
            found.and_then(|entry| entry.value.clone()).unwrap()
        };
        assert_eq!(
            (value("SIM_USER").as_str(), value("SIM_KEYS").as_str()),
            ("root", "")
        );
        assert!(value("SIM_INIT").contains("of-the-launch"));
        assert_eq!(value("SIM_SCRIPT"), STANDARD.encode("#!/bin/sh\n'true'\n"));
    }

    #[test]
    fn an_attacker_comes_into_the_pod_where_there_is_one() {
        let names = |intruder| {
            let boot = Boot {
                intruder,
                ..Boot::default()
            };
            let pod = settings().pod("m", &boot).unwrap();
            let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
            let of_attacker = env
                .into_iter()
                .filter(|entry| entry.name.starts_with("SIM_INTRUDER"));
            of_attacker.map(|entry| entry.value.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(None), Vec::<String>::new());
        let found = names(Some(Intruder::Copied));
        assert_eq!(found[0], "copied");
        assert!(
            found[1].contains("ForceCommand") && !found[1].contains("$("),
            "{}",
            found[1]
        );
    }

    #[test]
    fn a_password_comes_into_the_pod_only_where_the_cloud_makes_one() {
        let given = |password: Option<&str>| {
            let boot = Boot {
                password: password.map(str::to_owned),
                ..Boot::default()
            };
            let pod = settings().pod("m", &boot).unwrap();
            let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
            let found = env.into_iter().find(|entry| entry.name == "SIM_PASSWORD");
            found.and_then(|entry| entry.value)
        };
        assert_eq!(given(None), None);
        assert_eq!(given(Some("of-the-cloud")).as_deref(), Some("of-the-cloud"));
    }

    #[test]
    fn text_that_looks_like_a_variable_of_the_kubelet_reaches_the_machine_as_it_is() {
        let boot = Boot {
            start: Start::Command(vec!["echo".to_owned(), "$(date)".to_owned()]),
            ..Boot::default()
        };
        let pod = settings().pod("m", &boot).unwrap();
        let container = &pod.spec.unwrap().containers[0];
        assert_eq!(container.command.as_ref().unwrap().last().unwrap(), "$$(date)");
    }
}
