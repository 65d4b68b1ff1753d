//! Service Quotas: what an account may run in a region, among quotas that no machine counts in.
//!
//! A value that the account has of its own is enforced by `room`. The others are made up, and a
//! launch does not count in them.

use serde_json::{Value, json};

use super::context::{Context, digits};
use super::failure::{Failure, Outcome};
use super::input::{Pages, page, text};

/// The one operation, in the form of a botocore model: facts of the official description
/// (`service-quotas`, 2019-06-24), as far as requests and answers need them here.
pub const MODEL: &str = r#"{
  "metadata": {
    "apiVersion": "2019-06-24",
    "protocol": "json",
    "targetPrefix": "ServiceQuotasV20190624"
  },
  "operations": {
    "ListServiceQuotas": {
      "input": { "shape": "ListServiceQuotasRequest" },
      "output": { "shape": "ListServiceQuotasResponse" }
    }
  },
  "shapes": {
    "ListServiceQuotasRequest": {
      "type": "structure",
      "required": ["ServiceCode"],
      "members": {
        "ServiceCode": { "shape": "ServiceCode" },
        "NextToken": { "shape": "NextToken" },
        "MaxResults": { "shape": "MaxResults" },
        "QuotaCode": { "shape": "QuotaCode" },
        "QuotaAppliedAtLevel": { "shape": "AppliedLevelEnum" }
      }
    },
    "ListServiceQuotasResponse": {
      "type": "structure",
      "members": {
        "NextToken": { "shape": "NextToken" },
        "Quotas": { "shape": "ServiceQuotaListDefinition" }
      }
    },
    "ServiceQuotaListDefinition": { "type": "list", "member": { "shape": "ServiceQuota" } },
    "ServiceQuota": {
      "type": "structure",
      "members": {
        "ServiceCode": { "shape": "ServiceCode" },
        "ServiceName": { "shape": "Text" },
        "QuotaArn": { "shape": "Text" },
        "QuotaCode": { "shape": "QuotaCode" },
        "QuotaName": { "shape": "Text" },
        "Value": { "shape": "QuotaValue" },
        "Unit": { "shape": "Text" },
        "Adjustable": { "shape": "Flag" },
        "GlobalQuota": { "shape": "Flag" },
        "QuotaAppliedAtLevel": { "shape": "AppliedLevelEnum" }
      }
    },
    "ServiceCode": { "type": "string", "min": 1, "max": 63 },
    "QuotaCode": { "type": "string", "min": 1, "max": 128 },
    "QuotaValue": { "type": "double", "min": 0, "max": 10000000000 },
    "NextToken": { "type": "string", "max": 2048 },
    "MaxResults": { "type": "integer", "min": 1, "max": 100 },
    "AppliedLevelEnum": { "type": "string", "enum": ["ACCOUNT", "RESOURCE", "ALL"] },
    "Text": { "type": "string" },
    "Flag": { "type": "boolean" }
  }
}"#;

/// The one service whose quotas are here.
const EC2: &str = "ec2";
/// Most quotas of one answer: the service may give fewer than a client asks for.
const MOST: usize = 6;

/// Quotas by name, with made-up values. An account has no machines of P in the beginning, as a new
/// one at AWS.
const QUOTAS: [(&str, u64); 19] = [
    ("Running On-Demand P instances", 0),
    ("Running On-Demand G and VT instances", 64),
    ("EC2-VPC Elastic IPs", 5),
    ("Running On-Demand F instances", 8),
    ("Running On-Demand DL instances", 0),
    ("Running On-Demand Trn instances", 0),
    ("Running On-Demand Inf instances", 24),
    ("Running On-Demand High Memory instances", 0),
    (
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        256,
    ),
    ("Running Dedicated p4d Hosts", 0),
    ("All P4, P3 and P2 Spot Instance Requests", 0),
    ("All P5 Spot Instance Requests", 0),
    ("All G and VT Spot Instance Requests", 32),
    ("All F Spot Instance Requests", 8),
    ("All DL Spot Instance Requests", 0),
    ("All Trn Spot Instance Requests", 0),
    ("All Inf Spot Instance Requests", 24),
    (
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        128,
    ),
    ("Launch templates per Region", 5000),
];

/// `ListServiceQuotas`: one page of what the account may have in the region.
pub fn list(context: &Context<'_, '_>, input: &Value) -> Outcome {
    if text(input, "ServiceCode") != Some(EC2) {
        return Err(Failure::client(
            "NoSuchResourceException",
            "The request failed because the specified service does not exist.",
        ));
    }
    let account = &context.visit.account;
    let own = context
        .visit
        .world
        .accounts
        .get(account)
        .map(|account| &account.quotas);
    let quota = |(name, usual): (&str, u64)| {
        let code = format!("L-{}", digits(name, 8).to_uppercase());
        let value = own.and_then(|quotas| quotas.get(name)).copied().unwrap_or(usual);
        json!({
            "ServiceCode": EC2,
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": format!("arn:aws:servicequotas:{}:{account}:{EC2}/{code}", context.region),
            "QuotaCode": code,
            "QuotaName": name,
            "Value": value as f64,
            "Unit": "None",
            "Adjustable": true,
            "GlobalQuota": false,
            "QuotaAppliedAtLevel": "ACCOUNT",
        })
    };
    let asked = text(input, "QuotaCode");
    let all: Vec<Value> = QUOTAS
        .into_iter()
        .map(quota)
        .filter(|quota| asked.is_none_or(|code| quota["QuotaCode"] == code))
        .collect();
    let pages = Pages {
        least: 1,
        most: 100,
        usual: Some(MOST),
    };
    let most = context.visit.keep.map_or(MOST, |keep| keep.min(MOST));
    let (found, next) = page(input, pages, Some(most), all).map_err(|failure| {
        let code = if failure.code == "InvalidNextToken" {
            "InvalidPaginationTokenException"
        } else {
            "IllegalArgumentException"
        };
        Failure::client(code, failure.message)
    })?;
    let mut answer = json!({ "Quotas": found });
    if let Some(next) = next {
        answer["NextToken"] = json!(next);
    }
    Ok(answer)
}
