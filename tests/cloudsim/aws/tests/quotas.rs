//! What Service Quotas tells of an account, and how it refuses.

use serde_json::{Value, json};

use super::{ACCOUNT, Hand};
use crate::core::fault::{Fault, Rule};

const CALL: &str = "servicequotas.ListServiceQuotas";
const TARGET: &str = "ServiceQuotasV20190624.ListServiceQuotas";

fn ask(hand: &Hand, body: &Value) -> Value {
    hand.json("servicequotas", TARGET, body).json()
}

#[test]
fn quotas_come_in_pages_that_are_shorter_than_asked_for_and_those_of_the_account_are_told() {
    let Some(hand) = Hand::new() else { return };
    hand.sim.world(|world| {
        let account = world.accounts.get_mut(ACCOUNT).expect("an account");
        let name = "Running On-Demand G and VT instances".to_owned();
        account.quotas.insert(name, 8);
    });
    let (mut quotas, mut pages) = (Vec::new(), 0);
    let mut body = json!({"ServiceCode": "ec2", "MaxResults": 100});
    loop {
        let page = ask(&hand, &body);
        quotas.extend(page["Quotas"].as_array().expect("quotas").clone());
        pages += 1;
        match page.get("NextToken") {
            Some(token) => body["NextToken"] = token.clone(),
            None => break,
        }
    }
    assert!(pages > 1, "{quotas:?}");
    let value = |name: &str| {
        let quota = quotas.iter().find(|quota| quota["QuotaName"] == name);
        quota.map(|quota| quota["Value"].clone())
    };
    assert_eq!(value("Running On-Demand P instances"), Some(json!(0.0)));
    assert_eq!(value("Running On-Demand G and VT instances"), Some(json!(8.0)));
    let one = json!({"ServiceCode": "ec2", "QuotaCode": quotas[0]["QuotaCode"]});
    assert_eq!(ask(&hand, &one)["Quotas"], json!([quotas[0]]));
    hand.judged_clean();
}

#[test]
fn a_refusal_of_service_quotas_has_the_code_of_that_service() {
    let Some(hand) = Hand::new() else { return };
    for (body, code) in [
        (json!({"ServiceCode": "lambda"}), "NoSuchResourceException"),
        (
            json!({"ServiceCode": "ec2", "NextToken": "nonsense"}),
            "InvalidPaginationTokenException",
        ),
        (json!({"MaxResults": 1}), "IllegalArgumentException"),
        (
            json!({"ServiceCode": "ec2", "MaxResults": 101}),
            "IllegalArgumentException",
        ),
    ] {
        assert_eq!(ask(&hand, &body)["__type"], code, "{body}");
    }
    let body = json!({"ServiceCode": "ec2"});
    for (fault, code) in [
        (Fault::TooMany { retry_after: None }, "TooManyRequestsException"),
        (Fault::Forbidden, "AccessDeniedException"),
        (Fault::Unauthorized, "UnrecognizedClientException"),
    ] {
        hand.sim.fault(Rule::once(CALL, fault));
        assert_eq!(ask(&hand, &body)["__type"], code);
    }
    let deny = json!({"account": ACCOUNT, "actions": ["servicequotas:ListServiceQuotas"]});
    hand.sim.control("deny", &deny).expect("known").expect("done");
    assert_eq!(ask(&hand, &body)["__type"], "AccessDeniedException");
    let foreign = hand.json("ssm", TARGET, &body).json();
    assert_eq!(foreign["__type"], "IncompleteSignature");
}
