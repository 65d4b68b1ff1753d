//! The hash of the environment that a Pool's image asks for, from a recent look at the Secrets and ConfigMaps that its
//! steps read. Their content is in memory for that moment only.

use skyward_api::pool::Image;
use skyward_planner::pool::{
    environment::canonical,
    facts::{MISSING_EVERY, PoolFacts, REFERENCES_EVERY},
};
use tokio::time::Instant;

use crate::{context::Context, references::materials};

/// The hash as last made; `None` where an object could not be read.
#[derive(Clone, Debug)]
pub(super) struct EnvironmentCheck {
    uid: String,
    generation: i64,
    at: Instant,
    hash: Option<String>,
}

/// The hash, from a recent look.
pub(super) async fn environment(
    context: &Context,
    pool: &PoolFacts,
    last: &mut Option<EnvironmentCheck>,
) -> Option<String> {
    let empty = Image::default();
    let image = pool.spec.image.as_ref().unwrap_or(&empty);
    if let Some(check) = last.as_ref() {
        let is_fresh = match &check.hash {
            Some(_) => !reads_objects(image) || check.at.elapsed() < REFERENCES_EVERY,
            None => check.at.elapsed() < MISSING_EVERY,
        };
        if check.uid == pool.uid && check.generation == pool.generation && is_fresh {
            return check.hash.clone();
        }
    }
    let gathered = materials::gather(&context.references, &pool.namespace, image).await;
    let hash = match gathered {
        Ok(materials) => Some(
            context
                .seal
                .environment(&pool.uid, &canonical(image, &materials.contents())),
        ),
        Err(why) => {
            tracing::debug!(pool = pool.name, why, "the environment of a Pool is not known");
            None
        }
    };
    *last = Some(EnvironmentCheck {
        uid: pool.uid.clone(),
        generation: pool.generation,
        at: Instant::now(),
        hash: hash.clone(),
    });
    hash
}

/// Whether its steps read a Secret or ConfigMap.
fn reads_objects(image: &Image) -> bool {
    let mut indexes = image.pip_indexes.iter();
    image.ca_bundle_ref.is_some()
        || !image.steps_env_from.is_empty()
        || indexes.any(|index| index.credentials_secret_ref.is_some())
}
