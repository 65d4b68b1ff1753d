//! The answers of the clouds over REST and GraphQL, through everything that reads them: an answer is an error,
//! machines or offers, and offers become objects of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
    time::Duration,
};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skyward_api::Provider;
use skyward_core::{ErrorKind, Market, Offer, ProviderError, ProviderMachine, Usd};
use skyward_planner::provider::catalogue::{self, catalogue};
use skyward_provider_kit::{
    http::{Answer, Effect},
    lookup::Listed,
};
use skyward_providers::{digitalocean, gcp, hyperstack, lambda, runpod, scaleway, vastai, verda, vultr};

use crate::{document::document, input::Input};

/// Most Offers of one Provider.
const MOST: usize = 1000;
/// Most bytes of a message about a failure.
const WORDS: usize = 4096;

/// Reads a fixture of the providers' own tests.
macro_rules! fixture {
    ($cloud:literal, $file:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!(
            "../../src/providers/tests/fixtures/",
            $cloud,
            "/",
            $file
        )))
        .expect("a fixture is JSON")
    };
}

/// The bodies of recorded failures.
fn bodies(recorded: Value) -> Vec<Value> {
    let Value::Array(all) = recorded else {
        return Vec::new();
    };
    all.into_iter()
        .map(|mut exchange| exchange["body"].take())
        .collect()
}

/// An answer of a cloud and the document in its body.
struct Heard {
    answer: Answer,
    body: Value,
}

impl Heard {
    /// The answer that an input stands for: how it came, then the changes of a known document.
    fn of(data: &[u8], cloud: &'static str, known: &[Value]) -> Self {
        let mut input = Input(data);
        // An input that is JSON itself came with HTTP 200.
        let (status, effect, body) = if matches!(data.first(), Some(b'{' | b'[')) {
            (200, Effect::Repeatable, document(data, known))
        } else {
            let status = input.one_of(&[
                200, 201, 202, 207, 400, 401, 402, 403, 404, 409, 422, 429, 500, 503,
            ]);
            let effect = input.one_of(&[Effect::Repeatable, Effect::Creates]);
            (status, effect, document(input.rest(), known))
        };
        let answer = Answer::new("list the instances", effect, cloud, status, &body.to_string());
        Self { answer, body }
    }

    /// What stands at this place of the body, as that type.
    fn at<T: DeserializeOwned>(&self, pointer: &str) -> Option<T> {
        let read = if pointer.is_empty() {
            self.answer.json()
        } else {
            self.answer.json_at(pointer)
        };
        match read {
            Ok(found) => Some(found),
            Err(error) => {
                failed(&error);
                None
            }
        }
    }

    /// The entries of a list there: one that cannot be read does not hide the others from us.
    fn each<T: DeserializeOwned>(&self, pointer: &str) -> Vec<T> {
        let found = self.body.pointer(pointer).and_then(Value::as_array);
        let read = |entry: &Value| serde_json::from_value(entry.clone()).ok();
        found.into_iter().flatten().filter_map(read).collect()
    }

    /// Everything that a client does with any answer.
    fn judged(&self, error: fn(&Answer) -> ProviderError, ids: &[&'static str]) {
        failed(&error(&self.answer));
        for pointer in ids {
            match self.answer.id(pointer) {
                Ok(id) => assert!(!id.is_empty() && id.len() <= 128),
                Err(error) => failed(&error),
            }
        }
    }
}

fn failed(error: &ProviderError) {
    let words = error.to_string();
    assert!(words.len() <= WORDS, "{} bytes of words", words.len());
}

/// Machines are told apart by their ids, and none is believed to be ours without a mark.
fn machine<M: Listed>(listed: &M, seen: Option<&ProviderMachine>) {
    let _ = (listed.id(), listed.gone());
    assert_eq!(listed.mark().is_some(), seen.is_some());
    if let Some(seen) = seen {
        assert_eq!(Some(&seen.mark), listed.mark().as_ref());
        if let Some(price) = seen.rental.hourly_price {
            assert_eq!(
                price.exact().parse(),
                Ok(price),
                "a price is read as it was written"
            );
        }
    }
}

static PROVIDER: LazyLock<Provider> = LazyLock::new(|| {
    serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
        "metadata": { "name": "acme", "uid": "u" },
        "spec": { "allowedNamespaces": {} }
    }))
    .expect("a Provider")
});

/// Offers become objects, which can be written, and read as they were written.
pub(crate) fn offered(offers: &[Offer]) {
    let made = catalogue(&PROVIDER, offers, &[]);
    assert!(made.objects.len() <= MOST);
    for object in &made.objects {
        let written = serde_json::to_string(&object.spec).expect("an Offer is JSON");
        let read: skyward_api::OfferSpec = serde_json::from_str(&written).expect("an Offer can be read");
        assert_eq!(read, object.spec);
        for price in [&read.on_demand_price, &read.spot_price, &read.lowest_price] {
            let price = price.as_ref().map(|price| price.parse::<Usd>());
            assert!(price.is_none_or(|price| price.is_ok()));
        }
    }
    let (written, gone) = catalogue::difference(&PROVIDER, made, &[]);
    assert!(written.len() <= MOST && gone.is_empty());
}

/// What a cloud answers instead of what was asked for; nothing where all goes well.
pub(crate) fn refusal(number: u64) -> Option<ProviderError> {
    let kind = match number {
        1 => ErrorKind::Transient,
        2 => ErrorKind::RateLimited(Some(Duration::MAX)),
        3 => ErrorKind::RateLimited(None),
        4 => ErrorKind::NoCapacity,
        5 => ErrorKind::Indeterminate,
        6 => ErrorKind::Quota("of GPUs".into()),
        7 => ErrorKind::NoCredit,
        8 => ErrorKind::Credentials,
        9 => ErrorKind::InvalidOrder,
        10 => ErrorKind::Unsupported,
        11 => ErrorKind::MachineFailed,
        12 => ErrorKind::NotFound,
        13 => ErrorKind::AlreadyExists,
        _ => return None,
    };
    Some(ProviderError::new(kind, "call the cloud", "the cloud refuses"))
}

fn now() -> Timestamp {
    Timestamp::from_second(1_795_000_000).expect("a time of this century")
}

/// The seeds of known documents: each as it is, as a success and as a failure.
fn seeds(known: &[Value]) -> Vec<Vec<u8>> {
    let number = u8::try_from(known.len()).unwrap_or(u8::MAX);
    (0..number)
        .flat_map(|at| [vec![0, 0, at], vec![4, 1, at]])
        .collect()
}

fn lambda_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("lambda", "instances.json"),
        fixture!("lambda", "types.json"),
        json!({ "data": [{ "name": "us-west-1" }, { "name": "eu-1" }] }),
        json!({ "data": { "instance_ids": ["a"], "id": "k" } }),
    ];
    known.extend(bodies(fixture!("lambda", "errors.json")));
    known
}

pub(crate) fn lambda_seeds() -> Vec<Vec<u8>> {
    seeds(&lambda_known())
}

pub(crate) fn lambda(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(lambda_known);
    let heard = Heard::of(data, "Lambda", &KNOWN);
    heard.judged(
        lambda::errors::provider_error,
        &["/data/instance_ids/0", "/data/id"],
    );
    for instance in heard.each::<lambda::wire::Instance>("/data") {
        machine(&instance, lambda::map::machine(&instance).as_ref());
    }
    let regions = heard.each("/data");
    if let Some(types) = heard.at("/data") {
        for preferred in [None, Some("eu-1")] {
            offered(&lambda::offers::offers(&types, &regions, preferred));
        }
    }
}

fn runpod_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("runpod", "pods.json"),
        fixture!("runpod", "catalogue.json"),
    ];
    known.extend(bodies(fixture!("runpod", "graphql.json")));
    known.extend(bodies(fixture!("runpod", "errors.json")));
    known
}

pub(crate) fn runpod_seeds() -> Vec<Vec<u8>> {
    seeds(&runpod_known())
}

pub(crate) fn runpod(data: &[u8]) {
    use runpod::{
        config::Settings,
        errors::{graph_error, provider_error},
        kind::{Cloud, Kind},
        map,
        offers::{self, Catalogue},
        wire::{Graph, Pod},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(runpod_known);
    let heard = Heard::of(data, "RunPod", &KNOWN);
    heard.judged(provider_error, &["/id"]);
    if let Some(graph) = heard.at::<Graph>("") {
        failed(&graph_error(&heard.answer, &graph.errors));
    }
    for pod in heard.each::<Pod>("/pods") {
        machine(&pod, map::machine(&pod).as_ref());
    }
    let settings = Settings::default();
    let gpus = heard.each("/gpus");
    for gpu in &gpus {
        if let Some(price) = offers::price_of_gpus(&gpus, &gpu.id, 8, Cloud::Secure) {
            let _ = map::bid(
                price,
                settings.bid_multiplier(),
                gpu.max_count.secure,
                Some(price),
            );
        }
    }
    let mut spot = heard.each("/data/gpuTypes");
    spot.extend(heard.each("/spot"));
    let catalogue = Catalogue {
        gpus: BTreeMap::from([(1, gpus.clone()), (8, gpus)]),
        spot,
    };
    let centers = [heard.each("/dataCenters"), heard.each("/centers")].concat();
    for cloud in [Cloud::Secure, Cloud::Community] {
        let all = offers::gpus(cloud, &catalogue, &centers, &settings);
        for offer in &all {
            let kind = Kind::parse(&offer.instance_type).expect("an instance type of ours is one");
            assert_eq!(kind.to_string(), offer.instance_type);
        }
        offered(&all);
    }
    let cpus = heard.each("/cpus");
    offered(&offers::cpus(&cpus, &settings));
    let _ = offers::price_of_cpus(&cpus, "cpu3c", 2);
}

fn scaleway_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("scaleway", "servers.json"),
        fixture!("scaleway", "kinds.json"),
    ];
    known.extend(bodies(fixture!("scaleway", "errors.json")));
    known
}

pub(crate) fn scaleway_seeds() -> Vec<Vec<u8>> {
    seeds(&scaleway_known())
}

pub(crate) fn scaleway(data: &[u8]) {
    use scaleway::{
        config::Settings,
        errors::{is_busy, provider_error},
        map,
        offers::{self, Kinds, Shortages},
        wire::{Disk, Image, Machine, Server},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(scaleway_known);
    let heard = Heard::of(data, "Scaleway", &KNOWN);
    heard.judged(provider_error, &["/server/id"]);
    let _ = is_busy(&provider_error(&heard.answer));
    let (servers, disks) = (heard.each::<Server>("/servers"), heard.each::<Disk>("/volumes"));
    for found in map::machines(servers, disks) {
        machine(&found, map::machine(&found).as_ref());
        if let Machine::Disk(disk) = &found {
            assert!(disk.tags.is_some(), "a disk without a mark is nothing of ours");
        }
    }
    let _ = map::image(&heard.each::<Image>("/images"));
    let stock: BTreeMap<String, Value> = heard.at("/availability/servers").unwrap_or_default();
    let shortages = Shortages::from([("fr-par-2", offers::shortages(stock.into_iter().collect()))]);
    let kinds = Kinds::from([("fr-par-2", heard.at("/servers").unwrap_or_default())]);
    let rate = serde_json::from_value(json!({ "usd": "1.08", "asOf": "2026-11-01" }));
    let settings = Settings {
        exchange_rate: rate.ok(),
        ..Settings::default()
    };
    for kind in kinds.values().flat_map(BTreeMap::values) {
        let price = offers::price(kind, settings.exchange_rate.as_ref());
        assert!(price.is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&kinds, &shortages, &settings));
}

fn gcp_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("gcp", "instances.json"),
        fixture!("gcp", "catalogue.json"),
        json!({ "operation": { "name": "o", "status": "DONE", "targetId": "7", "httpErrorStatusCode": 503,
            "error": { "errors": [{ "code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no" }] } } }),
    ];
    known.extend(bodies(fixture!("gcp", "errors.json")));
    known
}

pub(crate) fn gcp_seeds() -> Vec<Vec<u8>> {
    seeds(&gcp_known())
}

pub(crate) fn gcp(data: &[u8]) {
    use gcp::{
        config::Settings,
        errors::{failure, is_busy, of_operation, provider_error},
        kind::Kind,
        map,
        offers::{self, Catalogue, Sold},
        wire::{Instance, Operation, Scope},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(gcp_known);
    let heard = Heard::of(data, "Google Cloud", &KNOWN);
    heard.judged(provider_error, &["/name", "/targetId"]);
    let refused = provider_error(&heard.answer);
    assert!(!is_busy(&refused) || refused.kind == ErrorKind::Transient);
    let zones: BTreeMap<String, Scope<Instance>> = heard.at("/list/items").unwrap_or_default();
    for listed in map::listed(zones.into_iter().collect()).unwrap_or_default() {
        for is_ended in [false, true] {
            machine(&listed, map::machine(&listed, is_ended).as_ref());
        }
        let _ = (listed.zone(), listed.market(), Kind::of(&listed).to_string());
    }
    if let Some(operation) = heard.at::<Operation>("/operation")
        && let Some(error) = of_operation(&operation, "create the instance")
    {
        failed(&error);
        assert!(failure(&error).message.len() <= WORDS);
    }
    let sold = Sold {
        machines: heard.each("/machineTypes"),
        accelerators: heard.each("/acceleratorTypes"),
    };
    let catalogue = Catalogue::from([("us-central1-a".to_owned(), sold)]);
    let all = offers::offers(&catalogue, &Settings::default());
    offered(&all);
}

fn hyperstack_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("hyperstack", "machines.json"),
        fixture!("hyperstack", "catalogue.json"),
        json!({ "status": true, "cidr": "10.0.0.0/24", "max_vms": 250 }),
    ];
    known.extend(bodies(fixture!("hyperstack", "errors.json")));
    known
}

pub(crate) fn hyperstack_seeds() -> Vec<Vec<u8>> {
    seeds(&hyperstack_known())
}

pub(crate) fn hyperstack(data: &[u8]) {
    use hyperstack::{
        config::Settings,
        errors::{for_now, is_busy, provider_error},
        map,
        offers::{self, Catalogue},
        wire::{Flavor, Group, Image, Machine, Price},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(hyperstack_known);
    let heard = Heard::of(data, "Hyperstack", &KNOWN);
    heard.judged(
        provider_error,
        &["/instances/0/id", "/environment/id", "/keypair/id"],
    );
    let refused = for_now(provider_error(&heard.answer));
    assert!(!is_busy(&refused) || refused.kind == ErrorKind::Transient);
    for listed in heard.each::<Machine>("/instances") {
        machine(&listed, map::machine(&listed, false).as_ref());
        let ended = map::machine(&listed, true);
        assert_eq!(ended.map(|ended| ended.mark), listed.mark());
    }
    let images = heard.each::<Group<Image>>("/images");
    let image = map::image(&images, "n3-H100x1");
    assert!(image.is_none_or(|name| !name.is_empty()));
    let network = heard.body["cidr"].as_str().and_then(map::network);
    assert!(network.is_none_or(|network| !network.starts_with("0.")));
    let groups = heard.each::<Group<Flavor>>("/data");
    let catalogue = Catalogue::new(groups, heard.each::<Price>("/prices"), Timestamp::UNIX_EPOCH);
    for gpu in ["H100-80G-PCIe", "A100-80G-PCIe-spot", "-spot", ""] {
        let _ = offers::is_spot(gpu);
        let price = catalogue.price(gpu, u32::MAX);
        assert!(price.is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&catalogue, &Settings::default()));
}

fn vastai_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("vastai", "asks.json"),
        fixture!("vastai", "instances.json"),
        json!([{ "name": "skyward-a.9", "cluster_id": 9, "instances": [1, 2] }]),
        json!({ "success": true, "new_contract": 7, "id": 1 }),
    ];
    known.extend(bodies(fixture!("vastai", "errors.json")));
    known
}

pub(crate) fn vastai_seeds() -> Vec<Vec<u8>> {
    seeds(&vastai_known())
}

pub(crate) fn vastai(data: &[u8]) {
    use vastai::{
        config::Settings,
        errors::provider_error,
        map,
        offers::{self, Group},
        wire::{Ask, Instance, Ordered, Overlay},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(vastai_known);
    let heard = Heard::of(data, "Vast.ai", &KNOWN);
    heard.judged(provider_error, &["/id"]);
    let _ = (heard.at::<Ordered>(""), heard.each::<Overlay>(""));
    let settings = Settings::default();
    let instances = heard.each::<Instance>("/instances");
    let held = offers::bids(&instances);
    for instance in &instances {
        for lost in [false, true] {
            machine(instance, map::machine(instance, &settings, lost, now()).as_ref());
        }
        let _ = (map::overlay_of(instance), map::silent(instance));
    }
    let on_demand = heard.each::<Ask>("/ondemand");
    let bids = [
        heard.each::<Ask>("/bid"),
        heard.each("/offers"),
        on_demand.clone(),
    ]
    .concat();
    for ask in &bids {
        let _ = offers::own_bid(ask, &held);
        for group in Group::of(ask).into_iter().chain(Group::in_cluster(ask)) {
            for market in [Market::OnDemand, Market::Spot] {
                let _ = offers::query_of(&group, market, &settings, 100);
            }
            let _ = group.has(ask);
        }
        let price = offers::price(ask, Market::OnDemand, settings.bid_multiplier());
        let bid = offers::bid_for(ask, settings.bid_multiplier(), price);
        assert!(
            bid.zip(price).is_none_or(|(bid, price)| bid <= price),
            "a bid is above its ceiling"
        );
    }
    offered(&offers::offers(&on_demand, &bids, &settings));
}

fn verda_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("verda", "catalogue.json"),
        fixture!("verda", "instances.json"),
        json!([{ "id": "v", "name": "n", "status": "detached" }]),
        json!([{ "id": "m", "status": "error", "error": "no", "statusCode": 400 }]),
    ];
    known.extend(bodies(fixture!("verda", "errors.json")));
    known
}

pub(crate) fn verda_seeds() -> Vec<Vec<u8>> {
    seeds(&verda_known())
}

pub(crate) fn verda(data: &[u8]) {
    use verda::{
        errors,
        map::{self, TAGS},
        offers::{Catalogue, offers},
        wire::{ActionResult, Instance, InstanceType, Volume},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(verda_known);
    let heard = Heard::of(data, "Verda", &KNOWN);
    heard.judged(errors::provider_error, &["/id"]);
    let _ = errors::refusal(&heard.answer.text());
    let _ = heard.each::<ActionResult>("");
    for instance in heard.each::<Instance>("") {
        machine(&instance, map::machine(&instance).as_ref());
    }
    for volume in heard.each::<Volume>("") {
        let _ = TAGS.read(&volume.tags);
    }
    let types = heard.each::<InstanceType>("/types");
    for kind in &types {
        assert!(!map::image(kind).is_empty());
    }
    let made = offers(
        &Catalogue {
            types: &types,
            locations: &heard.each("/locations"),
            on_demand: &heard.each("/on_demand"),
            spot: &heard.each("/spot"),
        },
        "FIN-01",
    );
    offered(&made);
}

fn digitalocean_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("digitalocean", "sizes.json"),
        fixture!("digitalocean", "droplets.json"),
        json!({
            "tags": [{ "name": "skyward:c:p:m:0:1", "resources": { "count": 0 } }],
        }),
    ];
    known.extend(bodies(fixture!("digitalocean", "errors.json")));
    known
}

pub(crate) fn digitalocean_seeds() -> Vec<Vec<u8>> {
    seeds(&digitalocean_known())
}

pub(crate) fn digitalocean(data: &[u8]) {
    use digitalocean::{
        config::Settings,
        errors::provider_error,
        map, offers,
        wire::{Droplet, Size, Tag},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(digitalocean_known);
    let heard = Heard::of(data, "DigitalOcean", &KNOWN);
    heard.judged(provider_error, &["/droplet/id", "/ssh_key/id", "/firewall/id"]);
    for droplet in heard.each::<Droplet>("/droplets") {
        machine(&droplet, map::machine(&droplet).as_ref());
    }
    for tag in heard.each::<Tag>("/tags") {
        let _ = (tag.is_unused(), map::pool_of("c", &tag.name));
    }
    let sizes = heard.each::<Size>("/sizes");
    for size in &sizes {
        assert!(!map::image(size).is_empty());
        assert!(offers::price(Some(size.price_hourly)).is_none_or(|price| !price.is_zero()));
    }
    offered(&offers::offers(&sizes, &Settings::default()));
}

fn vultr_known() -> Vec<Value> {
    let mut known = vec![
        fixture!("vultr", "plans.json"),
        fixture!("vultr", "instances.json"),
        json!({ "available_plans": ["vcg-a16-2c-8g-2vram"] }),
    ];
    known.extend(bodies(fixture!("vultr", "errors.json")));
    known
}

pub(crate) fn vultr_seeds() -> Vec<Vec<u8>> {
    seeds(&vultr_known())
}

pub(crate) fn vultr(data: &[u8]) {
    use vultr::{
        config::{Mode, Settings},
        errors::provider_error,
        map, offers,
        wire::{Instance, Plan},
    };

    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(vultr_known);
    let heard = Heard::of(data, "Vultr", &KNOWN);
    heard.judged(provider_error, &["/instance/id", "/ssh_key/id"]);
    for instance in ["/instances", "/bare_metals"]
        .map(|at| heard.each::<Instance>(at))
        .concat()
    {
        machine(&instance, map::machine(&instance).as_ref());
    }
    let stock: BTreeSet<String> = heard.at("/available_plans").unwrap_or_default();
    let stock = BTreeMap::from([("ewr".to_owned(), stock)]);
    for mode in [Mode::Cloud, Mode::BareMetal] {
        let settings = Settings {
            mode: Some(mode),
            ..Settings::default()
        };
        let plans = ["/plans", "/plans_metal"]
            .map(|at| heard.each::<Plan>(at))
            .concat();
        let plans: Vec<Plan> = plans.into_iter().map(|plan| Plan { mode, ..plan }).collect();
        for plan in &plans {
            assert!(offers::price(plan).is_none_or(|price| !price.is_zero()));
        }
        offered(&offers::offers(&plans, &stock, &settings));
    }
}
