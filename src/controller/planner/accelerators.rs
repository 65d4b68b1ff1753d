//! Accelerators as Pools ask for them and as records name them.

use skyward_api::{
    machine::MachineSpec,
    offer::OfferedAccelerator,
    shared::{Accelerator, Count, Size},
};
use skyward_core::accelerator::{self, canonical};

/// An accelerator with what its name says: `A100-80GB`, `H100-NVL`, `H100:8`. A field of the spec
/// wins; [`contradiction`] tells where the name says something else. Its memory has one spelling,
/// since `80G` and `80Gi` ask for the same.
pub fn filled(wanted: &Accelerator) -> Accelerator {
    let said = accelerator::parse(&wanted.name);
    Accelerator {
        name: wanted.name.clone(),
        count: wanted.count.or(said.count.map(Count::of)),
        memory: wanted.memory_gb().or(said.memory_gb).map(Size::of_card_gb),
        form_factor: wanted.form_factor.or(said.form_factor),
    }
}

/// The accelerators that a machine has. Records that older versions made say only what the
/// Pool asked for.
pub fn of_record(record: &MachineSpec) -> Option<OfferedAccelerator> {
    record.granted_accelerator.clone().or_else(|| {
        let asked = filled(record.accelerator.as_ref()?);
        Some(OfferedAccelerator {
            name: canonical(&asked.name),
            count: asked.count.unwrap_or(Count::of(1.0)),
            memory: asked.memory,
            form_factor: asked.form_factor,
        })
    })
}
