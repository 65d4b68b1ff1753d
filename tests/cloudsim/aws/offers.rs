//! What can be rented: instance types, where they are, and the price list.

use serde_json::{Value, json};

use super::catalogue::{self, InstanceType, TYPES};
use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, filtered, int, list, page, text, texts};
use super::network::zone_id;
use super::room;

const TYPE_FILTERS: [&str; 13] = [
    "bare-metal",
    "burstable-performance-supported",
    "current-generation",
    "free-tier-eligible",
    "hypervisor",
    "instance-storage-supported",
    "instance-type",
    "memory-info.size-in-mib",
    "network-info.efa-supported",
    "processor-info.supported-architecture",
    "supported-usage-class",
    "supported-virtualization-type",
    "vcpu-info.default-vcpus",
];

/// `DescribeInstanceTypes`.
pub fn describe_types(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let named = texts(input, "InstanceTypes");
    if named.len() > 100 {
        return Err(Failure::client(
            "InvalidParameterValue",
            "At most 100 instance types in one call.",
        ));
    }
    let absent: Vec<&str> = named
        .iter()
        .map(String::as_str)
        .filter(|name| {
            !catalogue::instance_type(name).is_some_and(|kind| kind.carried_in_region(&context.region))
        })
        .collect();
    if !absent.is_empty() {
        return Err(Failure::client(
            "InvalidInstanceType",
            format!(
                "The following supplied instance types do not exist: [{}]",
                absent.join(", ")
            ),
        ));
    }
    let all: Vec<&InstanceType> = TYPES
        .iter()
        .filter(|kind| kind.carried_in_region(&context.region))
        .filter(|kind| named.is_empty() || named.iter().any(|name| name == kind.name))
        .collect();
    let found = filtered(input, &TYPE_FILTERS, false, all, |kind, filter| {
        let record = kind.describe();
        let path: &[&str] = match filter {
            "bare-metal" => &["BareMetal"],
            "burstable-performance-supported" => &["BurstablePerformanceSupported"],
            "current-generation" => &["CurrentGeneration"],
            "free-tier-eligible" => &["FreeTierEligible"],
            "hypervisor" => &["Hypervisor"],
            "instance-storage-supported" => &["InstanceStorageSupported"],
            "memory-info.size-in-mib" => &["MemoryInfo", "SizeInMiB"],
            "network-info.efa-supported" => &["NetworkInfo", "EfaSupported"],
            "processor-info.supported-architecture" => &["ProcessorInfo", "SupportedArchitectures"],
            "supported-usage-class" => &["SupportedUsageClasses"],
            "supported-virtualization-type" => &["SupportedVirtualizationTypes"],
            "vcpu-info.default-vcpus" => &["VCpuInfo", "DefaultVCpus"],
            _ => &["InstanceType"],
        };
        let value = path.iter().fold(&record, |value, key| &value[key]);
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        value
            .as_array()
            .map_or_else(|| vec![plain(value)], |items| items.iter().map(plain).collect())
    })?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 100,
            usual: Some(100),
        },
        context.visit.keep,
        found,
    )?;
    let types: Vec<Value> = found.into_iter().map(InstanceType::describe).collect();
    Ok(json!({"InstanceTypes": types, "NextToken": next}))
}

/// `DescribeInstanceTypeOfferings`: where types are carried, which says nothing of stock.
pub fn describe_offerings(context: &Context<'_, '_>, input: &Value) -> Outcome {
    let location_type = text(input, "LocationType").unwrap_or("region");
    let mut all: Vec<(&InstanceType, String)> = Vec::new();
    for kind in &TYPES {
        let zones = catalogue::zones(&context.region)
            .into_iter()
            .filter(|zone| kind.carried_in(zone));
        match location_type {
            "availability-zone" => all.extend(zones.map(|zone| (kind, zone))),
            "availability-zone-id" => all.extend(zones.map(|zone| (kind, zone_id(&zone)))),
            "region" if kind.carried_in_region(&context.region) => all.push((kind, context.region.clone())),
            _ => {}
        }
    }
    let found = filtered(
        input,
        &["instance-type", "location"],
        false,
        all,
        |(kind, place), filter| {
            vec![if filter == "location" {
                place.clone()
            } else {
                kind.name.to_owned()
            }]
        },
    )?;
    let (found, next) = page(
        input,
        Pages {
            least: 5,
            most: 1_000,
            usual: Some(1_000),
        },
        context.visit.keep,
        found,
    )?;
    let offerings: Vec<Value> = found
        .into_iter()
        .map(|(kind, place)| json!({"InstanceType": kind.name, "LocationType": location_type, "Location": place}))
        .collect();
    Ok(json!({"InstanceTypeOfferings": offerings, "NextToken": next}))
}

/// Pricing `GetProducts`: documents as strings, among them those that a client
/// does not want when it forgets a filter.
pub fn get_products(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    if text(input, "ServiceCode") != Some("AmazonEC2") {
        return Ok(json!({"FormatVersion": "aws_v1", "PriceList": []}));
    }
    let mut all = Vec::new();
    for (region, ..) in &catalogue::REGIONS {
        (*region).clone_into(&mut context.region);
        for kind in TYPES.iter().filter(|kind| kind.carried_in_region(region)) {
            all.extend(products(context, kind));
        }
    }
    let mut found = Vec::new();
    for product in all {
        let attributes = &product["product"]["attributes"];
        let mut fits = true;
        for filter in list(input, "Filters") {
            let (field, value) = (
                text(filter, "Field").unwrap_or_default(),
                text(filter, "Value").unwrap_or_default(),
            );
            let actual = if field == "productFamily" {
                &product["product"]["productFamily"]
            } else {
                &attributes[field]
            };
            let actual = actual.as_str().unwrap_or_default();
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
            found.push(product.to_string());
        }
    }
    let most = int(input, "MaxResults").map_or(100, |most| most.clamp(1, 100));
    let mut asked = input.clone();
    asked["MaxResults"] = json!(most);
    let (found, next) = page(
        &asked,
        Pages {
            least: 1,
            most: 100,
            usual: Some(100),
        },
        context.visit.keep,
        found,
    )
    .map_err(|failure| Failure::client("InvalidNextTokenException", failure.message))?;
    let mut answer = json!({"FormatVersion": "aws_v1", "PriceList": found});
    if let Some(next) = next {
        answer["NextToken"] = json!(next);
    }
    Ok(answer)
}

/// The products of a type in a region: the plain one, and some of its many variants.
fn products(context: &Context<'_, '_>, kind: &InstanceType) -> Vec<Value> {
    let price = room::on_demand_price(context, kind);
    let variants = [
        ("Linux", "Shared", "NA", "Used", "OnDemand", price),
        (
            "Linux",
            "Dedicated",
            "NA",
            "Used",
            "OnDemand",
            price * rust_decimal::Decimal::new(107, 2),
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
            price * rust_decimal::Decimal::TWO,
        ),
        (
            "Windows",
            "Shared",
            "NA",
            "Used",
            "OnDemand",
            price * rust_decimal::Decimal::new(146, 2),
        ),
        (
            "Linux",
            "Shared",
            "NA",
            "Used",
            "CapacityBlock",
            rust_decimal::Decimal::ZERO,
        ),
    ];
    variants
        .into_iter()
        .filter(|variant| variant.4 == "OnDemand" || matches!(kind.quota, catalogue::Quota::P))
        .map(|(system, tenancy, software, capacity, market, price)| {
            let sku = digits(&format!("{} {} {system} {tenancy} {software} {capacity} {market}", context.region, kind.name), 16).to_uppercase();
            let term = format!("{sku}.JRTCKXETXF");
            let dimension = format!("{term}.6YS6EN2CT7");
            json!({
                "product": {
                    "productFamily": "Compute Instance",
                    "sku": sku,
                    "attributes": {
                        "servicecode": "AmazonEC2",
                        "instanceType": kind.name,
                        "regionCode": context.region,
                        "locationType": "AWS Region",
                        "operatingSystem": system,
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
