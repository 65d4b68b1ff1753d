//! Waits for our custom resources: an operator may be installed before them.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use skyward_api::{CronTask, Machine, Offer, Pool, Provider, Task};
use tokio::time::sleep;

use crate::{health::Health, runtime::Error};

/// Waits until our custom resources are served; logs once while they are not.
pub(crate) async fn wait_for_crds(client: &Client, health: &Health) -> Result<(), Error> {
    served::<Pool>(client, health).await?;
    served::<Machine>(client, health).await?;
    served::<Provider>(client, health).await?;
    served::<Offer>(client, health).await?;
    served::<Task>(client, health).await?;
    served::<CronTask>(client, health).await
}

async fn served<K>(client: &Client, health: &Health) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let what = format!("{}.{}", K::plural(&()), K::group(&()));
    let mut announced = false;
    loop {
        let one = ListParams::default().limit(1);
        match api.list_metadata(&one).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(Error::Forbidden {
                    what,
                    message: status.message.clone(),
                });
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                if !announced {
                    let missing = format!(
                        "the custom resource {what} is not installed; waiting for it (kubectl apply -k config/crds, or the chart's crds/)"
                    );
                    tracing::warn!("{missing}");
                    health.hindered(missing);
                    announced = true;
                }
            }
            Err(error) => {
                tracing::warn!(%error, resource = what, "the API server does not answer; trying again");
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}
