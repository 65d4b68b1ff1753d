//! What a cloud rents out: types, prices, and how many are left.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The market on which a machine is rented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Market {
    /// Kept until the customer deletes it.
    #[default]
    OnDemand,
    /// Cheaper, and the cloud may reclaim it.
    Spot,
}

/// One thing that can be rented. Prices are for the whole machine for an hour.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InstanceType {
    /// The cloud's name for it.
    pub name: String,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in GB.
    pub memory_gb: u32,
    /// Number of accelerators.
    pub gpus: u32,
    /// The cloud's name for the accelerator ("" for none).
    #[serde(default)]
    pub gpu: String,
    /// Memory of one accelerator in GB.
    #[serde(default)]
    pub gpu_memory_gb: u32,
    /// `x86_64` or `arm64`.
    #[serde(default)]
    pub architecture: String,
    /// Price on demand.
    pub on_demand: Decimal,
    /// Spot price now, when there is a spot market.
    #[serde(default)]
    pub spot: Option<Decimal>,
    /// Fields that only this cloud has.
    #[serde(default)]
    pub detail: Value,
}

impl InstanceType {
    /// A type on demand with processors of `x86_64`. The numbers: GPUs, GB of memory of each, virtual processors,
    /// GB of memory.
    pub fn on_demand(name: &str, gpu: &str, numbers: [u32; 4], price: Decimal) -> Self {
        let [gpus, gpu_memory_gb, vcpus, memory_gb] = numbers;
        Self {
            name: name.to_owned(),
            vcpus,
            memory_gb,
            gpus,
            gpu: gpu.to_owned(),
            gpu_memory_gb,
            architecture: "x86_64".to_owned(),
            on_demand: price,
            spot: None,
            detail: Value::Null,
        }
    }

    /// The price in a market, `None` when it is not sold there.
    pub fn price(&self, market: Market) -> Option<Decimal> {
        match market {
            Market::OnDemand => Some(self.on_demand),
            Market::Spot => self.spot,
        }
    }
}

/// One place of the stock: a type in a region and market.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shelf {
    /// The type.
    pub instance_type: String,
    /// The region or zone.
    pub region: String,
    /// The market.
    pub market: Market,
}

impl Shelf {
    /// The shelf of a type in a region and market.
    pub fn new(instance_type: &str, region: &str, market: Market) -> Self {
        Self {
            instance_type: instance_type.to_owned(),
            region: region.to_owned(),
            market,
        }
    }
}

/// How many machines are left on each shelf. A type that is on no shelf cannot be rented.
#[derive(Clone, Debug, Default)]
pub struct Stock(BTreeMap<Shelf, Left>);

/// How many are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// As many as anyone wants.
    Plenty,
    /// This many.
    Count(u64),
}

impl Stock {
    /// Sets the number that is left.
    pub fn set(&mut self, shelf: Shelf, left: Left) {
        self.0.insert(shelf, left);
    }

    /// How many are left: none on a shelf that was never filled.
    pub fn left(&self, shelf: &Shelf) -> Left {
        self.0.get(shelf).copied().unwrap_or(Left::Count(0))
    }

    /// Whether at least one is left.
    pub fn has(&self, shelf: &Shelf) -> bool {
        self.left(shelf) != Left::Count(0)
    }

    /// Takes one; false when none is left.
    pub fn take(&mut self, shelf: &Shelf) -> bool {
        match self.0.get_mut(shelf) {
            Some(Left::Plenty) => true,
            Some(Left::Count(count)) if *count > 0 => {
                *count -= 1;
                true
            }
            Some(Left::Count(_)) | None => false,
        }
    }

    /// Gives one back.
    pub fn put_back(&mut self, shelf: &Shelf) {
        if let Some(Left::Count(count)) = self.0.get_mut(shelf) {
            *count += 1;
        }
    }

    /// All shelves.
    pub fn shelves(&self) -> impl Iterator<Item = (&Shelf, Left)> {
        self.0.iter().map(|(shelf, left)| (shelf, *left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_no_shelf_cannot_be_had_and_a_shelf_empties() {
        let mut stock = Stock::default();
        let shelf = Shelf::new("1H100", "FIN-01", Market::Spot);
        assert!(!stock.take(&shelf));
        stock.set(shelf.clone(), Left::Count(1));
        assert!(stock.take(&shelf));
        assert!(!stock.has(&shelf));
        stock.put_back(&shelf);
        assert!(stock.has(&shelf));
    }
}
