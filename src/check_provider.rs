//! `skyward check-provider`: a look at the account of a Provider, outside of any controller. It asks and changes
//! nothing: the clients of clouds and of the API server stand behind a fence that never opens.
//!
//! Credentials come from the environment, under the names of the Secret's keys, or else from the Secret in the
//! cluster. What is looked at and how it is written is `skyward_providers::check`.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, client::ClientBuilder};
use serde_json::Value;
use skyward_api::Provider;
use skyward_controller::{leadership::fence::Fencing, provider::credentials_of};
use skyward_core::{Credentials, Endpoints, Fence, ProviderError, Secret};
use skyward_providers::{
    Options,
    check::{self, Format, Report, without_value},
    container, factory, registry,
};

/// Largest file that is read.
const LARGEST: u64 = 1 << 20;
/// Longest wait for the API server.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Args, Clone)]
pub(crate) struct Flags {
    /// File with the Provider, such as a sample; `-` is the standard input. Other objects in it are ignored.
    #[arg(short = 'f', long = "filename")]
    file: PathBuf,
    /// How the report is written.
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// The operator's own namespace, where the Secret of the Provider is: it is read if the environment does not have
    /// the credentials.
    #[arg(long, env = "SKYWARD_NAMESPACE", default_value = "skyward-system")]
    namespace: String,
    /// Id of the installation whose machines and resources are looked for; by default the UID of the namespace
    /// kube-system of the cluster, if one is reached.
    #[arg(long, env = "SKYWARD_INSTALLATION_ID", value_parser = skyward_controller::config::installation_id)]
    installation_id: Option<String>,
    /// Where the API of a cloud is, if not at the cloud's own address, as `NAME=URL`; may be given more than once.
    #[arg(long = "endpoint", env = "SKYWARD_ENDPOINTS", value_delimiter = ',', value_parser = crate::endpoint)]
    endpoints: Vec<(String, String)>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

pub(crate) async fn run(flags: Flags) -> Result<()> {
    let provider = provider(&text(&flags.file)?)?;
    let kind = kind_of(&provider)?;
    let cluster = cluster().await;
    let installation = match (&flags.installation_id, &cluster) {
        (Some(id), _) => Some(id.clone()),
        (None, Ok(client)) => installation(client).await,
        (None, Err(_)) => None,
    };
    let (report, credentials) = report(&flags, &provider, &kind, cluster, installation.as_deref()).await?;
    let format = match flags.output {
        Output::Text => Format::Text,
        Output::Json => Format::Json,
    };
    let rendered = report.render(format, &credentials);
    std::io::stdout().lock().write_all(rendered.as_bytes())?;
    if !report.is_well() {
        bail!("something is wrong with the account or with its answers; the report says what");
    }
    Ok(())
}

/// The report, and the credentials that it must not show.
async fn report(
    flags: &Flags,
    provider: &Provider,
    kind: &str,
    cluster: Result<Client>,
    installation: Option<&str>,
) -> Result<(Report, Credentials)> {
    let fence = Fence::default();
    let endpoints = Endpoints::new(flags.endpoints.clone());
    if kind == container::KIND {
        let options = Options {
            containers: container::Options {
                cluster: installation.unwrap_or_default().to_owned(),
                node_image: String::new(),
                pod_network: container::PodNetwork::PortForward,
                namespaces: Vec::new(),
            },
            endpoints,
            sink: None,
            fence,
        };
        let connect = factory(cluster?, options);
        let credentials = Credentials::default();
        let report = match connect(provider, &credentials) {
            Ok(account) => check::look(&*account, installation).await,
            Err(problem) => check::unusable(kind, &problem),
        };
        return Ok((report, credentials));
    }
    let found = of_environment(kind, |name| std::env::var(name).ok());
    let has_secret = provider.spec.credentials_secret_ref.is_some();
    let found = found.filter(|found| !has_secret || proves_somebody(kind, found));
    let (credentials, source) = match (found, &provider.spec.credentials_secret_ref) {
        (Some(credentials), _) => {
            let names = credentials.names().collect::<Vec<_>>().join(", ");
            (credentials, format!("of the environment ({names})"))
        }
        (None, None) => (
            Credentials::default(),
            "none but those of this machine".to_owned(),
        ),
        (None, Some(secret)) => {
            let client = cluster.with_context(|| missing(kind))?;
            let read = credentials_of(&client, &flags.namespace, provider).await;
            let read = read.map_err(|problem| told(&problem, kind))?;
            let source = format!(
                "of Secret \"{}\" in namespace \"{}\"",
                secret.name, flags.namespace
            );
            (read, source)
        }
    };
    let report = match registry::connect(provider, &credentials, &endpoints, &fence) {
        Ok(account) => check::look(&*account, installation).await,
        Err(problem) => check::unusable(kind, &problem),
    };
    Ok((report.with_source(source), credentials))
}

/// The kind of a Provider.
fn kind_of(provider: &Provider) -> Result<String> {
    let spec = &provider.spec;
    let is_known = |kind: &str| registry::kinds().any(|known| known == kind);
    if let Some((kind, _)) = spec.account().filter(|(kind, _)| is_known(kind)) {
        return Ok(kind.to_owned());
    }
    let pods = spec.container.is_some().then_some(container::KIND);
    let written: Vec<&str> = pods
        .into_iter()
        .chain(spec.clouds.keys().map(String::as_str))
        .collect();
    bail!(
        "the Provider must be of exactly one kind: write one of {} in its spec, which says: {}",
        registry::kinds().collect::<Vec<_>>().join(", "),
        if written.is_empty() {
            "none".to_owned()
        } else {
            written.join(", ")
        }
    )
}

fn told(problem: &ProviderError, kind: &str) -> anyhow::Error {
    anyhow!("{problem}; {}", missing(kind))
}

/// What to do where the credentials are nowhere.
fn missing(kind: &str) -> String {
    let keys = registry::credential_keys(kind);
    // Some kinds can do without any key.
    let can_do_without = !keys.iter().any(|key| key.required);
    let needed: Vec<&str> = keys
        .iter()
        .filter(|key| key.required || can_do_without)
        .map(|key| key.name)
        .collect();
    format!(
        "the credentials are not in the environment: set {}, or run this where the cluster with the Secret is reached",
        needed.join(", ")
    )
}

/// The credentials of a kind from variables of the environment, if it has all that are required and any at all.
fn of_environment(kind: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Credentials> {
    let keys = registry::credential_keys(kind);
    let found = keys.iter().filter_map(|key| {
        let value = variable(key.name).filter(|value| !value.trim().is_empty())?;
        Some((key.name.to_owned(), Secret::new(value)))
    });
    let found = Credentials::new(found);
    let mut required = keys.iter().filter(|key| key.required);
    let is_complete = required.all(|key| found.get(key.name).is_some());
    (is_complete && !found.is_empty()).then_some(found)
}

/// Whether credentials of the environment stand for the Provider's Secret: a project, which many have in their
/// environment, is nobody's credentials. The first key of each kind is one that proves somebody.
fn proves_somebody(kind: &str, found: &Credentials) -> bool {
    let first = registry::credential_keys(kind).first();
    first.is_none_or(|key| found.get(key.name).is_some())
}

/// The text of a file, or of the standard input.
fn text(path: &Path) -> Result<String> {
    let unread = || format!("\"{}\" cannot be read", path.display());
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(LARGEST + 1)
            .read_to_string(&mut text)
    } else {
        let file = File::open(path).with_context(unread)?;
        file.take(LARGEST + 1).read_to_string(&mut text)
    };
    if read.with_context(unread)? as u64 > LARGEST {
        bail!(
            "\"{}\" is larger than 1 MiB; name a file with a Provider",
            path.display()
        );
    }
    Ok(text)
}

/// The one Provider among the objects of a file.
fn provider(text: &str) -> Result<Provider> {
    let mut found = Vec::new();
    for document in documents(text) {
        let object: Value = serde_yaml::from_str(&document).context("the file is no YAML")?;
        if is_provider(&object) {
            let read = serde_json::from_value(object);
            found.push(
                read.map_err(|error| anyhow!("the Provider cannot be read: {}", without_value(&error)))?,
            );
        }
    }
    let one = found.pop().filter(|_| found.is_empty());
    one.ok_or_else(|| anyhow!("the file must have exactly one object of kind Provider"))
}

/// Whether an object is a Provider of ours: other APIs have objects of that kind, too.
fn is_provider(object: &Value) -> bool {
    let version = object["apiVersion"].as_str();
    object["kind"] == "Provider" && version.is_none_or(|version| version.starts_with("skyward.dev/"))
}

/// The documents of a YAML file.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        // A comment or the document itself may follow the mark.
        let begun = line
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if begun.is_some() {
            documents.push(String::new());
        }
        if let Some(document) = documents.last_mut() {
            document.push_str(begun.map_or(line, str::trim_start));
            document.push('\n');
        }
    }
    let says_something = |line: &str| !line.is_empty() && !line.starts_with('#');
    documents.retain(|document| document.lines().map(str::trim).any(says_something));
    documents
}

/// A client of the cluster that changes nothing there.
async fn cluster() -> Result<Client> {
    let config = crate::cluster_config().await?;
    Ok(ClientBuilder::try_from(config)
        .context(crate::UNUSABLE)?
        .with_layer(&Fencing(Fence::default()))
        .build())
}

/// The id of the cluster's installation, if the API server answers.
async fn installation(client: &Client) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let asked = tokio::time::timeout(ANSWER, namespaces.get("kube-system")).await;
    asked.ok()?.ok()?.metadata.uid
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# a sample\nkind: Secret\nmetadata: { name: verda }\n---\napiVersion: skyward.dev/v1alpha1\nkind: Provider\nmetadata: { name: verda }\nspec:\n  allowedNamespaces: {}\n  verda: { region: FIN-01 }\n---\nkind: Pool\n";

    #[test]
    fn the_provider_of_a_file_is_found_among_other_objects() {
        let found = provider(FILE).unwrap();
        assert_eq!(found.spec.account().map(|(kind, _)| kind), Some("verda"));
        for other in ["kind: Pool\n", "", &format!("{FILE}---\n{FILE}")] {
            let error = provider(other).unwrap_err();
            assert!(
                error.to_string().contains("exactly one object of kind Provider"),
                "{error}"
            );
        }
        assert!(provider("a: [").is_err());
        let of_another = "---\napiVersion: notification.toolkit.fluxcd.io/v1beta3\nkind: Provider\n";
        assert!(provider(&format!("{FILE}{of_another}")).is_ok());
    }

    #[test]
    fn a_mark_between_documents_may_have_a_comment_or_a_document_behind_it() {
        for mark in ["--- # the account", "---  ", "---\t# a\n# b"] {
            let found = provider(&FILE.replace("---", mark)).unwrap();
            assert_eq!(kind_of(&found).unwrap(), "verda");
        }
        let beside = format!("{FILE}--- {{kind: Task}}\n--- # the end\n");
        assert!(provider(&beside).is_ok());
    }

    #[test]
    fn a_provider_of_no_kind_of_two_or_of_one_that_nobody_knows_is_told_what_it_says() {
        for (spec, says) in [
            ("azure: {}", "which says: azure"),
            (
                "verda: {}\n  requestTimout: 5s",
                "which says: requestTimout, verda",
            ),
            ("container: {}\n  gcp: {}", "which says: container, gcp"),
            ("hostKeyPolicy: Verified", "which says: none"),
        ] {
            let text = FILE.replace("verda: { region: FIN-01 }", spec);
            let error = kind_of(&provider(&text).unwrap()).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.contains("gcp, hyperstack"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_key_in_the_place_of_the_name_of_its_secret_is_shown_nowhere() {
        let text = FILE.replace("verda: {", "credentialsSecretRef: canary-1\n  verda: {");
        let error = provider(&text).unwrap_err();
        let told = format!("{error:#} {error:?}");
        assert!(
            told.contains("string, expected") && !told.contains("canary"),
            "{told}"
        );
    }

    #[test]
    fn every_sample_of_a_cloud_has_a_provider_to_check() {
        for cloud in registry::clouds() {
            let root = env!("CARGO_MANIFEST_DIR");
            let path = PathBuf::from(format!("{root}/config/samples/clouds/{}.yaml", cloud.name));
            let found = provider(&text(&path).unwrap()).unwrap();
            assert_eq!(found.spec.account().map(|(kind, _)| kind), Some(cloud.name));
        }
    }

    #[test]
    fn credentials_of_the_environment_are_used_where_they_are_complete() {
        let all = |_: &str| Some("canary".to_owned());
        let found = of_environment("verda", all).unwrap();
        assert!(found.get("VERDA_CLIENT_SECRET").is_some());
        let some = |name: &str| (name == "VERDA_CLIENT_ID").then(|| "canary".to_owned());
        assert_eq!(of_environment("verda", some), None);
        assert_eq!(of_environment("verda", |_| Some(" ".to_owned())), None);
        // Without any key AWS takes the identity of the process.
        assert_eq!(of_environment("aws", |_| None), None);
    }

    #[test]
    fn a_project_in_the_environment_does_not_stand_for_the_secret_of_the_provider() {
        let of = |wanted: &'static str| {
            let found = of_environment("gcp", move |name| (name == wanted).then(|| "canary".to_owned()));
            proves_somebody("gcp", &found.unwrap())
        };
        assert!(of("GOOGLE_APPLICATION_CREDENTIALS"));
        assert!(!of("GOOGLE_CLOUD_PROJECT"));
        for cloud in registry::clouds() {
            let all = of_environment(cloud.name, |_| Some("canary".to_owned())).unwrap();
            assert!(proves_somebody(cloud.name, &all), "{}", cloud.name);
        }
    }

    #[test]
    fn a_lack_of_credentials_names_the_variables() {
        let message = missing("verda");
        assert!(
            message.contains("VERDA_CLIENT_ID, VERDA_CLIENT_SECRET"),
            "{message}"
        );
        let message = missing("gcp");
        assert!(message.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{message}");
    }
}
