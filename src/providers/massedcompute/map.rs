//! An order becomes a request to Massed Compute, an instance becomes a machine. Pure.

use serde_json::{Value, json};
use skyward_core::{
    Mark, Order, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::{
    Amount, cut,
    lookup::Listed,
    marks::{self, Name},
    time,
};

use super::{config::Settings, offers, wire::Instance};

/// Marks as names of machines. How long a name may be is not published, and people may change it.
const NAME: Name = Name::new("skyward", '-', 128);
/// Most characters of a name that holds no mark.
const SHORT: usize = 50;
/// Marks as start-up commands, which nobody changes. The command does nothing: the colon takes any words.
const COMMAND: Name = Name::new(": skyward", '/', 255);
/// The user of images that do not tell theirs.
const USER: &str = "Ubuntu";
/// Longest name of a user.
const LONGEST_USER: usize = 32;
/// Most bytes of an unknown status that are shown.
const STATUS: usize = 64;

impl Listed for Instance {
    fn id(&self) -> String {
        self.uuid.clone()
    }

    /// Either carrier alone will do. Two that contradict each other may be of a machine that a person copied.
    fn mark(&self) -> Option<Mark> {
        let read = |carrier: Name, text: &Value| carrier.read(text.as_str()?.trim());
        let by_name = read(NAME, &self.name);
        match (read(COMMAND, &self.command_startup), by_name) {
            (Some(one), Some(other)) if !one.is(&other) => None,
            (by_command, by_name) => by_command.or(by_name),
        }
    }

    fn gone(&self) -> bool {
        self.status() == "terminated"
    }
}

impl Instance {
    /// Its status, which some answers write with capital letters.
    fn status(&self) -> String {
        let status = self.status.as_str().unwrap_or_default();
        cut(status, STATUS).to_ascii_lowercase()
    }

    /// Whether it is of the spot market.
    pub fn is_spot(&self) -> bool {
        self.product["name"].as_str().is_some_and(offers::is_spot)
    }

    /// Whether its system has started, so far as that is told.
    fn has_booted(&self) -> bool {
        ![json!(0), json!(false), json!("0")].contains(&self.os_booted)
    }

    fn endpoint(&self) -> Option<Endpoint> {
        let told = self.username.as_str().unwrap_or_default().trim();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_user =
            (1..=LONGEST_USER).contains(&told.len()) && !told.starts_with('-') && told.chars().all(is_plain);
        Endpoint::ssh(if is_user { told } else { USER }, self.ip.as_str())
    }

    /// Its price in USD per hour, which is a text.
    fn price(&self) -> Option<Usd> {
        let price = |field: &str| {
            let told: Amount = serde_json::from_value(self.product[field].clone()).ok()?;
            Some(told.usd()).filter(|price| *price > Usd::ZERO)
        };
        price("final_price_hr").or_else(|| price("price_hr"))
    }
}

/// The body that orders a machine of this product, with the name of its Pool's key.
pub fn body(order: &Order, settings: &Settings, product: &str, key: &str) -> Result<Value, ProviderError> {
    let mark = &order.mark;
    Ok(json!({
        "imageId": settings.image_id(),
        "productName": product,
        // No other value is taken.
        "regionName": "any",
        // An installation whose id is no UID has no mark that fits a name.
        "instanceName": NAME.write(mark).unwrap_or_else(|_| marks::unique_name(mark, SHORT)),
        "command": COMMAND.write(mark)?,
        "sshKeys": [key],
    }))
}

/// The machine that was ordered by this body, before Massed Compute shows it.
pub fn ordered(id: &str, body: &Value) -> Instance {
    Instance {
        uuid: id.to_owned(),
        name: body["instanceName"].clone(),
        command_startup: body["command"].clone(),
        product: json!({ "name": body["productName"] }),
        status: json!("pending"),
        ..Instance::default()
    }
}

/// The machine that an instance is; `None` when it does not carry our mark. `is_ended` where its end was ordered.
pub fn machine(instance: &Instance, is_ended: bool) -> Option<ProviderMachine> {
    let endpoint = instance.endpoint();
    let text = |text: &Value| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    Some(ProviderMachine {
        id: instance.id(),
        mark: instance.mark()?,
        phase: phase(instance, endpoint.is_some(), is_ended),
        // There is no private network: machines reach each other by public addresses.
        private_address: text(&instance.ip).filter(|_| endpoint.is_some()),
        private_interface: None,
        endpoint,
        host_key: None,
        rental: Rental {
            region: text(&instance.region["name"]),
            hourly_price: instance.price(),
            billed_since: time(instance.created.as_str()),
            ..Rental::default()
        },
    })
}

fn phase(instance: &Instance, reachable: bool, is_ended: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match instance.status().as_str() {
        "running" | "rented" if !reachable => ProviderPhase::starting("waits for its address"),
        "running" | "rented" if !instance.has_booted() => ProviderPhase::starting("its system starts"),
        "running" | "rented" => ProviderPhase::Running,
        "pending" => ProviderPhase::starting("Massed Compute makes it"),
        "error" if !reachable => failed(
            FailureKind::NoCapacity,
            "Massed Compute accepted the order and could not make the machine",
        ),
        // How Massed Compute takes a spot machine back is not published.
        "stopped" | "stopping" | "error" | "terminating" | "terminated"
            if instance.is_spot() && !is_ended =>
        {
            failed(
                FailureKind::Reclaimed,
                "Massed Compute took the spot machine back",
            )
        }
        "error" => failed(
            FailureKind::Lost,
            "Massed Compute reports an error of the machine",
        ),
        "stopped" | "stopping" => {
            ProviderPhase::Stopped("it is halted; Massed Compute bills it until it is terminated".to_owned())
        }
        "terminating" | "terminated" => ProviderPhase::Stopping,
        // The Machine's own timeout ends the wait.
        other => ProviderPhase::starting(format!("Massed Compute: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
