//! The transport against a small scripted server.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rstest::rstest;
use serde_json::json;
use skyward_core::Secret;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;

const CANARY: &str = "canary-secret-4711";

/// What the server does with one request.
#[derive(Clone)]
enum Act {
    /// Answers with status, headers and body.
    Say(u16, &'static str, String),
    /// Reads the request and closes the connection.
    Cut,
    /// Reads the request and says nothing.
    Hang,
    /// Answers like `Say`, and before that the fence is closed.
    Close(Fence, u16, &'static str, String),
}

fn say(status: u16, body: &str) -> Act {
    Act::Say(status, "", body.to_owned())
}

struct Server {
    address: String,
    heard: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Acts in this order, and the last one for ever.
    async fn start(acts: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (inner, next) = (heard.clone(), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, acts.clone(), next.clone(), inner.clone()));
            }
        });
        Self { address, heard, task }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    acts: Vec<Act>,
    next: Arc<AtomicUsize>,
    heard: Arc<Mutex<Vec<String>>>,
) {
    loop {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        loop {
            let read = stream.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
            if let Some(head) = text.find("\r\n\r\n") {
                let length = text
                    .lines()
                    .find_map(|line| {
                        line.to_lowercase()
                            .strip_prefix("content-length: ")
                            .map(str::to_owned)
                    })
                    .and_then(|length| length.trim().parse::<usize>().ok())
                    .unwrap_or(0);
                if text.len() >= head + 4 + length {
                    break;
                }
            }
        }
        heard.lock().push(text);
        let number = next.fetch_add(1, Ordering::SeqCst);
        match acts.get(number).or(acts.last()).unwrap() {
            act @ (Act::Say(status, headers, body) | Act::Close(_, status, headers, body)) => {
                if let Act::Close(fence, ..) = act {
                    fence.close();
                }
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            Act::Cut => return,
            Act::Hang => futures::future::pending().await,
        }
    }
}

fn client(address: &str, auth: Auth, limits: Limits) -> Http {
    fenced(&Fence::always_open(), address, auth, limits)
}

fn fenced(fence: &Fence, address: &str, auth: Auth, limits: Limits) -> Http {
    // A second call finds it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Http::new(Setup {
        cloud: "Somewhere",
        base: address.to_owned(),
        auth,
        limits,
        request_timeout: Duration::from_millis(700),
        fence: fence.clone(),
    })
    .unwrap()
}

fn plain(address: &str) -> Http {
    client(address, Auth::Bearer(Secret::new(CANARY)), Limits::default())
}

fn read() -> Call {
    Call::get("look at it", "/things/{id}")
        .with("a b")
        .query("secret", CANARY)
}

fn order() -> Call {
    Call::new("order it", Method::POST, "/things", Effect::Creates).json(json!({ "key": CANARY }))
}

#[tokio::test]
async fn a_call_carries_key_user_agent_query_and_an_escaped_path() {
    let server = Server::start(vec![say(200, "{}")]).await;
    plain(&server.address).send(read()).await.unwrap();
    let heard = &server.heard()[0];
    assert!(
        heard.starts_with(&format!("GET /things/a%20b?secret={CANARY} HTTP/1.1")),
        "{heard}"
    );
    assert!(
        heard.contains(&format!("authorization: Bearer {CANARY}")),
        "{heard}"
    );
    assert!(heard.contains("user-agent: skyward/"), "{heard}");
}

#[tokio::test]
async fn a_text_is_sent_as_it_stands() {
    let server = Server::start(vec![say(204, "")]).await;
    let call = Call::new("write it", Method::PATCH, "/things/{id}", Effect::Repeatable).with("a");
    plain(&server.address)
        .send(call.text("#!/bin/sh\n".to_owned()))
        .await
        .unwrap();
    let heard = &server.heard()[0];
    assert!(heard.contains("content-type: text/plain\r\n"), "{heard}");
    assert!(heard.ends_with("\r\n\r\n#!/bin/sh\n"), "{heard}");
}

/// As in `DELETE /things/..`, which would be `DELETE /`.
#[rstest]
#[case::itself(".")]
#[case::above("..")]
#[case::all("")]
#[tokio::test]
async fn an_id_that_leads_to_another_path_is_never_sent(#[case] id: &str) {
    let server = Server::start(vec![say(200, "{}")]).await;
    let call = Call::new("end it", Method::DELETE, "/things/{id}", Effect::Repeatable).with(id);
    let error = plain(&server.address).send(call).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains(&format!("\"{id}\"")), "{error}");
    assert_eq!(server.heard(), Vec::<String>::new());
    // An escaped value is escaped once more, not decoded.
    let call = Call::get("look at it", "/things/{id}").with("%2e%2E");
    plain(&server.address).send(call).await.unwrap();
    assert!(server.heard()[0].starts_with("GET /things/%252e%252E "));
}

#[rstest]
#[case::server_error(say(500, ""))]
#[case::unavailable(say(503, ""))]
#[case::cut(Act::Cut)]
#[case::hangs(Act::Hang)]
#[tokio::test]
async fn a_call_that_changes_nothing_is_repeated(#[case] first: Act) {
    let server = Server::start(vec![first, say(200, "true")]).await;
    let http = plain(&server.address);
    let answer = operation(Duration::from_secs(10), http.send(read()))
        .await
        .unwrap();
    assert!(answer.json::<bool>().unwrap());
    assert_eq!(server.heard().len(), 2);
}

#[rstest]
#[case::cut(Act::Cut)]
#[case::hangs(Act::Hang)]
#[tokio::test]
async fn an_order_whose_answer_is_lost_is_indeterminate_and_never_repeated(#[case] act: Act) {
    let server = Server::start(vec![act, say(201, "{}")]).await;
    let http = plain(&server.address);
    let error = operation(Duration::from_secs(10), http.send(order()))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate);
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn a_failure_of_the_cloud_while_ordering_is_left_to_the_caller() {
    let server = Server::start(vec![say(500, "broken"), say(201, "{}")]).await;
    let answer = plain(&server.address).send(order()).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (500, "broken"));
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn without_a_connection_nothing_was_ordered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = operation(Duration::from_millis(600), plain(&address).send(order()))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient);
    assert!(error.message.contains("cannot be reached"), "{error}");
}

#[tokio::test]
async fn too_many_requests_waits_as_told_even_for_an_order() {
    let slow = Act::Say(429, "Retry-After: 1\r\n", String::new());
    let server = Server::start(vec![slow, say(201, "{}")]).await;
    let http = plain(&server.address);
    let began = Instant::now();
    let answer = operation(Duration::from_secs(10), http.send(order()))
        .await
        .unwrap();
    assert_eq!(answer.status.as_u16(), 201);
    assert!(
        began.elapsed() >= Duration::from_millis(990),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn too_many_requests_past_the_deadline_says_when_to_come_again() {
    let slow = Act::Say(429, "Retry-After: 60\r\n", String::new());
    let server = Server::start(vec![slow]).await;
    let http = plain(&server.address);
    let error = operation(Duration::from_secs(5), http.send(read()))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::RateLimited(Some(Duration::from_secs(60))));
    // Other calls are not even sent.
    let error = operation(Duration::from_secs(5), http.send(read()))
        .await
        .unwrap_err();
    assert!(matches!(error.kind, ErrorKind::RateLimited(Some(_))), "{error}");
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn clones_share_one_limit_and_are_served_one_after_the_other() {
    let server = Server::start(vec![say(200, "{}")]).await;
    let limits = Limits::new(vec![Rule::each(Rate::every(Duration::from_millis(100)))]);
    let http = client(&server.address, Auth::Bearer(Secret::new("k")), limits);
    let began = Instant::now();
    let calls = (0..4).map(|_| {
        let http = http.clone();
        async move {
            operation(Duration::from_secs(5), http.send(read()))
                .await
                .map(|_| ())
        }
    });
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(server.heard().len(), 4);
}

#[tokio::test]
async fn a_key_stands_in_the_header_that_the_cloud_wants() {
    let server = Server::start(vec![say(200, "{}")]).await;
    let auth = |prefix| Auth::Header {
        name: "x-auth-token",
        prefix,
        key: Secret::new(format!("{CANARY}\n")),
    };
    for (prefix, expected) in [("", CANARY.to_owned()), ("Token ", format!("Token {CANARY}"))] {
        let http = client(&server.address, auth(prefix), Limits::default());
        http.send(read()).await.unwrap();
        let heard = server.heard().pop().unwrap();
        assert!(
            heard.contains(&format!("x-auth-token: {expected}\r\n")),
            "{heard}"
        );
        assert!(!heard.contains("authorization:"), "{heard}");
    }
}

#[tokio::test]
async fn a_metadata_server_is_asked_for_a_token_with_the_header_that_it_wants() {
    let tokens = Server::start(vec![token("t1")]).await;
    let api = Server::start(vec![say(200, "{}")]).await;
    let auth = Auth::metadata(format!("{}/token", tokens.address), "Write a key");
    let http = client(&api.address, auth, Limits::default());
    http.send(read()).await.unwrap();
    let asked = tokens.heard();
    assert!(asked[0].starts_with("GET /token "), "{}", asked[0]);
    let lower = asked[0].to_lowercase();
    assert!(lower.contains("metadata-flavor: google\r\n"), "{lower}");
    assert!(!lower.contains("authorization:"), "{lower}");
    let heard = api.heard().pop().unwrap().to_lowercase();
    assert!(heard.contains("authorization: bearer t1\r\n"), "{heard}");
}

#[tokio::test]
async fn a_metadata_server_without_a_service_account_is_told_with_the_remedy() {
    let tokens = Server::start(vec![say(404, "no such account")]).await;
    let auth = Auth::metadata(format!("{}/token", tokens.address), "Write a key");
    let http = client("http://127.0.0.1:9", auth, Limits::default());
    let error = http.send(read()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Credentials);
    assert!(error.message.contains("Write a key"), "{error}");
}

#[tokio::test]
async fn a_service_account_gets_its_token_for_an_assertion_at_the_address_that_we_know() {
    let tokens = Server::start(vec![token("t1")]).await;
    let api = Server::start(vec![say(200, "{}")]).await;
    let (file, _) = token::tests::key_file();
    let account = ServiceAccount::from_json(&file, format!("{}/token", tokens.address), "scope").unwrap();
    let auth = Auth::service_account(account, "Make another key");
    let http = client(&api.address, auth, Limits::default());
    for _ in 0..2 {
        http.send(read()).await.unwrap();
    }
    let asked = tokens.heard();
    assert_eq!(asked.len(), 1, "one token for both");
    assert!(asked[0].starts_with("POST /token "), "{}", asked[0]);
    let grant = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=ey";
    assert!(asked[0].contains(grant), "{}", asked[0]);
    assert!(!asked[0].contains("authorization:"), "{}", asked[0]);
    assert!(
        api.heard()
            .iter()
            .all(|call| call.contains("authorization: Bearer t1"))
    );
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page_and_one_that_fails_in_the_middle_is_an_error() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Thing {
        id: u32,
    }
    fn refused(answer: &Answer) -> ProviderError {
        answer.error(ErrorKind::Permission, "no")
    }
    const THINGS: List = List::cursor("/things", "cursor", "/next");
    let first = say(200, r#"{"things":[{"id":1}],"next":"b"}"#);
    let list = async |acts: Vec<Act>| {
        let server = Server::start(acts).await;
        let rest = Rest::new(plain(&server.address), refused);
        let call = Call::get("list the things", "/things").query("limit", "1");
        let found: Result<Vec<Thing>, _> = rest.list(call, THINGS).await;
        (found.map_err(|error| error.kind), server.heard())
    };
    let last = say(200, r#"{"things":[{"id":2}],"next":null}"#);
    let (found, heard) = list(vec![first.clone(), last]).await;
    assert_eq!(found, Ok(vec![Thing { id: 1 }, Thing { id: 2 }]));
    assert!(heard[0].starts_with("GET /things?limit=1 "), "{}", heard[0]);
    assert!(
        heard[1].starts_with("GET /things?limit=1&cursor=b "),
        "{}",
        heard[1]
    );
    for (second, kind) in [
        (say(403, ""), ErrorKind::Permission),
        (
            say(200, r#"{"things":[{"id":1}],"next":"c"}"#),
            ErrorKind::Transient,
        ),
        (say(200, r#"{"things":[{"name":"x"}]}"#), ErrorKind::Transient),
        (say(200, "{}"), ErrorKind::Transient),
    ] {
        assert_eq!(list(vec![first.clone(), second]).await.0, Err(kind));
    }
}

fn forbidden(answer: &Answer) -> ProviderError {
    answer.error(ErrorKind::Permission, "no")
}

#[tokio::test]
async fn a_call_goes_to_the_api_of_that_name_and_else_to_the_first_one() {
    let own = Server::start(vec![say(200, "{}")]).await;
    let other = Server::start(vec![say(200, "{}")]).await;
    let addresses = [("other", other.address.clone())].into();
    let rest = Rest::new(plain(&own.address), forbidden).with(addresses);
    for name in ["other", "unknown"] {
        let call = Call::get("look at it", "/things");
        rest.done(rest.to(name, call)).await.unwrap();
    }
    for server in [&own, &other] {
        let heard = server.heard();
        assert!(
            heard.len() == 1 && heard[0].starts_with("GET /things "),
            "{heard:?}"
        );
    }
}

#[tokio::test]
async fn what_a_body_says_of_success_may_be_an_answer_and_its_status_is_not() {
    let server = Server::start(vec![say(200, r#"{"success":false}"#), say(403, "{}")]).await;
    let rest = Rest::new(plain(&server.address), forbidden);
    let rest = rest.refused_when(|answer| answer.text().contains("false"));
    let flag = async || {
        let call = Call::get("read the flag", "/flag");
        rest.flagged::<serde_json::Value>(call).await
    };
    assert_eq!(flag().await.unwrap(), json!({ "success": false }));
    assert_eq!(flag().await.unwrap_err().kind, ErrorKind::Permission);
}

fn token(name: &str) -> Act {
    say(
        200,
        &json!({ "access_token": name, "expires_in": 3600 }).to_string(),
    )
}

fn oauth() -> Auth {
    Auth::client(
        "/token",
        "me".into(),
        Secret::new(CANARY),
        "Write it into the Secret again",
    )
}

#[tokio::test]
async fn many_calls_log_in_once() {
    let server = Server::start(vec![token("t1"), say(200, "{}")]).await;
    let http = client(&server.address, oauth(), Limits::default());
    let calls = (0..8).map(|_| operation(Duration::from_secs(5), http.send(read())));
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    let logins = server
        .heard()
        .iter()
        .filter(|text| text.starts_with("POST /token"))
        .count();
    assert_eq!((logins, server.heard().len()), (1, 9));
}

#[tokio::test]
async fn a_token_that_is_refused_is_renewed_once_also_for_an_order() {
    let server = Server::start(vec![token("t1"), say(401, ""), token("t2"), say(201, "{}")]).await;
    let http = client(&server.address, oauth(), Limits::default());
    let answer = operation(Duration::from_secs(5), http.send(order()))
        .await
        .unwrap();
    assert_eq!(answer.status.as_u16(), 201);
    assert!(server.heard()[3].contains("Bearer t2"));
    let server = Server::start(vec![token("t1"), say(401, ""), token("t2"), say(401, "")]).await;
    let http = client(&server.address, oauth(), Limits::default());
    let answer = operation(Duration::from_secs(5), http.send(order()))
        .await
        .unwrap();
    assert_eq!((answer.status.as_u16(), server.heard().len()), (401, 4));
}

#[tokio::test]
async fn credentials_queries_and_bodies_appear_in_no_error() {
    let body = format!("{{\"oops\":\"{CANARY}\"}}");
    for act in [Act::Cut, Act::Hang, say(401, &body), say(200, &body)] {
        let server = Server::start(vec![act]).await;
        for auth in [Auth::Bearer(Secret::new(CANARY)), oauth()] {
            let http = client(&server.address, auth, Limits::default());
            for call in [read(), order()] {
                let result = operation(Duration::from_secs(1), http.send(call)).await;
                let text = match result {
                    Ok(answer) => format!("{answer:?} {:?}", answer.json::<u32>().unwrap_err()),
                    Err(error) => format!("{error} {error:?}"),
                };
                assert!(!text.contains(CANARY), "{text}");
            }
            assert!(!format!("{http:?}").contains(CANARY));
        }
    }
}

/// Sends an order through a fence that closes while something is waited for.
async fn order_behind(
    fence: &Fence,
    acts: Vec<Act>,
    auth: Auth,
    limits: Limits,
) -> (ProviderError, Vec<String>) {
    let server = Server::start(acts).await;
    let http = fenced(fence, &server.address, auth, limits);
    let refused = operation(Duration::from_secs(5), http.send(order()))
        .await
        .unwrap_err();
    (refused, server.heard())
}

#[tokio::test]
async fn nothing_is_ordered_when_the_lease_ran_out_before_the_call_after_a_refusal_or_while_a_token_came() {
    let key = || Auth::Bearer(Secret::new("k"));
    let (fence, done) = (Fence::default(), say(201, "{}"));
    let (error, heard) = order_behind(&fence, vec![done.clone()], key(), Limits::default()).await;
    assert_eq!(
        (error.kind, heard.len()),
        (ErrorKind::NotLeading, 0),
        "closed already"
    );

    let fence = Fence::always_open();
    let slow = Act::Close(fence.clone(), 429, "Retry-After: 1\r\n", String::new());
    let (error, heard) = order_behind(&fence, vec![slow, done.clone()], key(), Limits::default()).await;
    assert_eq!((error.kind, heard.len()), (ErrorKind::NotLeading, 1), "{heard:?}");

    let fence = Fence::always_open();
    let granted = json!({ "access_token": "t", "expires_in": 3600 }).to_string();
    let token = Act::Close(fence.clone(), 200, "", granted);
    let (error, heard) = order_behind(&fence, vec![token, done], oauth(), Limits::default()).await;
    assert_eq!((error.kind, heard.len()), (ErrorKind::NotLeading, 1), "{heard:?}");
    assert!(heard[0].starts_with("POST /token"), "{heard:?}");
}

#[tokio::test]
async fn nothing_is_ordered_when_the_lease_ran_out_while_the_call_waited_for_its_turn() {
    let server = Server::start(vec![say(200, "{}")]).await;
    let limits = Limits::new(vec![Rule::account(Rate::every(Duration::from_secs(1)))]);
    let fence = Fence::default();
    let http = fenced(&fence, &server.address, Auth::Bearer(Secret::new("k")), limits);
    http.send(read()).await.unwrap();
    // Its turn comes later than that.
    fence.open_until(Instant::now() + Duration::from_millis(500));
    let error = operation(Duration::from_secs(5), http.send(order()))
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotLeading);
    http.send(read()).await.unwrap();
    assert!(
        server.heard().iter().all(|text| text.starts_with("GET ")),
        "reads go through"
    );
}

#[tokio::test]
async fn what_only_reads_passes_a_closed_fence_whatever_its_method_and_nothing_else_does() {
    let server = Server::start(vec![token("t1"), say(200, "{}"), say(200, "{}")]).await;
    let http = fenced(&Fence::default(), &server.address, oauth(), Limits::default());
    // To log in changes nothing either.
    http.send(Call::post("search", "/search").reads()).await.unwrap();
    http.send(read()).await.unwrap();
    for call in [
        Call::post("act", "/act"),
        order(),
        Call::delete("end it", "/things/{id}", "a"),
    ] {
        let error = http.send(call).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotLeading);
    }
    let heard = server.heard();
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard[1].starts_with("POST /search "), "{heard:?}");
}
