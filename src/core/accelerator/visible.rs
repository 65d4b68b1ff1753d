//! Which environment variable shows a program some of a machine's accelerators only.
//!
//! Sources: CUDA's programming guide (`CUDA_VISIBLE_DEVICES`), ROCm's page on GPU isolation
//! (`ROCR_VISIBLE_DEVICES`), and the configuration of AWS's Neuron runtime (`NEURON_RT_VISIBLE_CORES`, which counts
//! cores and not chips). How many cores the runtime shows of each chip by default was not tried on a machine.

use super::model;

/// A variable, and how many numbers it counts for one accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Name of the variable.
    pub variable: &'static str,
    /// Numbers for each accelerator.
    pub each: u32,
}

/// The variable for an accelerator of this name; `None` where its maker has none that programs agree on.
/// One that the catalogue does not know counts as one of NVIDIA's, whose variable means nothing to others.
pub fn visible(name: &str) -> Option<Visible> {
    let name = model(name).map_or(name, |model| model.name);
    let is_one_of = |families: &[&str]| families.iter().any(|family| name.starts_with(family));
    let (variable, each) = if is_one_of(&["TPU", "Gaudi"]) {
        return None;
    } else if is_one_of(&["MI", "Radeon"]) {
        ("ROCR_VISIBLE_DEVICES", 1)
    } else if is_one_of(&["Trainium2", "Trainium3", "Inferentia1"]) {
        ("NEURON_RT_VISIBLE_CORES", 4)
    } else if is_one_of(&["Trainium", "Inferentia"]) {
        ("NEURON_RT_VISIBLE_CORES", 2)
    } else {
        ("CUDA_VISIBLE_DEVICES", 1)
    };
    Some(Visible { variable, each })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_makers_accelerators_have_the_variable_of_their_maker() {
        for (name, expected) in [
            ("H100", Some(("CUDA_VISIBLE_DEVICES", 1))),
            ("RTX 4090", Some(("CUDA_VISIBLE_DEVICES", 1))),
            ("our own", Some(("CUDA_VISIBLE_DEVICES", 1))),
            ("MI300X", Some(("ROCR_VISIBLE_DEVICES", 1))),
            ("Radeon Pro V520", Some(("ROCR_VISIBLE_DEVICES", 1))),
            ("Trn1", Some(("NEURON_RT_VISIBLE_CORES", 2))),
            ("Trainium2", Some(("NEURON_RT_VISIBLE_CORES", 4))),
            ("Inferentia", Some(("NEURON_RT_VISIBLE_CORES", 4))),
            ("Inferentia2", Some(("NEURON_RT_VISIBLE_CORES", 2))),
            ("TPUv5e", None),
            ("Gaudi2", None),
        ] {
            let found = visible(name).map(|found| (found.variable, found.each));
            assert_eq!(found, expected, "{name}");
        }
    }
}
