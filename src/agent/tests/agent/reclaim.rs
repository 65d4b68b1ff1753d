//! The agent's notice on a machine that its cloud takes back.

use skyward_agent::protocol::{Fact, Reclaim, WatchRequest, fact};
use tonic::Streaming;

use crate::machine::{Machine, PATIENCE, command};

const AT: &str = "2026-01-02T03:04:05Z";

async fn watch(machine: &mut Machine) -> Streaming<Fact> {
    let request = WatchRequest {
        since: 0,
        mark_replay: true,
    };
    machine.agent.watch(request).await.unwrap().into_inner()
}

/// The next fact: the run that it is about, and whether it tells of the notice.
async fn next(facts: &mut Streaming<Fact>) -> (String, bool) {
    let fact = tokio::time::timeout(PATIENCE, facts.message()).await;
    let fact = fact.expect("a fact comes").unwrap().unwrap();
    let is_notice = match fact.fact {
        Some(fact::Fact::Reclaim(Reclaim { at_ms })) => {
            assert_eq!((at_ms, fact.seq), (1_767_323_045_000, 0));
            true
        }
        _ => false,
    };
    (fact.run_id, is_notice)
}

#[tokio::test]
async fn a_notice_is_told_once_to_who_listens_and_again_to_whoever_comes_later() {
    let folder = tempfile::tempdir().unwrap();
    let notice = folder.path().join("notice");
    let ask = format!("cat '{}'", notice.display());
    let mut machine = Machine::start_with(&["--reclaim-command", &ask]).await;
    let mut early = watch(&mut machine).await;
    assert_eq!(
        next(&mut early).await,
        (String::new(), false),
        "the end of the replay"
    );

    std::fs::write(&notice, format!("{AT}\n")).unwrap();
    assert_eq!(next(&mut early).await, (String::new(), true));
    machine.run(command("r", &["true"])).await;
    for _ in 0..2 {
        assert_eq!(next(&mut early).await, ("r".to_owned(), false));
    }

    for restarted in [false, true] {
        if restarted {
            machine.kill_daemon();
            machine.start_daemon().await;
        }
        let mut late = watch(&mut machine).await;
        let mut told = Vec::new();
        for _ in 0..4 {
            told.push(next(&mut late).await.1);
        }
        assert_eq!(told, [false, false, false, true], "after what is on record");
    }
}
