//! Every request over REST passes through Prism, a third-party proxy, with the cloud's own
//! description: a violation in the whole life of a machine fails the test. The checks of the
//! simulator are no proof, since both the simulator and its reading of the descriptions are ours.
//!
//! Prism reports without refusing, so that one life shows all violations; what it would refuse
//! with `--errors`, and paths that it does not know, fail here. Answers are the simulator's,
//! and checked there. Needs SKYWARD_PRISM (its program) and SKYWARD_SPECS
//! (the folder of descriptions); `make test` installs the former where there is the latter.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream as Blocking},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use parking_lot::Mutex;
use rstest::rstest;
use skyward_cloudsim::core::description::folder;
use skyward_conformance::{Bench, connect, scope};
use skyward_core::{Deletion, Market};
use skyward_providers::registry;
use skyward_thirds::is_told;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::in_virtual_time;

/// Requests of a cloud that Prism refuses, what it says about them, and why it is the
/// description that is wrong.
const WRONG_DESCRIPTIONS: &[(&str, &str, &str, &str)] = &[
    (
        "vastai",
        "GET /api/v0/users/current/",
        "route not found",
        "left out of the corrected subset; the official description has it, without the last slash",
    ),
    (
        "vastai",
        "DELETE /api/v0/instances/",
        "non-empty body",
        "Vast.ai's own tool sends {} here, which its description does not have",
    ),
    (
        "scaleway",
        "PATCH /block/v1alpha1/",
        "route not found",
        "left out of the description, which was derived from a client; Scaleway's clients send it",
    ),
];

#[rstest]
#[case("verda", "verda.derived.json", "", None)]
#[case("lambda", "lambda.json", "", None)]
#[case("vultr", "vultr.json", "/v2", None)]
#[case("scaleway", "scaleway.derived.json", "", None)]
#[case("digitalocean", "digitalocean.json", "", None)]
#[case("hyperstack", "hyperstack.json", "/v1", None)]
#[case("tensordock", "tensordock.derived.json", "/api/v2", None)]
#[case("jarvislabs", "jarvislabs.derived.json", "", None)]
#[case("novita", "novita.derived.json", "/gpu-instance/openapi/v1", None)]
#[case("massedcompute", "massed_compute.derived.json", "/api/v1", None)]
// The server that gives tokens is another one, with no description.
#[case("gcp", "gcp-compute.json", "", Some("/token"))]
#[case("vastai", "vastai.relaxed.yaml", "", None)]
// GraphQL has no description: its one path goes past Prism.
#[case("runpod", "runpod-rest-v2.json", "", Some("/graphql"))]
fn prism_finds_nothing_wrong_with_the_requests_of_a_whole_life(
    #[case] kind: &'static str,
    #[case] description: &str,
    #[case] base: &'static str,
    #[case] past: Option<&'static str>,
) {
    let Some((program, folder)) = given() else {
        return;
    };
    let number = registry::clouds().iter().position(|cloud| cloud.name == kind);
    if !is_told(number.unwrap() as u64) {
        return;
    }
    let description = folder.join(description);
    in_virtual_time(async || {
        let mut bench = Bench::start(kind, None).await;
        let upstream: SocketAddr = bench.simulator.url(kind)["http://".len()..].parse().unwrap();
        let prism = Prism::start(&program, &description, &format!("http://{upstream}{base}"));
        let relay = Relay::start(prism.address, upstream, base, past).await;
        bench.provider = connect(
            kind,
            &relay.url,
            &bench.subject.credentials,
            bench.subject.settings.clone(),
        );
        live(kind, &bench).await;
        let (requests, violations) = relay.said();
        assert!(requests > 8, "{kind}: only {requests} requests came to Prism");
        let wrong = |found: &String| {
            WRONG_DESCRIPTIONS.iter().any(|(cloud, request, says, _)| {
                *cloud == kind && found.starts_with(request) && found.contains(says)
            })
        };
        let violations: Vec<String> = violations.into_iter().filter(|found| !wrong(found)).collect();
        assert!(violations.is_empty(), "{kind}: {violations:#?}");
    });
}

/// Prism's program, and the folder of descriptions.
#[expect(
    clippy::print_stderr,
    reason = "tests have no subscriber, and must tell that they test less"
)]
fn given() -> Option<(PathBuf, PathBuf)> {
    let program = std::env::var_os("SKYWARD_PRISM").filter(|path| !path.is_empty());
    let both = program.map(PathBuf::from).zip(folder());
    if both.is_none() {
        eprintln!("skipped: SKYWARD_PRISM and SKYWARD_SPECS do not name Prism and the descriptions");
    }
    both
}

/// All calls of the contract, on each market that REST sells on.
async fn live(kind: &str, bench: &Bench) {
    bench.provider.account().await.unwrap();
    for market in bench.provider.capabilities().markets {
        let order = bench.order(*market, 0).await;
        let (running, refused) = bench.bring_up(&order).await;
        assert!(refused.is_empty(), "{kind}: {refused:?}");
        assert_eq!(bench.list().await.unwrap().len(), 1, "{kind}");
        bench.provider.leftovers(&scope()).await.unwrap();
        let refused = bench.bring_down(&order, Some(&running.id)).await;
        assert!(refused.is_empty(), "{kind}: {refused:?}");
        // A second time, of what is gone.
        let again = skyward_conformance::machine(&order, Some(&running.id));
        assert_eq!(
            bench.provider.delete(&again).await.unwrap(),
            Deletion::Gone,
            "{kind}"
        );
    }
    assert!(bench.provider.capabilities().markets.contains(&Market::OnDemand));
    bench.judge(kind);
}

/// A port that nobody else gets until Prism, which takes a while, has bound it: below those
/// that the kernel gives to connections, and another for each test.
fn own_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 16_000 + u16::try_from(std::process::id() % 90).unwrap() * 10;
    (0..1000)
        .map(|_| begin + NEXT.fetch_add(1, Ordering::Relaxed))
        .find(|port| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port")
}

/// A Prism of our own, ended with its test.
struct Prism {
    address: SocketAddr,
    process: Child,
}

impl Drop for Prism {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prism {
    /// Starts it and waits until it says that it listens.
    fn start(program: &Path, description: &Path, upstream: &str) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, own_port()));
        let mut process = Command::new(program)
            .args([
                "proxy",
                "--host",
                "127.0.0.1",
                "--port",
                &address.port().to_string(),
            ])
            .arg(description)
            .arg(upstream)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("SKYWARD_PRISM names a program");
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut heard = Vec::new();
        let started = said.by_ref().map_while(Result::ok).any(|line| {
            let listens = line.contains("Prism is listening");
            heard.push(line);
            listens
        });
        assert!(started, "Prism did not start: {heard:#?}");
        // It would block if its output were not read.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        Self { address, process }
    }
}

/// Stands between a client and Prism and reads what Prism says about each request.
struct Relay {
    url: String,
    said: Arc<Mutex<Said>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Said {
    requests: usize,
    violations: Vec<String>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    async fn start(
        prism: SocketAddr,
        upstream: SocketAddr,
        base: &'static str,
        past: Option<&'static str>,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let said = Arc::new(Mutex::new(Said::default()));
        let inner = said.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, prism, upstream, base, past, inner.clone()));
            }
        });
        Self { url, said, task }
    }

    fn said(&self) -> (usize, Vec<String>) {
        let said = self.said.lock();
        (said.requests, said.violations.clone())
    }
}

/// One request, one connection.
async fn pass(
    mut stream: TcpStream,
    prism: SocketAddr,
    upstream: SocketAddr,
    base: &'static str,
    past: Option<&'static str>,
    said: Arc<Mutex<Said>>,
) {
    let Some(request) = request(&mut stream).await else {
        return;
    };
    let line = request.lines().next().unwrap_or_default().to_owned();
    let described = past.is_none_or(|path| !line.contains(path));
    let to = if described { prism } else { upstream };
    // A blocking task holds the virtual clock for as long as Prism, a real program, takes.
    let answer = tokio::task::spawn_blocking(move || {
        let mut way = Blocking::connect(to)?;
        let (first, rest) = request.split_once("\r\n").unwrap_or_default();
        // Prism's paths are those of the description, to which its server's path is added upstream.
        let first = if described {
            first.replacen(&format!(" {base}/"), " /", 1)
        } else {
            first.to_owned()
        };
        write!(way, "{first}\r\nconnection: close\r\n{rest}")?;
        let mut answer = Vec::new();
        way.read_to_end(&mut answer)?;
        std::io::Result::Ok(answer)
    })
    .await
    .unwrap()
    .unwrap_or_default();
    if described {
        let mut said = said.lock();
        said.requests += 1;
        let text = String::from_utf8_lossy(&answer);
        let head = text.split("\r\n\r\n").next().unwrap_or_default();
        let found = head.lines().find_map(|line| line.strip_prefix("sl-violations: "));
        for found in found.map(of_requests).unwrap_or_default() {
            said.violations.push(format!("{line}: {found}"));
        }
    }
    let _ = stream.write_all(&answer).await;
}

/// What is said about the request among the violations of a header.
fn of_requests(header: &str) -> Vec<String> {
    // What is too long for a header is cut, and no JSON then.
    let Ok(all) = serde_json::from_str::<Vec<serde_json::Value>>(header) else {
        return vec![header.to_owned()];
    };
    all.iter()
        .filter(|found| found["location"][0] == "request")
        .map(ToString::to_string)
        .collect()
}

/// All of a request: its head, and as much as it says.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut got = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&got);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .and_then(|(_, length)| length.parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text.into_owned());
            }
        }
        if stream.read_buf(&mut got).await.ok()? == 0 {
            return None;
        }
    }
}
