//! Reads a cloud's description of its hardware for offers. Pure.

use skyward_core::{
    accelerator,
    offer::{Accelerators, Architecture},
};

use crate::{dns_label, mentions};

/// GB (10^9 bytes) in a GiB.
pub const GB_IN_GIB: f64 = 1.073_741_824;

/// The accelerators of a machine, from the cloud's text about them (`1x H100 SXM5 80GB`) and their
/// number; `None` where there are none. `listed_gb` is the cloud's own size of each, for cards whose
/// text says none: it counts where the model is sold in this size, or is not known.
pub fn accelerators(text: &str, count: f64, listed_gb: Option<f64>) -> Option<Accelerators> {
    (count > 0.0).then(|| {
        let parsed = accelerator::parse(text);
        let size = parsed
            .memory_gb
            .or(listed_gb.filter(|size| is_variant(text, *size)))
            .or_else(|| accelerator::memory_gb(text))
            .or(listed_gb);
        Accelerators {
            memory_gb: size.filter(|size| *size > 0.0),
            form_factor: parsed.form_factor,
            name: parsed.name,
            count,
        }
    })
}

/// Whether cards of this model are sold with so much memory.
fn is_variant(text: &str, size_gb: f64) -> bool {
    accelerator::model(text).is_some_and(|model| model.memory_gb.contains(&size_gb))
}

/// The architecture, from the cloud's texts about processor and accelerators: NVIDIA's Grace is an
/// ARM processor, which few clouds say elsewhere.
pub fn architecture<'a>(texts: impl IntoIterator<Item = &'a str>) -> Architecture {
    let grace = |text: &str| mentions(text, &["grace", "gh200", "gb200", "gb300"]);
    if texts.into_iter().any(grace) {
        Architecture::Arm64
    } else {
        Architecture::Amd64
    }
}

/// Part of the ids of offers in regions whose names come before that of the preferred one.
const LATER: &str = "zz-";

/// The id of an offer: type of machine and region. Where prices are equal the first by name is chosen,
/// so an id in a region that is not preferred never comes before the one in the preferred region.
pub fn offer_id(kind: &str, region: &str, preferred: Option<&str>) -> String {
    let is_earlier =
        preferred.is_some_and(|preferred| region.to_ascii_lowercase() < preferred.to_ascii_lowercase());
    let between = if is_earlier { LATER } else { "" };
    dns_label(&format!("{kind}-{between}{region}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1x H100 SXM5 80GB", 1.0, None, Some(("H100", Some(80.0))))]
    #[case("A10", 2.0, Some(1.0), Some(("A10", Some(24.0))))]
    #[case("A100", 1.0, Some(40.0), Some(("A100", Some(40.0))))]
    #[case("A100 80GB", 1.0, Some(40.0), Some(("A100", Some(80.0))))]
    #[case("Chip Of Tomorrow", 1.0, Some(64.0), Some(("CHIP OF TOMORROW", Some(64.0))))]
    #[case("Chip Of Tomorrow", 1.0, Some(0.0), Some(("CHIP OF TOMORROW", None)))]
    #[case("N/A", 0.0, None, None)]
    fn accelerators_are_read_from_what_a_cloud_says(
        #[case] text: &str,
        #[case] count: f64,
        #[case] listed: Option<f64>,
        #[case] expected: Option<(&str, Option<f64>)>,
    ) {
        let found = accelerators(text, count, listed);
        let found = found
            .as_ref()
            .map(|found| (found.name.to_uppercase(), found.memory_gb));
        assert_eq!(found, expected.map(|(name, memory)| (name.to_owned(), memory)));
    }

    #[rstest]
    #[case(Some("b"), ["t-b", "t-c", "t-zz-a"])]
    #[case(Some("B"), ["t-b", "t-c", "t-zz-a"])]
    #[case(None, ["t-a", "t-b", "t-c"])]
    fn the_offer_of_the_preferred_region_is_the_first_by_name(
        #[case] preferred: Option<&str>,
        #[case] expected: [&str; 3],
    ) {
        let mut ids = ["a", "b", "c"].map(|region| offer_id("t", region, preferred));
        ids.sort();
        assert_eq!(ids, expected);
    }

    #[rstest]
    #[case(&["AMD EPYC", "1x H100"], Architecture::Amd64)]
    #[case(&["NVIDIA Grace 72C"], Architecture::Arm64)]
    #[case(&["", "GH200 (96 GB)"], Architecture::Arm64)]
    #[case(&[], Architecture::Amd64)]
    fn grace_is_an_arm_processor(#[case] texts: &[&str], #[case] expected: Architecture) {
        assert_eq!(architecture(texts.iter().copied()), expected);
    }
}
