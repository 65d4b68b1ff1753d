//! An order becomes a request to Vast.ai, an instance becomes a machine. Pure.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skyward_api::shared::whole_gb;
use skyward_core::{
    Mark, Order, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    Amount, boot,
    lookup::Listed,
    marks::{self, Name},
    mentions, quoted, said,
};

use super::{config::Settings, offers, wire::Instance};

/// Longest label that is written. The API takes 1024 bytes when a label is changed, and does not
/// tell the limit for orders; only names, which are for people, are cut.
const LONGEST: usize = 255;
/// Labels of machines.
const LABEL: Name = Name::new("skyward", '/', LONGEST);
/// Labels of machines in an overlay network.
const NETWORKED: Name = Name::new("skyward-overlay", '/', LONGEST);
/// The network interface of the overlay network in a container.
const INTERFACE: &str = "eth0";
/// How long before the end of its contract a machine is given up: enough for the look at the
/// account each minute, and for its runs to end.
const NOTICE: SignedDuration = SignedDuration::from_mins(5);
/// Longest start-up script that Vast.ai takes.
const SCRIPT: usize = 4048;

/// The mark as a label.
pub fn label(mark: &Mark, networked: bool) -> Result<String, ProviderError> {
    let label = if networked { NETWORKED } else { LABEL };
    label.write(mark)
}

/// The mark in this label, if it is ours.
pub fn mark(label: &str) -> Option<Mark> {
    LABEL.read(label).or_else(|| NETWORKED.read(label))
}

/// The start-up script: lets the Pool's key in, mends file modes that some hosts break, and runs
/// the boot script, but only at the first boot.
fn script(order: &Order) -> Result<String, ProviderError> {
    let script = format!(
        "env | grep -vE '^(CONTAINER_API_KEY|JUPYTER_TOKEN|SSH_[A-Z]+|HOME|PWD|SHLVL|_)=' >> /etc/environment\n\
         mkdir -p /root/.ssh\n\
         grep -qxF {key} /root/.ssh/authorized_keys 2>/dev/null || echo {key} >> /root/.ssh/authorized_keys\n\
         chown -R root:root /root/.ssh; chmod 700 /root /root/.ssh; chmod 600 /root/.ssh/authorized_keys\n\
         if [ ! -e /root/.skyward-booted ]; then\n\
         touch /root/.skyward-booted\n\
         {boot}\n\
         fi\n",
        key = quoted(order.authorized_key.trim()),
        boot = if order.boot_script.trim().is_empty() {
            ":"
        } else {
            order.boot_script.trim_end()
        },
    );
    boot::at_most(SCRIPT, "Vast.ai", script)
}

/// Size in GB of the disk of an order.
pub fn disk_gb(order: &Order, settings: &Settings) -> u32 {
    order.disk_bytes.map_or_else(|| settings.disk_gb(), whole_gb)
}

/// Name of the overlay network of a Pool in a cluster.
pub fn overlay(mark: &Mark, cluster: u64) -> String {
    let name = marks::pool_name(&mark.cluster, &mark.pool_uid);
    format!("{name}.{cluster}")
}

/// The overlay network that a machine is in, or was ordered to join.
pub fn overlay_of(instance: &Instance) -> Option<String> {
    let label = instance.label.as_deref()?;
    let mark = mark(label)?;
    Some(overlay(&mark, network(instance, label)?))
}

/// The cluster of a machine that is in an overlay network by its label.
fn network(instance: &Instance, label: &str) -> Option<u64> {
    instance.cluster_id.filter(|_| NETWORKED.read(label).is_some())
}

/// The body that rents, into this overlay network; with a bid it is for the spot market.
pub fn body(
    order: &Order,
    settings: &Settings,
    bid: Option<Usd>,
    overlay: Option<&str>,
) -> Result<Value, ProviderError> {
    let mut body = json!({
        "client_id": "me",
        "image": settings.image(),
        "disk": disk_gb(order, settings),
        "label": label(&order.mark, overlay.is_some())?,
        "runtype": "ssh_direct",
        "onstart": script(order)?,
        "target_state": "running",
        // An order that cannot be filled now is refused instead of queued.
        "cancel_unavail": true,
    });
    if let Some(bid) = bid {
        body["price"] = bid.to_f64().into();
    }
    let options = order.shm_bytes.map(|bytes| format!("--shm-size={bytes}"));
    let network = overlay.map(|name| format!("-n {name}"));
    let env: serde_json::Map<_, _> = options
        .into_iter()
        .chain(network)
        .map(|option| (option, "1".into()))
        .collect();
    if !env.is_empty() {
        body["env"] = Value::Object(env);
    }
    Ok(body)
}

/// When the contract ends, once that is near: an announced machine is given up at once. A past end
/// that left the machine running does not count.
fn ends_at(instance: &Instance, now: Timestamp) -> Option<Timestamp> {
    let end = moment(instance.end_date?)?;
    (end > now && end <= now + NOTICE).then_some(end)
}

/// Seconds since 1970 as a moment.
fn moment(seconds: f64) -> Option<Timestamp> {
    Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()
}

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn mark(&self) -> Option<Mark> {
        mark(self.label.as_deref()?)
    }

    /// The contract is over.
    fn gone(&self) -> bool {
        self.cur_state.as_deref() == Some("unloaded")
    }
}

/// Whether its host is silent; that may pass.
pub fn silent(instance: &Instance) -> bool {
    matches!(instance.actual_status.as_deref(), Some("unknown" | "offline"))
}

/// The machine that an instance is; `None` when it does not carry our mark. `lost`: its
/// host has been silent for too long.
pub fn machine(
    instance: &Instance,
    settings: &Settings,
    lost: bool,
    now: Timestamp,
) -> Option<ProviderMachine> {
    let label = instance.label.as_deref()?;
    let mark = mark(label)?;
    let network = network(instance, label);
    let endpoint = endpoint(instance, settings);
    Some(ProviderMachine {
        id: instance.id.to_string(),
        mark,
        phase: phase(instance, endpoint.is_some(), lost),
        endpoint,
        // Its address in the network is in no answer of the API.
        private_address: None,
        private_interface: network.map(|_| INTERFACE),
        host_key: None,
        rental: Rental {
            region: Some(network.map_or_else(
                || offers::country(instance.geolocation.as_deref()),
                offers::cluster,
            )),
            hourly_price: instance.dph_total.map(Amount::usd),
            billed_since: instance.start_date.and_then(moment),
            reclaim_at: ends_at(instance, now),
        },
    })
}

/// The host's own port where there is one; else the relay, which is slower.
fn endpoint(instance: &Instance, settings: &Settings) -> Option<Endpoint> {
    let address = instance
        .public_ipaddr
        .as_deref()
        .and_then(|ip| ip.trim().parse::<std::net::IpAddr>().ok());
    let direct = address
        .zip(instance.published("22/tcp"))
        .map(|(ip, port)| Dial::Address((ip, port).into()));
    let relay = || {
        let host = instance.ssh_host.clone().filter(|host| !host.trim().is_empty())?;
        Some(Dial::Host(host, instance.ssh_port?)).filter(|_| !settings.direct_only())
    };
    direct.or_else(relay).map(|dial| Endpoint {
        dial,
        user: "root".to_owned(),
        password: None,
    })
}

fn phase(instance: &Instance, reachable: bool, lost: bool) -> ProviderPhase {
    let words = said(instance.status_msg.as_deref().unwrap_or_default());
    let failed = |kind, message: &str| {
        let colon = if words.is_empty() { "" } else { ": " };
        ProviderPhase::failed(kind, format!("{message}{colon}{words}"))
    };
    let bid = instance.is_bid.unwrap_or(false);
    let halted = |status: Option<&str>| {
        status == Some("stopped")
            || status.is_some()
                && instance.intended_status.as_deref() == Some("running")
                && instance.cur_state.as_deref() == Some("stopped")
    };
    match instance.actual_status.as_deref() {
        status if halted(status) && bid => failed(
            FailureKind::Reclaimed,
            "the machine was paused, because somebody bid more or rented it on demand",
        ),
        status if halted(status) => {
            ProviderPhase::Stopped("it was stopped; Vast.ai bills its disk until it is deleted".to_owned())
        }
        Some("running") if reachable => ProviderPhase::Running,
        Some("running") => ProviderPhase::Starting(Some("waits for its SSH port".to_owned())),
        None | Some("created" | "loading" | "rebooting") if pull_failed(&words) => failed(
            FailureKind::ImagePull,
            "the image cannot be pulled; check vastai.dockerImage of the Provider",
        ),
        None | Some("created" | "loading" | "rebooting") => {
            ProviderPhase::Starting(Some(if words.is_empty() {
                "its image is loaded".to_owned()
            } else {
                words
            }))
        }
        Some("exited") => failed(FailureKind::Other, "its container ended"),
        Some("frozen") => failed(
            FailureKind::Other,
            "Vast.ai froze it, and bills it until it is deleted",
        ),
        // A machine that never ran, which has no ports, will never run.
        Some("unknown" | "offline") if lost || instance.ports.is_none() => {
            failed(FailureKind::Lost, "its host does not answer Vast.ai")
        }
        Some("unknown" | "offline") => {
            ProviderPhase::Starting(Some("its host does not answer Vast.ai at the moment".to_owned()))
        }
        Some(other) => ProviderPhase::Starting(Some(format!("Vast.ai: {other}"))),
    }
}

/// Whether Docker gave up on the image.
fn pull_failed(words: &str) -> bool {
    mentions(
        words,
        &[
            "manifest unknown",
            "pull access denied",
            "repository does not exist",
            "manifest for",
            "invalid reference",
        ],
    )
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
