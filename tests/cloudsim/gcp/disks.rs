//! Boot disks: they cost from the order of their instance on, whether it runs or not.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{Gcp, url};
use crate::core::cloud::Visit;
use crate::core::resource::Resource;
use crate::core::world::World;

/// The kind of a disk.
const DISK: &str = "disk";
/// The tag of our own that says with which instance a disk goes.
const GOES_WITH: &str = "instance";
/// Hours of a month, by which prices of disks are told.
const MONTH: u32 = 730;

/// Kinds of disks with thousandths of a dollar for a GB and month.
#[rustfmt::skip]
const KINDS: [(&str, u32); 4] =
    [("hyperdisk-balanced", 80), ("pd-balanced", 100), ("pd-ssd", 170), ("pd-standard", 40)];

/// Whether there are such disks.
pub(super) fn is_known(kind: &str) -> bool {
    KINDS.iter().any(|(known, _)| *known == kind)
}

/// The boot disk of an order: its name, kind and size in GB, and whether it goes with its instance.
pub(super) type Boot = (String, String, u32, bool);

/// The disks of an instance.
pub(super) fn shown((name, _, size, goes): &Boot, place: &str, architecture: &str) -> Value {
    json!([{
        "kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE", "boot": true, "index": 0,
        "source": url(&format!("{place}/disks/{name}")), "deviceName": name, "interface": "SCSI",
        "autoDelete": goes, "diskSizeGb": size.to_string(), "architecture": architecture,
    }])
}

/// Adds the boot disk of an instance.
pub(super) fn add(api: &mut Gcp, visit: &mut Visit<'_>, instance: &str, boot: &Boot) {
    let (name, kind, size, goes) = boot;
    let id = api.operations.id();
    let mut disk = visit.world.new_resource(&id, DISK, &visit.account, name);
    if *goes {
        disk.tags.insert(GOES_WITH.to_owned(), instance.to_owned());
    }
    let price = KINDS.iter().find(|(known, _)| known == kind);
    let price = price.map_or(0, |(_, price)| *price) * u32::from(!api.instances_alone);
    let price = Decimal::from(size * price) / Decimal::from(1_000 * MONTH);
    visit.world.add_resource(disk, price);
}

/// An instance is gone: its disk goes with it, unless an order said otherwise.
pub(super) fn let_go(world: &mut World, instance: &str) {
    let goes = |disk: &&Resource| {
        let its = disk.tags.get(GOES_WITH);
        disk.kind == DISK && its.is_some_and(|its| its == instance)
    };
    let gone = world.resources.values().filter(goes).map(|disk| disk.id.clone());
    for id in gone.collect::<Vec<_>>() {
        world.end_resource(&id);
    }
}
