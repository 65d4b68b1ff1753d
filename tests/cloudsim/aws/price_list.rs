//! The price list: documents as strings, and what their attributes are called and can be.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::catalogue::{self, InstanceType, TYPES};
use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, int, list, needed, page, text};
use super::room;

/// The one service whose products are here.
const EC2: &str = "AmazonEC2";
/// Services that have prices as well, but no products here: a client that asks for all gets more
/// than one, and in pages.
const OTHERS: [&str; 3] = ["AWSLambda", "AmazonECR", "AmazonS3"];
/// What every product has.
const COMMON: [&str; 3] = ["productFamily", "servicecode", "termType"];
/// The attributes of products of EC2, beside the common ones.
const ATTRIBUTES: [&str; 14] = [
    "capacitystatus",
    "instanceType",
    "licenseModel",
    "location",
    "locationType",
    "marketoption",
    "memory",
    "networkPerformance",
    "operatingSystem",
    "operation",
    "preInstalledSw",
    "regionCode",
    "tenancy",
    "vcpu",
];

/// What the list calls the regions.
const LOCATIONS: [(&str, &str); 4] = [
    ("us-east-1", "US East (N. Virginia)"),
    ("us-west-2", "US West (Oregon)"),
    ("eu-central-1", "EU (Frankfurt)"),
    ("ap-northeast-1", "Asia Pacific (Tokyo)"),
];

/// The attributes of a service, if there is one of this code.
fn attributes(service: &str) -> Result<Vec<&'static str>, Failure> {
    let own: &[&str] = match service {
        EC2 => &ATTRIBUTES,
        other if OTHERS.contains(&other) => &[],
        other => {
            return Err(Failure::client(
                "NotFoundException",
                format!("There is no service with the code {other}"),
            ));
        }
    };
    let mut all: Vec<&str> = COMMON.iter().chain(own).copied().collect();
    all.sort_unstable();
    Ok(all)
}

/// One page; this service has failures of its own for tokens.
fn paged(
    context: &Context<'_, '_>,
    input: &Value,
    found: Vec<Value>,
) -> Result<(Vec<Value>, Option<String>), Failure> {
    let pages = Pages {
        least: 1,
        most: 10_000,
        usual: Some(100),
    };
    page(input, pages, context.visit.keep, found).map_err(|failure| {
        if failure.code == "InvalidNextToken" {
            Failure::client("InvalidNextTokenException", failure.message)
        } else {
            Failure::client("InvalidParameterException", failure.message)
        }
    })
}

fn answer(name: &str, found: Vec<Value>, next: Option<String>) -> Value {
    let mut answer = json!({ name: found });
    if let Some(next) = next {
        answer["NextToken"] = json!(next);
    }
    answer
}

/// Pricing wants its documents in the only version that there is.
fn check_format(input: &Value) -> Result<(), Failure> {
    match text(input, "FormatVersion") {
        None | Some("aws_v1") => Ok(()),
        Some(other) => Err(Failure::client(
            "InvalidParameterException",
            format!("The format version {other} is not supported"),
        )),
    }
}

/// Pricing `DescribeServices`: one that is named, or all, with their attributes.
pub fn describe_services(context: &Context<'_, '_>, input: &Value) -> Outcome {
    check_format(input)?;
    let codes: Vec<&str> = match text(input, "ServiceCode") {
        Some(code) if !code.is_empty() => vec![code],
        _ => [EC2].into_iter().chain(OTHERS).collect(),
    };
    let mut found = Vec::new();
    for code in codes {
        found.push(json!({"ServiceCode": code, "AttributeNames": attributes(code)?}));
    }
    let (found, next) = paged(context, input, found)?;
    let mut answer = answer("Services", found, next);
    answer["FormatVersion"] = json!("aws_v1");
    Ok(answer)
}

/// Pricing `GetAttributeValues`: each value once.
pub fn get_attribute_values(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let code = needed(input, "ServiceCode").map_err(invalid)?;
    let name = needed(input, "AttributeName").map_err(invalid)?;
    if !attributes(code)?.contains(&name) {
        return Err(Failure::client(
            "NotFoundException",
            format!("{code} has no attribute {name}"),
        ));
    }
    let values: BTreeSet<String> = all_products(context)
        .iter()
        .filter(|product| product["serviceCode"] == code)
        .filter_map(|product| attribute(product, name).map(str::to_owned))
        .collect();
    let values = values.into_iter().map(|value| json!({"Value": value})).collect();
    let (found, next) = paged(context, input, values)?;
    Ok(answer("AttributeValues", found, next))
}

fn invalid(failure: Failure) -> Failure {
    Failure::client("InvalidParameterException", failure.message)
}

/// What a product has under the name of an attribute.
fn attribute<'a>(product: &'a Value, name: &str) -> Option<&'a str> {
    match name {
        "productFamily" => product["product"]["productFamily"].as_str(),
        "termType" => product["terms"]
            .as_object()
            .and_then(|terms| terms.keys().next())
            .map(String::as_str),
        _ => product["product"]["attributes"][name].as_str(),
    }
}

/// All products of all regions.
fn all_products(context: &mut Context<'_, '_>) -> Vec<Arc<Value>> {
    let home = context.region.clone();
    let mut all = Vec::new();
    for (region, ..) in &catalogue::REGIONS {
        (*region).clone_into(&mut context.region);
        for kind in TYPES.iter().filter(|kind| kind.carried_in_region(region)) {
            all.extend(known_products(context, kind));
        }
    }
    context.region = home;
    all
}

/// The products of a type in a region. They are made once for each price: each call of this service looks at all of them.
fn known_products(context: &Context<'_, '_>, kind: &InstanceType) -> Vec<Arc<Value>> {
    type Known = Mutex<BTreeMap<(String, &'static str, Decimal), Vec<Arc<Value>>>>;
    static KNOWN: Known = Mutex::new(BTreeMap::new());
    let price = room::on_demand_price(context, kind);
    let key = (context.region.clone(), kind.name, price);
    KNOWN
        .lock()
        .entry(key)
        .or_insert_with(|| {
            products(&context.region, kind, price)
                .into_iter()
                .map(Arc::new)
                .collect()
        })
        .clone()
}

/// Pricing `GetProducts`: documents as strings, among them documents that a client
/// does not want when it forgets a filter.
pub fn get_products(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    check_format(input)?;
    let code = needed(input, "ServiceCode").map_err(invalid)?;
    let mut found = Vec::new();
    for product in all_products(context) {
        let mut fits = product["serviceCode"] == code;
        for filter in list(input, "Filters") {
            let (field, value) = (
                text(filter, "Field").unwrap_or_default(),
                text(filter, "Value").unwrap_or_default(),
            );
            let field = if field == "ServiceCode" {
                "servicecode"
            } else {
                field
            };
            let actual = attribute(&product, field).unwrap_or_default();
            fits &= match text(filter, "Type") {
                // Letter case does not matter to this service.
                Some("TERM_MATCH" | "EQUALS") => actual.eq_ignore_ascii_case(value),
                Some("CONTAINS") => actual.contains(value),
                Some("ANY_OF") => value.split(',').any(|value| actual.eq_ignore_ascii_case(value)),
                Some("NONE_OF") => !value.split(',').any(|value| actual.eq_ignore_ascii_case(value)),
                _ => {
                    return Err(Failure::client(
                        "InvalidParameterException",
                        "unknown filter type",
                    ));
                }
            };
        }
        if fits {
            found.push(json!(product.to_string()));
        }
    }
    let most = int(input, "MaxResults").map_or(100, |most| most.clamp(1, 100));
    let mut asked = input.clone();
    asked["MaxResults"] = json!(most);
    let (found, next) = paged(context, &asked, found)?;
    let mut answer = answer("PriceList", found, next);
    answer["FormatVersion"] = json!("aws_v1");
    Ok(answer)
}

/// The code of what is launched: the licenses in it.
fn operation(system: &str, software: &str) -> &'static str {
    match (system, software) {
        ("Windows", _) => "RunInstances:0002",
        (_, "SQL Web") => "RunInstances:0200",
        _ => "RunInstances",
    }
}

/// The products of a type in a region: the plain one, and some of its many variants.
fn products(region: &str, kind: &InstanceType, price: Decimal) -> Vec<Value> {
    let location = LOCATIONS.iter().find(|(known, _)| *known == region);
    let variants = [
        ("Linux", "Shared", "NA", "Used", "OnDemand", price),
        (
            "Linux",
            "Dedicated",
            "NA",
            "Used",
            "OnDemand",
            price * Decimal::new(107, 2),
        ),
        (
            "Linux",
            "Shared",
            "NA",
            "UnusedCapacityReservation",
            "OnDemand",
            price,
        ),
        (
            "Linux",
            "Shared",
            "SQL Web",
            "Used",
            "OnDemand",
            price * Decimal::TWO,
        ),
        (
            "Windows",
            "Shared",
            "NA",
            "Used",
            "OnDemand",
            price * Decimal::new(146, 2),
        ),
        ("Linux", "Shared", "NA", "Used", "CapacityBlock", Decimal::ZERO),
    ];
    variants
        .into_iter()
        .filter(|variant| variant.4 == "OnDemand" || matches!(kind.quota, catalogue::Quota::P))
        .map(|(system, tenancy, software, capacity, market, price)| {
            let sku = digits(&format!("{region} {} {system} {tenancy} {software} {capacity} {market}", kind.name), 16).to_uppercase();
            let term = format!("{sku}.JRTCKXETXF");
            let dimension = format!("{term}.6YS6EN2CT7");
            json!({
                "product": {
                    "productFamily": "Compute Instance",
                    "sku": sku,
                    "attributes": {
                        "servicecode": "AmazonEC2",
                        "instanceType": kind.name,
                        "regionCode": region,
                        "location": location.map(|(_, name)| *name),
                        "locationType": "AWS Region",
                        "networkPerformance": kind.network,
                        "operatingSystem": system,
                        "operation": operation(system, software),
                        "tenancy": tenancy,
                        "preInstalledSw": software,
                        "capacitystatus": capacity,
                        "licenseModel": "No License required",
                        "marketoption": market,
                        "vcpu": kind.vcpus.to_string(),
                        "memory": format!("{} GiB", kind.memory / 1024),
                    },
                },
                "serviceCode": "AmazonEC2",
                "terms": {
                    "OnDemand": {
                        term.clone(): {
                            "sku": sku,
                            "offerTermCode": "JRTCKXETXF",
                            "effectiveDate": "2026-11-01T00:00:00Z",
                            "termAttributes": {},
                            "priceDimensions": {
                                dimension.clone(): {
                                    "rateCode": dimension,
                                    "unit": "Hrs",
                                    "beginRange": "0",
                                    "endRange": "Inf",
                                    "description": format!("${price} per {market} {system} {} Instance Hour", kind.name),
                                    "appliesTo": [],
                                    "pricePerUnit": {"USD": format!("{price:.10}")},
                                },
                            },
                        },
                    },
                },
                "version": "20261101000000",
                "publicationDate": "2026-11-01T00:00:00Z",
            })
        })
        .collect()
}
