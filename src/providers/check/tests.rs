//! Reports of an account in memory: what they say, and what they hide.

use async_trait::async_trait;
use skyward_core::{
    Accepted, Capabilities, Credentials, Deletion, Leftover, MachineRef, Mark, Order, Secret,
    machine::Rental,
    offer::{Accelerators, Architecture},
};

use super::*;

/// A key as Google gives it: with escaped line breaks.
const KEY_FILE: &str = r#"{"private_key":"-----BEGIN PRIVATE KEY-----\nMIIEvQcanarycanarycanary\n-----END"}"#;

fn credentials() -> Credentials {
    let keys = [("TOKEN", "canary-1"), ("FILE", KEY_FILE), ("SHORT", "eu")];
    Credentials::new(keys.map(|(name, value)| (name.to_owned(), Secret::new(value))))
}

/// An account that answers so.
struct Told {
    capabilities: Capabilities,
    account: Result<String, ProviderError>,
    offers: Result<Vec<Offer>, ProviderError>,
}

impl Told {
    fn new() -> Self {
        Self {
            capabilities: Capabilities::of("told"),
            account: Ok("acme".into()),
            offers: Ok(Vec::new()),
        }
    }
}

#[async_trait]
impl Provider for Told {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn account(&self) -> Result<String, ProviderError> {
        self.account.clone()
    }

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        Ok(vec![AccountFact {
            what: "balance",
            value: "7.5".into(),
        }])
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        self.offers.clone()
    }

    async fn create(&self, _: &Order) -> Result<Accepted, ProviderError> {
        unreachable!("a look orders nothing")
    }

    async fn get(&self, _: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        unreachable!("a look names no machine")
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let mark = Mark {
            cluster: scope.cluster.clone(),
            namespace: "research".into(),
            pool: "train".into(),
            machine: "train-0".into(),
            ..Mark::default()
        };
        Ok(vec![ProviderMachine {
            id: "i-1".into(),
            mark,
            phase: ProviderPhase::Running,
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: Rental::default(),
        }])
    }

    async fn delete(&self, _: &MachineRef) -> Result<Deletion, ProviderError> {
        unreachable!("a look deletes nothing")
    }

    async fn leftovers(&self, _: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        Ok(vec![Leftover {
            kind: "SSH key",
            id: "k-1".into(),
            region: String::new(),
            pool_uid: "uid".into(),
        }])
    }
}

fn offer(card: &str, on_demand: i64) -> Offer {
    Offer {
        id: "a".into(),
        instance_type: format!("{card}-machine"),
        region: "eu-1".into(),
        accelerators: Some(Accelerators {
            name: card.into(),
            count: 1.0,
            memory_gb: None,
            form_factor: None,
        }),
        vcpus: 8.0,
        memory_gb: 32.0,
        disk_gb: None,
        architecture: Architecture::Amd64,
        on_demand: Some(Usd::cents(on_demand)),
        spot: None,
        availability: Availability::Yes,
        connected: false,
        rate_as_of: None,
    }
}

fn problem(kind: ErrorKind, message: &str) -> ProviderError {
    ProviderError::new(kind, "list the offers", message)
}

async fn text(told: &Told, installation: Option<&str>) -> String {
    look(told, installation)
        .await
        .render(Format::Text, &credentials())
}

#[tokio::test]
async fn a_report_tells_account_offers_machines_and_leftovers() {
    let told = Told {
        offers: Ok(vec![offer("H100", 250), offer("H100", 199), offer("Frob 9", 10)]),
        ..Told::new()
    };
    let text = text(&told, Some("cluster")).await;
    for part in [
        "account: acme",
        "balance: 7.5",
        "offers: 3: 3 on demand, 0 spot",
        "regions: eu-1",
        "H100: 2 offers, on demand from 1.99 USD per hour (H100-machine), spot from –",
        "accelerators whose names are not known: Frob 9",
        "i-1 (research/train-0, running, unknown USD per hour)",
        "SSH key k-1 of Pool uid",
        "permissions that these calls lack: none",
        "Every call was answered",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[tokio::test]
async fn a_report_tells_where_the_credentials_are_from() {
    let report = look(&Told::new(), None).await;
    let report = report.with_source("of the environment (TOKEN)".into());
    let text = report.render(Format::Text, &credentials());
    assert!(
        text.contains("\ncredentials: of the environment (TOKEN)\n"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&report.render(Format::Json, &credentials())).unwrap();
    assert_eq!(json["credentials"], "of the environment (TOKEN)");
}

#[tokio::test]
async fn a_right_that_is_lacking_is_named_and_the_other_questions_are_asked() {
    let told = Told {
        offers: Err(problem(
            ErrorKind::Permission,
            "the action Types.read is not allowed",
        )),
        ..Told::new()
    };
    let report = look(&told, Some("cluster")).await;
    assert!(!report.is_well());
    let text = report.render(Format::Text, &credentials());
    assert!(
        text.contains("permissions that these calls lack: could not list the offers: the action Types.read"),
        "{text}"
    );
    assert!(text.contains("i-1 (research/train-0"), "{text}");
}

#[tokio::test]
async fn wrong_credentials_are_shown_to_the_cloud_once() {
    let told = Told {
        account: Err(problem(ErrorKind::Credentials, "no such key")),
        ..Told::new()
    };
    let text = text(&told, Some("cluster")).await;
    assert!(text.contains("account: FAILED (credentials)"), "{text}");
    assert!(
        text.contains("offers: not asked, since the credentials were refused"),
        "{text}"
    );
}

#[tokio::test]
async fn without_the_id_of_the_installation_its_machines_are_not_looked_for() {
    let text = text(&Told::new(), None).await;
    assert!(
        text.contains("machines of this installation: not asked, since the installation is not known"),
        "{text}"
    );
}

#[tokio::test]
async fn credentials_that_the_cloud_repeats_are_hidden_in_each_form() {
    let words = "bearer canary-1 of eu, MIIEvQcanarycanarycanary";
    let told = Told {
        account: Ok("canary-1".into()),
        offers: Err(problem(ErrorKind::Transient, words)),
        ..Told::new()
    };
    let report = look(&told, Some("cluster")).await;
    for format in [Format::Text, Format::Json] {
        let text = report.render(format, &credentials());
        assert!(!text.contains("canary"), "{text}");
        assert!(text.contains("bearer [hidden] of eu, [hidden]"), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.render(Format::Json, &credentials())).unwrap();
    assert_eq!(json["account"]["answer"], "[hidden]");
    assert_eq!(json["offers"]["refused"]["kind"], "transient");
}

/// A cloud that complains about an address or a form repeats it as it came; libraries encode different bytes, in
/// digits of either case.
#[tokio::test]
async fn credentials_that_the_cloud_repeats_percent_encoded_are_hidden() {
    for (secret, repeated) in [
        ("ab+c/d=", "ab%2Bc%2Fd%3D"),
        ("ab+c/d=", "ab%2bc/d%3d"),
        ("ab c d é", "ab+c%20d+%C3%A9"),
        ("ab%c%2Fd", "ab%25c%252Fd"),
        ("ab\nc\"de", "ab%0Ac%22de"),
        ("abcdef", "%61%62%63%64%65%66"),
        ("abcdef", "abc%64ef"),
    ] {
        let told = Told {
            offers: Err(problem(
                ErrorKind::Transient,
                &format!("GET /?key={repeated}&a=1"),
            )),
            ..Told::new()
        };
        let credentials = Credentials::new([("TOKEN".to_owned(), Secret::new(secret))]);
        let report = look(&told, None).await;
        for format in [Format::Text, Format::Json] {
            let text = report.render(format, &credentials);
            assert!(text.contains("GET /?key=[hidden]&a=1"), "{secret}:\n{text}");
        }
    }
}

#[tokio::test]
async fn a_cloud_writes_no_lines_of_its_own_into_a_report() {
    let told = Told {
        account: Ok("acme\n\u{1b}[2JEvery call was answered".into()),
        offers: Err(problem(ErrorKind::Transient, "away")),
        ..Told::new()
    };
    let text = text(&told, None).await;
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(
        !text
            .lines()
            .any(|line| line.starts_with("Every call was answered")),
        "{text}"
    );
}

#[test]
fn a_list_of_any_length_is_cut_and_counted() {
    let listed = Listed::of(0..10_000);
    assert_eq!((listed.entries.len(), listed.total), (MOST, 10_000));
}

#[test]
fn an_account_whose_settings_are_wrong_has_a_report() {
    let report = unusable(
        "verda",
        &problem(ErrorKind::InvalidOrder, "unknown field `regoin`"),
    );
    let text = report.render(Format::Text, &Credentials::default());
    assert!(
        text.contains("unknown field `regoin`") && !report.is_well(),
        "{text}"
    );
    assert_eq!(report.shapes(), [], "nothing was asked");
}
