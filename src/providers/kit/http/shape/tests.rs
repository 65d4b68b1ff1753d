//! Answers as they should be, and with fields that are missing, renamed, added and unreadable.

use rstest::rstest;
use serde::Deserialize;
use serde_json::json;
use skyward_core::Usd;

use super::*;
use crate::{
    Amount,
    http::{Answer, Effect},
};

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only the names of the fields matter")]
struct Plan {
    id: String,
    #[serde(rename = "gpuCount")]
    gpus: u32,
    #[serde(default)]
    price: Option<Amount>,
    card: Option<Card>,
    #[serde(default)]
    regions: BTreeMap<String, Region>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only the names of the fields matter")]
struct Card {
    name: String,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only the names of the fields matter")]
struct Region {
    stock: u32,
}

fn plan() -> Value {
    json!({
        "id": "a", "gpuCount": 1, "price": "0.5", "card": { "name": "L4" },
        "regions": { "customer-data": { "stock": 1 } },
    })
}

/// The shapes of an answer with these plans.
async fn shapes(plans: Value) -> Vec<Shape> {
    let body = json!({ "plans": plans }).to_string();
    let read = async {
        let answer = Answer::new("list the plans", Effect::Repeatable, "Somewhere", 200, &body);
        answer.json_at::<Vec<Plan>>("/plans").is_ok()
    };
    watched(read).await.1
}

fn at<'a>(shapes: &'a [Shape], place: &str) -> &'a Shape {
    shapes.iter().find(|shape| shape.place == place).unwrap()
}

/// Place, field, what is wrong, and its new name.
fn deviations(shapes: &[Shape]) -> Vec<(String, String, What, Option<String>)> {
    let of = |shape: &Shape| {
        let place = shape.place.clone();
        let all = shape.deviations.clone().into_iter();
        all.map(move |found| (place.clone(), found.field, found.what, found.renamed))
            .collect::<Vec<_>>()
    };
    shapes.iter().flat_map(of).collect()
}

#[tokio::test]
async fn an_answer_as_expected_has_no_deviation_and_keys_of_maps_are_not_shown() {
    let shapes = shapes(json!([plan(), plan()])).await;
    assert_eq!(deviations(&shapes), []);
    let plans = at(&shapes, "/plans/[]");
    assert_eq!((plans.call, plans.objects), ("list the plans", 2));
    assert_eq!(plans.present, ["card", "gpuCount", "id", "price", "regions"]);
    assert_eq!(at(&shapes, "/plans/[]/card").present, ["name"]);
    assert_eq!(at(&shapes, "/plans/[]/regions/*").present, ["stock"]);
    assert!(!format!("{shapes:?}").contains("customer-data"), "{shapes:?}");
}

#[rstest]
#[case::needed("id", None, What::Missing, None)]
#[case::needed_and_renamed("gpuCount", Some("gpu_count"), What::Missing, Some("gpu_count"))]
#[case::optional("price", None, What::Absent, None)]
#[case::optional_and_renamed("price", Some("hourlyPrice"), What::Absent, Some("hourlyPrice"))]
#[case::renamed_beyond_recognition("price", Some("cost"), What::Absent, None)]
#[tokio::test]
async fn a_field_that_is_missing_or_renamed_is_told(
    #[case] field: &str,
    #[case] to: Option<&str>,
    #[case] what: What,
    #[case] renamed: Option<&str>,
) {
    let mut changed = plan();
    let value = changed.as_object_mut().unwrap().remove(field).unwrap();
    if let Some(to) = to {
        changed[to] = value;
    }
    let told = (
        "/plans/[]".to_owned(),
        field.to_owned(),
        what,
        renamed.map(str::to_owned),
    );
    assert_eq!(deviations(&shapes(json!([changed, changed])).await), [told]);
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_told_by_its_innermost_field() {
    let mut changed = plan();
    changed["card"]["name"] = json!(["canary"]);
    let shapes = shapes(json!([changed])).await;
    let told = (
        "/plans/[]/card".to_owned(),
        "name".to_owned(),
        What::Unreadable,
        None,
    );
    assert_eq!(deviations(&shapes), [told]);
    assert!(!format!("{shapes:?}").contains("canary"), "{shapes:?}");
}

#[tokio::test]
async fn fields_that_are_not_read_are_named_and_data_is_not() {
    let mut changed = plan();
    changed["addedLater"] = json!({ "canary": 1 });
    changed["canary of a customer"] = json!(1);
    for n in 0..300 {
        changed[format!("more{}_{}", n / 100, n % 100)] = json!(1);
    }
    let shapes = shapes(json!([changed, changed])).await;
    let plans = at(&shapes, "/plans/[]");
    assert_eq!(plans.unread.len(), MOST_NAMES);
    assert_eq!(plans.unread_more, 302 - MOST_NAMES);
    assert!(plans.unread.contains(&"addedLater".to_owned()), "{plans:?}");
    assert!(!format!("{shapes:?}").contains("canary"), "{shapes:?}");
}

#[tokio::test]
async fn a_key_that_may_be_data_is_counted_and_not_shown() {
    let (mut one, mut other) = (plan(), plan());
    for key in [
        "canary-project",
        "canary@example.com",
        "canary.example.com",
        "canary123",
        "Canary",
        "canary".repeat(8).as_str(),
    ] {
        one[key] = json!(1);
        other[key] = json!(1);
    }
    one["canary_machine"] = json!(1);
    let shapes = shapes(json!([one, other])).await;
    let plans = at(&shapes, "/plans/[]");
    assert_eq!((plans.unread.len(), plans.unread_more), (0, 7), "{plans:?}");
    assert!(
        !format!("{shapes:?}").to_lowercase().contains("canary"),
        "{shapes:?}"
    );
}

#[tokio::test]
async fn a_key_of_one_object_that_is_asked_for_again_is_not_shown() {
    let mut only = plan();
    only["canary"] = json!(1);
    let body = json!({ "plans": [only] }).to_string();
    let read = async {
        let answer = Answer::new("list the plans", Effect::Repeatable, "Somewhere", 200, &body);
        for _ in 0..2 {
            answer.json_at::<Vec<Plan>>("/plans").unwrap();
        }
    };
    let shapes = watched(read).await.1;
    let plans = at(&shapes, "/plans/[]");
    assert_eq!((plans.objects, plans.unread_more), (2, 1), "{plans:?}");
    assert!(!format!("{shapes:?}").contains("canary"), "{shapes:?}");
}

#[tokio::test]
async fn a_list_that_stands_elsewhere_is_told() {
    let body = json!({ "Plans": [plan()] }).to_string();
    let read = async {
        let answer = Answer::new("list the plans", Effect::Repeatable, "Somewhere", 200, &body);
        answer.json_at::<Vec<Plan>>("/plans").unwrap_err()
    };
    let shapes = watched(read).await.1;
    let told = (
        String::new(),
        "plans".to_owned(),
        What::Missing,
        Some("Plans".to_owned()),
    );
    assert_eq!(deviations(&shapes), [told]);
}

#[tokio::test]
async fn without_a_watch_nothing_is_compared() {
    assert!(!is_watched());
    let answer = Answer::new("look", Effect::Repeatable, "Somewhere", 200, &plan().to_string());
    let read: Plan = answer.json().unwrap();
    assert_eq!(read.price.map(Amount::usd), Some(Usd::cents(50)));
    assert_eq!(watched(async {}).await.1, []);
}

#[rstest]
#[case("gpu_count", "gpuCount", true)]
#[case("price", "price_per_hour", true)]
#[case("price", "hourlyPrice", true)]
#[case("colour", "color", true)]
#[case("id", "uuid", true)]
#[case("price", "prize_money_of_the_year", false)]
#[case("price", "cost", false)]
#[case("x", "xylophone", false)]
fn names_resemble_each_other(#[case] one: &str, #[case] other: &str, #[case] expected: bool) {
    assert_eq!(resemblance(one, other).is_some(), expected);
    assert_eq!(resemblance(other, one).is_some(), expected);
}

#[test]
fn the_name_that_resembles_a_field_most_is_its_new_one() {
    let names = ["hostname", "name_", "surname"].map(str::to_owned);
    assert_eq!(closest("name", &names).as_deref(), Some("name_"));
    assert_eq!(closest("price", &names), None);
}

#[tokio::test]
async fn an_answer_without_words_of_a_failure_lacks_nothing() {
    let read = async {
        let answer = Answer::new("list the plans", Effect::Repeatable, "Somewhere", 200, "{}");
        answer.told(&["/error", "/message"])
    };
    assert_eq!(watched(read).await, (String::new(), Vec::new()));
}

/// A card whose name has two names.
struct Named(Value);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object(deserializer, &["id", "name", "title"], Some("id")).map(Self)
    }
}

#[rstest]
#[case::either_name(json!({ "id": 1, "title": "L4" }), true, &[("name", What::Absent)])]
#[case::no_id(json!({ "uid": 1, "name": "L4", "title": "" }), false, &[("id", What::Missing)])]
#[tokio::test]
async fn fields_that_are_looked_up_by_their_names_are_told(
    #[case] card: Value,
    #[case] is_read: bool,
    #[case] expected: &[(&str, What)],
) {
    let body = json!([card]).to_string();
    let read = async {
        let answer = Answer::new("list the cards", Effect::Repeatable, "Somewhere", 200, &body);
        answer.json::<Vec<Named>>()
    };
    let (found, shapes) = watched(read).await;
    let found = found.ok().map(|cards| cards[0].0.clone());
    assert_eq!(found, is_read.then_some(card));
    let told: Vec<(String, What)> = deviations(&shapes)
        .into_iter()
        .map(|(_, field, what, _)| (field, what))
        .collect();
    let expected: Vec<(String, What)> = expected
        .iter()
        .map(|(field, what)| ((*field).to_owned(), *what))
        .collect();
    assert_eq!(told, expected);
}
