//! Quotas of vCPUs, as Service Quotas tells them for `skyward check-provider`: limits alone, not how much
//! of them is in use.

use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError, provider::AccountFact};
use skyward_provider_kit::{http::shape, said};

use crate::{
    AT_ONCE, SWEEP,
    cloud::{Cloud, call, within},
};

/// Name of the call.
pub(crate) const OPERATION: &str = "list the quotas";
/// Most pages that are read of one region. AWS may give fewer quotas in a page than it was asked for.
const MOST_PAGES: usize = 50;
/// Families of instances with accelerators, and the one of machines without. AWS names some quotas after
/// generations of a family, and adds such quotas with new generations: "All P5 Spot Instance Requests".
const FAMILIES: &[&str] = &["P", "G", "VT", "DL", "Trn", "Inf", "Standard"];

/// One page of the answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    quotas: Vec<Quota>,
    next_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Quota {
    #[serde(default)]
    quota_name: String,
    value: Option<f64>,
}

/// The quotas of each region that orders count in. A region whose quotas AWS does not tell says why: what
/// else is known of the account is told all the same.
pub(crate) async fn facts(cloud: &Cloud, regions: &[String]) -> Vec<AccountFact> {
    stream::iter(regions.to_vec())
        .map(|region| async move {
            let answer = within(OPERATION, SWEEP, list(cloud, &region)).await;
            let value = answer.map_or_else(|problem| said(&problem.to_string()), |quotas| told(&quotas));
            AccountFact {
                what: "quotas",
                value: format!("{region}: {value}"),
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await
}

async fn list(cloud: &Cloud, region: &str) -> Result<Vec<Quota>, ProviderError> {
    let service = cloud.quotas(region).await?;
    let (mut found, mut pages) = (Vec::new(), 0);
    let mut next: Option<String> = None;
    loop {
        let asked = question(next.as_deref());
        let page = read(call(OPERATION, service.ask(asked)).await?)?;
        found.extend(page.quotas);
        pages += 1;
        next = following(next.as_deref(), page.next_token, pages)?;
        if next.is_none() {
            return Ok(found);
        }
    }
}

/// The request for the quotas of EC2, from this page on.
fn question(next: Option<&str>) -> Value {
    let mut asked = json!({ "ServiceCode": "ec2", "MaxResults": 100 });
    if let Some(next) = next {
        asked["NextToken"] = json!(next);
    }
    asked
}

/// Reads a page; a page without a list is an error, or quotas would be missing unnoticed.
fn read(answer: Value) -> Result<Page, ProviderError> {
    shape::compare::<Page>(OPERATION, "", &answer);
    serde_json::from_value(answer).map_err(|error| unread(format!("a page of them cannot be read: {error}")))
}

/// Where the next page begins, after so many pages; `None` after the last page.
fn following(
    asked: Option<&str>,
    next: Option<String>,
    pages: usize,
) -> Result<Option<String>, ProviderError> {
    let next = next.filter(|next| !next.is_empty());
    if next.is_some() && (next.as_deref() == asked || pages >= MOST_PAGES) {
        return Err(unread("AWS answers with pages that do not end".to_owned()));
    }
    Ok(next)
}

fn unread(why: String) -> ProviderError {
    ProviderError::new(ErrorKind::Transient, OPERATION, why)
}

/// Whether orders count in the quota of this name. AWS documents these names; it documents no codes of them.
fn counts(name: &str) -> bool {
    let family = name
        .strip_prefix("Running On-Demand ")
        .or_else(|| name.strip_prefix("All ")?.strip_suffix(" Spot Instance Requests"));
    family.is_some_and(|family| {
        let first = family.split([' ', ',']).next().unwrap_or_default();
        FAMILIES.contains(&first.trim_end_matches(|c: char| c.is_ascii_digit()))
    })
}

fn told(quotas: &[Quota]) -> String {
    let of_orders = quotas.iter().filter(|quota| counts(&quota.quota_name));
    let each = of_orders.map(|quota| {
        let limit = quota.value.map_or("?".to_owned(), |limit| limit.to_string());
        format!("{} {limit} vCPUs", said(&quota.quota_name))
    });
    let all: Vec<String> = each.collect();
    if all.is_empty() {
        return "AWS lists no quota of vCPUs".to_owned();
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_count_in_quotas_of_accelerators_and_of_standard_machines_on_demand_and_spot() {
        for name in [
            "Running On-Demand P instances",
            "Running On-Demand G and VT instances",
            "Running On-Demand DL instances",
            "Running On-Demand Trn instances",
            "Running On-Demand Inf instances",
            "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
            "All P Spot Instance Requests",
            "All P4, P3 and P2 Spot Instance Requests",
            "All P5 Spot Instance Requests",
            "All G and VT Spot Instance Requests",
            "All Trn Spot Instance Requests",
            "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        ] {
            assert!(counts(name), "{name}");
        }
        for name in [
            "",
            "Running On-Demand ",
            "Running On-Demand F instances",
            "Running On-Demand X instances",
            "Running On-Demand HPC instances",
            "Running On-Demand High Memory instances",
            "Running Dedicated p4d Hosts",
            "All F Spot Instance Requests",
            "All ",
            "EC2-VPC Elastic IPs",
        ] {
            assert!(!counts(name), "{name}");
        }
    }

    #[test]
    fn each_quota_is_told_with_its_limit_and_a_limit_that_aws_leaves_out_as_unknown() {
        let page = read(json!({ "Quotas": [
            { "QuotaName": "Running On-Demand P instances", "QuotaCode": "L-417A185B", "Value": 0.0 },
            { "QuotaName": "EC2-VPC Elastic IPs", "Value": 5.0 },
            { "Value": 1.0 },
            { "QuotaName": "All P5 Spot Instance Requests", "Value": 192.0 },
            { "QuotaName": "All Inf Spot Instance Requests", "ErrorReason": { "ErrorCode": "DEPENDENCY_SERVICE_ERROR" } },
        ] }))
        .unwrap();
        assert_eq!(
            told(&page.quotas),
            "Running On-Demand P instances 0 vCPUs, All P5 Spot Instance Requests 192 vCPUs, All Inf Spot Instance Requests ? vCPUs"
        );
        assert_eq!(told(&[]), "AWS lists no quota of vCPUs");
    }

    #[test]
    fn a_page_without_a_list_is_an_error_and_no_empty_one() {
        assert!(read(json!({ "Quotas": [], "NextToken": null })).is_ok());
        let error = read(json!({ "Limits": [] })).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Transient);
    }

    #[tokio::test]
    async fn a_name_of_a_quota_that_stands_elsewhere_is_told() {
        let answer = json!({ "Quotas": [{ "NameOfQuota": "a", "QuotaNames": "a", "Value": 1.0 }] });
        let (page, shapes) = shape::watched(async { read(answer) }).await;
        assert_eq!(page.unwrap().quotas.len(), 1);
        let quotas = shapes.iter().find(|shape| shape.place == "/Quotas/[]").unwrap();
        assert_eq!((quotas.call, quotas.deviations.len()), (OPERATION, 1));
        let told = &quotas.deviations[0];
        assert_eq!(
            (told.field.as_str(), told.renamed.as_deref()),
            ("QuotaName", Some("QuotaNames"))
        );
    }

    #[test]
    fn pages_that_do_not_end_are_an_error() {
        let token = |text: &str| Some(text.to_owned());
        assert_eq!(question(None).get("NextToken"), None);
        assert_eq!(question(Some("b"))["NextToken"], "b");
        assert_eq!(following(None, token("b"), 1).unwrap(), token("b"));
        assert_eq!(following(Some("b"), None, 2).unwrap(), None);
        assert_eq!(following(Some("b"), token(""), 2).unwrap(), None);
        assert!(following(Some("b"), token("b"), 2).is_err());
        assert!(following(Some("a"), token("b"), MOST_PAGES).is_err());
    }
}
