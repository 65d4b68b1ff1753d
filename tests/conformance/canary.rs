//! The token by which a machine proves its host key reaches its cloud, and nothing else: no line of the log,
//! however much is logged, no error, and no machine as its client shows it.

use std::{io, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use parking_lot::Mutex;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::Bench;
use skyward_core::{Order, Secret, provider::HostKeys};
use skyward_providers::is_logged;
use tracing_subscriber::{filter::filter_fn, fmt, prelude::*};

use crate::{for_each, markets};

const TOKEN: &str = "c0ffee4a11ce5eedc0ffee4a11ce5eedc0ffee4a11ce5eedc0ffee4a11ce5eed";

/// What was logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Everything that is logged on this thread goes here, for as long as the answer lives.
    pub(crate) fn listen(&self) -> impl Sized + use<> {
        let writer = self.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        tracing_subscriber::registry()
            .with(layer.with_filter(filter_fn(is_logged)))
            .set_default()
    }

    /// All of it as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The token as it may stand in a text: as it is, or within something in base64, where it may begin at any
/// of three bytes. The first and the last characters there are of its neighbours, too.
fn forms() -> [String; 4] {
    let within = |before: usize| {
        let text = format!("{}{TOKEN}", "_".repeat(before));
        let coded = BASE64_STANDARD_NO_PAD.encode(text);
        coded[4..coded.len() - 4].to_owned()
    };
    [TOKEN.to_owned(), within(0), within(1), within(2)]
}

#[test]
fn the_token_of_a_machine_is_found_in_base64_wherever_it_begins() {
    for before in ["", "a", "ab", "abc"] {
        let coded = BASE64_STANDARD_NO_PAD.encode(format!("{before}{TOKEN}\nmore"));
        assert!(forms().iter().any(|form| coded.contains(form)), "{before}");
    }
}

#[test]
fn the_token_of_a_machine_reaches_its_cloud_and_no_line_of_the_log() {
    for_each(async |kind| {
        for market in markets(kind) {
            let log = Log::default();
            let logged = log.listen();
            let bench = Bench::start(kind, None).await;
            if bench.provider.capabilities().host_keys != HostKeys::Proved {
                return;
            }
            let order = Order {
                host_token: Some(Secret::new(TOKEN)),
                ..bench.order(market, 0).await
            };
            // What fails is told more of.
            let call = bench.subject.create[&market];
            for fault in [
                Fault::Server {
                    status: 500,
                    when: When::Before,
                },
                Fault::Cut { when: When::After },
            ] {
                bench.sim.fault(Rule::once(call, fault));
            }
            let (running, refused) = bench.bring_up(&order).await;
            let listed = bench.list().await.unwrap();
            bench.bring_down(&order, Some(&running.id)).await;
            drop(logged);
            let booted = bench.sim.world(|world| {
                let all = world.machines.values().map(|machine| &machine.boot);
                format!("{:?}", all.collect::<Vec<_>>())
            });
            assert!(
                forms().iter().any(|form| booted.contains(form)),
                "{kind}: {booted}"
            );
            let said = format!("{order:?} {running:?} {listed:?} {refused:?}");
            let log = log.text();
            assert!(log.contains(" TRACE "), "{kind}: everything is logged");
            for form in forms() {
                assert!(!said.contains(&form), "{kind}: {said}");
                let told = log.lines().find(|line| line.contains(&form));
                assert_eq!(told, None, "{kind}");
            }
            bench.judge(kind);
        }
    });
}
