use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Command,
    thread,
};

use rstest::rstest;
use serde_json::json;
use skyward_core::Secret;

use super::*;

fn credentials(key_of: Option<&str>, named: Option<&str>) -> Credentials {
    let key = key_of.map(|project| (KEY, json!({ "project_id": project }).to_string()));
    let named = named.map(|project| (PROJECT, format!(" {project}\n")));
    let all = key.into_iter().chain(named);
    Credentials::new(all.map(|(name, value)| (name.to_owned(), Secret::new(value))))
}

#[rstest]
#[case::of_the_settings(Some("a"), Some("b"), Some("c"), Some("a"))]
#[case::of_the_secret(None, Some("b"), Some("c"), Some("b"))]
#[case::of_the_key(None, None, Some("c"), Some("c"))]
#[case::missing(None, None, None, None)]
fn the_project_is_that_of_the_settings_of_the_secret_or_of_the_key(
    #[case] setting: Option<&str>,
    #[case] secret: Option<&str>,
    #[case] key: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let settings = Settings {
        project: setting.map(Into::into),
        ..Settings::default()
    };
    let completed = <Gcp as skyward_provider_kit::Kind>::complete(settings, &credentials(key, secret));
    if let Some(project) = expected {
        assert_eq!(completed.unwrap().project.as_deref(), Some(project));
    } else {
        let error = completed.unwrap_err();
        assert_eq!(error.kind, ErrorKind::CredentialsMissing);
        assert!(error.message.contains("gcp.project"), "{error}");
    }
}

#[test]
fn without_a_key_the_metadata_server_gives_tokens_and_a_key_that_is_none_is_refused() {
    let auth = |credentials: &Credentials| {
        <Gcp as skyward_provider_kit::Kind>::auth_at(credentials, &Endpoints::default())
    };
    assert!(auth(&credentials(None, Some("b"))).is_ok());
    let error = auth(&credentials(Some("c"), None)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Credentials);
}

/// Whether the command for the notice succeeds where the metadata server answers this, and what it says.
fn noticed(body: &'static str) -> (bool, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(
            head.starts_with("GET /computeMetadata/v1/instance/preempted "),
            "{head}"
        );
        assert!(head.contains("Metadata-Flavor: Google\r\n"), "{head}");
        let head = "HTTP/1.0 200 OK\r\ncontent-type: application/text\r\n\r\n";
        write!(stream, "{head}{body}").unwrap();
    });
    let here = NOTICE.replace("/169.254.169.254/80", &format!("/127.0.0.1/{port}"));
    let said = Command::new("sh").args(["-c", &here]).output().unwrap();
    service.join().unwrap();
    (said.status.success(), String::from_utf8(said.stdout).unwrap())
}

#[test]
fn a_machine_that_is_taken_back_has_a_notice_with_a_time_within_half_a_minute() {
    let (is_there, said) = noticed("TRUE");
    assert!(is_there);
    let at: Timestamp = said.trim().parse().unwrap();
    let left = at.duration_since(Timestamp::now()).as_secs();
    assert!((0..=30).contains(&left), "{said}");
}

#[test]
fn a_machine_that_is_not_taken_back_has_no_notice() {
    assert_eq!(noticed("FALSE"), (false, String::new()));
}
