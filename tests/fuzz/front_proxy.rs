//! Requests of the logs API: headers about a user, the front proxy's settings and its certificate, and the
//! options of a reader.

use std::{collections::BTreeMap, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use skyward_subresources::{
    data,
    frontproxy::{RequestHeader, Unauthenticated},
    options::LogOptions,
};

use crate::input::{Input, Maker};

static CERTIFICATE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut params = rcgen::CertificateParams::new(vec![]).expect("no names are valid names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "front-proxy-client");
    let key = rcgen::KeyPair::generate().expect("a key");
    params.self_signed(&key).expect("a certificate").der().to_vec()
});

/// Settings of the front proxy, in the order in which inputs have them.
const SETTINGS: [&str; 6] = [
    "requestheader-client-ca-file",
    "requestheader-allowed-names",
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 4 {
        0 => identify(input, Some(&CERTIFICATE)),
        1 => {
            let certificate = input.sized();
            identify(input, Some(certificate));
        }
        2 => options(input),
        _ => {
            let (uid, run) = (input.text(), input.text());
            if let Some((attempt, rank)) = data::parse_run_id(&uid, &run) {
                let again = data::run_id(&uid, attempt, rank);
                assert_eq!(data::parse_run_id(&uid, &again), Some((attempt, rank)));
            }
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let settings = |maker: Maker| {
        maker
            .sized("PEM")
            .sized(r#"["front-proxy-client"]"#)
            .sized(r#"["X-Remote-User"]"#)
            .sized("")
            .sized(r#"["X-Remote-Group"]"#)
            .sized(r#"["X-Remote-Extra-"]"#)
    };
    let headers = |maker: Maker| {
        maker
            .sized("x-remote-user")
            .sized("žofie@příklad.cz")
            .sized("x-remote-group")
            .sized("büro")
            .sized("x-remote-group")
            .sized(b"b\xfcro")
            .sized("x-remote-extra-example.org%2fscopes")
            .sized("read")
            .end([])
    };
    vec![
        headers(settings(Maker::default().u8(0))),
        headers(settings(Maker::default().u8(1).sized(&*CERTIFICATE))),
        Maker::default()
            .u8(2)
            .sized("sinceSeconds")
            .sized("60")
            .sized("positions")
            .sized("1.0.77,1.1.5")
            .sized("tailLines")
            .sized("10")
            .sized("format")
            .sized("records")
            .sized("sinceTime")
            .sized("2026-11-20T10:00:00Z")
            .end([]),
        Maker::default()
            .u8(3)
            .sized("2f1c0e9a")
            .sized("2f1c0e9a-1-0")
            .end([]),
    ]
}

fn identify(mut input: Input<'_>, certificate: Option<&[u8]>) {
    let settings: BTreeMap<String, String> = SETTINGS.map(|name| (name.to_owned(), input.text())).into();
    let Ok(settings) = RequestHeader::parse(&settings) else {
        return;
    };
    let (mut headers, mut bytes) = (HeaderMap::new(), 0);
    while !input.is_empty() {
        let (name, value) = (input.sized(), input.sized());
        bytes += name.len() + value.len();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    assert_eq!(
        settings.identify(None, &headers),
        Err(Unauthenticated::NoCertificate)
    );
    if let Ok(user) = settings.identify(certificate, &headers) {
        assert!(!user.name.is_empty(), "somebody without a name is believed");
        // Each header may be named once more in each of the settings.
        let named = settings.group_headers.len() + settings.extra_prefixes.len() + 2;
        let told: usize = user
            .groups
            .iter()
            .chain(user.extra.values().flatten())
            .map(String::len)
            .sum();
        assert!(user.name.len() + user.uid.len() + told <= bytes * named);
    }
}

fn options(mut input: Input<'_>) {
    let mut query = BTreeMap::new();
    while !input.is_empty() {
        query.insert(input.text(), input.text());
    }
    let now = Timestamp::from_second(1_763_675_510).expect("a time of this century");
    if let Ok(options) = LogOptions::parse(&query, now) {
        let written = options.query();
        let pairs = written.split('&').filter_map(|pair| pair.split_once('='));
        let again = pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(LogOptions::parse(&again, now), Ok(options));
    }
}
