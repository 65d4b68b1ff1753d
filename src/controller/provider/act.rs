//! Carries out a Provider's plan; makes no choices. Offers are written before the status that counts
//! them.

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use skyward_api::{Offer, Provider as ProviderObject, ProviderStatus, labels};
use skyward_core::PoolScope;
use skyward_planner::provider::plan::{Plan, ProviderMemory};

use super::Providers;
use crate::{
    api::{ApiError, finalizer_patch, write},
    newest::Record,
};

/// Offers of one Provider written at the same time.
const WRITES: usize = 16;

impl Providers {
    /// Carries out. `compared`: whether the plan was made from all that the account offers.
    pub(super) async fn carry_out(
        &self,
        record: &mut Record<'_, ProviderObject>,
        memory: &mut ProviderMemory,
        compared: bool,
        plan: Plan,
    ) -> Result<(), ApiError> {
        let Plan {
            add_finalizer,
            apply,
            delete,
            status,
            release,
            event,
            remove_finalizer,
            again: _,
        } = plan;
        if add_finalizer {
            self.set_finalizer(record, true).await?;
        }
        let mut effects: Vec<BoxFuture<'_, Result<(), ApiError>>> = Vec::new();
        effects.extend(apply.into_iter().map(|offer| self.apply_offer(offer).boxed()));
        effects.extend(delete.into_iter().map(|name| self.delete_offer(name).boxed()));
        let mut effects = stream::iter(effects).buffer_unordered(WRITES);
        let mut failure = None;
        while let Some(result) = effects.next().await {
            failure = failure.or(result.err());
        }
        match (&failure, compared) {
            (Some(_), _) => memory.offers_failed(),
            (None, true) => memory.offers_written(),
            (None, false) => {}
        }
        if let Some(status) = status {
            let written = self.write_status(record, &status).await;
            written.inspect_err(|_| memory.status_failed())?;
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let name = record.object().name_any();
        self.release(&name, &release).await;
        if let Some(event) = event {
            self.context
                .events
                .publish(&record.object().object_ref(&()), event);
        }
        if remove_finalizer {
            self.set_finalizer(record, false).await?;
            self.context.providers.remove(&name);
        }
        Ok(())
    }

    /// Returns the resources that Pools shared at an account; the next look tells whether that
    /// worked.
    async fn release(&self, provider: &str, scopes: &[PoolScope]) {
        let Some(account) = self.context.providers.get(provider) else {
            return;
        };
        for scope in scopes {
            if let Err(error) = account.provider.release(scope).await {
                tracing::warn!(provider, pool_uid = scope.pool_uid, %error, "what a Pool shared could not be returned; it is tried again");
            }
        }
    }

    /// Writes with the resource version of the plan, so that a plan made on an old view is refused.
    async fn set_finalizer(&self, record: &mut Record<'_, ProviderObject>, on: bool) -> Result<(), ApiError> {
        let api: Api<ProviderObject> = Api::all(self.context.client.clone());
        let (provider, parameters) = (record.object().clone(), PatchParams::apply(labels::MANAGER));
        let (name, patch) = (provider.name_any(), finalizer_patch(provider.as_ref(), on));
        let answer = api.patch_metadata(&name, &parameters, &patch);
        let what = "change the finalizers of the Provider";
        let written = write(&self.context.metrics, "Provider", what, answer).await?;
        record.wrote(ProviderObject {
            metadata: written.metadata,
            ..ProviderObject::clone(&provider)
        });
        Ok(())
    }

    /// Writes with the version of the plan, which added the cost of machines to its amounts.
    async fn write_status(
        &self,
        record: &mut Record<'_, ProviderObject>,
        status: &ProviderStatus,
    ) -> Result<(), ApiError> {
        let api: Api<ProviderObject> = Api::all(self.context.client.clone());
        let provider = record.object().clone();
        // JSON leaves out empty fields, which a merge patch would have to name: so the whole status
        // is replaced.
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": provider.metadata.uid },
            { "op": "add", "path": "/metadata/resourceVersion", "value": provider.metadata.resource_version },
            { "op": "add", "path": "/status", "value": status },
        ]);
        let what = "write the status of the Provider";
        let patch: Patch<()> = match serde_json::from_value(patch) {
            Ok(patch) => Patch::Json(patch),
            Err(error) => return Err(ApiError::Api(what, Box::new(kube::Error::SerdeError(error)))),
        };
        let (name, parameters) = (provider.name_any(), PatchParams::apply(labels::MANAGER));
        let answer = api.patch_status(&name, &parameters, &patch);
        record.wrote(write(&self.context.metrics, "Provider", what, answer).await?);
        Ok(())
    }

    async fn apply_offer(&self, offer: Offer) -> Result<(), ApiError> {
        // Never closed, so there is no error.
        let _turn = self.writes.acquire().await;
        let api: Api<Offer> = Api::all(self.context.client.clone());
        let (name, parameters) = (offer.name_any(), PatchParams::apply(labels::MANAGER).force());
        let patch = Patch::Apply(&offer);
        let answer = api.patch(&name, &parameters, &patch);
        write(&self.context.metrics, "Offer", "write an Offer", answer).await?;
        Ok(())
    }

    async fn delete_offer(&self, name: String) -> Result<(), ApiError> {
        // Never closed, so there is no error.
        let _turn = self.writes.acquire().await;
        let api: Api<Offer> = Api::all(self.context.client.clone());
        let parameters = DeleteParams::default();
        let answer = api.delete(&name, &parameters);
        match write(&self.context.metrics, "Offer", "delete an Offer", answer).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
