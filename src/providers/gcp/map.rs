//! An order becomes a request to Compute Engine, an instance becomes a machine. Pure.

use std::{collections::BTreeMap, iter};

use serde_json::{Value, json};
use skyward_api::shared::whole_gb;
use skyward_core::{
    ErrorKind, Mark, Market, Order, ProviderError, ProviderMachine, ProviderPhase,
    machine::{Endpoint, FailureKind, Rental},
    provider::AccountFact,
};
use skyward_provider_kit::{
    boot, digest,
    lookup::Listed,
    marks::{self, Tags},
    time,
};

use super::{
    client::CREATE,
    config::Settings,
    errors,
    kind::{Kind, tail},
    wire::{Attached, Instance, Operation, Place, Scope},
};

/// Marks are labels, whose keys and values have this alphabet.
const LABELS: Tags =
    Tags::new("skyward-", 63).only(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c));
/// The label by which lists find our machines.
const MANAGED: (&str, &str) = ("managed-by", "skyward");
/// Most characters of a machine's name.
const NAME: usize = 63;
/// Most bytes of the start-up script.
const SCRIPT: usize = 256_000;
/// Default image. Its drivers are installed.
const IMAGE: &str =
    "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570";
/// What a service account of a machine may be used for: its own rights say how far.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// Quotas of CPUs that machines with GPUs count in.
const CPUS: [&str; 4] = ["CPUS_ALL_REGIONS", "CPUS", "PREEMPTIBLE_CPUS", "A2_CPUS"];
/// Google runs the start-up script at each boot, and its images may keep root out.
const ONCE: &str = "#!/bin/sh\n\
    [ -e /var/lib/skyward-booted ] && exit 0\n\
    : >/var/lib/skyward-booted\n\
    sed -i 's/^[[:space:]]*PermitRootLogin[[:space:]].*/PermitRootLogin prohibit-password/' \
    /etc/ssh/sshd_config /etc/ssh/sshd_config.d/*.conf 2>/dev/null\n\
    systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null\n";

/// What a firewall rule lets in: SSH, or the machines of its Pool.
const SSH: &str = "ssh";
const POOL: &str = "pool";

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        let labels = self.labels.as_ref()?;
        LABELS.read_by(|key| labels.get(key).cloned())
    }

    /// Google does not show instances that are gone. One that was not made was never there.
    fn gone(&self) -> bool {
        self.failure.is_some()
    }
}

impl Instance {
    /// The zone that it stands in.
    pub fn zone(&self) -> &str {
        tail(&self.zone)
    }

    /// The market that it was rented on.
    pub fn market(&self) -> Market {
        if self.scheduling["provisioningModel"] == "SPOT" || self.scheduling["preemptible"] == true {
            Market::Spot
        } else {
            Market::OnDemand
        }
    }

    /// Whether it is on its way to its end, or has halted.
    pub fn is_ending(&self) -> bool {
        matches!(
            self.status.as_str(),
            "STOPPING"
                | "PENDING_STOP"
                | "SUSPENDING"
                | "DEPROVISIONING"
                | "TERMINATED"
                | "STOPPED"
                | "SUSPENDED"
        )
    }

    fn address(&self) -> Option<&str> {
        self.network_interfaces[0]["accessConfigs"][0]["natIP"].as_str()
    }
}

impl Operation {
    /// Whether it has come to its end, a good one or a bad one.
    pub fn is_done(&self) -> bool {
        self.status == "DONE"
    }
}

/// The entries of a list of all zones. A zone that did not answer makes the list no list.
pub fn listed(zones: Vec<(String, Scope<Instance>)>) -> Result<Vec<Instance>, ProviderError> {
    let mut all = Vec::new();
    for (zone, scope) in zones {
        let code = scope.warning["code"].as_str().unwrap_or("NO_RESULTS_ON_PAGE");
        if code != "NO_RESULTS_ON_PAGE" {
            let what = format!("{zone} could not be listed ({code})");
            return Err(ProviderError::new(
                ErrorKind::Transient,
                "list the instances",
                what,
            ));
        }
        all.extend(scope.instances);
    }
    Ok(all)
}

/// The name of an order's machine, which is the same at each try: Google makes no two of one name in a zone.
pub fn name(mark: &Mark) -> String {
    marks::unique_name(mark, NAME)
}

/// A token by which Google knows a request again, in the form of a UUID.
pub fn request(seed: &str) -> String {
    let digits = digest(seed, 30);
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    let first = format!("{}-{}", part(0, 8), part(8, 12));
    format!("{first}-4{}-8{}-{}", part(12, 15), part(15, 18), part(18, 30))
}

/// The firewall rules of an order's Pool by their contents.
pub fn admitted(order: &Order, settings: &Settings) -> Vec<String> {
    let network = settings.network();
    let rule = |what: &str| format!("{network} {what}");
    if order.pool.connected {
        vec![rule(SSH), rule(POOL)]
    } else {
        vec![rule(SSH)]
    }
}

/// The body that makes a firewall rule. It holds for the machines that have its name as a network tag.
pub fn firewall(name: &str, content: &str) -> Value {
    let (network, what) = content.rsplit_once(' ').unwrap_or((content, SSH));
    let mut rule = json!({
        "name": name,
        "description": content,
        "network": network,
        "direction": "INGRESS",
        "targetTags": [name],
    });
    if what == POOL {
        rule["sourceTags"] = json!([name]);
        rule["allowed"] = json!([{ "IPProtocol": "tcp" }, { "IPProtocol": "udp" }, { "IPProtocol": "icmp" }]);
    } else {
        rule["sourceRanges"] = json!(["0.0.0.0/0"]);
        rule["allowed"] = json!([{ "IPProtocol": "tcp", "ports": ["22"] }]);
    }
    rule
}

/// The labels of a machine. A mark that does not come back from them whole would be found by nobody.
fn labels(mark: &Mark) -> Result<BTreeMap<String, String>, ProviderError> {
    let tags = LABELS.write(mark);
    let comes_back = |read: Mark| read.is(mark) && read.pool_uid == mark.pool_uid;
    if !LABELS.read(&tags).is_some_and(comes_back) {
        let what = format!(
            "its labels cannot hold \"{}\", \"{}\" and \"{}\": labels have lower-case letters, digits, _ and -, at most 63",
            mark.cluster, mark.pool_uid, mark.machine_uid
        );
        return Err(ProviderError::new(
            ErrorKind::Unsupported,
            "label the instance",
            what,
        ));
    }
    let tags = tags
        .into_iter()
        .map(|tag| (tag.key, tag.value.unwrap_or_default()));
    Ok(tags
        .chain([(MANAGED.0.to_owned(), MANAGED.1.to_owned())])
        .collect())
}

/// The body that orders a machine of this type behind these firewall rules.
pub fn body(
    order: &Order,
    settings: &Settings,
    kind: &Kind,
    rules: &[String],
) -> Result<Value, ProviderError> {
    let zone = format!("zones/{}", order.region);
    let labels = labels(&order.mark)?;
    let disk = order.disk_bytes.map_or_else(|| settings.disk_gb(), whole_gb);
    let disk_type = settings.disk_type.as_deref().unwrap_or_else(|| kind.disk_type());
    let key: Vec<&str> = order.authorized_key.split_whitespace().take(2).collect();
    let item = |key: &str, value: &str| json!({ "key": key, "value": value });
    let mut body = json!({
        "name": name(&order.mark),
        "machineType": format!("{zone}/machineTypes/{}", kind.machine),
        "labels": labels,
        "tags": { "items": rules },
        "disks": [{
            "boot": true,
            // Otherwise the disk would outlive its machine, and be billed on.
            "autoDelete": true,
            "type": "PERSISTENT",
            "initializeParams": {
                "sourceImage": settings.image.as_deref().unwrap_or(IMAGE),
                "diskSizeGb": disk.to_string(),
                "diskType": format!("{zone}/diskTypes/{disk_type}"),
                "labels": labels,
            },
        }],
        "networkInterfaces": [{
            "network": settings.network(),
            "accessConfigs": [{ "name": "External NAT", "type": "ONE_TO_ONE_NAT" }],
        }],
        "metadata": { "items": [
            item("startup-script", &script(order)?),
            item("ssh-keys", &format!("root:{}", key.join(" "))),
            // Else Google, or the keys of the project, would decide who may log in.
            item("enable-oslogin", "FALSE"),
            item("block-project-ssh-keys", "TRUE"),
        ] },
        "scheduling": scheduling(order.market),
    });
    if let Some(subnet) = settings.subnet(&order.region) {
        body["networkInterfaces"][0]["subnetwork"] = json!(subnet);
    }
    if let Some((name, count)) = &kind.added {
        body["guestAccelerators"] = json!([{
            "acceleratorType": format!("{zone}/acceleratorTypes/{name}"),
            "acceleratorCount": count,
        }]);
    }
    if let Some(email) = &settings.service_account {
        body["serviceAccounts"] = json!([{ "email": email, "scopes": [SCOPE] }]);
    }
    Ok(body)
}

/// What a machine runs as root when it boots for the first time.
fn script(order: &Order) -> Result<String, ProviderError> {
    boot::at_most(SCRIPT, "Google", format!("{ONCE}{}", boot::script(order)))
}

/// Machines with GPUs cannot move to another host. One that fails is replaced, not started again with nothing on it.
fn scheduling(market: Market) -> Value {
    let mut scheduling = json!({
        "provisioningModel": "STANDARD",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": false,
    });
    if market == Market::Spot {
        scheduling["provisioningModel"] = json!("SPOT");
        // A machine that was only stopped would leave its disk on the bill.
        scheduling["instanceTerminationAction"] = json!("DELETE");
    }
    scheduling
}

/// The instance that an accepted order will be, while Google does not show it.
pub fn ordered(id: &str, order: &Order, kind: &Kind) -> Instance {
    Instance {
        id: id.to_owned(),
        name: name(&order.mark),
        status: "PROVISIONING".to_owned(),
        zone: order.region.clone(),
        machine_type: kind.machine.clone(),
        guest_accelerators: (kind.added.iter())
            .map(|(name, count)| Attached {
                accelerator_type: name.clone(),
                accelerator_count: *count,
            })
            .collect(),
        labels: labels(&order.mark).ok(),
        scheduling: scheduling(order.market),
        ..Instance::default()
    }
}

/// The instance of an accepted order that Google does not show: one on its way while the operation goes on, or one
/// that was not made. `None` where it was made, and is gone by now.
pub fn unseen(ordered: &Instance, operation: &Operation) -> Option<Instance> {
    let failure = errors::of_operation(operation, CREATE)
        .map(|error| errors::failure(errors::in_zone(error, ordered.zone())));
    let is_told = failure.is_some() || !operation.is_done();
    is_told.then(|| Instance {
        failure,
        ..ordered.clone()
    })
}

/// The id of the instance whose name kept an order from being accepted, where the instance is the order's own.
pub fn adopted(order: &Order, found: Option<Instance>) -> Result<String, ProviderError> {
    let name = name(&order.mark);
    let (kind, what) = match found {
        None => (
            ErrorKind::Transient,
            format!("{name} has just gone, and its name is free soon"),
        ),
        Some(found) if found.mark().is_none_or(|mark| !mark.is(&order.mark)) => (
            ErrorKind::InvalidOrder,
            format!(
                "another instance of {} is called {name}. Look in the console of Google Cloud whose it is, and delete it",
                order.region
            ),
        ),
        Some(found) if found.is_ending() => (
            ErrorKind::Transient,
            format!("{name} of an earlier try is still being deleted"),
        ),
        Some(found) => return Ok(found.id),
    };
    Err(ProviderError::new(kind, CREATE, what))
}

/// The machine that an instance is; `None` when it does not carry our mark. `is_ended` where its end was ordered.
pub fn machine(instance: &Instance, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = Endpoint::ssh("root", instance.address());
    let private = instance.network_interfaces[0]["networkIP"].as_str();
    Some(ProviderMachine {
        id: instance.id(),
        mark: instance.mark()?,
        phase: phase(instance, endpoint.is_some(), is_ended),
        endpoint,
        private_address: private.map(str::to_owned),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: Some(instance.zone().to_owned()),
            hourly_price: instance.price,
            billed_since: time(instance.creation_timestamp.as_deref()),
            ..Rental::default()
        },
    })
}

/// The quotas of the project and of its chosen regions that orders count in.
pub fn facts(project: &Place, regions: &[Place], settings: &Settings) -> Vec<AccountFact> {
    let counts = |metric: &str| {
        let is_gpu = metric.ends_with("_GPUS") && !metric.starts_with("COMMITTED_");
        CPUS.contains(&metric) || metric == "GPUS_ALL_REGIONS" || (is_gpu && !metric.contains("_VWS_"))
    };
    let number = |told: Option<f64>| told.map_or("?".to_owned(), |number| number.to_string());
    let chosen = regions.iter().filter(|region| settings.has(&region.name));
    let fact = |place: &Place| {
        let quotas = place.quotas.iter().filter(|quota| counts(&quota.metric));
        let told = quotas.map(|quota| {
            let (usage, limit) = (number(quota.usage), number(quota.limit));
            format!("{} {usage} of {limit}", quota.metric)
        });
        let told = told.collect::<Vec<_>>().join(", ");
        (!told.is_empty()).then(|| AccountFact {
            what: "quotas in use",
            value: format!("{} {told}", place.name),
        })
    };
    iter::once(project).chain(chosen).filter_map(fact).collect()
}

fn phase(instance: &Instance, reachable: bool, is_ended: bool) -> ProviderPhase {
    if let Some(failure) = &instance.failure {
        return ProviderPhase::Failed(failure.clone());
    }
    match instance.status.as_str() {
        "RUNNING" if reachable => ProviderPhase::Running,
        "RUNNING" => ProviderPhase::starting("waits for its public address"),
        "PENDING" | "PROVISIONING" | "STAGING" => ProviderPhase::starting("Google makes it"),
        "REPAIRING" => ProviderPhase::starting("Google repairs it"),
        _ if instance.is_ending() && instance.market() == Market::Spot && !is_ended => {
            ProviderPhase::failed(FailureKind::Reclaimed, "Google took the spot machine back")
        }
        "DEPROVISIONING" => ProviderPhase::Stopping,
        "STOPPING" | "PENDING_STOP" | "SUSPENDING" if is_ended => ProviderPhase::Stopping,
        _ if instance.is_ending() => {
            ProviderPhase::Stopped("it is halted, and Google bills its disk until it is deleted".into())
        }
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Google: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
