//! Looks at instances, and their end.

use std::collections::BTreeSet;

use aws_sdk_ec2::types::{Filter, Instance, InstanceStateName};
use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use skyward_core::{Deletion, ErrorKind, MachineRef, ProviderError, Usd, order::Owner};

use crate::{
    AT_ONCE, Aws, CAPABILITIES, SWEEP,
    cloud::{Region, call, within},
    map::{self, filter},
};

/// The result of a look for one machine.
pub(crate) enum Look {
    /// Its instance, and where that is.
    Found(Region, Box<Instance>),
    /// Nothing.
    Nothing,
    /// An instance with its id and another mark.
    Foreign,
}

impl Aws {
    /// Every instance that was started for a Machine, ended instances too.
    pub(crate) async fn instances_of(
        &self,
        region: &Region,
        cluster: &str,
        machine_uid: &str,
    ) -> Result<Vec<Instance>, ProviderError> {
        let filters = vec![
            filter(&format!("tag:{}", map::CLUSTER), &[cluster]),
            filter(&format!("tag:{}", map::MACHINE_UID), &[machine_uid]),
        ];
        self.instances(region, filters).await
    }

    pub(crate) async fn instances(
        &self,
        region: &Region,
        filters: Vec<Filter>,
    ) -> Result<Vec<Instance>, ProviderError> {
        let reservations = call(
            "list the instances",
            region
                .ec2
                .describe_instances()
                .set_filters(Some(filters))
                .into_paginator()
                .page_size(1000)
                .items()
                .send()
                .try_collect(),
        )
        .await?;
        Ok(reservations
            .into_iter()
            .flat_map(|reservation| reservation.instances.unwrap_or_default())
            .collect())
    }

    /// One instance as AWS has it now, of any owner.
    pub(crate) async fn instance(
        &self,
        region: &Region,
        id: &str,
    ) -> Result<Option<Instance>, ProviderError> {
        let answer = call(
            "look at the instance",
            region.ec2.describe_instances().instance_ids(id).send(),
        )
        .await;
        match answer {
            Ok(answer) => Ok(answer
                .reservations
                .unwrap_or_default()
                .into_iter()
                .flat_map(|reservation| reservation.instances.unwrap_or_default())
                .next()),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The instance of a Machine as AWS has it now.
    pub(crate) async fn look(&self, machine: &MachineRef) -> Result<Look, ProviderError> {
        let region = self.cloud.region(&machine.region).await?;
        let Some(id) = &machine.id else {
            // The answer to its order was lost.
            let all = self
                .instances_of(&region, &machine.mark.cluster, &machine.mark.machine_uid)
                .await?;
            let first = all
                .into_iter()
                .min_by_key(|instance| (is_over(instance), map::launched(instance)));
            return Ok(first.map_or(Look::Nothing, |instance| Look::Found(region, Box::new(instance))));
        };
        let Some(instance) = self.instance(&region, id).await? else {
            return Ok(Look::Nothing);
        };
        match machine.mark.owner_of(map::mark(instance.tags()).as_ref()) {
            Owner::Ours => Ok(Look::Found(region, Box::new(instance))),
            Owner::Another | Owner::Nobody if is_over(&instance) => Ok(Look::Nothing),
            Owner::Another => Ok(Look::Foreign),
            Owner::Nobody => Err(ProviderError::nobodys(CAPABILITIES.marking, id)),
        }
    }

    /// Price at launch, as far as it is known without a call.
    pub(crate) fn known_price(&self, region: &Region, instance: &Instance) -> Option<Usd> {
        if map::is_spot(instance) {
            self.catalogue.known_launch(instance.instance_id()?)
        } else {
            self.catalogue
                .known_price(&region.name, instance.instance_type()?.as_str())
        }
    }

    pub(crate) async fn terminate(&self, region: &Region, id: &str) -> Result<Deletion, ProviderError> {
        let answer = call(
            "delete the instance",
            region.ec2.terminate_instances().instance_ids(id).send(),
        )
        .await?;
        let over = answer
            .terminating_instances()
            .iter()
            .filter(|change| change.instance_id() == Some(id))
            .any(|change| {
                change
                    .current_state()
                    .and_then(|state| state.name())
                    .is_some_and(|state| *state == InstanceStateName::Terminated)
            });
        Ok(Deletion::gone_if(over))
    }

    /// Asks every region; one that fails fails all, since a part would read as the whole.
    pub(crate) async fn over_regions<'a, T: Send>(
        &'a self,
        operation: &'static str,
        regions: BTreeSet<String>,
        ask: impl Fn(Region) -> BoxFuture<'a, Result<Vec<T>, ProviderError>> + Send + Sync,
    ) -> Result<Vec<T>, ProviderError> {
        let mut clients = Vec::new();
        for name in regions {
            clients.push(self.cloud.region(&name).await?);
        }
        let all = stream::iter(clients.into_iter().map(ask))
            .buffered(AT_ONCE)
            .try_concat();
        within(operation, SWEEP, all).await
    }
}

/// Whether an instance has ended.
pub(crate) fn is_over(instance: &Instance) -> bool {
    is_in(instance, &InstanceStateName::Terminated)
}

/// Whether the end of an instance was ordered.
pub(crate) fn is_ending(instance: &Instance) -> bool {
    is_in(instance, &InstanceStateName::ShuttingDown)
}

fn is_in(instance: &Instance, state: &InstanceStateName) -> bool {
    instance.state().and_then(|found| found.name()) == Some(state)
}
