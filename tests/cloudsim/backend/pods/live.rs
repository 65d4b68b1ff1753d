//! On the cluster that `SKYWARD_TEST_KUBECONFIG` names: somebody really logs in.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::process::Command as Process;
use tokio::time::Instant;

use super::{Pods, Settings, clear};
use crate::backend::{Boot, SshWay, Start};
use crate::core::client::Client as Http;
use crate::core::machine::{Endpoint, Mark, NewMachine};
use crate::runpod::Runpod;
use crate::verda::Verda;
use crate::{Account, BootPlan, Builder, Market, Phase, Simulator};

/// A cluster, a namespace and a key pair; `None` where no cluster is named.
struct Stage {
    client: Client,
    namespace: String,
    image: String,
    folder: std::path::PathBuf,
    public_key: String,
}

impl Stage {
    async fn new(name: &str) -> Option<Self> {
        let path = std::env::var("SKYWARD_TEST_KUBECONFIG").ok()?;
        let image = std::env::var("SKYWARD_NODE_IMAGE").expect("hack/test-env.sh names the node image");
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let file = Kubeconfig::read_from(path).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("cloudsim-{name}-{}", std::process::id());
        let spaces: Api<Namespace> = Api::all(client.clone());
        let space = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        spaces.create(&PostParams::default(), &space).await.unwrap();
        let folder = std::env::temp_dir().join(&namespace);
        std::fs::create_dir_all(&folder).unwrap();
        let made = Process::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
            .arg(folder.join("key"))
            .status()
            .await
            .unwrap();
        assert!(made.success());
        let public_key = std::fs::read_to_string(folder.join("key.pub"))
            .unwrap()
            .trim()
            .to_owned();
        Some(Self {
            client,
            namespace,
            image,
            folder,
            public_key,
        })
    }

    fn builder(&self, host: Option<String>) -> Builder {
        let (client, namespace, image) = (self.client.clone(), self.namespace.clone(), self.image.clone());
        Builder::new().backend(move |site| {
            let (namespace, image) = (namespace.clone(), image.clone());
            let settings = Settings {
                cloud: site.cloud,
                namespace,
                image,
                base: host
                    .as_ref()
                    .map(|host| format!("http://{host}:{}", site.address.port())),
                env: Vec::new(),
            };
            Arc::new(Pods::new(client.clone(), settings, site.reports))
        })
    }

    /// What a command answers over SSH, as soon as the machine lets us in.
    async fn ssh(&self, user: &str, at: &Endpoint, command: &str) -> String {
        self.ssh_with(None, user, at, command).await
    }

    /// The same with a password in the place of the key.
    async fn ssh_with(&self, password: Option<&str>, user: &str, at: &Endpoint, command: &str) -> String {
        let ask = self.folder.join("ask");
        std::fs::write(&ask, "#!/bin/sh\nprintf '%s\\n' \"$PASSWORD\"\n").unwrap();
        std::fs::set_permissions(&ask, std::fs::Permissions::from_mode(0o700)).unwrap();
        let way = match password {
            // In batch mode, ssh asks for no password.
            Some(_) => ["PreferredAuthentications=password", "NumberOfPasswordPrompts=1"],
            None => ["PreferredAuthentications=publickey", "BatchMode=yes"],
        };
        let deadline = Instant::now() + Duration::from_mins(5);
        loop {
            let output = Process::new("ssh")
                .args(["-o", way[0], "-o", way[1], "-o", "StrictHostKeyChecking=no"])
                .args(["-o", "UserKnownHostsFile=/dev/null"])
                .args(["-o", "ConnectTimeout=3", "-o", "LogLevel=ERROR", "-i"])
                .arg(self.folder.join("key"))
                .env("SSH_ASKPASS", &ask)
                .env("SSH_ASKPASS_REQUIRE", "force")
                .env("PASSWORD", password.unwrap_or_default())
                .args([
                    "-p",
                    &at.port.to_string(),
                    &format!("{user}@{}", at.address),
                    command,
                ])
                .output()
                .await
                .unwrap();
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap().trim().to_owned();
            }
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                Instant::now() < deadline,
                "{user}@{at:?} does not answer: {error}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn done(self) {
        clear(self.client.clone(), &self.namespace).await.unwrap();
        let spaces: Api<Namespace> = Api::all(self.client);
        spaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
            .unwrap();
        std::fs::remove_dir_all(self.folder).unwrap();
    }
}

async fn in_phase(simulator: &Simulator, cloud: &str, id: &str, wanted: Phase) -> Option<Endpoint> {
    let deadline = Instant::now() + Duration::from_mins(5);
    loop {
        let (phase, endpoint) = simulator
            .cloud(cloud)
            .world(|world| (world.machines[id].phase, world.machines[id].endpoint.clone()));
        if phase == wanted {
            return endpoint;
        }
        assert!(Instant::now() < deadline, "{id} is {phase:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn machine(cloud: &str, id: &str, boot: Boot) -> (String, NewMachine) {
    let new = NewMachine {
        id: id.to_owned(),
        account: "acme".to_owned(),
        mark: Mark {
            name: id.to_owned(),
            ..Mark::default()
        },
        instance_type: "any".to_owned(),
        region: "any".to_owned(),
        market: Market::OnDemand,
        price: rust_decimal::Decimal::ONE,
        on_demand_price: rust_decimal::Decimal::ONE,
        disk_price: rust_decimal::Decimal::ZERO,
        plan: BootPlan::takes(0),
        boot,
        detail: serde_json::Value::Null,
    };
    (cloud.to_owned(), new)
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_are_pods_let_in_whom_their_cloud_lets_in() {
    let Some(stage) = Stage::new("pods").await else {
        eprintln!("skipped: SKYWARD_TEST_KUBECONFIG is not set");
        return;
    };
    let simulator = stage
        .builder(None)
        .cloud(Verda::new())
        .cloud(Runpod::new())
        .start()
        .await
        .unwrap();
    for (sim, _) in simulator.clouds() {
        sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    }
    let key = &stage.public_key;
    let make_key =
        format!("#!/bin/sh\nset -e\nmkdir -p /root/.ssh\necho '{key}' >/root/.ssh/authorized_keys\n");
    let config = format!(
        "#cloud-config\nusers:\n- name: ubuntu\n  sudo: ALL=(ALL) NOPASSWD:ALL\n  ssh_authorized_keys: [\"{key}\"]\nruncmd:\n- [touch, /ready]\n"
    );
    let by_hand = "mkdir -p /root/.ssh && printf '%s\\n' \"$PUBLIC_KEY\" >/root/.ssh/authorized_keys && \
                   mkdir -p /run/sshd && ssh-keygen -A && /usr/sbin/sshd && sleep infinity";
    let command = ["bash", "-c", by_hand].map(str::to_owned).to_vec();
    let public = std::collections::BTreeMap::from([("PUBLIC_KEY".to_owned(), key.clone())]);
    let root = || Boot {
        user: "root".to_owned(),
        ..Boot::default()
    };
    let cases = [
        machine(
            "verda",
            "script",
            Boot {
                start: Start::UserData(make_key),
                ..root()
            },
        ),
        machine(
            "verda",
            "ubuntu",
            Boot {
                user: "ubuntu".to_owned(),
                authorized_keys: vec![key.clone()],
                ..Boot::default()
            },
        ),
        // cloud-init makes the user and lets the key in; nothing else does.
        machine(
            "verda",
            "config",
            Boot {
                user: "ubuntu".to_owned(),
                start: Start::UserData(config),
                ..Boot::default()
            },
        ),
        machine(
            "runpod",
            "image",
            Boot {
                authorized_keys: vec![key.clone()],
                start: Start::OnStart("touch /ready".to_owned()),
                ssh: SshWay::Mapped,
                ..root()
            },
        ),
        machine(
            "runpod",
            "password",
            Boot {
                password: Some("of-the-cloud".to_owned()),
                ssh: SshWay::Mapped,
                ..root()
            },
        ),
        machine(
            "runpod",
            "command",
            Boot {
                start: Start::Command(command),
                env: public,
                ssh: SshWay::Mapped,
                ..root()
            },
        ),
    ];
    for (cloud, new) in cases.clone() {
        simulator.cloud(&cloud).world(|world| world.create(new));
    }
    for (cloud, new) in &cases {
        let at = in_phase(&simulator, cloud, &new.id, Phase::Running)
            .await
            .unwrap();
        assert_eq!(at.port == 22, new.boot.ssh == SshWay::Direct, "{at:?}");
        let as_root = if new.boot.user == "root" {
            "id -un"
        } else {
            "sudo -n env A=b id -un"
        };
        let password = new.boot.password.as_deref();
        let user = stage.ssh_with(password, &new.boot.user, &at, as_root).await;
        assert_eq!(user, "root", "{}", new.id);
        match new.id.as_str() {
            "ubuntu" => assert_eq!(stage.ssh("ubuntu", &at, "id -un").await, "ubuntu"),
            "image" | "config" => assert_eq!(
                stage
                    .ssh(
                        &new.boot.user,
                        &at,
                        "until [ -e /ready ]; do sleep 0.1; done; echo yes"
                    )
                    .await,
                "yes"
            ),
            "script" => {
                let halt = "nohup sh -c 'sleep 1; shutdown -h now' >/dev/null 2>&1 </dev/null &";
                stage.ssh("root", &at, halt).await;
                in_phase(&simulator, cloud, "script", Phase::Halted).await;
            }
            _ => {}
        }
    }
    simulator
        .cloud("runpod")
        .world(|world| world.authorize("image", "ssh-ed25519 AAAA another"));
    let at = in_phase(&simulator, "runpod", "image", Phase::Running)
        .await
        .unwrap();
    let keys = "for i in $(seq 120); do grep -c another /root/.ssh/authorized_keys && break; sleep 1; done";
    assert_eq!(stage.ssh("root", &at, keys).await.lines().last(), Some("1"));

    for (cloud, new) in &cases {
        let now = jiff::SignedDuration::ZERO;
        simulator
            .cloud(cloud)
            .world(|world| world.end(&new.id, crate::Cause::Asked, now));
    }
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let deadline = Instant::now() + Duration::from_mins(5);
    while !pods
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .items
        .is_empty()
    {
        assert!(Instant::now() < deadline, "Pods are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stage.done().await;
}

/// An address of this machine that Pods can reach: that of the one node.
async fn host(client: &Client) -> String {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.list(&ListParams::default()).await.unwrap().items.remove(0);
    let addresses = node
        .status
        .and_then(|status| status.addresses)
        .unwrap_or_default();
    let internal = addresses
        .into_iter()
        .find(|address| address.type_ == "InternalIP");
    internal.expect("a node has an address").address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_ordered_by_http_is_logged_into_and_ends_by_http() {
    let Some(stage) = Stage::new("http").await else {
        eprintln!("skipped: SKYWARD_TEST_KUBECONFIG is not set");
        return;
    };
    let host = host(&stage.client).await;
    let everywhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let builder = stage
        .builder(Some(host))
        .cloud_at(Box::new(Verda::new()), everywhere)
        .cloud(Runpod::new());
    let simulator = builder.start().await.unwrap();
    simulator.cloud("verda").world(|world| {
        world.add_account(Account::with_pair("acme", "id", "secret"));
        world.boot = BootPlan::takes(1);
    });
    simulator.cloud("runpod").world(|world| {
        world.add_account(Account::with_key("acme", "rpa_key"));
        world.boot = BootPlan::takes(1);
    });

    // Verda: the start-up script makes the key.
    let verda = Http::new(&simulator.url("verda").replace("0.0.0.0", "127.0.0.1"));
    let grant = json!({"grant_type": "client_credentials", "client_id": "id", "client_secret": "secret"});
    let token = verda
        .json(Method::POST, "/v1/oauth2/token", grant)
        .await
        .unwrap()
        .json();
    let verda = verda.with(
        "authorization",
        &format!("Bearer {}", token["access_token"].as_str().unwrap()),
    );
    let script = format!(
        "#!/bin/sh\nmkdir -p /root/.ssh && echo '{}' >/root/.ssh/authorized_keys\n",
        stage.public_key
    );
    let script = verda
        .json(
            Method::POST,
            "/v1/scripts",
            json!({"name": "s", "script": script}),
        )
        .await
        .unwrap();
    let order = json!({
        "instance_type": "CPU.4V.16G", "image": "ubuntu-24.04", "hostname": "sky-a", "location_code": "FIN-01",
        "startup_script_id": script.body.trim_matches('"'),
    });
    let id = verda
        .json(Method::POST, "/v1/instances", order)
        .await
        .unwrap()
        .body
        .trim_matches('"')
        .to_owned();
    let path = format!("/v1/instances/{id}");
    let instance = until(&verda, &path, |instance| instance["status"] == "running").await;
    let at = Endpoint {
        address: instance["ip"].as_str().unwrap().to_owned(),
        port: 22,
    };
    assert_eq!(stage.ssh("root", &at, "hostname").await, "sky-a");
    let delete = json!({"action": "delete", "id": id, "volume_ids": instance["volume_ids"], "delete_permanently": true});
    assert_eq!(
        verda
            .json(Method::PUT, "/v1/instances", delete)
            .await
            .unwrap()
            .status,
        202
    );

    // RunPod: an image without sshd, whose command starts one, behind an odd port.
    let runpod = Http::new(simulator.url("runpod")).with("authorization", "Bearer rpa_key");
    let args = "bash -c 'mkdir -p /root/.ssh /run/sshd && echo \"$PUBLIC_KEY\" >/root/.ssh/authorized_keys && \
                ssh-keygen -A && /usr/sbin/sshd && sleep infinity'";
    let pod = json!({
        "name": "a", "image": "nvidia/cuda:12.8.0-cudnn-runtime-ubuntu24.04", "args": args, "ports": ["22/tcp"],
        "gpu": {"id": "NVIDIA L40S"}, "env": {"PUBLIC_KEY": stage.public_key},
    });
    let pod = runpod.json(Method::POST, "/v2/pods", pod).await.unwrap().json();
    let path = format!("/v2/pods/{}", pod["id"].as_str().unwrap());
    let pod = until(&runpod, &path, |pod| pod["ssh"]["direct"].is_object()).await;
    let direct = &pod["ssh"]["direct"];
    let port = u16::try_from(direct["port"].as_u64().unwrap()).unwrap();
    let at = Endpoint {
        address: direct["host"].as_str().unwrap().to_owned(),
        port,
    };
    assert_ne!(at.port, 22);
    assert_eq!(
        stage.ssh("root", &at, "hostname").await,
        pod["id"].as_str().unwrap()
    );
    assert_eq!(runpod.call(Method::DELETE, &path).await.unwrap().status, 204);

    // A metadata service: what asks at 169.254.169.254 asks this simulator about the machine.
    let keys = vec![stage.public_key.clone()];
    let boot = Boot {
        user: "root".to_owned(),
        authorized_keys: keys,
        metadata: true,
        ..Boot::default()
    };
    let (_, new) = machine("verda", "metadata", boot);
    simulator.cloud("verda").world(|world| world.create(new));
    let at = in_phase(&simulator, "verda", "metadata", Phase::Running)
        .await
        .unwrap();
    let ask = "python3 -c 'import urllib.request as u; u.urlopen(\"http://169.254.169.254/latest/meta-data/\")' || true";
    let deadline = Instant::now() + Duration::from_mins(2);
    let asked = |path: &str| {
        simulator
            .cloud("verda")
            .requests()
            .iter()
            .any(|entry| entry.path == path)
    };
    while !asked("/_imds/metadata/latest/meta-data/") {
        assert!(Instant::now() < deadline, "the metadata address does not answer");
        stage.ssh("root", &at, ask).await;
    }
    simulator
        .cloud("verda")
        .world(|world| world.end("metadata", crate::Cause::Asked, jiff::SignedDuration::ZERO));

    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let deadline = Instant::now() + Duration::from_mins(5);
    while !pods.list(&ListParams::default()).await.unwrap().items.is_empty() {
        assert!(Instant::now() < deadline, "Pods are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (sim, _) in simulator.clouds() {
        assert_eq!(sim.mistakes(), []);
    }
    stage.done().await;
}

async fn until(client: &Http, path: &str, ready: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_mins(5);
    loop {
        let found = client.get(path).await.unwrap().json();
        if ready(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{path}: {found}");
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
}
