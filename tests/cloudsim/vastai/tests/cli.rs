//! The simulator tested with the command line tool that Vast.ai itself publishes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{ACCOUNT, KEY};
use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::published;
use crate::vastai::Vastai;

/// The program, with a home of its own. Commands are written to this process.
#[derive(Clone)]
struct Cli {
    process: Arc<Mutex<Child>>,
    url: String,
    home: PathBuf,
}

impl Cli {
    fn find(url: &str) -> Option<Self> {
        let python = published::program("vastai", "python3")?;
        let home = std::env::temp_dir().join(format!("skyward-vastai-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("a home");
        let process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/vastai/vastai-cli.py"))
            .env("HOME", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        Some(Self {
            process: Arc::new(Mutex::new(process)),
            url: url.to_owned(),
            home,
        })
    }

    /// Runs one command away from the runtime and returns what it says.
    async fn run(&self, words: &[&str]) -> String {
        let mut line = json!(["--url", self.url, "--api-key", KEY, "--raw"]);
        let all = line.as_array_mut().expect("a list");
        all.extend(words.iter().map(|word| json!(word)));
        let process = self.process.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let mut process = process.lock();
            let stdin = process.stdin.as_mut().expect("piped");
            writeln!(stdin, "{line}").expect("it reads");
            // It answers with one line, so nothing is left in the buffer.
            let mut answer = String::new();
            let stdout = process.stdout.as_mut().expect("piped");
            BufReader::new(stdout).read_line(&mut answer).expect("text");
            answer
        });
        let answer = answer.await.expect("joined");
        let [said, complaint]: [String; 2] = serde_json::from_str(&answer).expect("two texts");
        assert!(!said.contains("Traceback"), "{words:?}: {said}");
        assert!(!complaint.contains("Traceback"), "{words:?}: {complaint}");
        said
    }

    async fn json(&self, words: &[&str]) -> Value {
        let said = self.run(words).await;
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_command_line_rents_uses_and_returns_a_machine() {
    let simulator = Builder::new()
        .cloud(Vastai::new())
        .start()
        .await
        .expect("a simulator");
    let Some(cli) = Cli::find(simulator.url("vastai")) else {
        return;
    };
    let vast = simulator.cloud("vastai");
    vast.world(|world| {
        world.add_account(Account::with_key(ACCOUNT, KEY));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::ZERO;
    });
    vast.control("limits", &json!({"enabled": false}))
        .expect("known")
        .expect("done");

    let offers = cli
        .json(&["search", "offers", "gpu_name=RTX_4090 num_gpus=1 reliability>0.9"])
        .await;
    let offer = offers[0]["id"].to_string();
    assert_eq!(
        (&offers[0]["gpu_name"], offers.as_array().map(Vec::len)),
        (&json!("RTX 4090"), Some(11))
    );
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMNDxwtGo627rxuPmuUd/GLfmbKxKkB5WKExwK8jmeAB me";
    cli.run(&["create", "ssh-key", key, "-y"]).await;
    let own = cli.json(&["show", "ssh-keys"]).await[0].clone();
    assert_eq!(own["key"], key);
    cli.run(&["update", "ssh-key", &own["id"].to_string(), key]).await;
    let order = [
        "create",
        "instance",
        &offer,
        "--image",
        "nvidia/cuda:12.9.1-runtime-ubuntu24.04",
        "--disk",
        "20",
        "--ssh",
        "--direct",
        "--label",
        "pool/0",
        "--onstart-cmd",
        "touch /ready",
        "--env",
        "-e A=b -p 8000:8000",
        "--cancel-unavail",
    ];
    let created = cli.json(&order).await;
    let id = created["new_contract"].to_string();
    assert_eq!(created["success"], true);
    vast.world(|world| {
        let machine = &world.machines[&id];
        assert_eq!(
            (machine.mark.name.as_str(), machine.mark.env["A"].as_str()),
            ("pool/0", "b")
        );
        assert_eq!(machine.boot.authorized_keys, [key]);
    });
    assert_eq!(
        cli.json(&["show", "instance", &id]).await["actual_status"],
        "running"
    );
    assert!(
        cli.run(&["ssh-url", &id])
            .await
            .contains("ssh://root@198.19.0.1:")
    );
    assert!(
        cli.run(&["logs", &id])
            .await
            .contains(&format!("container C.{id} started"))
    );
    cli.run(&["label", "instance", &id, "other"]).await;
    cli.run(&["stop", "instance", &id]).await;
    assert_eq!(cli.json(&["show", "instance", &id]).await["cur_state"], "stopped");
    cli.run(&["start", "instance", &id]).await;
    let shown = cli.json(&["show", "instances"]).await;
    assert!(shown.to_string().contains("\"other\""), "{shown}");
    cli.run(&["destroy", "instance", &id, "-y"]).await;
    assert_eq!(vast.meter(|meter| meter.billed_now().len()), 0);
    cli.run(&["destroy", "instance", &id, "-y"]).await;
    assert_eq!(vast.requests().last().and_then(|entry| entry.status), Some(404));

    let bids = cli
        .json(&[
            "search",
            "offers",
            "--interruptible",
            "gpu_name=RTX_4090 num_gpus=1",
        ])
        .await;
    let bid = bids[0]["id"].to_string();
    let order = [
        "create",
        "instance",
        &bid,
        "--image",
        "ubuntu",
        "--bid_price",
        "0.5",
        "--ssh",
    ];
    let id = cli.json(&order).await["new_contract"].to_string();
    cli.run(&["change", "bid", &id, "--price", "0.6"]).await;
    assert_eq!(cli.json(&["show", "instance", &id]).await["dph_base"], 0.6);
    cli.run(&["destroy", "instance", &id, "-y"]).await;

    // As they are now, and of two hosts: offers of one may be the same accelerator in other
    // company.
    let offers = cli
        .json(&["search", "offers", "gpu_name=RTX_4090 num_gpus=1 reliability>0.9"])
        .await;
    let offers = offers.as_array().expect("a list");
    let host = &offers[0]["machine_id"];
    let other = offers.iter().find(|offer| offer["machine_id"] != *host);
    let first = offers[0]["id"].to_string();
    let second = other.expect("another host")["id"].to_string();
    let order = [
        "create",
        "instances",
        &first,
        &second,
        "--image",
        "ubuntu",
        "--ssh",
        "--cancel-unavail",
    ];
    let said = cli.run(&order).await;
    let shown = cli.json(&["show", "instances"]).await;
    let ids: Vec<String> = shown
        .as_array()
        .into_iter()
        .flatten()
        .map(|instance| instance["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 2, "{said}: {shown}");
    cli.run(&["stop", "instances", &ids[0], &ids[1]]).await;
    assert_eq!(
        cli.json(&["show", "instance", &ids[1]]).await["cur_state"],
        "stopped"
    );
    cli.run(&["start", "instances", &ids[0], &ids[1]]).await;
    cli.run(&["destroy", "instances", &ids[0], &ids[1], "-y"]).await;
    assert_eq!(vast.meter(|meter| meter.billed_now().len()), 0);

    assert_eq!(vast.violations(), []);
    assert_eq!(vast.mistakes(), []);
    let _ = cli.process.lock().kill();
    let _ = std::fs::remove_dir_all(&cli.home);
}
