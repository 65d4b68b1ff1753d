//! A file with the key of a service account, as Google gives it to people: tests log in with one. A simulator knows
//! the account by its email and the id of its key.

use std::sync::LazyLock;

use aws_lc_rs::{
    encoding::AsDer as _,
    rsa::{KeyPair, KeySize},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

/// The private key of all of them: a new one takes its time.
static KEY: LazyLock<String> = LazyLock::new(|| {
    let key = KeyPair::generate(KeySize::Rsa2048).expect("a key of this size can be made");
    let der = key.as_der().expect("a key can be written");
    let text = BASE64_STANDARD.encode(der.as_ref());
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
});

/// The file for a service account of a project.
pub fn key_file(project: &str, email: &str, key_id: &str) -> String {
    let file = json!({
        "type": "service_account",
        "project_id": project,
        "private_key_id": key_id,
        "private_key": *KEY,
        "client_email": email,
        "token_uri": "https://oauth2.googleapis.com/token",
    });
    file.to_string()
}
