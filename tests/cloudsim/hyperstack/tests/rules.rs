//! Rules of the traffic of VMs.

use serde_json::json;

use super::{furnished, order, refusal, rule};

#[tokio::test]
async fn a_vm_takes_each_rule_once_when_it_is_created() {
    let world = furnished().await;
    let id = world.order(order()).await;
    let path = format!("virtual-machines/{id}/sg-rules");
    let mut other = rule();
    other["remote_ip_prefix"] = "10.0.0.7/32".into();
    assert_eq!(
        refusal(&world.post(&path, other.clone()).await).0,
        400,
        "it is created"
    );
    world.0.advance(20);
    assert_eq!(
        refusal(&world.post(&path, rule()).await).0,
        409,
        "the order has it"
    );
    let made = world.post(&path, other.clone()).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let made = made.json()["security_rule"].clone();
    assert_eq!(
        (&made["remote_ip_prefix"], &made["port_range_min"]),
        (&json!("10.0.0.7/32"), &json!(22))
    );
    assert_eq!(refusal(&world.post(&path, other).await).0, 409);
    let rules = world.vm(&id).await["security_rules"].clone();
    assert_eq!(rules.as_array().unwrap().len(), 2);
    assert_ne!(rules[0]["id"], rules[1]["id"]);
    let of_rule = format!("{path}/{}", made["id"]);
    assert_eq!(world.delete(&of_rule).await.status, 200);
    assert_eq!(world.delete(&of_rule).await.status, 404);
    assert_eq!(world.vm(&id).await["security_rules"].as_array().unwrap().len(), 1);
    world.is_content();
    let mut unknown = rule();
    unknown["protocol"] = "smoke".into();
    assert_eq!(world.post(&path, unknown).await.status, 400, "the description");
}
