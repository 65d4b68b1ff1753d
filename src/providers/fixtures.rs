//! Shared by the tests of all folders: an order, and recorded failures for the tables over each
//! `errors.rs`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use skyward_api::shared::Size;
use skyward_core::{ProviderError, accelerator, offer::Offer};

use skyward_provider_kit::http::{Answer, Effect};

pub(crate) use shared::order;

#[path = "kit/fixtures.rs"]
mod shared;

/// Asserts that each recorded failure of a file becomes the error that stands beside it.
pub(crate) fn check_failures(file: &str, read: impl Fn(&Answer) -> ProviderError) {
    let recorded: Vec<Recorded> = serde_json::from_str(file).expect("a list of failures");
    assert!(!recorded.is_empty(), "nothing is recorded");
    for failure in recorded {
        let Recorded {
            name,
            effect,
            status,
            body,
            kind,
            says,
        } = failure;
        // A body that is a text was sent as it stands.
        let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
        let effect = match effect.as_str() {
            "creates" => Effect::Creates,
            "repeatable" => Effect::Repeatable,
            other => panic!("{name}: {other} is no effect of a call"),
        };
        let error = read(&Answer::new("call the cloud", effect, "the cloud", status, &body));
        assert_eq!(error.kind.name(), kind, "{name}: {error}");
        assert!(error.to_string().contains(&says), "{name}: {error}");
    }
}

/// One failure, and the expected error.
#[derive(Deserialize)]
struct Recorded {
    name: String,
    effect: String,
    status: u16,
    body: Value,
    kind: String,
    says: String,
}

/// Parts of the names of accelerators in the fixtures that are invented, to stand for models that come later.
const INVENTED: &[&str] = &["X1", "CHIPOFTOMORROW", "ODD"];

/// Asserts that a rule knows the name of each accelerator, and lists the names that none does.
fn check_names(offers: &[Offer]) {
    let names: BTreeSet<&str> = offers
        .iter()
        .filter_map(|offer| Some(offer.accelerators.as_ref()?.name.as_str()))
        .collect();
    let is_invented = |name: &str| INVENTED.iter().any(|part| name.to_uppercase().contains(part));
    let unknown = names
        .iter()
        .filter(|name| accelerator::model(name).is_none() && !is_invented(name));
    let unknown: Vec<&&str> = unknown.collect();
    assert!(unknown.is_empty(), "no rule knows {unknown:?}");
    for name in names {
        // Offers and Pools are compared by canonical names.
        let is_canonical = accelerator::canonical(name) == name;
        assert!(
            is_canonical,
            "{name} is {} elsewhere",
            accelerator::canonical(name)
        );
    }
}

/// Asserts that the names of the accelerators of recorded offers are canonical and known, and that they fit what people ask for: a card that is sold as
/// so many GB, with a decimal or a binary unit, and no larger one. `sold` has every recorded name.
pub(crate) fn check_memory(offers: &[Offer], sold: &[(&str, f64)]) {
    check_names(offers);
    let mut seen = 0;
    for offer in offers {
        let Some(card) = &offer.accelerators else { continue };
        let sizes = sold.iter().filter(|(name, _)| *name == card.name);
        let sizes: Vec<f64> = sizes.map(|(_, size)| *size).collect();
        assert!(!sizes.is_empty(), "{} has no size in this test", card.name);
        // As the Offer object says it.
        let memory = card.memory_gb.map(Size::of_card_gb);
        let offered = memory.as_ref().and_then(Size::card_gb).unwrap();
        let fits = |size: f64, unit: &str| {
            let asked = Size(format!("{}{unit}", size.round())).card_gb().unwrap();
            accelerator::has_memory(offered, asked)
        };
        assert!(
            sizes.iter().any(|size| {
                let larger = size * 1.1 + 1.0;
                fits(*size, "G") && fits(*size, "Gi") && !fits(larger, "G") && !fits(larger, "Gi")
            }),
            "{}: {offered} GB is none of {sizes:?}",
            offer.id
        );
        seen += 1;
    }
    assert!(seen > 0, "no offer has an accelerator");
}
