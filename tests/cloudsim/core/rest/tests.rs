//! Tests with an invented cloud, and checks of the tables of all real ones.

use http::Method;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::pages::PageSize;
use super::*;
use crate::core::client::{Client, Reply};
use crate::core::cloud::Effect;
use crate::core::machine::Mark;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::{Account, Builder, Fault, Rule, Simulator};

struct Tiny;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    name: String,
}

const REFUSED: Problem = Problem(400, "refused", "{}");
const PAGE_SIZE: PageSize = PageSize {
    parameter: "size",
    usual: 2,
    most: 4,
};

impl RestApi for Tiny {
    const NAME: &'static str = "tiny";
    const DESCRIPTION: &'static str = "verda.derived.json";
    const ROUTES: &'static [Route<Self>] = &[
        Route::get("/things/newest", "things.newest", |_, _, _| {
            Ok(Answer::empty(204))
        }),
        Route::get("/things/{kind}/{id}", "things.get", |_, _, id| {
            Ok(Answer::json(200, &json!(id)))
        }),
        Route::get("/letters", "letters.list", |_, visit, _| letters(visit)).open(),
        Route::get("/numbers", "numbers.list", |_, visit, _| numbers(visit)).open(),
        Route::new(
            "POST",
            "/machines",
            "machines.create",
            Effect::Create,
            |_, visit, _| machine(visit),
        )
        .takes::<Order>(),
        Route::new("POST", "/act", "machines.end", Effect::Delete, |_, _, _| {
            Ok(Answer::empty(204))
        })
        .asks("action", "end"),
        Route::new("POST", "/act", "machines.act", Effect::Change, |_, _, _| {
            Ok(Answer::empty(202))
        }),
    ];
    const NOT_SIMULATED: &'static [(&'static str, &'static [&'static str])] =
        &[("volumes", &["/volumes/of/all"])];
    const NULL_IS_ABSENT: bool = true;
    const NOT_SIMULATED_FIELDS: &'static [(&'static str, &'static str, &'static str)] =
        &[("volume", "none", "volumes with machines")];
    const LIMITS: &'static [Limit] = &[
        Limit {
            calls: "create",
            most: 1,
            seconds: 10,
            per: Per::Account,
        },
        Limit {
            calls: "*",
            most: 20,
            seconds: 1,
            per: Per::Address,
        },
    ];
    const RETRY_AFTER: bool = true;
    const REFUSALS: Refusals = Refusals {
        too_many: Problem(429, "slow", "Slow down"),
        server: Problem(500, "broken", "Broken"),
        no_capacity: Problem(409, "sold-out", "Nothing is left"),
        quota: Problem(403, "quota", "No more {}"),
        funds: Problem(402, "money", "No money"),
        unauthorized: Problem(401, "key", "Wrong key"),
        expired: Problem(401, "key", "Old key"),
        forbidden: Problem(403, "right", "Not allowed"),
        invalid: REFUSED,
        not_found: Problem(404, "unknown", "No {}"),
        unknown_call: Problem(404, "path", "No such path"),
    };

    fn billing(&self) -> Billing {
        Billing::per_second()
    }

    fn furnish(&mut self, world: &mut World) {
        world.add_type(InstanceType {
            name: "small".to_owned(),
            ..InstanceType::default()
        });
        let shelf = Shelf::new("small", "here", Market::OnDemand);
        world.stock.set(shelf, Left::Count(1));
    }

    fn problem(status: u16, code: &str, text: &str) -> Answer {
        Answer::json(status, &json!([code, text]))
    }

    fn finish(answer: &mut Answer, usage: &Usage) {
        let left = format!("{} of {}", usage.left, usage.most);
        *answer = answer.clone().with("x-left", left);
    }

    fn key(&self, request: &Request) -> Option<String> {
        request.header("x-key").map(str::to_owned)
    }
}

fn shown(page: &Page) -> Answer {
    let page = json!([page.items, page.total, page.next, page.previous]);
    Answer::json(200, &page)
}

fn letters(visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let items = ["c", "a", "e", "b", "d"].map(|letter| (letter.to_owned(), letter.into()));
    by_cursor(visit, PAGE_SIZE, items.to_vec()).map(|page| shown(&page))
}

fn numbers(visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let items = (1..=5).map(Value::from).collect();
    by_number(visit, "page", PAGE_SIZE, items).map(|page| shown(&page))
}

fn machine(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let Order { name } = body(visit.request)?;
    let small = visit.world.types["small"].clone();
    let rental = Rental {
        id: name,
        region: "here".to_owned(),
        mark: Mark::default(),
        boot: crate::backend::Boot::default(),
        detail: Value::Null,
    };
    match &small.spot {
        Some(_) => visit.rent_on(Market::Spot, &small, rental)?,
        None => visit.rent(&small, rental)?,
    }
    Ok(Answer::empty(201))
}

async fn tiny() -> (Simulator, Client) {
    let tiny = Rest {
        api: Tiny,
        description: None,
        windows: Windows::default(),
        rate_limits: true,
        usage: None,
    };
    let simulator = Builder::manual().cloud(tiny).start().await.unwrap();
    let sim = simulator.cloud("tiny");
    sim.world(|world| world.add_account(Account::with_key("acme", "key")));
    let client = Client::new(simulator.url("tiny")).with("x-key", "key");
    (simulator, client)
}

async fn get(client: &Client, target: &str) -> (u16, Value) {
    let Reply { status, .. } = &client.get(target).await.unwrap();
    (*status, client.get(target).await.unwrap().json())
}

#[tokio::test]
async fn the_first_route_that_fits_answers_with_the_last_parameter_of_its_path() {
    let (simulator, client) = tiny().await;
    assert_eq!(get(&client, "/things/newest").await.0, 204);
    assert_eq!(get(&client, "/things/small/7").await, (200, json!("7")));
    let log = simulator.cloud("tiny").requests();
    assert_eq!(log[2].subject.as_deref(), Some("7"));
    let calls = simulator.cloud("tiny").known_calls();
    assert_eq!(calls.len(), 7);
    assert!(calls.contains(&Call::new("machines.create", Effect::Create)));
}

#[tokio::test]
async fn calls_of_one_path_are_told_apart_by_what_their_bodies_ask() {
    let (simulator, client) = tiny().await;
    for (action, status) in [("end", 204), ("reboot", 202)] {
        let body = json!({ "action": action });
        let answer = client.json(Method::POST, "/act", body).await.unwrap();
        assert_eq!(answer.status, status, "{action}");
    }
    let log = simulator.cloud("tiny").requests();
    assert_eq!(
        (log[0].call.as_str(), log[1].call.as_str()),
        ("machines.end", "machines.act")
    );
}

#[tokio::test]
async fn what_no_route_has_is_told_apart_by_whether_the_cloud_has_it() {
    let (_simulator, client) = tiny().await;
    let (status, body) = get(&client, "/volumes/of/all/7").await;
    assert_eq!((status, &body[0]), (501, &json!("not_simulated")));
    assert_eq!(body[1], "This is a simulator, without volumes");
    assert_eq!(get(&client, "/volumes/of").await.0, 404);
    let put = client.call(Method::PUT, "/things/newest").await.unwrap();
    assert_eq!(put.status, 404);
}

#[tokio::test]
async fn open_calls_need_no_key_and_all_others_the_header_of_the_cloud() {
    let (simulator, _client) = tiny().await;
    let stranger = Client::new(simulator.url("tiny")).with("authorization", "Bearer key");
    assert_eq!(get(&stranger, "/letters").await.0, 200);
    let refused = get(&stranger, "/things/newest").await;
    assert_eq!(refused, (401, json!(["key", "Wrong key"])));
}

#[tokio::test]
async fn orders_are_checked_and_counted_and_refused_in_the_words_of_the_table() {
    let (simulator, client) = tiny().await;
    let order = async |body: Value| client.json(Method::POST, "/machines", body).await.unwrap();
    let wrong = order(json!({"name": "m", "colour": "red"})).await;
    assert_eq!((wrong.status, wrong.json()[0].clone()), (400, json!("refused")));
    assert_eq!(simulator.cloud("tiny").violations().len(), 1);
    let early = order(json!({"name": "m"})).await;
    assert_eq!((early.status, early.header("retry-after")), (429, Some("11")));
    assert_eq!(early.header("x-left"), Some("0 of 1"));
    simulator.advance(10);
    assert_eq!(order(json!({"name": "m"})).await.status, 201);
    simulator.advance(10);
    let sold_out = order(json!({"name": "n"})).await;
    assert_eq!(
        (sold_out.status, sold_out.json()),
        (409, json!(["sold-out", "Nothing is left"]))
    );
    let fault = Fault::Quota {
        what: "machines".to_owned(),
    };
    simulator.cloud("tiny").fault(Rule::once("create", fault));
    let quota = order(json!({"name": "n"})).await;
    assert_eq!(
        (quota.status, quota.json()),
        (403, json!(["quota", "No more machines"]))
    );
}

#[tokio::test]
async fn a_machine_of_a_market_has_its_price_and_takes_its_stock() {
    let (simulator, client) = tiny().await;
    let sim = simulator.cloud("tiny");
    let order = async || {
        simulator.advance(10);
        let order = json!({"name": "m"});
        client
            .json(Method::POST, "/machines", order)
            .await
            .unwrap()
            .status
    };
    sim.world(|world| world.types.get_mut("small").unwrap().spot = Some(Decimal::ONE));
    assert_eq!(order().await, 409, "that market has nothing");
    let shelf = Shelf::new("small", "here", Market::Spot);
    sim.world(|world| world.stock.set(shelf, Left::Count(1)));
    assert_eq!(order().await, 201);
    let machine = sim.world(|world| world.machines["m"].clone());
    assert_eq!((machine.market, machine.price), (Market::Spot, Decimal::ONE));
    assert_eq!(machine.disk_price, machine.price);
}

#[tokio::test]
async fn a_field_that_is_not_simulated_is_refused_where_it_asks_for_something() {
    let (simulator, client) = tiny().await;
    for (volume, status) in [
        (json!("big"), 501),
        (json!(7), 501),
        (json!(null), 201),
        (json!("none"), 201),
    ] {
        simulator.advance(10);
        let shelf = Shelf::new("small", "here", Market::OnDemand);
        let sim = simulator.cloud("tiny");
        sim.world(|world| world.stock.set(shelf, Left::Plenty));
        let order = json!({"name": status.to_string(), "volume": volume, "colour": null});
        let answer = client.json(Method::POST, "/machines", order).await.unwrap();
        assert_eq!(answer.status, status, "{volume}: {}", answer.body);
    }
    assert_eq!(simulator.cloud("tiny").complaints(), Vec::<String>::new());
}

#[tokio::test]
async fn a_cursor_goes_on_behind_what_was_seen_and_back_before_it() {
    let (simulator, client) = tiny().await;
    let (_, first) = get(&client, "/letters").await;
    assert_eq!(
        (&first[0], &first[1], &first[3]),
        (&json!(["a", "b"]), &json!(5), &json!(""))
    );
    let next = first[2].as_str().unwrap();
    let (_, second) = get(&client, &format!("/letters?cursor={next}")).await;
    assert_eq!(second[0], json!(["c", "d"]));
    let back = second[3].as_str().unwrap();
    assert_eq!(
        get(&client, &format!("/letters?cursor={back}")).await.1[0],
        json!(["a", "b"])
    );
    let (_, all) = get(&client, "/letters?size=4").await;
    assert_eq!(all[0], json!(["a", "b", "c", "d"]));
    assert_eq!(get(&client, "/letters?size=5").await.0, 400);
    simulator.cloud("tiny").world(|world| world.page = Some(1));
    assert_eq!(get(&client, "/letters?size=4").await.1[0], json!(["a"]));
}

#[tokio::test]
async fn a_page_by_its_number_names_its_neighbours_and_none_is_behind_the_last() {
    let (_simulator, client) = tiny().await;
    assert_eq!(get(&client, "/numbers").await.1, json!([[1, 2], 5, "2", ""]));
    assert_eq!(get(&client, "/numbers?page=3").await.1, json!([[5], 5, "", "2"]));
    assert_eq!(get(&client, "/numbers?page=4").await.1[0], json!([]));
    assert_eq!(get(&client, "/numbers?page=0").await.0, 400);
}

/// Checks a cloud's table against its description and against README.md.
fn check_tables<A: RestApi>(api: A) {
    let readme = include_str!("../../README.md");
    for path in A::NOT_SIMULATED.iter().flat_map(|(_, paths)| *paths) {
        assert!(
            readme.contains(&format!("`{path}`")),
            "README.md has no `{path}` of {}",
            A::NAME
        );
    }
    let rest = Rest::new(api);
    let Some(description) = &rest.description else {
        return;
    };
    for (method, path) in description.calls() {
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
        let request = Request::new(method, &path, "");
        let known = rest.recognise(&request).is_some() || Rest::<A>::unsupported_path(&request).is_some();
        assert!(
            known,
            "{}: {} {path} is neither simulated nor said not to be",
            A::NAME,
            request.method
        );
    }
    let described = A::ROUTES
        .iter()
        .filter(|route| rest.description_of(route.call()).is_some());
    for route in described {
        let request = route.example();
        let wrong = description.check(&request);
        let there = !wrong.iter().any(|what| what.contains("has no "));
        assert!(there, "{}: {wrong:?}", A::NAME);
    }
}

#[test]
fn each_call_of_a_description_is_simulated_or_said_not_to_be() {
    check_tables(crate::lambda::Lambda);
    check_tables(crate::vultr::Vultr);
    check_tables(crate::digitalocean::DigitalOcean::default());
    check_tables(crate::scaleway::Scaleway::default());
    check_tables(crate::hyperstack::Hyperstack::default());
    check_tables(crate::tensordock::TensorDock::default());
    check_tables(crate::jarvislabs::JarvisLabs::default());
    check_tables(crate::novita::Novita::default());
    check_tables(crate::massedcompute::MassedCompute::default());
    check_tables(crate::gcp::Gcp::default());
}

#[test]
fn only_nulls_are_removed_from_an_answer_before_it_is_checked() {
    let answer = json!({"a": null, "b": [{"c": null, "d": 0}, null], "e": {"f": ""}});
    let rest = json!({"b": [{"d": 0}, null], "e": {"f": ""}});
    assert_eq!(without_nulls(answer), rest);
}
