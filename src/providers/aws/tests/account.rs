use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Command,
};

use skyward_core::{Credentials, Endpoints, Fence, Secret};

use super::*;

fn account(keys: &[&str]) -> Account {
    Account {
        provider: "aws-main".into(),
        settings: serde_json::json!({}),
        request_timeout: std::time::Duration::from_secs(30),
        credentials: Credentials::new(keys.iter().map(|key| ((*key).to_owned(), Secret::new("canary")))),
        endpoints: Endpoints::default(),
        fence: Fence::always_open(),
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
        assert_eq!(error.kind, ErrorKind::CredentialsMissing);
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

/// Runs the command on a machine whose metadata service, at an address of this test's own,
/// has this notice.
fn ask(notice: Option<&str>) -> (bool, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let notice = notice.map(str::to_owned);
    let service = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
            }
            let (status, body) = if head.starts_with("PUT /latest/api/token ") {
                assert!(head.contains("X-aws-ec2-metadata-token-ttl-seconds: "), "{head}");
                ("200 OK", "a-token")
            } else {
                assert!(
                    head.starts_with("GET /latest/meta-data/spot/instance-action "),
                    "{head}"
                );
                assert!(head.contains("X-aws-ec2-metadata-token: a-token\r\n"), "{head}");
                notice
                    .as_deref()
                    .map_or(("404 Not Found", "<html>none</html>"), |notice| {
                        ("200 OK", notice)
                    })
            };
            write!(
                stream,
                "HTTP/1.0 {status}\r\ncontent-type: text/plain\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let here = NOTICE.replace("/169.254.169.254/80", &format!("/127.0.0.1/{port}"));
    let said = Command::new("sh").args(["-c", &here]).output().unwrap();
    service.join().unwrap();
    (said.status.success(), String::from_utf8(said.stdout).unwrap())
}

#[test]
fn a_notice_of_the_metadata_service_is_a_line_with_its_time() {
    assert_eq!(
        ask(Some(r#"{"action": "terminate", "time": "2026-11-21T03:04:05Z"}"#)),
        (true, "2026-11-21T03:04:05Z\n".to_owned())
    );
}

#[test]
fn while_there_is_no_notice_the_command_fails() {
    assert_eq!(ask(None), (false, String::new()));
}
