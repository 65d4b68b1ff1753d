//! Providers, and clouds that do as they are told.

use super::*;

/// A Provider, and the cloud behind it.
pub(crate) struct Cloud {
    /// The Provider; none once it is deleted.
    pub(crate) object: Option<Provider>,
    pub(crate) capabilities: Capabilities,
    /// What its account answers; `Err` = why it does not.
    pub(crate) account: Result<String, ProviderError>,
    /// Version of its Secret.
    pub(super) secret: u32,
    /// What it offers.
    pub(crate) offers: Vec<offer::Offer>,
    /// What the next orders meet, one after another.
    pub(crate) next_orders: VecDeque<ProviderError>,
    /// What every order meets after those.
    pub(crate) every_order: Option<ProviderError>,
    /// Whether it takes the namespace; if not, what it asks for.
    pub(crate) admits: Result<(), String>,
    /// Its machines turn out to be somebody else's.
    pub(crate) foreign: bool,
    /// Price that it bills, where that is not the recorded one.
    pub(crate) bills: Option<Usd>,
    /// Seconds from the order until the machine runs, and from the deletion until it is gone.
    pub(crate) takes: (i64, i64),
    /// Its machines, with the time of their next step.
    pub(crate) machines: BTreeMap<String, (ProviderMachine, Timestamp)>,
    pub(super) memory: ProviderMemory,
    pub(super) written: BTreeMap<String, Arc<OfferObject>>,
}

/// A kind of machine of a cloud, with its price on demand and on the spot market.
pub(crate) fn sold(
    id: &str,
    gpu: Option<&str>,
    region: &str,
    prices: (Option<&str>, Option<&str>),
) -> offer::Offer {
    let usd = |price: &str| price.parse().unwrap();
    offer::Offer {
        id: id.into(),
        instance_type: id.into(),
        region: region.into(),
        accelerators: gpu.map(|name| offer::Accelerators {
            name: name.into(),
            count: 1.0,
            memory_gb: Some(80.0),
            form_factor: None,
        }),
        vcpus: 16.0,
        memory_gb: 64.0,
        disk_gb: None,
        architecture: offer::Architecture::Amd64,
        on_demand: prices.0.map(usd),
        spot: prices.1.map(usd),
        availability: offer::Availability::Yes,
        connected: true,
        rate_as_of: None,
    }
}

impl Cloud {
    /// A cloud that sells the machine `h100`, on demand for 2 USD and spot for 0.5, and `cpu`.
    pub(super) fn new(name: &str) -> Self {
        let mut object: Provider = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
            "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": 1, "finalizers": [labels::FINALIZER] },
            "spec": { "verda": {}, "allowedNamespaces": {} }
        }))
        .unwrap();
        object.metadata.resource_version = Some("1".into());
        Self {
            object: Some(object),
            capabilities: Capabilities {
                settle_time: Duration::from_secs(5),
                connected: true,
                markets: &[offer::Market::OnDemand, offer::Market::Spot],
                ..Capabilities::of("verda")
            },
            account: Ok("acme".into()),
            secret: 1,
            offers: vec![
                sold("cpu", None, "eu", (Some("0.1"), None)),
                sold("h100", Some("H100"), "eu", (Some("2"), Some("0.5"))),
            ],
            next_orders: VecDeque::new(),
            every_order: None,
            admits: Ok(()),
            foreign: false,
            bills: None,
            takes: (30, 10),
            machines: BTreeMap::new(),
            memory: ProviderMemory::default(),
            written: BTreeMap::new(),
        }
    }

    /// It has another spec from now on.
    pub(crate) fn edit(&mut self, spec: Value) {
        let object = self.object.as_mut().unwrap();
        let mut all = serde_json::to_value(&object.spec).unwrap();
        merge(&mut all, spec);
        object.spec = serde_json::from_value(all).unwrap();
        object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
    }

    /// A person writes other credentials into its Secret, which are answered so.
    pub(crate) fn write_secret(&mut self, account: Result<String, ProviderError>) {
        self.account = account;
        self.secret += 1;
    }

    /// Whether that is its name.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| object.name_any() == name)
    }

    pub(super) fn find(&self, machine: &MachineRef) -> Option<String> {
        let is_meant = |(_, (found, _)): &(&String, &(ProviderMachine, Timestamp))| {
            found.mark.machine_uid == machine.mark.machine_uid
        };
        self.machines.iter().find(is_meant).map(|(id, _)| id.clone())
    }
}

pub(super) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// What a cloud answers instead.
pub(crate) fn error(kind: ErrorKind, operation: &'static str, message: &str) -> ProviderError {
    ProviderError::new(kind, operation, message)
}

/// How a step of a bootstrap fails.
pub(crate) fn step_fails(message: &str, output: &str) -> SessionFailure {
    SessionFailure {
        kind: session::FailureKind::StepFailed,
        step: Some("packages".into()),
        message: message.to_owned(),
        diagnosis: Some(Box::new(skyward_core::diagnosis::Diagnosis::of(message, output))),
    }
}

/// How a machine of a cloud ends by itself.
pub(crate) fn fails(kind: FailureKind, message: &str) -> ProviderPhase {
    ProviderPhase::failed(kind, message)
}
