//! AWS's price list: the request, and a page of the answer. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError, Usd};
use skyward_provider_kit::http::shape;

/// Name of the call.
pub const OPERATION: &str = "read the price list";

/// The request for all on-demand prices of a region, from this page on.
pub fn question(region: &str, next: Option<&str>) -> Value {
    let exactly = |field: &str, value: &str| json!({ "Type": "TERM_MATCH", "Field": field, "Value": value });
    let mut asked = json!({
        "ServiceCode": "AmazonEC2",
        "MaxResults": 100,
        "Filters": [
            exactly("regionCode", region),
            exactly("operatingSystem", "Linux"),
            exactly("tenancy", "Shared"),
            exactly("preInstalledSw", "NA"),
            exactly("capacitystatus", "Used"),
        ],
    });
    if let Some(next) = next {
        asked["NextToken"] = json!(next);
    }
    asked
}

/// One page of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Page {
    /// Products, each a text of its own.
    #[serde(rename = "PriceList")]
    pub entries: Vec<String>,
    /// Where the next page begins; none: this was the last.
    #[serde(rename = "NextToken", default)]
    pub next: Option<String>,
}

/// Reads a page; a page without a list is an error, or prices would be missing unnoticed.
pub fn page(answer: Value) -> Result<Page, ProviderError> {
    shape::compare::<Page>(OPERATION, "", &answer);
    let page: Page = serde_json::from_value(answer).map_err(|error| {
        ProviderError::new(
            ErrorKind::Transient,
            OPERATION,
            format!("a page of it cannot be read: {error}"),
        )
    })?;
    if shape::is_watched() {
        let entries = page.entries.iter();
        let products: Vec<Value> = entries
            .filter_map(|entry| serde_json::from_str(entry).ok())
            .collect();
        shape::each::<Product>(OPERATION, "/PriceList/[]", &products);
    }
    Ok(page)
}

/// One product, of which we read two things.
#[derive(Deserialize)]
struct Product {
    product: Described,
    #[serde(default)]
    terms: Terms,
}

#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    instance_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Terms {
    #[serde(default)]
    on_demand: BTreeMap<String, Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    price_dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    #[serde(default)]
    price_per_unit: BTreeMap<String, String>,
}

/// Type and price in USD per hour of one entry of the list.
pub fn price(entry: &str) -> Option<(String, Usd)> {
    let product: Product = serde_json::from_str(entry).ok()?;
    let price = product
        .terms
        .on_demand
        .values()
        .flat_map(|term| term.price_dimensions.values())
        .filter_map(|dimension| dimension.price_per_unit.get("USD")?.parse::<Usd>().ok())
        .filter(|price| *price > Usd::ZERO)
        .min()?;
    let name = product.product.attributes.instance_type;
    (!name.is_empty()).then_some((name, price))
}

/// The error of a page that leads to itself: the list is incomplete.
pub fn endless() -> ProviderError {
    ProviderError::new(
        ErrorKind::Transient,
        OPERATION,
        "AWS answers the same page again and again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_asked_for_by_the_token_of_the_last() {
        assert_eq!(question("us-east-1", None).get("NextToken"), None);
        let asked = question("eu-west-1", Some("more"));
        assert_eq!(asked["NextToken"], "more");
        assert_eq!(asked["Filters"][0]["Value"], "eu-west-1");
    }

    #[test]
    fn a_page_without_a_list_is_an_error_and_no_empty_one() {
        let whole =
            page(json!({ "FormatVersion": "aws_v1", "PriceList": ["{}"], "NextToken": "more" })).unwrap();
        assert_eq!((whole.entries.len(), whole.next.as_deref()), (1, Some("more")));
        assert_eq!(page(json!({ "PriceList": [] })).unwrap().next, None);
        assert_eq!(page(json!({})).unwrap_err().kind, ErrorKind::Transient);
    }

    #[tokio::test]
    async fn entries_of_the_price_list_are_compared_and_their_codes_are_not_shown() {
        let term = |name: &str| json!({ name: { "CANARY.6YS6EN2CT7": { "pricePerUnit": { "USD": "1" } } } });
        let entry = |dimensions: &str| {
            json!({
                "product": { "attributes": { "instanceType": "g5.xlarge" }, "sku": "A" },
                "terms": { "OnDemand": { "CANARY.JRTCKXETXF": term(dimensions) } },
            })
        };
        let entries = ["priceDimensions", "price_dimensions"].map(|name| entry(name).to_string());
        let answer = json!({ "PriceList": entries, "NextToken": "more" });
        let (page, shapes) = shape::watched(async { page(answer) }).await;
        assert_eq!(page.unwrap().entries.len(), 2);
        let at = |place: &str| shapes.iter().find(|shape| shape.place == place).unwrap();
        assert_eq!(at("").present, ["NextToken", "PriceList"]);
        let products = at("/PriceList/[]/product");
        assert_eq!((products.call, products.objects), (OPERATION, 2));
        assert_eq!(products.unread, ["sku"]);
        let terms = at("/PriceList/[]/terms/OnDemand/*");
        assert_eq!((terms.objects, terms.present.len()), (2, 1));
        assert_eq!(at("/PriceList/[]/terms/OnDemand/*/priceDimensions/*").objects, 1);
        assert!(!format!("{shapes:?}").contains("CANARY"), "{shapes:?}");
    }

    #[test]
    fn an_entry_of_the_price_list_has_a_type_and_a_price() {
        let entry = |price: &str| {
            serde_json::json!({
                "product": { "productFamily": "Compute Instance", "attributes": { "instanceType": "g5.xlarge", "regionCode": "us-east-1" } },
                "terms": {
                    "OnDemand": { "X.JRTCKXETXF": { "priceDimensions": { "X.JRTCKXETXF.6YS6EN2CT7": { "unit": "Hrs", "pricePerUnit": { "USD": price } } } } },
                    "Reserved": { "Y": { "priceDimensions": { "Z": { "pricePerUnit": { "USD": "0.1" } } } } },
                },
            })
            .to_string()
        };
        assert_eq!(
            price(&entry("1.0060000000")),
            Some(("g5.xlarge".to_owned(), "1.006".parse().unwrap()))
        );
        assert_eq!(price(&entry("0.0000000000")), None);
        assert_eq!(price("no JSON"), None);
    }
}
