use rstest::rstest;
use skyward_core::Secret;

use super::*;

#[rstest]
#[case::of_the_settings(Some("a"), Some("b"), Some("a"))]
#[case::of_the_secret(None, Some(" b\n"), Some("b"))]
#[case::missing(None, None, None)]
fn the_project_is_that_of_the_settings_or_of_the_secret(
    #[case] setting: Option<&str>,
    #[case] secret: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let settings = Settings {
        project_id: setting.map(Into::into),
        ..Settings::default()
    };
    let keys = secret.map(|id| (PROJECT_ID.to_owned(), Secret::new(id)));
    let completed = <Scaleway as kind::Kind>::complete(settings, &Credentials::new(keys));
    match expected {
        Some(id) => assert_eq!(completed.unwrap().project_id.as_deref(), Some(id)),
        None => assert_eq!(completed.unwrap_err().kind, ErrorKind::CredentialsMissing),
    }
}
