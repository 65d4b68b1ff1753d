//! Orders of instances.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::catalogue::{self, Image};
use super::operations::{About, End, Failure, TAKES};
use super::{
    Gcp, after, check, disks, enter, instances, invalid, missing, networks, path, refused, url, with_usual,
};
use crate::backend::{Boot, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::machine::{BootEnd, BootPlan, Cause, Mark};
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::rest::{Rental, RestApi, body};

/// How long an instance can be seen for which there is no room.
const SEEN: SignedDuration = SignedDuration::from_secs(4);
/// The largest value of metadata, and the largest sum, in bytes.
const LARGEST: [usize; 2] = [256 << 10, 512 << 10];
/// The longest and the shortest time that an order can give an instance, in seconds.
const RUNS: [i64; 2] = [30, 120 * 24 * 3_600];

/// The body of an order, without what `NOT_SIMULATED_FIELDS` names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Order {
    name: String,
    machine_type: String,
    description: String,
    labels: BTreeMap<String, String>,
    tags: Items<String>,
    metadata: Metadata,
    disks: Vec<Disk>,
    network_interfaces: Vec<networks::Interface>,
    scheduling: Scheduling,
    guest_accelerators: Vec<Accelerator>,
    // The description judges the words of these and of the duration.
    service_accounts: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Items<T: Default> {
    items: Vec<T>,
}

type Metadata = Items<Pair>;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    key: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Disk {
    boot: bool,
    auto_delete: bool,
    #[serde(rename = "type")]
    _kind: Option<String>,
    #[serde(rename = "mode")]
    _mode: Option<String>,
    device_name: Option<String>,
    initialize_params: Option<Params>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Params {
    source_image: String,
    disk_size_gb: Option<String>,
    disk_type: Option<String>,
    disk_name: Option<String>,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Scheduling {
    provisioning_model: Option<String>,
    preemptible: bool,
    instance_termination_action: Option<String>,
    on_host_maintenance: Option<String>,
    automatic_restart: Option<bool>,
    max_run_duration: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Accelerator {
    accelerator_type: String,
    accelerator_count: u32,
}

/// Whether a text is a name as everything has one.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    begins && text.len() <= 63 && text.chars().all(fits) && !text.ends_with('-')
}

/// Labels are in small letters, and not too many.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let fits = |letter: char| letter == '_' || letter == '-' || letter.is_alphanumeric();
    let is_fine = |text: &str| text.chars().all(|letter| fits(letter) && !letter.is_uppercase());
    let is_text = |text: &str| text.chars().count() <= 63 && is_fine(text);
    let begins = |key: &str| key.starts_with(|first: char| first.is_alphabetic());
    let is_label = |(key, value): (&String, &String)| is_text(key) && begins(key) && is_text(value);
    let are_fine = labels.len() <= 64 && labels.iter().all(is_label);
    let why = "Label keys and values are invalid.";
    if are_fine { Ok(()) } else { invalid("labels", why) }
}

/// The last part of an address in a zone. A bare name is no address.
fn in_zone<'a>(place: &str, [field, collection]: [&str; 2], given: &'a str) -> Result<&'a str, Refusal> {
    let prefix = format!("{place}/{collection}/");
    // The project may be left out.
    let short = prefix.split('/').skip(2).collect::<Vec<_>>().join("/");
    let own = path(given);
    let name = own.strip_prefix(prefix.as_str());
    let name = name.or(own.strip_prefix(short.as_str()));
    let why = format!("'{given}'. The URL is malformed.");
    name.map_or_else(|| invalid(field, &why), Ok)
}

impl Scheduling {
    fn market(&self) -> Result<Market, Refusal> {
        match self.provisioning_model.as_deref() {
            Some("SPOT") => Ok(Market::Spot),
            None | Some("STANDARD") if !self.preemptible => Ok(Market::OnDemand),
            _ => Err(Gcp::not_simulated("this provisioning model")),
        }
    }

    fn check(&self, kind: &InstanceType, market: Market) -> Result<(), Refusal> {
        let is_spot = market == Market::Spot;
        let migrates = self.on_host_maintenance.as_deref().map(|what| what == "MIGRATE");
        let restarts = self.automatic_restart.unwrap_or(!is_spot);
        let ends = self.instance_termination_action.is_some();
        let most = self.max_run_duration.as_ref();
        let seconds = most.map(|most| most["seconds"].as_str().unwrap_or_default());
        let is_time = |text: &str| {
            text.parse()
                .is_ok_and(|time: i64| (RUNS[0]..=RUNS[1]).contains(&time))
        };
        let fits = seconds.is_none_or(is_time);
        #[rustfmt::skip]
        let rules = [
            (kind.gpus > 0 && migrates != Some(false), "", "Instances with guest accelerators do not support live migration."),
            (is_spot && (restarts || migrates == Some(true)), "scheduling", "automaticRestart must be false and onHostMaintenance TERMINATE when provisioningModel is SPOT."),
            (ends && !is_spot && most.is_none(), "scheduling.instanceTerminationAction", "The standard provisioning model needs a limit of the run time for it."),
            (!fits || (most.is_some() && !ends), "scheduling.maxRunDuration", "It must be from 30 s to 120 days, with an instanceTerminationAction."),
        ];
        check(&rules)
    }
}

impl Metadata {
    fn value(&self, key: &str) -> Option<&str> {
        let found = self.items.iter().find(|pair| pair.key == key);
        found.map(|pair| pair.value.as_str())
    }

    fn check(&self) -> Result<(), Refusal> {
        let sizes = self.items.iter().map(|pair| pair.value.len());
        let is_large = sizes.clone().max() > Some(LARGEST[0]) || sizes.sum::<usize>() > LARGEST[1];
        check(&[(is_large, "metadata", "It is too large.")])
    }

    /// The user and the keys that the guest's agent makes of these. OS Login, which is on in the project, keeps
    /// the agent from it unless the instance turns it off.
    fn logins(&self) -> (String, Vec<String>) {
        let turned_off = self.value("enable-oslogin").unwrap_or_default().to_lowercase() == "false";
        let lines = self.value("ssh-keys").filter(|_| turned_off);
        let lines = lines.unwrap_or_default().lines();
        let logins: Vec<(&str, &str)> = lines.filter_map(|line| line.trim().split_once(':')).collect();
        let user = logins.first().map_or("", |(user, _)| *user);
        let own = logins.iter().filter(|(of, _)| *of == user);
        (user.to_owned(), own.map(|(_, key)| (*key).to_owned()).collect())
    }

    fn start(&self) -> Result<Start, Refusal> {
        match (self.value("user-data"), self.value("startup-script")) {
            (Some(_), Some(_)) => Err(Gcp::not_simulated("user data beside a startup script")),
            (Some(text), None) | (None, Some(text)) => Ok(Start::UserData(text.to_owned())),
            (None, None) => Ok(Start::Nothing),
        }
    }
}

/// What an order comes to: type, market, image and disk.
struct Wanted(InstanceType, Market, &'static Image, disks::Boot);

impl Order {
    /// What depends on nothing but the order.
    fn check(&self) -> Result<(), Refusal> {
        let pattern = "Must be a match of regex '[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?'";
        check(&[(!is_name(&self.name), "name", pattern)])?;
        check_labels(&self.labels)?;
        self.metadata.check()
    }

    fn has_address(&self) -> bool {
        let mut interfaces = self.network_interfaces.iter();
        interfaces.any(networks::Interface::has_address)
    }

    /// The rights that it needs for what it asks for.
    fn rights(&self) -> Vec<&'static str> {
        let has_account = !self.service_accounts.is_empty();
        let mut params = self
            .disks
            .iter()
            .filter_map(|disk| disk.initialize_params.as_ref());
        let labels_disks = params.any(|params| !params.labels.is_empty());
        #[rustfmt::skip]
        let needs = [
            ("compute.subnetworks.use", true),
            ("compute.subnetworks.useExternalIp", self.has_address()),
            ("compute.instances.setMetadata", !self.metadata.items.is_empty()),
            ("compute.instances.setTags", !self.tags.items.is_empty()),
            ("compute.instances.setLabels", !self.labels.is_empty()),
            ("compute.disks.setLabels", labels_disks),
            ("compute.instances.setServiceAccount", has_account),
            ("iam.serviceAccounts.actAs", has_account),
        ];
        let needed = needs.into_iter().filter(|(_, needed)| *needed);
        needed.map(|(right, _)| right).collect()
    }

    /// The type that it asks for, with the accelerators that it attaches.
    fn kind(&self, visit: &Visit<'_>, zone: &str, place: &str) -> Result<InstanceType, Refusal> {
        if catalogue::status(zone) == "DOWN" {
            return Err(Refusal::Server(503));
        }
        let name = in_zone(place, ["machineType", "machineTypes"], &self.machine_type)?;
        let attached = match self.guest_accelerators.as_slice() {
            [] => None,
            [one] => {
                let names = ["guestAccelerators[0].acceleratorType", "acceleratorTypes"];
                let name = in_zone(place, names, &one.accelerator_type)?;
                Some((name, one.accelerator_count))
            }
            _ => return invalid("guestAccelerators", "One kind of accelerator is allowed."),
        };
        let bare = catalogue::find(visit.world, zone, name).filter(|kind| !kind.name.contains('+'));
        let bare = bare.ok_or_else(|| missing(&format!("{place}/machineTypes/{name}")))?;
        let found = match attached {
            // An order may name what the type has by itself.
            Some((card, count)) if (bare.gpu.as_str(), bare.gpus) != (card, count) => {
                catalogue::find(visit.world, zone, &catalogue::with(name, card, count))
            }
            _ => Some(bare),
        };
        let why = "These accelerators are not compatible with the machine type.";
        found.map_or_else(|| invalid("guestAccelerators", why), |kind| Ok(kind.clone()))
    }

    fn wanted(&self, api: &Gcp, visit: &Visit<'_>, zone: &str, place: &str) -> Result<Wanted, Refusal> {
        let kind = self.kind(visit, zone, place)?;
        let market = self.scheduling.market()?;
        self.scheduling.check(&kind, market)?;
        let shelf = Shelf::new(&kind.name, zone, market);
        let is_sold = visit.world.stock.shelves().any(|(there, _)| *there == shelf);
        let [disk] = self.disks.as_slice() else {
            return Err(Gcp::not_simulated("orders without exactly one disk"));
        };
        let Some(params) = disk.initialize_params.as_ref().filter(|_| disk.boot) else {
            return Err(Gcp::not_simulated("disks that exist already"));
        };
        check_labels(&params.labels)?;
        let field = "disks[0].initializeParams.sourceImage";
        let Some(image) = catalogue::find_image(api, &params.source_image) else {
            return invalid(field, "The referenced image resource cannot be found.");
        };
        let kind_field = "disks[0].initializeParams.diskType";
        let disk_type = params.disk_type.as_deref();
        let disk_type = disk_type.map(|given| in_zone(place, [kind_field, "diskTypes"], given));
        let disk_type = disk_type.transpose()?.unwrap_or("pd-standard");
        let newest = ["a3-ultragpu-", "a4-", "c4a-"];
        let needs_hyperdisk = newest.iter().any(|start| kind.name.starts_with(start));
        let has_type = disks::is_known(disk_type) && needs_hyperdisk == (disk_type == "hyperdisk-balanced");
        let size = params.disk_size_gb.as_ref().map(|size| size.parse().unwrap_or(0));
        let size = size.unwrap_or(image.size);
        let runs = image.architecture.eq_ignore_ascii_case(&kind.architecture);
        #[rustfmt::skip]
        let rules = [
            (!is_sold, "machineType", "The machine type is not sold with this provisioning model."),
            (!runs, field, "The architecture of the image is not compatible with the machine type."),
            (!has_type, kind_field, "The features are not compatible for creating instance with the machine type."),
            (size < image.size, "disks[0].initializeParams.diskSizeGb", "Requested disk size cannot be smaller than the image size."),
        ];
        check(&rules)?;
        let names = [&params.disk_name, &disk.device_name];
        let name = names.into_iter().flatten().next().unwrap_or(&self.name);
        let disk = (name.clone(), disk_type.to_owned(), size, disk.auto_delete);
        Ok(Wanted(kind, market, image, disk))
    }

    /// The instance as it is shown but for what changes.
    fn shown(&self, visit: &Visit<'_>, place: &str, id: &str, wanted: &Wanted) -> Value {
        let Wanted(kind, market, image, disk) = wanted;
        let mut shown = instances::base(visit, place, id, &self.name);
        let bare = kind.name.split('+').next().unwrap_or_default();
        shown["machineType"] = url(&format!("{place}/machineTypes/{bare}")).into();
        shown["description"] = self.description.clone().into();
        let is_spot = *market == Market::Spot;
        let host = if is_spot { "TERMINATE" } else { "MIGRATE" };
        let given = visit.request.json().unwrap_or_default()["scheduling"].take();
        let mut usual = vec![
            ("provisioningModel", json!("STANDARD")),
            ("preemptible", json!(is_spot)),
            ("automaticRestart", json!(!is_spot)),
            ("onHostMaintenance", json!(host)),
        ];
        usual.extend(is_spot.then(|| ("instanceTerminationAction", json!("STOP"))));
        shown["scheduling"] = with_usual(given, usual);
        if kind.gpus > 0 {
            let card = url(&format!("{place}/acceleratorTypes/{}", kind.gpu));
            shown["guestAccelerators"] = json!([{ "acceleratorType": card, "acceleratorCount": kind.gpus }]);
        }
        shown["disks"] = disks::shown(disk, place, image.architecture);
        shown["metadata"] = json!({ "kind": "compute#metadata", "items": self.metadata.items });
        shown["metadata"]["fingerprint"] = instances::fingerprint(&shown["metadata"]).into();
        shown["tags"] = json!({ "items": self.tags.items });
        shown["tags"]["fingerprint"] = instances::fingerprint(&shown["tags"]).into();
        shown["serviceAccounts"] = json!(self.service_accounts);
        shown
    }

    /// What boots.
    fn boot(&self, Wanted(kind, _, image, _): &Wanted) -> Result<Boot, Refusal> {
        let (user, authorized_keys) = self.metadata.logins();
        let cards = kind.gpus as usize * usize::from(image.has_drivers);
        Ok(Boot {
            hostname: self.name.clone(),
            image: image.path(),
            user,
            authorized_keys,
            start: self.metadata.start()?,
            metadata: true,
            gpus: vec![catalogue::card(&kind.gpu).to_owned(); cards],
            ..Boot::default()
        })
    }
}

pub(super) fn create(api: &mut Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let order: Order = body(visit.request)?;
    for right in order.rights() {
        api.may(visit, right)?;
    }
    order.check()?;
    let place = format!("projects/{}/zones/{zone}", visit.account);
    let mut wanted = order.wanted(api, visit, &zone, &place)?;
    let boot = order.boot(&wanted)?;
    let interfaces = networks::interfaces(visit, &zone, &order.network_interfaces)?;
    if instances::own(visit, &zone, &order.name).is_some() {
        return refused(409, "alreadyExists", "The resource already exists");
    }
    if let Some((metric, most, is_regional)) = catalogue::broken(visit, &zone, (&wanted.0, wanted.1)) {
        let place = if is_regional {
            format!("in region {}", catalogue::region_of(&zone))
        } else {
            "globally".to_owned()
        };
        let text = format!("Quota '{metric}' exceeded.  Limit: {most}.0 {place}.");
        if is_regional && !api.quota_late {
            return refused(403, "quotaExceeded", &text);
        }
        let failure = Failure::quota(&metric, most, text);
        let names = [visit.account.as_str(), &zone, &order.name];
        return Ok(fails(api, visit.request, names, failure));
    }
    let id = api.operations.id();
    let mut shown = order.shown(visit, &place, &id, &wanted);
    shown["networkInterfaces"] = interfaces;
    if order.has_address() && !api.instances_alone {
        let [on_demand, spot] = networks::ADDRESS;
        wanted.0.on_demand += on_demand;
        wanted.0.spot = wanted.0.spot.map(|price| price + spot);
    }
    let mut mark = Mark::of_texts(&order.name, []);
    mark.tags.clone_from(&order.labels);
    let rental = Rental {
        id: id.clone(),
        region: zone.clone(),
        mark,
        detail: json!({ "shown": shown }),
        boot,
    };
    rent(api, visit, &wanted, rental)?;
    disks::add(api, visit, &id, &wanted.3);
    let about: About<'_> = [&visit.account, &zone, "insert", "instances", &order.name, &id];
    let end = End::Runs(id.clone());
    Ok(api.operations.begin(visit.request, about, visit.world.now(), end))
}

/// Rents the instance. Where nothing is left, it can be seen for a while all the same, and then its order fails.
fn rent(api: &Gcp, visit: &mut Visit<'_>, wanted: &Wanted, rental: Rental) -> Result<(), Refusal> {
    let Wanted(kind, market, ..) = wanted;
    let shelf = Shelf::new(&kind.name, &rental.region, *market);
    if visit.world.stock.has(&shelf) || api.short_at_once {
        return visit.rent_on(*market, kind, rental);
    }
    let id = rental.id.clone();
    let ends = BootEnd::Fails(Cause::NoCapacity);
    visit.boot = BootPlan { takes: SEEN, ends };
    // The shelf is empty again at once, and the instance gives nothing back to it.
    visit.world.stock.set(shelf.clone(), Left::Count(1));
    let rented = visit.rent_on(*market, kind, rental);
    visit.world.stock.set(shelf, Left::Count(0));
    if let Some(machine) = visit.world.machines.get_mut(&id) {
        machine.holds_stock = false;
    }
    rented
}

/// An order that is taken and fails, without an instance.
fn fails(api: &mut Gcp, request: &Request, [account, zone, name]: [&str; 3], failure: Failure) -> Answer {
    let (id, now) = (api.operations.id(), api.now);
    let about: About<'_> = [account, zone, "insert", "instances", name, &id];
    let end = End::Fails(after(now, TAKES), failure);
    api.operations.begin(request, about, now, end)
}

/// The same for a shortage that a test scripted.
pub(super) fn short(api: &mut Gcp, request: &Request) -> Answer {
    let segments = request.segments();
    let part = |place: usize| segments.get(place).map_or("", String::as_str);
    let body = request.json().unwrap_or_default();
    let name = body["name"].as_str().unwrap_or_default();
    fails(
        api,
        request,
        [part(3), part(5), name],
        Failure::short(part(3), part(5)),
    )
}
