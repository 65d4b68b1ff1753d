//! Carries an order out: finds or makes network, image and template, then EC2 Fleet starts the
//! machine. New resources are tagged in the call that makes them, so that the sweep finds
//! everything that a crash between two steps leaves.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_ec2::{
    config::retry::RetryConfig,
    types::{FleetType, ResourceType, TagSpecification},
};
use parking_lot::Mutex;
use skyward_core::{ErrorKind, Order, ProviderError};
use skyward_provider_kit::{boot, http::Effect, kind::overridden};
use tokio::time::{Instant, timeout};

use crate::{
    Aws, KIND, RECENT, SETTLE,
    cloud::{Region, call},
    config::Settings,
    errors::{fleet_error, provider_error},
    images,
    look::{is_ending, is_over},
    map::{self, Template},
    network::{self, Subnet, there},
};

/// An order at EC2: where that is, if not at its own address, and the token.
type Asked = (Option<String>, String);

/// How often fleets answered an order and started nothing. Kept by the process and not by a client,
/// since new settings or credentials, which may mend the cause, make a new client. When it is
/// forgotten, EC2 repeats each of its refusals once.
static REFUSALS: Mutex<BTreeMap<Asked, u32>> = Mutex::new(BTreeMap::new());

/// EC2 takes no more bytes of user data than this, before they are encoded.
const USER_DATA: usize = 16 * 1024;
/// Tokens that one order tries at most.
const TOKENS: u32 = 3;
/// Longest look at whether the machine in the answer to an order has ended.
const LOOK: Duration = Duration::from_secs(5);
/// By then AWS shows the machine of an earlier order with the same token. Shorter than [`SETTLE`],
/// so that an order whose token is used up succeeds within a minute; a machine that shows up even
/// later is the second of its record, which the sweep ends.
const SHOWN: Duration = Duration::from_secs(45);
/// AWS knows the token from an order with other parameters.
const MISMATCH: &str = "IdempotentParameterMismatch";

/// The outcome of an order.
enum Asking {
    /// Its id and zone.
    Started(String, Option<String>),
    /// The token is that of an order whose machine is gone.
    Spent,
}

/// The parts that an order is started from.
pub(crate) struct Prepared {
    pub(crate) region: Region,
    settings: Settings,
    template: Template,
    pub(crate) subnets: Vec<Subnet>,
}

impl Aws {
    /// Everything that an order needs besides its machine.
    pub(crate) async fn prepare(&self, order: &Order) -> Result<Prepared, ProviderError> {
        let settings: Settings = overridden(KIND, &self.settings, &order.overrides)?;
        let region = self.cloud.region(&order.region).await?;
        let name = region.name.to_string();
        let (kind, zones, subnets) = futures::try_join!(
            self.catalogue.kind(&region, &order.instance_type),
            self.catalogue.zones(&region),
            self.subnets.get((name.clone(), settings.subnet_id.clone()), || {
                network::subnets(&region, settings.subnet_id.as_deref())
            }),
        )?;
        let carried = zones.get(&order.instance_type);
        let subnets: Vec<Subnet> = subnets
            .iter()
            .filter(|subnet| carried.is_some_and(|zones| zones.contains(&subnet.zone)))
            .cloned()
            .collect();
        let Some(subnet) = subnets.first() else {
            return Err(ProviderError::new(
                ErrorKind::NoCapacity,
                "create the instance",
                match carried {
                    Some(zones) => format!(
                        "{} is sold in {} only, where there is no subnet for it; make one, or leave aws.subnetId out",
                        order.instance_type,
                        zones.iter().cloned().collect::<Vec<_>>().join(", ")
                    ),
                    None => format!("{} is not sold in {name}", order.instance_type),
                },
            ));
        };
        let image_key = settings
            .ami
            .clone()
            .unwrap_or_else(|| images::parameter(settings.ubuntu(), &kind));
        let (image, group) = futures::try_join!(
            self.images.get((name.clone(), image_key), || images::image(
                &region, &settings, &kind
            )),
            self.group(&region, order, &settings, &subnet.vpc),
        )?;
        let user_data = boot::cloud_config(settings.user(), order);
        let user_data = boot::at_most(USER_DATA, "EC2", user_data)?;
        let template = map::template(
            order,
            &self.provider,
            &settings,
            &image,
            &group,
            subnet.public,
            &user_data,
        );
        Ok(Prepared {
            region,
            settings,
            template,
            subnets,
        })
    }

    async fn group(
        &self,
        region: &Region,
        order: &Order,
        settings: &Settings,
        vpc: &str,
    ) -> Result<String, ProviderError> {
        if let Some(given) = &settings.security_group_id {
            return Ok(given.clone());
        }
        let key = (
            region.name.to_string(),
            order.mark.pool_uid.clone(),
            vpc.to_owned(),
        );
        let group = self
            .groups
            .get(key, || network::group(region, &order.mark, &self.provider, vpc))
            .await?;
        Ok(group.to_string())
    }

    /// Makes the template unless it exists: its name is made from its content.
    async fn template(&self, order: &Order, prepared: &Prepared) -> Result<(), ProviderError> {
        let Prepared { region, template, .. } = prepared;
        let key = (region.name.to_string(), template.name.clone());
        self.templates
            .get(key, || async {
                let tags = TagSpecification::builder()
                    .resource_type(ResourceType::LaunchTemplate)
                    .set_tags(Some(map::pool_tags(&order.mark, &self.provider)))
                    .build();
                let made = call(
                    "create the launch template",
                    region
                        .ec2
                        .create_launch_template()
                        .launch_template_name(&template.name)
                        .launch_template_data(template.data.clone())
                        .tag_specifications(tags)
                        .send(),
                )
                .await;
                there(made)
            })
            .await
            .map(drop)
    }

    /// Deletes the template of a machine that has one of its own, because its user data have a token:
    /// EC2 needs a template no longer than for the order. One that stays goes with the Pool.
    pub(crate) async fn end_own_template(&self, order: &Order, prepared: &Prepared) {
        if order.host_token.is_none() {
            return;
        }
        let Prepared { region, template, .. } = prepared;
        // Where this fails, the template goes with its Pool.
        let _ = call(
            "delete the launch template",
            region
                .ec2
                .delete_launch_template()
                .launch_template_name(&template.name)
                .send(),
        )
        .await;
        self.templates.forget(|(_, name)| *name == template.name);
    }

    /// Starts the machine in a zone, or in any; answers with its id and zone.
    pub(crate) async fn start(
        &self,
        order: &Order,
        prepared: &Prepared,
        zone: Option<String>,
    ) -> Result<(String, Option<String>), ProviderError> {
        let Prepared {
            region,
            settings,
            template,
            subnets,
        } = prepared;
        let subnets: Vec<&Subnet> = subnets
            .iter()
            .filter(|subnet| zone.as_ref().is_none_or(|zone| subnet.zone == *zone))
            .collect();
        if subnets.is_empty() {
            return Err(ProviderError::new(
                ErrorKind::NoCapacity,
                "create the instance",
                format!(
                    "the Pool's machines are in {}, where {} is not sold or no subnet is",
                    zone.unwrap_or_default(),
                    order.instance_type
                ),
            ));
        }
        self.template(order, prepared).await?;
        let fleet = map::fleet(order, &self.provider, settings, &template.name, &subnets);
        let asked = (self.cloud.endpoint("aws-ec2", &region.name), fleet.token.clone());
        for _ in 0..TOKENS {
            match self.ask(order, region, &fleet, &asked, &subnets).await? {
                Asking::Started(id, zone) => return Ok((id, zone)),
                Asking::Spent => note_refusal(asked.clone()),
            }
        }
        Err(ProviderError::new(
            ErrorKind::Transient,
            "create the instance",
            "AWS answered with an instance that has ended, of an earlier order",
        ))
    }

    /// Sends an order with the token that is next.
    async fn ask(
        &self,
        order: &Order,
        region: &Region,
        fleet: &map::Fleet,
        asked: &Asked,
        subnets: &[&Subnet],
    ) -> Result<Asking, ProviderError> {
        let fleet = fleet.clone();
        self.recent.insert(order.mark.machine_uid.clone(), ());
        let answer = region
            .ec2
            .create_fleet()
            .client_token(unused(asked))
            .r#type(FleetType::Instant)
            .launch_template_configs(fleet.config)
            .target_capacity_specification(fleet.capacity)
            .set_spot_options(fleet.spot)
            .set_on_demand_options(fleet.on_demand)
            .set_tag_specifications(Some(fleet.tags))
            .customize()
            // Not repeated by the SDK: after a refusal the Pool moves on at once, and after a lost
            // answer comes a look.
            .config_override(aws_sdk_ec2::config::Config::builder().retry_config(RetryConfig::disabled()))
            .send()
            .await
            .map_err(|error| provider_error("create the instance", Effect::Creates, &error));
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.refused(order, region, asked, error).await,
        };
        let started = answer.instances().iter().find_map(|set| {
            let id = set.instance_ids().first()?;
            let used = set
                .launch_template_and_overrides()
                .and_then(|used| used.overrides());
            let subnet = set.subnet_id().or_else(|| used.and_then(|used| used.subnet_id()));
            let zone = set
                .availability_zone()
                .or_else(|| used.and_then(|used| used.availability_zone()))
                .map(str::to_owned)
                .or_else(|| {
                    let subnet = subnets.iter().find(|known| Some(known.id.as_str()) == subnet)?;
                    Some(subnet.zone.clone())
                });
            Some((id.clone(), zone))
        });
        if let Some((id, zone)) = started {
            return Ok(if self.has_ended(region, &id).await {
                Asking::Spent
            } else {
                Asking::Started(id, zone)
            });
        }
        note_refusal(asked.clone());
        let error = fleet_error("create the instance", answer.errors());
        self.refused(order, region, asked, error).await
    }

    /// Whether the machine in the answer to an order has ended: then the token is that of an
    /// earlier order, whose machine has ended since. Where this cannot be known, the next look at
    /// the machine tells.
    async fn has_ended(&self, region: &Region, id: &str) -> bool {
        let looked = timeout(LOOK, self.instance(region, id)).await;
        matches!(looked, Ok(Ok(Some(instance))) if is_over(&instance) || is_ending(&instance))
    }

    /// Judges a refusal: the token of an earlier order leads to that order's machine, and resources
    /// that are gone at AWS are dropped from the caches.
    async fn refused(
        &self,
        order: &Order,
        region: &Region,
        asked: &Asked,
        error: ProviderError,
    ) -> Result<Asking, ProviderError> {
        match error.code.as_deref() {
            Some(MISMATCH) => {
                let found = self
                    .instances_of(region, &order.mark.cluster, &order.mark.machine_uid)
                    .await?;
                let was_there = !found.is_empty();
                let alive = found
                    .into_iter()
                    .find(|instance| !is_over(instance) && !is_ending(instance));
                if let Some(instance) = alive
                    && let Some(id) = instance.instance_id()
                {
                    let zone = map::zone(&instance).map(str::to_owned);
                    return Ok(Asking::Started(id.to_owned(), zone));
                }
                // The token is that of an order whose machine has ended, or of another Machine
                // altogether, as after a cluster was restored.
                if was_there || self.is_certain(asked) {
                    return Ok(Asking::Spent);
                }
            }
            Some(code) if code.starts_with("InvalidLaunchTemplate") => {
                self.templates.forget(|(name, _)| **name == *region.name);
            }
            Some(code) if code.starts_with("InvalidGroup") || code.starts_with("InvalidSecurityGroup") => {
                self.groups
                    .forget(|(name, pool, _)| **name == *region.name && *pool == order.mark.pool_uid);
            }
            Some(code) if code.starts_with("InvalidSubnet") => {
                self.subnets.forget(|(name, _)| **name == *region.name);
            }
            Some(code) if code.starts_with("InvalidAMIID") => {
                self.images.forget(|(name, _)| **name == *region.name);
            }
            _ => {}
        }
        Err(error)
    }

    /// Whether AWS has said for so long that an order with this token was another one that it
    /// would show its machine by now.
    fn is_certain(&self, asked: &Asked) -> bool {
        let mut doubts = self.doubts.lock();
        if doubts.len() >= RECENT {
            doubts.retain(|_, since| since.elapsed() < SETTLE);
        }
        let token = unused(asked);
        let since = *doubts.entry(token.clone()).or_insert_with(Instant::now);
        let is_certain = since.elapsed() >= SHOWN;
        if is_certain {
            doubts.remove(&token);
        }
        is_certain
    }
}

/// The token of an order, or the next one after the tokens that were refused.
fn unused(asked: &Asked) -> String {
    let refusals = REFUSALS.lock();
    match refusals.get(asked) {
        Some(times) => map::next_token(&asked.1, *times),
        None => asked.1.clone(),
    }
}

/// The answer to an order came, and nothing was started.
fn note_refusal(asked: Asked) {
    let mut refusals = REFUSALS.lock();
    if refusals.len() >= RECENT {
        refusals.clear();
    }
    *refusals.entry(asked).or_default() += 1;
}
