//! Which of our own certificates are made, when and how.
//!
//! One authority signs four leaves: for the aggregated API (the Kubernetes API server trusts it
//! through the APIService's caBundle), for the data endpoint, for that endpoint's client, and for
//! the metrics. Each process has a Secret with its own leaves and no others. Authorities last ten
//! years, leaves ninety days. [`plan`] decides from the Secrets and the time; [`issue`] carries the
//! plan out. An authority is replaced with overlap: the next authority is trusted everywhere before
//! it signs anything, and the previous one stays trusted until none of its leaves can be in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use skyward_subresources::{SERVICE, reload::key, tls::DATA_SERVER_NAME};
use x509_parser::{extensions::GeneralName, parse_x509_certificate, pem::parse_x509_pem};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Life of an authority.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(24 * 3650);
/// A new authority is made when the present one has this left.
const AUTHORITY_RENEWAL: SignedDuration = SignedDuration::from_hours(24 * 365);
/// A new authority signs only after this, when all clients trust it (they look every 30 s).
const AUTHORITY_SPREAD: SignedDuration = HOUR;
/// An authority that signs no more is trusted for this long.
const AUTHORITY_LEAVES: SignedDuration = DAY;
/// Life of a leaf.
const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// A leaf is made anew when it has this left.
const LEAF_RENEWAL: SignedDuration = SignedDuration::from_hours(24 * 30);
/// Certificates are valid from this long before: clocks differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Name of the Service through which metrics are read.
const METRICS_SERVICE: &str = "skyward-controller";

/// Data of a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// Keys of the authority's Secret, which only the controller reads.
pub(crate) mod authority {
    /// The authority that signs.
    pub(crate) const CERTIFICATE: &str = "ca.crt";
    /// Its key.
    pub(crate) const KEY: &str = "ca.key";
    /// The authority that will sign next.
    pub(crate) const NEXT_CERTIFICATE: &str = "next.crt";
    /// Its key.
    pub(crate) const NEXT_KEY: &str = "next.key";
    /// The authority that signed before.
    pub(crate) const PREVIOUS_CERTIFICATE: &str = "previous.crt";
}

/// What the Secrets hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Secrets {
    /// The authority's, which only the controller reads.
    pub(crate) authority: Data,
    /// Leaves of the aggregated API.
    pub(crate) apiserver: Data,
    /// Leaves of the controller.
    pub(crate) controller: Data,
}

impl Secrets {
    /// The Secret that a leaf belongs to, and the one where it must not be.
    fn places(&mut self, leaf: Leaf) -> (&mut Data, &mut Data) {
        match leaf {
            Leaf::Api | Leaf::Client => (&mut self.apiserver, &mut self.controller),
            Leaf::Server | Leaf::Metrics => (&mut self.controller, &mut self.apiserver),
        }
    }
}

/// A leaf: what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Leaf {
    /// Serving certificate of the aggregated API.
    Api,
    /// Serving certificate of the data endpoint.
    Server,
    /// Serving certificate of the metrics.
    Metrics,
    /// The aggregated API's certificate as a client of the data endpoint.
    Client,
}

impl Leaf {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Api, Self::Server, Self::Metrics, Self::Client];

    /// Keys in the Secret: certificate and private key.
    pub(crate) const fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Api => (key::API_CERTIFICATE, key::API_KEY),
            Self::Server => (key::SERVER_CERTIFICATE, key::SERVER_KEY),
            Self::Metrics => (key::METRICS_CERTIFICATE, key::METRICS_KEY),
            Self::Client => (key::CLIENT_CERTIFICATE, key::CLIENT_KEY),
        }
    }

    /// Names it is valid for.
    pub(crate) fn names(self, namespace: &str) -> BTreeSet<String> {
        let of_service = |service: &str| {
            [
                service.to_owned(),
                format!("{service}.{namespace}"),
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                "localhost".to_owned(),
            ]
            .into()
        };
        match self {
            Self::Api => of_service(SERVICE),
            Self::Metrics => of_service(METRICS_SERVICE),
            Self::Server => [DATA_SERVER_NAME.to_owned()].into(),
            Self::Client => BTreeSet::new(),
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// About the authority.
    pub(crate) authority: Authority,
    /// Leaves to make, signed after the step of the authority.
    pub(crate) leaves: BTreeSet<Leaf>,
    /// Whether the list of trusted authorities in the Secrets is to be written anew.
    pub(crate) bundle: bool,
    /// Whether a Secret holds a leaf of another process: an earlier version kept all leaves in one.
    pub(crate) tidy: bool,
}

/// What is done about the authority, at most one step at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Authority {
    /// Nothing.
    #[default]
    Keep,
    /// There is no working authority: make one that signs at once.
    Create,
    /// Make the next authority; it is trusted, but signs nothing yet.
    Prepare,
    /// The next authority signs from now on; the present one stays trusted.
    Promote,
    /// The previous authority is trusted no more.
    Forget,
}

/// Decides.
pub(crate) fn plan(secrets: &Secrets, namespace: &str, now: Timestamp) -> Plan {
    use authority::{CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, PREVIOUS_CERTIFICATE};
    let mut secrets = secrets.clone();
    let authority_secret = &secrets.authority;
    let current = facts(authority_secret, CERTIFICATE, KEY).filter(|facts| facts.not_after > now);
    let next = facts(authority_secret, NEXT_CERTIFICATE, NEXT_KEY).filter(|facts| facts.not_after > now);
    let step = match (&current, &next) {
        (None, None) => Authority::Create,
        (None, Some(_)) => Authority::Promote,
        (Some(_), Some(next)) if has_passed(next.not_before, AUTHORITY_SPREAD + CLOCK_SKEW, now) => {
            Authority::Promote
        }
        (Some(_), Some(_)) => Authority::Keep,
        (Some(current), None) => {
            if has_passed(now, AUTHORITY_RENEWAL, current.not_after) {
                let old = authority_secret.contains_key(PREVIOUS_CERTIFICATE);
                if old && has_passed(current.not_before, AUTHORITY_SPREAD + AUTHORITY_LEAVES, now) {
                    Authority::Forget
                } else {
                    Authority::Keep
                }
            } else {
                Authority::Prepare
            }
        }
    };
    let (signer, changes) = match step {
        Authority::Create => (None, true),
        Authority::Promote => (next, true),
        Authority::Keep => (current, false),
        Authority::Prepare | Authority::Forget => (current, true),
    };
    let bundled = bundle(authority_secret);
    let trusted = [&secrets.apiserver, &secrets.controller].map(|data| data.get(key::AUTHORITIES));
    let bundle = changes || trusted != [Some(&bundled); 2];
    let mut tidy = false;
    let leaves = Leaf::ALL
        .into_iter()
        .filter(|leaf| {
            let (certificate, private_key) = leaf.keys();
            let (own, other) = secrets.places(*leaf);
            tidy |= other.contains_key(certificate) || other.contains_key(private_key);
            let good = facts(own, certificate, private_key).is_some_and(|facts| {
                signer
                    .as_ref()
                    .is_some_and(|signer| facts.authority_id == signer.key_id)
                    && has_passed(now, LEAF_RENEWAL, facts.not_after)
                    && facts.names == leaf.names(namespace)
            });
            !good
        })
        .collect();
    Plan {
        authority: step,
        leaves,
        bundle,
        tidy,
    }
}

/// Whether `later` is more than `length` after `earlier`.
fn has_passed(earlier: Timestamp, length: SignedDuration, later: Timestamp) -> bool {
    later.duration_since(earlier) > length
}

/// The authorities to trust.
pub(crate) fn bundle(authority_secret: &Data) -> Vec<u8> {
    [
        authority::CERTIFICATE,
        authority::NEXT_CERTIFICATE,
        authority::PREVIOUS_CERTIFICATE,
    ]
    .into_iter()
    .filter_map(|key| authority_secret.get(key))
    .flatten()
    .copied()
    .collect()
}

/// What a certificate says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    not_before: Timestamp,
    not_after: Timestamp,
    key_id: Vec<u8>,
    authority_id: Vec<u8>,
    names: BTreeSet<String>,
}

/// Reads a certificate with its key; `None` when one is missing or unreadable, or when they do not
/// belong together.
fn facts(data: &Data, certificate: &str, private_key: &str) -> Option<Facts> {
    use x509_parser::extensions::ParsedExtension;
    let key_pair = KeyPair::from_pem(std::str::from_utf8(data.get(private_key)?).ok()?).ok()?;
    let (_, pem) = parse_x509_pem(data.get(certificate)?).ok()?;
    let (_, certificate) = parse_x509_certificate(&pem.contents).ok()?;
    if certificate.public_key().subject_public_key.data.as_ref() != key_pair.public_key_raw() {
        return None;
    }
    let mut found = Facts {
        not_before: Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()?,
        not_after: Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?,
        key_id: Vec::new(),
        authority_id: Vec::new(),
        names: BTreeSet::new(),
    };
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => found.key_id = id.0.to_vec(),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                found.authority_id = id
                    .key_identifier
                    .as_ref()
                    .map(|id| id.0.to_vec())
                    .unwrap_or_default();
            }
            ParsedExtension::SubjectAlternativeName(names) => {
                found.names = names
                    .general_names
                    .iter()
                    .filter_map(|name| match name {
                        GeneralName::DNSName(name) => Some((*name).to_owned()),
                        _ => None,
                    })
                    .collect();
            }
            _ => {}
        }
    }
    Some(found)
}

/// Carries a plan out on the Secrets' data; the caller writes them, the authority's first.
pub(crate) fn issue(
    plan: &Plan,
    secrets: &mut Secrets,
    namespace: &str,
    now: Timestamp,
) -> Result<(), rcgen::Error> {
    use authority::{CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, PREVIOUS_CERTIFICATE};
    let authority_secret = &mut secrets.authority;
    match plan.authority {
        Authority::Keep => {}
        Authority::Create => {
            authority_secret.clear();
            put(authority_secret, (CERTIFICATE, KEY), new_authority(now)?);
        }
        Authority::Prepare => put(
            authority_secret,
            (NEXT_CERTIFICATE, NEXT_KEY),
            new_authority(now)?,
        ),
        Authority::Promote => {
            if let Some(previous) = authority_secret.remove(CERTIFICATE) {
                authority_secret.insert(PREVIOUS_CERTIFICATE.to_owned(), previous);
            }
            for (from, to) in [(NEXT_CERTIFICATE, CERTIFICATE), (NEXT_KEY, KEY)] {
                if let Some(value) = authority_secret.remove(from) {
                    authority_secret.insert(to.to_owned(), value);
                }
            }
        }
        Authority::Forget => {
            authority_secret.remove(PREVIOUS_CERTIFICATE);
        }
    }
    let text = |key: &str| {
        String::from_utf8_lossy(authority_secret.get(key).map_or(&[][..], Vec::as_slice)).into_owned()
    };
    let issuer = Issuer::from_ca_cert_pem(&text(CERTIFICATE), KeyPair::from_pem(&text(KEY))?)?;
    for leaf in &plan.leaves {
        let pair = new_leaf(*leaf, &issuer, namespace, now)?;
        let (own, _) = secrets.places(*leaf);
        put(own, leaf.keys(), pair);
    }
    for leaf in Leaf::ALL.into_iter().filter(|_| plan.tidy) {
        let (certificate, private_key) = leaf.keys();
        let (_, other) = secrets.places(leaf);
        other.remove(certificate);
        other.remove(private_key);
    }
    if plan.bundle {
        let bundle = bundle(&secrets.authority);
        for data in [&mut secrets.apiserver, &mut secrets.controller] {
            data.insert(key::AUTHORITIES.to_owned(), bundle.clone());
        }
    }
    Ok(())
}

/// A certificate and its private key, both PEM.
type Pair = (Vec<u8>, Vec<u8>);

fn put(data: &mut Data, keys: (&str, &str), pair: Pair) {
    data.insert(keys.0.to_owned(), pair.0);
    data.insert(keys.1.to_owned(), pair.1);
}

fn named(name: &str, now: Timestamp, life: SignedDuration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Skyward");
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |time: Timestamp| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default())
    };
    params.not_before = at(now - CLOCK_SKEW);
    params.not_after = at(now + life);
    params.use_authority_key_identifier_extension = true;
    params
}

fn new_authority(now: Timestamp) -> Result<Pair, rcgen::Error> {
    // Each authority has a name of its own, so that chains are never ambiguous while two are
    // trusted.
    let mut params = named(
        &format!("Skyward authority {}", now.as_second()),
        now,
        AUTHORITY_LIFE,
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let private_key = KeyPair::generate()?;
    let certificate = params.self_signed(&private_key)?;
    Ok((
        certificate.pem().into_bytes(),
        private_key.serialize_pem().into_bytes(),
    ))
}

fn new_leaf(
    leaf: Leaf,
    issuer: &Issuer<'_, KeyPair>,
    namespace: &str,
    now: Timestamp,
) -> Result<Pair, rcgen::Error> {
    let (name, purpose) = match leaf {
        Leaf::Api => (SERVICE, ExtendedKeyUsagePurpose::ServerAuth),
        Leaf::Server => (DATA_SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth),
        Leaf::Metrics => (METRICS_SERVICE, ExtendedKeyUsagePurpose::ServerAuth),
        Leaf::Client => ("skyward-subresources-client", ExtendedKeyUsagePurpose::ClientAuth),
    };
    let mut params = named(name, now, LEAF_LIFE);
    params.subject_alt_names =
        CertificateParams::new(leaf.names(namespace).into_iter().collect::<Vec<_>>())?.subject_alt_names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    let private_key = KeyPair::generate()?;
    let certificate = params.signed_by(&private_key, issuer)?;
    Ok((
        certificate.pem().into_bytes(),
        private_key.serialize_pem().into_bytes(),
    ))
}

#[cfg(test)]
mod tests;
