//! Tokens of service accounts, clusters and nodes; rights; refusals in the cloud's words.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use serde_json::{Value, json};

use super::{World, ZONE, here, order, refusal, world};
use crate::core::client::{Client, Reply};
use crate::core::pem::unframed;
use crate::gcp::{account, key_file};
use crate::{Account, CredentialState, Fault, Rule};

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// What the service account of this key file states.
fn stated(file: &Value, claims: &Value) -> String {
    let coded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!(
        "{}.{}",
        coded(&json!({ "alg": "RS256", "typ": "JWT" })),
        coded(claims)
    );
    let private = unframed(file["private_key"].as_str().unwrap()).unwrap();
    let key = rsa::KeyPair::from_pkcs8(&private).unwrap();
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        message.as_bytes(),
        &mut signature,
    )
    .unwrap();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn claims(world: &World, file: &Value) -> Value {
    let now = world.sim().world(|world| world.now().as_second());
    json!({
        "iss": file["client_email"], "scope": SCOPE, "aud": file["token_uri"], "iat": now, "exp": now + 3_600,
    })
}

async fn granted(world: &World, assertion: &str) -> Reply {
    let form = format!("grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&assertion={assertion}");
    let client = Client::new(world.0.url("gcp"));
    let kind = "application/x-www-form-urlencoded";
    client.send(Method::POST, "/token", kind, &form).await.unwrap()
}

async fn zones(world: &World, project: &str, token: &str) -> u16 {
    let client = Client::new(world.0.url("gcp")).with("authorization", &format!("Bearer {token}"));
    let path = format!("/compute/v1/projects/{project}/zones");
    client.get(&path).await.unwrap().status
}

#[tokio::test]
async fn a_service_account_signs_for_a_token_of_an_hour_or_sends_what_it_signed() {
    let world = world().await;
    let own = account("signed", "skyward@signed.example.com");
    let file = key_file(&own, world.0.url("gcp"));
    world.sim().world(|world| world.add_account(own));
    let claims = claims(&world, &file);
    let told = granted(&world, &stated(&file, &claims)).await;
    assert_eq!(told.json()["token_type"], "Bearer", "{}", told.body);
    let token = told.json()["access_token"].as_str().unwrap().to_owned();
    assert_eq!(zones(&world, "signed", &token).await, 200);
    assert_eq!(zones(&world, "acme", &token).await, 403, "another project");

    let mut direct = claims.clone();
    direct["aud"] = "https://compute.googleapis.com/".into();
    direct.as_object_mut().unwrap().remove("scope");
    assert_eq!(zones(&world, "signed", &stated(&file, &direct)).await, 200);

    for (name, value) in [
        ("iss", json!("nobody@signed")),
        ("exp", json!(claims["exp"].as_i64().unwrap() + 1)),
        ("iat", json!(0)),
        ("aud", json!("https://example.com")),
    ] {
        let mut wrong = claims.clone();
        wrong[name] = value;
        let refused = granted(&world, &stated(&file, &wrong)).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]),
            (400, &json!("invalid_grant")),
            "{name}"
        );
    }
    let forged = stated(&file, &claims) + "AA";
    assert_eq!(granted(&world, &forged).await.status, 400);

    world.0.advance(3_599);
    assert_eq!(zones(&world, "signed", &token).await, 401);
    world.sim().world(|world| {
        world.accounts.get_mut("signed").unwrap().credentials[0].state = CredentialState::Revoked;
    });
    assert_eq!(granted(&world, &stated(&file, &claims)).await.status, 400);
    world.is_content();
}

#[tokio::test]
async fn a_cluster_exchanges_its_token_for_one_of_google() {
    let world = world().await;
    let fleet = Account::with_pair("fleet", "//iam/pool", "jwt-of-the-cluster");
    world.sim().world(|world| world.add_account(fleet));
    let client = Client::new(world.0.url("gcp"));
    let exchange = async |subject: &str| {
        let kind = "grant_type=urn:ietf:params:oauth:grant-type:token-exchange";
        let form = format!("{kind}&audience=//iam/pool&subject_token={subject}");
        let content_type = "application/x-www-form-urlencoded";
        client
            .send(Method::POST, "/v1/token", content_type, &form)
            .await
            .unwrap()
    };
    assert_eq!(exchange("another").await.json()["error"], "invalid_grant");
    let told = exchange("jwt-of-the-cluster").await.json();
    assert_eq!(
        told["issued_token_type"],
        "urn:ietf:params:oauth:token-type:access_token"
    );
    let token = told["access_token"].as_str().unwrap();
    assert_eq!(zones(&world, "fleet", token).await, 200);
    world.is_content();
}

#[tokio::test]
async fn the_node_of_the_operator_has_a_token_where_it_is_one_of_google() {
    let world = world().await;
    let client = Client::new(world.0.url("gcp")).with("metadata-flavor", "Google");
    let path = "/computeMetadata/v1/instance/service-accounts/default/token";
    assert_eq!(client.get(path).await.unwrap().status, 404);
    world.control("metadata", json!({ "account": "acme" }));
    let plain = Client::new(world.0.url("gcp")).get(path).await.unwrap();
    assert_eq!(plain.status, 403, "without the header");
    let token = client.get(path).await.unwrap().json()["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(zones(&world, "acme", &token).await, 200);
    assert_eq!(
        client
            .get("/computeMetadata/v1/project/project-id")
            .await
            .unwrap()
            .body,
        "acme"
    );
    world.is_content();
}

#[tokio::test]
async fn each_right_that_is_taken_away_is_named() {
    let world = world().await;
    let lacks = |right: &str| world.control("permissions", json!({ "account": "acme", "lacks": [right] }));
    for right in [
        "compute.instances.create",
        "compute.disks.create",
        "compute.subnetworks.use",
        "compute.subnetworks.useExternalIp",
        "compute.instances.setMetadata",
        "compute.instances.setTags",
        "compute.instances.setLabels",
    ] {
        lacks(right);
        let told = world.order(order()).await;
        assert_eq!(refusal(&told), (403, "forbidden".to_owned()), "{right}");
        assert!(
            told.body
                .contains(&format!("Required '{right}' permission for 'projects/acme/")),
            "{}",
            told.body
        );
    }
    for (right, path) in [
        ("compute.instances.list", "aggregated/instances".to_owned()),
        ("compute.machineTypes.list", "aggregated/machineTypes".to_owned()),
        ("compute.projects.get", String::new()),
        ("compute.globalOperations.get", "global/operations/x".to_owned()),
        ("compute.zoneOperations.get", format!("zones/{ZONE}/operations/x")),
    ] {
        lacks(right);
        let told = world.get(&path).await;
        assert_eq!(told.status, 403, "{right}");
        assert!(told.body.contains(right), "{}", told.body);
    }
    world.control("permissions", json!({ "account": "acme", "lacks": [] }));
    assert_eq!(world.order(order()).await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn a_403_is_a_quota_a_rate_a_right_or_the_bill_and_its_reason_tells_which() {
    let world = world().await;
    let quota = Fault::Quota {
        what: "SSD_TOTAL_GB".to_owned(),
    };
    for (fault, status, reason) in [
        (Fault::TooMany { retry_after: None }, 403, "rateLimitExceeded"),
        (quota, 403, "quotaExceeded"),
        (Fault::Forbidden, 403, "forbidden"),
        (Fault::Funds, 403, "billingNotEnabled"),
        (Fault::Unauthorized, 401, "authError"),
        (Fault::Expired, 401, "authError"),
    ] {
        world.sim().fault(Rule::once("create", fault));
        assert_eq!(refusal(&world.order(order()).await), (status, reason.to_owned()));
    }
    let stranger = Client::new(world.0.url("gcp"));
    assert_eq!(stranger.get(&here("zones")).await.unwrap().status, 401);
    world.is_content();
}
