//! Tests on a real cluster, when `SKYWARD_TEST_KUBECONFIG` names one (`make test` does): refusals
//! of a real API server, scheduler and kubelet.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::{
    Client, ResourceExt,
    api::ObjectMeta,
    config::{Config, KubeConfigOptions, Kubeconfig},
};
use skyward_api::provider::{ContainerSettings, ProviderSpec, PullPolicy, SecurityProfile};
use skyward_core::{offer::Market, order::Mark};

use super::*;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE3ShRcSX8dDzhI3hjC4Yk5L3JmrzQ9wZ2m9m4W8a1bT test";

struct Live {
    client: Client,
    namespace: String,
    node_image: String,
}

impl Live {
    /// `None` (and a line that says so) where there is no cluster to test on.
    async fn start(story: &str) -> Option<Self> {
        let (Ok(path), Ok(node_image)) = (
            std::env::var("SKYWARD_TEST_KUBECONFIG"),
            std::env::var("SKYWARD_NODE_IMAGE"),
        ) else {
            println!("skipped: SKYWARD_TEST_KUBECONFIG and SKYWARD_NODE_IMAGE are not set; run `make test`");
            return None;
        };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = Kubeconfig::read_from(path).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("t-container-{story}");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        wait("an earlier run's namespace goes", async || {
            if namespaces.create(&PostParams::default(), &object).await.is_ok() {
                return Some(());
            }
            release(&client, &namespace).await;
            None
        })
        .await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        wait("the default service account", async || {
            accounts.get_opt("default").await.unwrap()
        })
        .await;
        Some(Self {
            client,
            namespace,
            node_image,
        })
    }

    /// A Machine object: the garbage collector takes a Pod whose owner does not exist. Its
    /// finalizer keeps it, whatever a controller on this cluster thinks of it. Without our custom
    /// resources Pods are not collected, and any UID will do.
    async fn owner(&self, name: &str) -> String {
        let machines: Api<skyward_api::Machine> = Api::namespaced(self.client.clone(), &self.namespace);
        let machine = serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": name, "finalizers": ["skyward.dev/test"] },
            "spec": {
                "pool": "train", "poolUid": "p-uid", "slot": 0, "attempt": 1, "provider": "live", "offer": "live",
                "instanceType": "live", "market": "OnDemand", "hourlyPrice": "0", "token": name, "templateHash": "0",
            }
        }))
        .unwrap();
        match machines.create(&PostParams::default(), &machine).await {
            Ok(machine) => machine.uid().unwrap(),
            Err(kube::Error::Api(status)) if status.code == 404 => "no-machines-here".to_owned(),
            Err(error) => panic!("{error}"),
        }
    }

    fn provider(&self, settings: ContainerSettings) -> Arc<dyn Provider> {
        let spec = ProviderSpec {
            container: Some(ContainerSettings {
                image_pull_policy: Some(PullPolicy::Never),
                ..settings
            }),
            clouds: BTreeMap::new(),
            credentials_secret_ref: None,
            overridable: Vec::new(),
            allowed_namespaces: Default::default(),
            limits: None,
            host_key_policy: None,
            refresh_interval: None,
            request_timeout: None,
            instance_timeout: None,
            idle_timeout: None,
        };
        let options = Options {
            cluster: "live-test".into(),
            node_image: self.node_image.clone(),
            pod_network: PodNetwork::Direct,
            namespaces: Vec::new(),
        };
        connect(
            &Cluster::start(self.client.clone(), options),
            &skyward_api::Provider::new("live", spec),
        )
        .unwrap()
    }

    async fn order(&self, provider: &dyn Provider, name: &str) -> Order {
        let offer = provider.offers().await.unwrap().remove(0);
        Order {
            mark: Mark {
                cluster: "live-test".into(),
                namespace: self.namespace.clone(),
                pool: "train".into(),
                pool_uid: "p-uid".into(),
                machine: name.into(),
                machine_uid: self.owner(name).await,
                slot: 0,
                attempt: 1,
            },
            token: name.into(),
            instance_type: offer.instance_type,
            region: String::new(),
            market: Market::OnDemand,
            max_hourly_cost: None,
            accelerator: None,
            vcpus: Some(0.1),
            memory_bytes: Some(100_000_000),
            disk_bytes: None,
            shm_bytes: Some(64 << 20),
            authorized_key: KEY.into(),
            ..Order::default()
        }
    }

    async fn finish(self) {
        release(&self.client, &self.namespace).await;
    }
}

/// Deletes a namespace with the Machines that this test holds in it.
async fn release(client: &Client, namespace: &str) {
    let machines: Api<skyward_api::Machine> = Api::namespaced(client.clone(), namespace);
    let freed = kube::api::Patch::Merge(serde_json::json!({ "metadata": { "finalizers": null } }));
    for machine in machines
        .list_metadata(&ListParams::default())
        .await
        .map(|l| l.items)
        .unwrap_or_default()
    {
        drop(
            machines
                .patch_metadata(&machine.name_any(), &Default::default(), &freed)
                .await,
        );
    }
    drop(
        Api::<Namespace>::all(client.clone())
            .delete(namespace, &DeleteParams::default())
            .await,
    );
}

fn reference(order: &Order, id: Option<String>) -> MachineRef {
    MachineRef {
        id,
        mark: order.mark.clone(),
        region: String::new(),
        started: false,
    }
}

async fn wait<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within five minutes: {what}");
}

async fn run(live: &Live, settings: ContainerSettings, name: &str) -> ProviderMachine {
    let provider = live.provider(settings);
    let order = live.order(&*provider, name).await;
    let accepted = provider.create(&order).await.unwrap();
    let again = provider.create(&order).await.unwrap();
    assert_eq!(accepted, again, "ordering twice is ordering once");
    let machine = reference(&order, Some(accepted.id));
    let running = wait("it runs", async || {
        let seen = provider.get(&machine).await.unwrap().expect("it exists");
        match &seen.phase {
            ProviderPhase::Running => Some(seen),
            ProviderPhase::Starting(_) => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    let scope = Scope {
        cluster: "live-test".into(),
        pool_uid: Some("p-uid".into()),
        namespace: None,
        regions: Vec::new(),
    };
    assert!(
        provider
            .list(&scope)
            .await
            .unwrap()
            .iter()
            .any(|m| m.mark == order.mark)
    );
    let mut ended = false;
    wait("it is gone", async || {
        let deletion = provider.delete(&machine).await.unwrap();
        ended |= deletion == Deletion::InProgress;
        (deletion == Deletion::Gone).then_some(())
    })
    .await;
    assert!(ended, "the end of a running Pod takes a while");
    // What the watch has not seen go yet is still told of.
    wait("the watch saw it go", async || {
        provider.get(&machine).await.unwrap().is_none().then_some(())
    })
    .await;
    running
}

#[tokio::test]
async fn a_pod_lives_and_dies_as_the_contract_says() {
    let Some(live) = Live::start("life").await else {
        return;
    };
    let machine = run(&live, ContainerSettings::default(), "life-0-1").await;
    assert!(machine.host_key.unwrap().starts_with("ssh-ed25519 "));
    assert_eq!(machine.endpoint.unwrap().user, "root");
    live.finish().await;
}

#[tokio::test]
async fn a_restricted_namespace_takes_restricted_pods_only() {
    let Some(live) = Live::start("restricted").await else {
        return;
    };
    let namespaces: Api<Namespace> = Api::all(live.client.clone());
    let enforce =
        serde_json::json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    namespaces
        .patch(
            &live.namespace,
            &Default::default(),
            &kube::api::Patch::Merge(enforce),
        )
        .await
        .unwrap();
    let root = live.provider(ContainerSettings::default());
    let refused = root
        .create(&live.order(&*root, "restricted-0-1").await)
        .await
        .unwrap_err();
    assert!(
        refused.kind == ErrorKind::InvalidOrder && refused.message.contains("securityProfile: Restricted"),
        "{refused}"
    );
    let settings = ContainerSettings {
        security_profile: Some(SecurityProfile::Restricted),
        ..ContainerSettings::default()
    };
    let machine = run(&live, settings, "restricted-0-2").await;
    assert!(machine.host_key.is_some());
    assert_eq!(machine.endpoint.unwrap().user, "skyward");
    live.finish().await;
}

#[tokio::test]
async fn images_that_cannot_be_used_say_why() {
    let Some(live) = Live::start("images").await else {
        return;
    };
    let nodes: Api<Node> = Api::all(live.client.clone());
    assert!(!nodes.list(&ListParams::default()).await.unwrap().items.is_empty());
    let cases = [
        (
            "images-0-1",
            Some("example.invalid/no/such:1"),
            "imagePullPolicy is Never",
        ),
        ("images-0-2", Some("Not An Image"), "is not the name of an image"),
    ];
    for (name, image, words) in cases {
        let settings = ContainerSettings {
            image: image.map(str::to_owned),
            ..ContainerSettings::default()
        };
        let provider = live.provider(settings);
        let order = live.order(&*provider, name).await;
        let accepted = provider.create(&order).await.unwrap();
        let machine = reference(&order, Some(accepted.id));
        let failure = wait("it fails", async || {
            match provider.get(&machine).await.unwrap()?.phase {
                ProviderPhase::Failed(failure) => Some(failure),
                _ => None,
            }
        })
        .await;
        assert!(failure.message.contains(words), "{failure:?}");
    }
    live.finish().await;
}

#[tokio::test]
async fn a_missing_pull_secret_is_named_before_anything_is_made() {
    let Some(live) = Live::start("secret").await else {
        return;
    };
    let provider = live.provider(ContainerSettings {
        image_pull_secrets: vec![skyward_api::shared::LocalRef {
            name: "registry".into(),
            optional: false,
        }],
        ..ContainerSettings::default()
    });
    let error = provider
        .create(&live.order(&*provider, "secret-0-1").await)
        .await
        .unwrap_err();
    assert!(
        error.kind == ErrorKind::InvalidOrder && error.message.contains("\"registry\""),
        "{error}"
    );
    live.finish().await;
}
