//! An order becomes a request to Novita, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_api::shared::whole_gb;
use skyward_core::{
    ErrorKind, Mark, Market, Order, ProviderError, ProviderMachine, ProviderPhase, Secret,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    lookup::Listed,
    marks::{self, Name},
    mentions, said, says, ssh,
};

use super::{
    config::{Settings, Start},
    wire::{Instance, Product, moment, number},
};

/// Variable that carries the whole mark: the API shows the environment of a machine.
pub const MARK: &str = "SKYWARD_MARK";
/// Names that carry the UIDs of a mark, of letters, digits and hyphens alone.
const NAME: Name = Name::new("skyward", '-', 255);
/// Bounds of a disk in GB, whatever the product.
const DISK: (u32, u32) = (10, 6144);
/// Where a reclaim that was announced stands. The words of other clients are among them.
const RECLAIMS: [&str; 4] = ["notified", "reclaiming", "reclaimed", "terminated"];

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    /// A person may give a machine another name, and a list may leave its environment out: one of both is enough.
    fn mark(&self) -> Option<Mark> {
        let in_environment = || {
            let mut all = self.envs.as_array()?.iter();
            let mark = all.find(|one| one["key"] == MARK)?["value"].as_str()?;
            serde_json::from_str(mark).ok()
        };
        in_environment().or_else(|| NAME.read(self.name.as_deref()?))
    }

    fn gone(&self) -> bool {
        self.status == "removed" || self.status == "terminated"
    }

    /// Lists may leave passwords out.
    fn is_brief(&self) -> bool {
        let answers = self
            .ssh
            .as_ref()
            .is_some_and(|told| told.is_running == Some(true));
        self.status == "running" && answers && self.password().is_none()
    }
}

impl Instance {
    /// The market that it was rented on.
    pub fn market(&self) -> Market {
        if self.billing_mode == "spot" {
            Market::Spot
        } else {
            Market::OnDemand
        }
    }

    /// Whether its end was ordered.
    pub fn is_ending(&self) -> bool {
        self.status == "toRemove" || self.status == "removing"
    }

    /// Whether Novita said that it takes the spot machine back.
    pub fn is_reclaimed(&self) -> bool {
        let status = self.spot_status.as_deref();
        let is_told = || status.is_some_and(|status| RECLAIMS.contains(&status));
        self.market() == Market::Spot && (moment(&self.spot_reclaim_time).is_some() || is_told())
    }

    /// The password, where it is told.
    pub fn password(&self) -> Option<&Secret> {
        let beside = self.ssh.as_ref().and_then(|told| told.password.as_ref());
        beside.or(self.ssh_password.as_ref())
    }

    /// SSH through the proxy, once it answers. A machine that answers and of which no password is told any more is
    /// logged in to by the key.
    fn endpoint(&self) -> Option<Endpoint> {
        let told = self.ssh.as_ref().filter(|told| told.is_running != Some(false))?;
        let mut commands = [&told.ssh_command, &told.command].into_iter().flatten();
        let found = commands.find_map(|command| ssh::endpoint(command, "root"))?;
        let password = self.password().cloned();
        let is_told = password.is_some() || told.is_running == Some(true);
        is_told.then_some(Endpoint { password, ..found })
    }
}

/// The name of a machine: with its mark, where that fits. An installation whose id is no UID has none that does.
fn name(mark: &Mark) -> String {
    NAME.write(mark).unwrap_or_else(|_| marks::unique_name(mark, 63))
}

/// Size of the disk in GB, within the bounds of the product.
fn disk(order: &Order, settings: &Settings, product: &Product) -> Result<u32, ProviderError> {
    let bound = |value, other: u32| number(value).filter(|bound| *bound > 0).unwrap_or(other);
    let most = bound(&product.most_disk, DISK.1).clamp(DISK.0, DISK.1);
    let least = bound(&product.least_disk, DISK.0).clamp(DISK.0, most);
    match order.disk_bytes.map(whole_gb) {
        Some(size) if size > most => {
            let what = format!("this product has at most {most} GB of disk; ask for less disk in the Pool");
            Err(ProviderError::new(
                ErrorKind::InvalidOrder,
                "create the instance",
                what,
            ))
        }
        Some(size) => Ok(size.max(least)),
        None => Ok(settings.disk_gb().clamp(least, most)),
    }
}

/// The body that orders a machine with so many GPUs of this product, which starts from this image.
pub fn body(
    order: &Order,
    settings: &Settings,
    (count, product): (u32, &Product),
    (image, cuda): Start,
) -> Result<Value, ProviderError> {
    let mark = serde_json::to_string(&order.mark).unwrap_or_default();
    let mut body = json!({
        "name": name(&order.mark),
        "productId": product.id,
        "gpuNum": count,
        "rootfsSize": disk(order, settings, product)?,
        "imageUrl": image,
        "kind": "gpu",
        "billingMode": if order.market == Market::Spot { "spot" } else { "onDemand" },
        "envs": [{ "key": MARK, "value": mark }],
    });
    for (field, value) in [
        ("clusterId", settings.cluster_id.clone()),
        ("minCudaVersion", cuda),
    ] {
        if let Some(value) = value {
            body[field] = value.into();
        }
    }
    Ok(body)
}

/// The machine that an instance is; `None` when it does not carry our mark. `is_ended` where its end was ordered.
pub fn machine(instance: &Instance, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = instance.endpoint();
    let phase = phase(instance, endpoint.is_some(), is_ended);
    Some(ProviderMachine {
        rental: Rental {
            region: instance.cluster_name.clone().filter(|name| !name.is_empty()),
            hourly_price: instance.price,
            billed_since: moment(&instance.created_at),
            reclaim_at: moment(&instance.spot_reclaim_time)
                .filter(|_| instance.market() == Market::Spot && !is_ended),
        },
        ..ProviderMachine::public(instance.id(), instance.mark()?, phase, endpoint)
    })
}

fn phase(instance: &Instance, reachable: bool, is_ended: bool) -> ProviderPhase {
    let stopped = |why: &str| ProviderPhase::Stopped(why.to_owned());
    let is_taken = instance.is_reclaimed() && !is_ended;
    match instance.status.as_str().unwrap_or_default() {
        "running" if reachable => ProviderPhase::Running,
        "running" => ProviderPhase::starting("waits for SSH through Novita's proxy"),
        "toStop" | "stopping" | "exited" | "toRemove" | "removing" | "removed" | "terminated" if is_taken => {
            ProviderPhase::failed(FailureKind::Reclaimed, "Novita took the spot machine back")
        }
        "toStop" | "stopping" | "exited" => {
            stopped("it was stopped, or its first process ended; Novita bills its disk until it is deleted")
        }
        "freezing" => {
            stopped("Novita halts the machines of an account that cannot pay; add credit to the account")
        }
        "toRemove" | "removing" | "removed" | "terminated" => ProviderPhase::Stopping,
        "error" | "failed" => failed(instance),
        _ if instance.status_error["state"]
            .as_str()
            .is_some_and(|state| !state.is_empty()) =>
        {
            failed(instance)
        }
        "pulling" => ProviderPhase::starting("its image is loaded; a large one takes minutes"),
        // Also a status that is new: the Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Novita: {}", said(other))),
    }
}

/// The phase of a machine that failed, by what Novita says about it.
fn failed(instance: &Instance) -> ProviderPhase {
    let error = &instance.status_error;
    let words = [&error["state"], &error["message"]].map(|part| said(part.as_str().unwrap_or_default()));
    let words = words.join(" ").trim().to_owned();
    let kind = if says(&words, &["insufficient resource"]) {
        FailureKind::NoCapacity
    } else if mentions(&words, &["image", "manifest", "pull"]) {
        FailureKind::ImagePull
    } else {
        FailureKind::Other
    };
    ProviderPhase::failed(kind, format!("Novita reports an error of the machine: {words}"))
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
