use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn entry(name: &str, depends_on: &Value, status: &Value) -> Entry {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "7",
                      "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "pool": format!("pool-{name}"), "command": ["true"], "dependsOn": depends_on }, "status": status,
    }))
    .unwrap();
    Entry::of(&task).unwrap()
}

/// A Task that depends on others.
fn task(name: &str, others: &[&str]) -> Entry {
    let others: Vec<Value> = others.iter().map(|other| json!({ "task": other })).collect();
    entry(name, &json!(others), &json!({}))
}

fn there(uid: &str, phase: TaskPhase) -> Known {
    Known::There(Found {
        uid: uid.into(),
        phase,
        reason: "NonZeroExit".into(),
        has_items: false,
    })
}

/// The verdict on a Task that depends on "a", with what is on record before and after.
fn verdict(status: Option<DependencyCondition>, record: Option<&str>, known: &Known) -> (Verdict, Value) {
    let wanted = [Dependency {
        task: "a".into(),
        status,
    }];
    let mut records: Vec<DependencyStatus> = record
        .into_iter()
        .map(|uid| DependencyStatus {
            task: "a".into(),
            uid: uid.into(),
            satisfied: false,
        })
        .collect();
    let verdict = judge(&wanted, &mut records, |_| known);
    (verdict, serde_json::to_value(records).unwrap())
}

#[rstest]
#[case::nothing_is_known(None, None, Known::Unread, "unread", "", false)]
#[case::none_of_that_name(None, None, Known::Missing, "waits", "", false)]
#[case::it_waits(None, None, there("1", TaskPhase::Pending), "waits", "1", false)]
#[case::it_is_suspended(None, None, there("1", TaskPhase::Suspended), "waits", "1", false)]
#[case::it_runs(None, Some("1"), there("1", TaskPhase::Running), "waits", "1", false)]
#[case::it_succeeded(None, Some("1"), there("1", TaskPhase::Succeeded), "satisfied", "1", true)]
#[case::it_had_succeeded(None, None, there("1", TaskPhase::Succeeded), "satisfied", "1", true)]
#[case::it_failed(None, Some("1"), there("1", TaskPhase::Failed), "failed", "1", false)]
#[case::any_end_will_do(
    Some(DependencyCondition::Finished),
    None,
    there("1", TaskPhase::Failed),
    "satisfied",
    "1",
    true
)]
#[case::it_was_deleted(None, Some("1"), Known::Missing, "failed", "1", false)]
#[case::another_one_took_its_name(None, Some("1"), there("2", TaskPhase::Succeeded), "failed", "1", false)]
fn the_task_that_was_found_first_decides(
    #[case] status: Option<DependencyCondition>,
    #[case] record: Option<&str>,
    #[case] known: Known,
    #[case] expected: &str,
    #[case] uid: &str,
    #[case] satisfied: bool,
) {
    let (verdict, records) = verdict(status, record, &known);
    let said = match &verdict {
        Verdict::Unread => "unread",
        Verdict::Waits(why) => {
            assert_eq!(why.reason, reason::WAITING_FOR_TASK);
            "waits"
        }
        Verdict::Satisfied => "satisfied",
        Verdict::Failed(why) => {
            assert_eq!(why.reason, reason::DEPENDENCY_FAILED);
            assert!(why.message.contains("\"a\""), "{}", why.message);
            "failed"
        }
    };
    assert_eq!(said, expected);
    let noted = if uid.is_empty() {
        json!([])
    } else {
        json!([{ "task": "a", "uid": uid, "satisfied": satisfied }])
    };
    assert_eq!(records, noted);
}

#[test]
fn where_a_map_failed_its_items_that_succeeded_need_not_run_again() {
    let of = |status: Value| {
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "a", "uid": "1" },
            "spec": { "pool": "p", "command": ["true"], "forEach": { "count": 3 } }, "status": status,
        }))
        .unwrap();
        let known = Known::There(Found::of(&task).unwrap());
        let (Verdict::Failed(why), _) = verdict(None, None, &known) else {
            panic!("the Task may not start");
        };
        why.message
    };
    let failed = json!({ "phase": "Failed", "reason": "ItemsFailed", "items": { "total": 3, "succeeded": 2, "failed": 1 } });
    let message = of(failed);
    assert!(message.contains("`kubectl skyward retry a`"), "{message}");
    let unread = of(json!({ "phase": "Failed", "reason": "InvalidItems" }));
    assert!(unread.ends_with("then create both Tasks again"), "{unread}");
}

#[test]
fn what_ended_as_wanted_may_be_deleted_afterwards() {
    let wanted = [Dependency {
        task: "a".into(),
        status: None,
    }];
    let mut records = Vec::new();
    let done = there("1", TaskPhase::Succeeded);
    assert_eq!(judge(&wanted, &mut records, |_| &done), Verdict::Satisfied);
    let gone = Known::Missing;
    assert_eq!(judge(&wanted, &mut records, |_| &gone), Verdict::Satisfied);
}

#[test]
fn a_task_says_for_which_ones_it_waits_and_which_do_not_exist() {
    let says = |running: &[&str], missing: &[&str]| waits(running, missing).message;
    assert_eq!(says(&["a"], &[]), r#"waits for the end of Task "a""#);
    assert_eq!(
        says(&["a", "b"], &[]),
        r#"waits for the end of the Tasks "a", "b""#
    );
    assert_eq!(
        says(&[], &["c"]),
        r#"waits for Task "c", which does not exist yet"#
    );
    assert_eq!(
        says(&["a"], &["c", "d"]),
        r#"waits for the end of Task "a", and for the Tasks "c", "d", which do not exist yet"#
    );
}

#[test]
fn a_task_that_was_placed_or_whose_dependencies_are_satisfied_waits_for_none() {
    let on_two = json!([{ "task": "a" }, { "task": "b" }]);
    let records = json!([{ "task": "a", "uid": "1", "satisfied": true }, { "task": "b", "uid": "2" }]);
    let waiting = entry("t", &on_two, &json!({ "dependencies": records }));
    assert_eq!(waits_for(&waiting), [Arc::<str>::from("b")]);
    let placed = entry("t", &on_two, &json!({ "dependencies": records, "attempt": 1 }));
    assert!(waits_for(&placed).is_empty());
}

fn told(graph: &mut Graph, entry: &Entry) -> Vec<(String, String)> {
    shown(graph.set(entry, waits_for(entry)))
}

fn shown(news: Vec<Circle>) -> Vec<(String, String)> {
    let mut news: Vec<(String, String)> = news
        .into_iter()
        .map(|circle| {
            assert_eq!(circle.pool, format!("pool-{}", &circle.uid[4..]));
            (circle.uid[4..].to_owned(), circle.names.join(" "))
        })
        .collect();
    news.sort();
    news
}

#[test]
fn every_task_of_a_circle_is_told_of_it_once_it_is_closed_and_no_other_one() {
    let mut graph = Graph::default();
    for (name, others) in [("a", &["b", "x"][..]), ("b", &["c"][..]), ("outside", &["a"][..])] {
        assert!(told(&mut graph, &task(name, others)).is_empty());
    }
    let names = |name: &str| (name.to_owned(), "c a b".to_owned());
    assert_eq!(told(&mut graph, &task("c", &["a"])), ["a", "b", "c"].map(names));
    let again = told(&mut graph, &task("c", &["a"]));
    assert!(again.is_empty(), "it is no news any more");
    let why = in_circle(&["c".into(), "a".into()]);
    assert_eq!(why.reason, reason::DEPENDENCY_CYCLE);
    assert!(
        why.message.ends_with(r#""c" waits for "a", "a" waits for "c""#),
        "{}",
        why.message
    );
}

#[test]
fn a_task_that_waits_for_itself_is_a_circle() {
    let news = told(&mut Graph::default(), &task("a", &["a"]));
    assert_eq!(news, [("a".to_owned(), "a".to_owned())]);
}

#[test]
fn a_task_that_is_in_no_circle_any_more_is_told_so() {
    let mut graph = Graph::default();
    told(&mut graph, &task("a", &["b", "c"]));
    assert_eq!(told(&mut graph, &task("b", &["a"])).len(), 2);
    assert_eq!(
        told(&mut graph, &task("a", &["c"])),
        ["a", "b"].map(|name| (name.to_owned(), String::new()))
    );
    assert_eq!(graph.pools_waiting_for("c"), BTreeSet::from(["pool-a"]));
    assert!(graph.remove("a", &"another".into()).is_empty());
    graph.remove("b", &"uid-b".into());
    assert!(!graph.is_empty());
    graph.remove("a", &"uid-a".into());
    assert!(graph.is_empty() && graph.dependents.is_empty());
}

#[test]
fn the_end_of_one_task_of_a_circle_is_told_to_each_of_the_others_that_is_in_no_other_circle() {
    let mut graph = Graph::default();
    for (name, others) in [
        ("a", &["b"][..]),
        ("b", &["c", "d"][..]),
        ("c", &["a"][..]),
        ("d", &["b"][..]),
    ] {
        told(&mut graph, &task(name, others));
    }
    assert!(graph.remove("a", &"another".into()).is_empty());
    let freed = shown(graph.remove("a", &"uid-a".into()));
    assert_eq!(
        freed,
        [("c".to_owned(), String::new())],
        "b and d wait for each other"
    );
    assert!(graph.remove("a", &"uid-a".into()).is_empty());
}

#[test]
fn a_map_may_read_the_results_of_the_tasks_before_it_until_it_has_its_items() {
    let reads_of = |for_each: &Value, status: &Value| {
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "map", "namespace": "n", "uid": "u", "resourceVersion": "7",
                          "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "pool": "p", "command": ["true"], "dependsOn": [{ "task": "prepare" }], "forEach": for_each },
            "status": status,
        }))
        .unwrap();
        reads(&Entry::of(&task).unwrap())
    };
    let from_result = json!({ "itemsFrom": { "taskResult": "prepare" } });
    let placed = json!({ "phase": "Running", "attempt": 1 });
    assert_eq!(reads_of(&from_result, &placed), [Arc::<str>::from("prepare")]);
    let has_items = json!({ "phase": "Running", "attempt": 1, "items": { "total": 3 } });
    assert!(reads_of(&from_result, &has_items).is_empty());
    assert!(reads_of(&Value::Null, &placed).is_empty(), "it is no map");
}

#[test]
fn a_chain_of_thousands_costs_no_more_than_a_short_one() {
    let mut graph = Graph::default();
    for number in 0..5000_u32 {
        let next = format!("t{}", (number + 1) % 5000);
        let news = told(&mut graph, &task(&format!("t{number}"), &[&next]));
        assert!(news.is_empty(), "such a circle is not searched to its end");
    }
}

proptest! {
    #[test]
    fn a_circle_is_found_exactly_where_one_is_closed(
        edges in proptest::collection::vec((0_usize..8, proptest::collection::vec(0_usize..8, 1..3)), 1..12)
    ) {
        let mut graph = Graph::default();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); 8];
        for (from, to) in edges {
            let names: Vec<String> = to.iter().map(|to| format!("t{to}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            next[from] = to;
            let name = format!("t{from}");
            graph.set(&task(&name, &names), names.iter().map(|name| Arc::from(*name)).collect());
            // Every Task that can be reached.
            let mut reached = BTreeSet::new();
            let mut stack = next[from].clone();
            while let Some(at) = stack.pop() {
                if reached.insert(at) {
                    stack.extend(&next[at]);
                }
            }
            prop_assert_eq!(!graph.circle(&name).is_empty(), reached.contains(&from));
        }
    }
}
