//! `skyward crds print|apply`: the custom resource definitions this binary was built
//! with. The chart's upgrade hook runs `apply`, since Helm never upgrades `crds/`.

use std::{io::Write as _, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::PostParams};
use skyward_api::labels;

#[derive(Subcommand, Clone, Copy)]
pub(crate) enum Command {
    /// Prints them as a JSON list, which kubectl applies as it is.
    Print,
    /// Applies them and waits until they are served.
    Apply,
}

pub(crate) async fn run(command: Command) -> Result<()> {
    match command {
        Command::Print => print(),
        Command::Apply => apply().await,
    }
}

fn print() -> Result<()> {
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": skyward_api::crd::all(&skyward_providers::registry::account_kinds()) });
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &list)?;
    out.write_all(b"\n")?;
    Ok(())
}

async fn apply() -> Result<()> {
    let client = crate::connect().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for definition in skyward_api::crd::all(&skyward_providers::registry::account_kinds()) {
        let name = definition.metadata.name.clone().unwrap_or_default();
        put(&definitions, &name, definition)
            .await
            .with_context(|| format!("could not apply the custom resource definition \"{name}\""))?;
        established(&definitions, &name).await?;
        tracing::info!(name, "custom resource definition applied");
    }
    Ok(())
}

/// Makes it exactly this one. Server-side apply would not: what Helm or kubectl created
/// stays theirs too, so a rule or field that this version dropped would stay in force.
async fn put(
    definitions: &Api<CustomResourceDefinition>,
    name: &str,
    wanted: CustomResourceDefinition,
) -> Result<()> {
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..PostParams::default()
    };
    for _ in 0..10 {
        let written = match definitions.get_opt(name).await? {
            None => definitions.create(&params, &wanted).await,
            Some(mut present) => {
                present.spec = wanted.spec.clone();
                definitions.replace(name, &params, &present).await
            }
        };
        match written {
            Ok(_) => return Ok(()),
            // The API server writes conditions into it at the same time.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            // Its words once; the whole error has them three times, with all details.
            Err(kube::Error::Api(status)) => bail!("the API server refuses it: {}", status.message),
            Err(error) => return Err(error.into()),
        }
    }
    bail!("somebody else changes it all the time; try again")
}

async fn established(definitions: &Api<CustomResourceDefinition>, name: &str) -> Result<()> {
    for _ in 0..150 {
        let definition = definitions
            .get(name)
            .await
            .with_context(|| format!("could not read \"{name}\""))?;
        let conditions = definition
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        if conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("\"{name}\" was applied but is not served after 30 s; see `kubectl describe crd {name}`")
}
