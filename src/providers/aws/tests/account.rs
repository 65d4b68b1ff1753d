use std::process::Command;

use skyward_core::{Credentials, Endpoints, Secret};

use super::*;

fn account(keys: &[&str]) -> Account<Settings> {
    Account {
        cluster: "c".into(),
        provider: "aws-main".into(),
        settings: Settings::default(),
        credentials: Credentials::new(keys.iter().map(|key| ((*key).to_owned(), Secret::new("canary")))),
        endpoints: Endpoints::default(),
    }
}

#[test]
fn half_a_key_is_refused_and_the_other_half_is_named() {
    for (has, lacks) in [
        (["AWS_ACCESS_KEY_ID"].as_slice(), "AWS_SECRET_ACCESS_KEY"),
        (&["AWS_SECRET_ACCESS_KEY"], "AWS_ACCESS_KEY_ID"),
        (
            &["AWS_SESSION_TOKEN", "AWS_SECRET_ACCESS_KEY"],
            "AWS_ACCESS_KEY_ID",
        ),
    ] {
        let error = connect(account(has)).err().expect("half a key is none");
        assert_eq!(error.kind, ErrorKind::Credentials);
        assert!(
            error.message.contains(lacks) && !error.message.contains("canary"),
            "{error}"
        );
    }
}

#[test]
fn without_keys_the_operators_own_identity_is_used() {
    assert!(connect(account(&[])).is_ok());
    assert!(connect(account(&["AWS_DEFAULT_REGION"])).is_ok());
    assert!(connect(account(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])).is_ok());
}

#[test]
fn every_key_of_the_secret_is_told_on_the_page() {
    let page = include_str!("../../../../docs/providers/aws.md");
    for key in CREDENTIALS {
        assert!(page.contains(&format!("`{}`", key.name)), "{}", key.name);
    }
}

/// Runs the command with a function in the place of `curl`, whose answer to the question
/// with the token is this.
fn ask(answer: &str) -> (bool, String) {
    let script = format!(
        "curl() {{\ncase \"$*\" in\n*api/token*) echo a-token ;;\n*'X-aws-ec2-metadata-token: a-token'*) {answer} ;;\n*) return 22 ;;\nesac\n}}\n{NOTICE}\n"
    );
    let said = Command::new("sh").args(["-c", &script]).output().unwrap();
    (said.status.success(), String::from_utf8(said.stdout).unwrap())
}

#[test]
fn a_notice_of_the_metadata_service_is_a_line_with_its_time() {
    assert_eq!(
        ask(r#"echo '{"action": "terminate", "time": "2026-11-21T03:04:05Z"}'"#),
        (true, "2026-11-21T03:04:05Z\n".to_owned())
    );
}

#[test]
fn while_there_is_no_notice_the_command_fails() {
    assert_eq!(ask("return 22"), (false, String::new()));
}
