//! The tokens by which machines prove their host keys: whatever is logged, they stand in no line of the log, and
//! never in an object.

use std::{io, sync::Arc};

use k8s_openapi::ByteString;
use parking_lot::Mutex;
use serde_json::json;
use tracing_subscriber::{filter::LevelFilter, fmt, util::SubscriberInitExt as _};

use crate::{
    kinds::Kind,
    play::Play,
    time::HOUR,
    world::{Odds, TEAM, World},
};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_token_of_a_machine_stands_in_no_line_of_the_log_and_in_no_object() {
    let log = Log::default();
    let writer = log.clone();
    // With one subscriber alone, what another thread meets first is off for all threads, since that thread has none.
    let _second = fmt().with_writer(io::sink).finish().set_default();
    let logged = fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish()
        .set_default();
    let mut play = Play::new(0, |_| Odds::default());
    let kind = Kind::named("aws").expect("it is one of them");
    play.world.add_provider("a", kind);
    let policy = json!({ "spec": { "hostKeyPolicy": "Verified" } });
    let verified = play.world.server.change("providers", "", "a", policy);
    verified.expect("it is there");
    play.add_pool("x", &["a"], 2);
    play.settle(0, HOUR / 2, World::unrest);
    let machines = play.world.server.all("machines");
    let proved = |machine: &serde_json::Value| machine["spec"]["provesHostKey"] == true;
    assert_eq!(machines.iter().filter(|machine| proved(machine)).count(), 2);
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, HOUR, |world| world.remains(&accounts));
    drop(logged);

    let written = play.world.server.written_since(0);
    let truth = play.world.truth();
    assert_eq!(truth.broken, Vec::<String>::new());
    assert_eq!(truth.tokens.len(), 2);
    let log = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(log.contains(" TRACE "), "everything is logged");
    for token in &truth.tokens {
        // A Secret has its data in base64.
        let coded = serde_json::to_value(ByteString(token.as_bytes().to_vec())).unwrap();
        for form in [token.as_str(), coded.as_str().unwrap().trim_end_matches('=')] {
            assert_eq!(log.lines().find(|line| line.contains(form)), None);
            let mut objects = written.iter().map(ToString::to_string);
            assert_eq!(objects.find(|object| object.contains(form)), None);
        }
    }
}
