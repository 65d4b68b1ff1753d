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
    match expected {
        Some(project) => assert_eq!(completed.unwrap().project.as_deref(), Some(project)),
        None => {
            let error = completed.unwrap_err();
            assert_eq!(error.kind, ErrorKind::CredentialsMissing);
            assert!(error.message.contains("gcp.project"), "{error}");
        }
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
