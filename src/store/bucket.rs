//! Opens a bucket of S3, of Google Cloud Storage or of Azure as the place of a store.
//!
//! - The address is `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://ACCOUNT/CONTAINER/PREFIX`. Below it each
//!   installation has a folder of its own, so that several may share a bucket.
//! - Keys come from the files of a folder, as a mounted Secret has them, and not from variables of the process:
//!   the chain of credentials of a cloud's Provider reads those. With such files no variable counts; when they
//!   change, the bucket is opened again (`reopened.rs`). Without them the bucket is opened with the identity of the Pod, which the
//!   cloud's own webhook or metadata server gives.
//! - Nothing is sent here: a bucket that cannot be reached keeps no operator from its machines. The first
//!   call finds out (`creates.rs`).
//! - A bucket has no size. The store holds at most the bytes of `store.size`.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path as FilePath, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use object_store::{
    BackoffConfig, Certificate, ClientOptions, HeaderValue, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder},
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey},
    path::Path,
    prefix::PrefixStore,
};

use crate::{Error, Store, creates::Creates, reopened::Reopened, room::Room};

/// Longest wait for one answer: a piece has a little more than 1 MiB.
const REQUEST: Duration = Duration::from_secs(30);
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// No try begins after so long: callers wait for a minute.
const TRYING: Duration = Duration::from_secs(40);
/// Largest file with a key.
const LARGEST_KEY: u64 = 64 * 1024;
/// The file with certificates of authorities that the bucket's server may have besides the well-known ones.
const AUTHORITIES: &str = "ca.crt";

/// The kinds of buckets, with the files that may have keys of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
}

impl Kind {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"],
            Self::Google => &["GOOGLE_SERVICE_ACCOUNT_KEY"],
            Self::Azure => &[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_CLIENT_ID",
                "AZURE_CLIENT_SECRET",
                "AZURE_TENANT_ID",
            ],
        }
    }
}

/// The address of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    kind: Kind,
    /// Of Azure alone.
    account: String,
    name: String,
    prefix: Path,
}

impl FromStr for Bucket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "\"{text}\" is no bucket; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX, where the prefix may be left out"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.scheme() == scheme);
        let kind = kind.ok_or_else(wrong)?;
        let mut parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
        if parts.iter().any(|part| !is_part(part)) {
            return Err(wrong());
        }
        let account = if kind == Kind::Azure { parts.remove(0) } else { "" };
        let Some((name, prefix)) = parts.split_first() else {
            return Err(wrong());
        };
        Ok(Self {
            kind,
            account: account.to_owned(),
            name: (*name).to_owned(),
            prefix: prefix.iter().copied().collect(),
        })
    }
}

/// Whether a part of an address means in every bucket what it says.
fn is_part(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=222).contains(&part.len()) && part.bytes().all(is_plain) && part.bytes().any(|byte| byte != b'.')
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.kind.scheme())?;
        if self.kind == Kind::Azure {
            write!(f, "{}/", self.account)?;
        }
        write!(f, "{}", self.name)?;
        match self.prefix.as_ref() {
            "" => Ok(()),
            prefix => write!(f, "/{prefix}"),
        }
    }
}

/// How a bucket is reached.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The region of a bucket of S3.
    pub region: Option<String>,
    /// The address of the server, if it is not the cloud's own.
    pub endpoint: Option<String>,
    /// A folder with a file for each key.
    pub credentials: Option<PathBuf>,
}

impl Store {
    /// A store in a bucket, in the folder of that installation, which takes at most so many bytes.
    pub fn bucket(bucket: &Bucket, access: &Access, installation: &str, size: u64) -> Result<Self, Error> {
        let prefix = bucket.prefix.clone().join(installation);
        let objects: Arc<dyn ObjectStore> = match access.credentials.clone() {
            None => open(bucket, access, &prefix, &Files::default())?,
            Some(folder) => {
                let kind = bucket.kind;
                let (bucket, access) = (bucket.clone(), access.clone());
                Arc::new(Reopened::<Files>::new(
                    Box::new(move || read_files(kind, &folder)),
                    Box::new(move |files: &Files| open(&bucket, &access, &prefix, files)),
                )?)
            }
        };
        let mut room = Room::new(None);
        room.size = Some(size);
        Ok(Self::new(objects, room, Creates::of_a_bucket()))
    }
}

type Keys = BTreeMap<String, String>;

/// The files of a folder with keys.
#[derive(Default, PartialEq, Eq)]
struct Files {
    keys: Keys,
    /// Certificates, as PEM.
    authorities: Option<String>,
}

fn open(
    bucket: &Bucket,
    access: &Access,
    prefix: &Path,
    Files { keys, authorities }: &Files,
) -> Result<Arc<dyn ObjectStore>, Error> {
    let options = options(access, authorities.as_deref())?;
    let prefix = prefix.clone();
    let objects: Arc<dyn ObjectStore> = match bucket.kind {
        Kind::S3 => Arc::new(PrefixStore::new(s3(bucket, access, keys, options)?, prefix)),
        Kind::Google => Arc::new(PrefixStore::new(google(bucket, access, keys, options)?, prefix)),
        Kind::Azure => Arc::new(PrefixStore::new(azure(bucket, access, keys, options)?, prefix)),
    };
    Ok(objects)
}

fn s3(bucket: &Bucket, access: &Access, keys: &Keys, options: ClientOptions) -> Result<AmazonS3, Error> {
    // Half of a pair of keys may come from neither place.
    let builder = if keys.is_empty() {
        AmazonS3Builder::from_env()
    } else {
        AmazonS3Builder::new()
    };
    let mut builder = builder
        .with_bucket_name(&bucket.name)
        .with_client_options(options)
        .with_retry(retries());
    if let Some(region) = &access.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &access.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    for (name, value) in keys {
        let key: AmazonS3ConfigKey = name.to_ascii_lowercase().parse()?;
        builder = builder.with_config(key, value);
    }
    builder.build().map_err(misnamed)
}

fn google(
    bucket: &Bucket,
    access: &Access,
    keys: &Keys,
    options: ClientOptions,
) -> Result<GoogleCloudStorage, Error> {
    let builder = if keys.is_empty() {
        GoogleCloudStorageBuilder::from_env()
    } else {
        GoogleCloudStorageBuilder::new()
    };
    let mut builder = builder
        .with_bucket_name(&bucket.name)
        .with_client_options(options)
        .with_retry(retries());
    if let Some(endpoint) = &access.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    for (name, value) in keys {
        // The client would repeat a text in the place of an object, and with it the private key.
        if !value.starts_with('{') {
            return Err(Error::Misnamed(format!(
                "the key {name} of the result store's bucket is no JSON file of a service account; write the file into the Secret as it is"
            )));
        }
        let key: GoogleConfigKey = name.to_ascii_lowercase().parse()?;
        builder = builder.with_config(key, value);
    }
    builder.build().map_err(misnamed)
}

fn azure(
    bucket: &Bucket,
    access: &Access,
    keys: &Keys,
    options: ClientOptions,
) -> Result<MicrosoftAzure, Error> {
    let builder = if keys.is_empty() {
        MicrosoftAzureBuilder::from_env()
    } else {
        MicrosoftAzureBuilder::new()
    };
    let mut builder = builder
        .with_account(&bucket.account)
        .with_container_name(&bucket.name)
        .with_client_options(options)
        .with_retry(retries());
    if let Some(endpoint) = &access.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    for (name, value) in keys {
        let key: AzureConfigKey = name.to_ascii_lowercase().parse()?;
        builder = builder.with_config(key, value);
    }
    builder.build().map_err(misnamed)
}

/// A bucket that cannot be opened as it is described. The client's own words show no keys: it has only parsed them.
fn misnamed(error: object_store::Error) -> Error {
    Error::Misnamed(format!(
        "the bucket of the result store cannot be opened: {error}"
    ))
}

fn options(access: &Access, authorities: Option<&str>) -> Result<ClientOptions, Error> {
    let is_plain = access
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut options = ClientOptions::new()
        .with_user_agent(HeaderValue::from_static("skyward"))
        .with_allow_http(is_plain)
        .with_timeout(REQUEST)
        .with_connect_timeout(CONNECT);
    if let Some(text) = authorities {
        let certificates = Certificate::from_pem_bundle(text.as_bytes()).unwrap_or_default();
        if certificates.is_empty() {
            return Err(Error::Misnamed(format!(
                "\"{AUTHORITIES}\" in the Secret of the result store's bucket has no certificate; write certificates of authorities as PEM, one below the other"
            )));
        }
        for certificate in certificates {
            options = options.with_root_certificate(certificate);
        }
    }
    Ok(options)
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 10,
        retry_timeout: TRYING,
    }
}

/// The files of a folder with keys. A file of another name is a mistake that would else look like a wrong key.
fn read_files(kind: Kind, folder: &FilePath) -> Result<Files, Error> {
    let unreadable = |error: io::Error| {
        let folder = folder.display();
        Error::Misnamed(format!(
            "the keys of the result store's bucket cannot be read from {folder}: {error}"
        ))
    };
    let known = || format!("{}, {AUTHORITIES}", kind.keys().join(", "));
    let mut files = Files::default();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Kubernetes keeps the versions of a Secret in folders of such names.
        if name.starts_with("..") {
            continue;
        }
        if name != AUTHORITIES && !kind.keys().contains(&name.as_str()) {
            return Err(Error::Misnamed(format!(
                "the Secret of the result store's bucket has the key \"{name}\"; for {}:// it may have {}",
                kind.scheme(),
                known()
            )));
        }
        let size = fs::metadata(entry.path()).map_err(unreadable)?.len();
        if size > LARGEST_KEY {
            return Err(Error::Misnamed(format!(
                "the key \"{name}\" of the result store's bucket has {size} bytes, and may have {LARGEST_KEY}"
            )));
        }
        let value = fs::read_to_string(entry.path()).map_err(unreadable)?;
        let value = value.trim().to_owned();
        if name == AUTHORITIES {
            files.authorities = Some(value);
        } else {
            files.keys.insert(name, value);
        }
    }
    if files == Files::default() {
        return Err(Error::Misnamed(format!(
            "the Secret of the result store's bucket is empty; for {}:// it may have {}, and without store.bucket.credentialsSecret the identity of the Pod opens the bucket",
            kind.scheme(),
            known()
        )));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_bucket_and_a_prefix() {
        for (text, name, prefix) in [
            ("s3://logs", "logs", ""),
            ("s3://logs/", "logs", ""),
            ("s3://logs/team/skyward/", "logs", "team/skyward"),
            ("gs://my_bucket.example.com/a", "my_bucket.example.com", "a"),
            ("az://account/container", "container", ""),
            ("az://account/container/a/b", "container", "a/b"),
        ] {
            let bucket: Bucket = text.parse().unwrap();
            assert_eq!(
                (bucket.name.as_str(), bucket.prefix.as_ref()),
                (name, prefix),
                "{text}"
            );
            assert_eq!(bucket.to_string(), text.trim_end_matches('/'));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_to_write() {
        for text in [
            "",
            "logs",
            "s3://",
            "s3:///a",
            "http://logs",
            "s3://logs//a",
            "s3://logs/../other",
            "s3://logs/a?b",
            "s3://key:secret@logs",
            "az://account",
        ] {
            let why = text.parse::<Bucket>().unwrap_err();
            assert!(why.contains("s3://BUCKET/PREFIX"), "{text}: {why}");
        }
    }

    fn store(address: &str, files: &[(&str, &str)]) -> Result<Store, Error> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::create_dir(folder.path().join("..2026_01_01")).unwrap();
        let access = Access {
            credentials: Some(folder.path().to_owned()),
            ..Access::default()
        };
        Store::bucket(&address.parse().unwrap(), &access, "installation", 1 << 30)
    }

    #[test]
    fn a_bucket_is_opened_although_nothing_answers_there() {
        let keys = [("AWS_ACCESS_KEY_ID", "a\n"), ("AWS_SECRET_ACCESS_KEY", "b")];
        let opened = store("s3://logs/here", &keys).unwrap();
        assert_eq!(opened.known_exclusion(), None);
        // A key of 32 bytes.
        let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
        store("az://account/container", &[("AZURE_STORAGE_ACCOUNT_KEY", key)]).unwrap();
    }

    #[test]
    fn a_key_that_a_bucket_does_not_have_is_named_with_those_that_it_has() {
        let why = store("s3://logs", &[("AWS_SECRET_KEY", "b")])
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("\"AWS_SECRET_KEY\"") && why.contains("AWS_SECRET_ACCESS_KEY"),
            "{why}"
        );
        let why = store("s3://logs", &[("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")])
            .unwrap_err()
            .to_string();
        assert!(!why.contains("AKIAEXAMPLE"), "{why}");
        let long = "x".repeat(100_000);
        let why = store("gs://logs", &[("GOOGLE_SERVICE_ACCOUNT_KEY", &long)]).unwrap_err();
        assert!(why.to_string().contains("100000 bytes"), "{why}");
        // A file that was quoted on its way into the Secret.
        let text = r#""{\"private_key\": \"PRIVATE\"}""#;
        let why = store("gs://logs", &[("GOOGLE_SERVICE_ACCOUNT_KEY", text)])
            .unwrap_err()
            .to_string();
        assert!(why.contains("no JSON file") && !why.contains("PRIVATE"), "{why}");
    }

    #[test]
    fn a_secret_without_keys_is_no_identity_of_the_pod() {
        let why = store("s3://logs", &[]).unwrap_err().to_string();
        assert!(
            why.contains("is empty") && why.contains("AWS_SECRET_ACCESS_KEY"),
            "{why}"
        );
    }

    #[test]
    fn authorities_of_a_server_are_certificates() {
        let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
        let with = |text| store("s3://logs", &[keys[0], keys[1], (AUTHORITIES, text)]);
        let why = with("no certificate").unwrap_err().to_string();
        assert!(why.contains("\"ca.crt\"") && why.contains("PEM"), "{why}");
        with(CERTIFICATE).unwrap();
    }

    /// An authority of nobody.
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBeDCCAR2gAwIBAgIUTZaB9sbZ4JHwRvnlbZ109OTlGscwCgYIKoZIzj0EAwIw\n\
ETEPMA0GA1UEAwwGbm9ib2R5MB4XDTI2MTEyNjExMjEwOFoXDTM2MTEyMzExMjEw\n\
OFowETEPMA0GA1UEAwwGbm9ib2R5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
E3lWupmBCXVmQHa209Bgzjw8F7zvVCyOo+QP39M+V9sorCZ1O5KbkG3G0P/88PxI\n\
QUDkS5FC9RVYxdGHxQSMmqNTMFEwHQYDVR0OBBYEFHI3MpxtSZtoxJ1aDsqZcqiQ\n\
TI7rMB8GA1UdIwQYMBaAFHI3MpxtSZtoxJ1aDsqZcqiQTI7rMA8GA1UdEwEB/wQF\n\
MAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhAORN5fT7DAyEafVl0Vbi2Kh/4v5clTJf\n\
t5MlxV1ICc3EAiEA0HneT408SyEz9EuKxHd2lmjp/gCfTen1uZCAvQy/jc4=\n\
-----END CERTIFICATE-----\n\
";
}
