//! The contract over a cloud that is a list in memory.

use parking_lot::Mutex;
use rstest::rstest;
use serde_json::json;
use skyward_core::{
    machine::Rental,
    provider::{Idempotency, Marking},
};

use super::*;
use crate::fixtures;

#[derive(Clone, Debug)]
struct Thing {
    id: &'static str,
    mark: Option<Mark>,
    gone: bool,
}

impl Listed for Thing {
    fn id(&self) -> String {
        self.id.to_owned()
    }

    fn mark(&self) -> Option<Mark> {
        self.mark.clone()
    }

    fn gone(&self) -> bool {
        self.gone
    }

    fn unfinished(&self) -> bool {
        self.id == "begun"
    }

    fn is_brief(&self) -> bool {
        self.id == "brief"
    }
}

/// The cloud's calls that change something.
type Asked = Arc<Mutex<Vec<String>>>;

struct Fake {
    /// Machines that the list shows.
    there: Arc<Mutex<Vec<Thing>>>,
    /// Machines that a look by id finds; the list may show fewer.
    by_id: Vec<Thing>,
    left: Vec<Leftover>,
    /// How the calls of an order fail that follow the one that makes the machine.
    starts_with: Option<ErrorKind>,
    asked: Asked,
}

impl Fake {
    fn ask(&self, what: String) {
        self.asked.lock().push(what);
    }
}

#[async_trait]
impl Service for Fake {
    type Settings = Value;
    type Machine = Thing;
    const CAPABILITIES: &'static Capabilities = &Capabilities {
        marking: Marking::Tags,
        idempotency: Idempotency::LookUp,
        ..Capabilities::of("fake")
    };
    const OPERATION: Duration = Duration::from_secs(10);
    const DROPS_TAKEN: bool = true;

    async fn account(&self) -> Result<Option<String>, ProviderError> {
        Ok(Some("account".to_owned()))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        Ok(Vec::new())
    }

    async fn machines(&self) -> Result<Vec<Thing>, ProviderError> {
        Ok(self.there.lock().clone())
    }

    async fn machine(&self, id: &str) -> Result<Option<Thing>, ProviderError> {
        Ok(self.by_id.iter().find(|thing| thing.id == id).cloned())
    }

    fn seen(&self, machine: &Thing) -> Option<ProviderMachine> {
        Some(ProviderMachine {
            id: machine.id.to_owned(),
            mark: machine.mark.clone()?,
            phase: ProviderPhase::Running,
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: Rental::default(),
        })
    }

    /// No order is ever finished here.
    async fn finish(&self, _machine: &Thing) -> Option<ProviderPhase> {
        Some(ProviderPhase::starting("it is not done"))
    }

    async fn order(&self, _order: &Order, settings: &Value) -> Result<String, ProviderError> {
        self.ask(format!("order {settings}"));
        Ok("new".to_owned())
    }

    async fn start(&self, _id: &str, _order: &Order) -> Result<(), ProviderError> {
        let refused = self.starts_with.clone();
        refused.map_or(Ok(()), |kind| Err(ProviderError::new(kind, "start it", "no")))
    }

    /// Of a machine that is gone a part may be left.
    async fn resume(&self, machine: &Thing, _order: &Order) -> Result<Option<String>, ProviderError> {
        if machine.id == "part" {
            self.ask("end part".to_owned());
            return Ok(None);
        }
        Ok(Some(machine.id()))
    }

    async fn end(&self, machine: &Thing) -> Result<Deletion, ProviderError> {
        self.ask(format!("end {}", machine.id));
        Err(ProviderError::new(ErrorKind::NotFound, "end it", "it is gone"))
    }

    fn taken_back(&self, machine: &Thing) -> bool {
        machine.id == "spot"
    }

    async fn shared(&self, _cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        Ok(self.left.clone())
    }

    async fn give_back(&self, thing: &Leftover) -> Result<(), ProviderError> {
        self.ask(format!("give back {}", thing.id));
        Ok(())
    }
}

fn connected(there: Vec<Thing>, left: Vec<Leftover>) -> (Arc<dyn Provider>, Asked) {
    showing(there, Vec::new(), left)
}

fn showing(there: Vec<Thing>, by_id: Vec<Thing>, left: Vec<Leftover>) -> (Arc<dyn Provider>, Asked) {
    served(Fake {
        there: Arc::new(Mutex::new(there)),
        by_id,
        left,
        starts_with: None,
        asked: Asked::default(),
    })
}

fn served(fake: Fake) -> (Arc<dyn Provider>, Asked) {
    let asked = fake.asked.clone();
    (
        provider(fake, json!({ "disk": 1 }), "key-digest".to_owned()),
        asked,
    )
}

/// A cloud whose list shows nothing yet, and by its id what was ordered.
fn lagging(ordered: Vec<Thing>, starts_with: Option<ErrorKind>) -> (Arc<dyn Provider>, Asked) {
    served(Fake {
        there: Arc::default(),
        by_id: ordered,
        left: Vec::new(),
        starts_with,
        asked: Asked::default(),
    })
}

fn thing(id: &'static str, gone: bool) -> Thing {
    Thing {
        id,
        mark: Some(fixtures::order().mark),
        gone,
    }
}

/// The machine of the order, as it is on record.
fn recorded(id: &str) -> MachineRef {
    MachineRef {
        id: Some(id.to_owned()),
        ..MachineRef::of(&fixtures::order())
    }
}

#[tokio::test]
async fn what_is_there_is_not_ordered_again_and_one_that_is_gone_does_not_hide_it() {
    let (provider, asked) = connected(vec![thing("old", true), thing("there", false)], Vec::new());
    let accepted = provider.create(&fixtures::order()).await.unwrap();
    assert_eq!(accepted.id, "there");
    assert!(asked.lock().is_empty());
}

#[tokio::test]
async fn what_an_order_began_is_asked_about_until_the_machine_took_runs_and_never_again() {
    let (provider, _) = connected(vec![thing("there", false)], Vec::new());
    let phase = async |started| {
        let machine = MachineRef {
            started,
            ..recorded("there")
        };
        provider.get(&machine).await.unwrap().unwrap().phase
    };
    assert_eq!(phase(false).await, ProviderPhase::starting("it is not done"));
    assert_eq!(phase(true).await, ProviderPhase::Running);
}

#[tokio::test]
async fn a_machine_that_is_gone_answers_no_order() {
    let (provider, asked) = connected(vec![thing("old", true)], Vec::new());
    let accepted = provider.create(&fixtures::order()).await.unwrap();
    assert_eq!(accepted.id, "new");
    assert_eq!(asked.lock().len(), 1);
}

#[tokio::test]
async fn an_order_has_the_settings_of_its_provider_with_what_its_pool_overrides() {
    let (provider, asked) = connected(Vec::new(), Vec::new());
    let mut order = fixtures::order();
    order.overrides = json!({ "image": "x" });
    assert_eq!(provider.create(&order).await.unwrap().id, "new");
    assert_eq!(*asked.lock(), [r#"order {"disk":1,"image":"x"}"#]);
}

#[tokio::test]
async fn an_id_that_is_another_machines_by_now_is_left_alone() {
    let another = Thing {
        mark: Some(Mark {
            machine_uid: "another".into(),
            ..fixtures::order().mark
        }),
        ..thing("there", false)
    };
    let (provider, asked) = connected(vec![another], Vec::new());
    assert_eq!(provider.get(&recorded("there")).await.unwrap(), None);
    assert_eq!(
        provider.delete(&recorded("there")).await.unwrap(),
        Deletion::Foreign
    );
    assert!(asked.lock().is_empty());
}

#[tokio::test]
async fn a_machine_on_record_that_lost_its_mark_is_neither_gone_nor_ended() {
    let nobodys = |gone| Thing {
        mark: None,
        ..thing("there", gone)
    };
    // Found by the list or by its id.
    for (list, by_id) in [
        (vec![nobodys(false)], vec![nobodys(false)]),
        (vec![nobodys(false)], Vec::new()),
        (Vec::new(), vec![nobodys(false)]),
    ] {
        let (provider, asked) = showing(list, by_id, Vec::new());
        for error in [
            provider.get(&recorded("there")).await.unwrap_err(),
            provider.delete(&recorded("there")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Transient);
            assert!(error.message.contains("Restore its tags"), "{error}");
        }
        assert!(asked.lock().is_empty());
    }
    // Once it is gone it needs no mark.
    let (provider, _) = connected(vec![nobodys(true)], Vec::new());
    assert_eq!(provider.get(&recorded("there")).await.unwrap(), None);
    assert_eq!(provider.delete(&recorded("there")).await.unwrap(), Deletion::Gone);
}

#[tokio::test]
async fn a_list_without_marks_is_no_proof_that_there_are_none() {
    let listed = Thing {
        mark: None,
        ..thing("there", false)
    };
    let (provider, asked) = showing(vec![listed], vec![thing("there", false)], Vec::new());
    assert_eq!(provider.delete(&recorded("there")).await.unwrap(), Deletion::Gone);
    assert_eq!(*asked.lock(), ["end there"]);
}

#[tokio::test]
async fn a_machine_that_a_list_shows_in_brief_is_what_the_cloud_tells_by_its_id() {
    let another = Thing {
        mark: Some(Mark {
            machine_uid: "another".into(),
            ..fixtures::order().mark
        }),
        ..thing("brief", false)
    };
    let (provider, asked) = showing(vec![thing("brief", false)], vec![another], Vec::new());
    let foreign = provider.delete(&recorded("brief")).await.unwrap();
    assert_eq!(foreign, Deletion::Foreign);
    assert!(asked.lock().is_empty());
    // Where nothing is found by the id, the list is no proof that the machine is gone.
    let (provider, asked) = connected(vec![thing("brief", false)], Vec::new());
    provider.delete(&recorded("brief")).await.unwrap();
    assert_eq!(*asked.lock(), ["end brief"]);
}

/// A machine that is shown, a look at it, and what a look tells once it is shown no more.
async fn vanished(
    id: &'static str,
    look: impl AsyncFn(&dyn Provider),
) -> (Arc<dyn Provider>, Option<ProviderPhase>) {
    let there = Arc::new(Mutex::new(vec![thing(id, false)]));
    let (provider, _) = served(Fake {
        there: there.clone(),
        by_id: Vec::new(),
        left: Vec::new(),
        starts_with: None,
        asked: Asked::default(),
    });
    look(&*provider).await;
    there.lock().clear();
    let found = provider.get(&recorded(id)).await.unwrap();
    (provider, found.map(|found| found.phase))
}

fn is_taken(phase: Option<ProviderPhase>) -> bool {
    matches!(phase, Some(ProviderPhase::Failed(failure)) if failure.kind == FailureKind::Reclaimed)
}

#[tokio::test]
async fn a_spot_machine_that_was_seen_and_is_shown_no_more_was_taken_back() {
    let (provider, phase) = vanished("spot", async |provider| {
        provider.get(&recorded("spot")).await.unwrap();
    })
    .await;
    assert!(is_taken(phase));
    let another = Mark {
        machine_uid: "another".into(),
        ..fixtures::order().mark
    };
    let another = MachineRef {
        mark: another,
        ..recorded("spot")
    };
    assert_eq!(provider.get(&another).await.unwrap(), None, "it was not that one");
    // Its end is no longer to be ordered, and after that it is gone.
    assert_eq!(provider.delete(&recorded("spot")).await.unwrap(), Deletion::Gone);
    assert_eq!(provider.get(&recorded("spot")).await.unwrap(), None);

    let scope = Scope {
        cluster: "c-uid".into(),
        pool_uid: None,
        namespace: None,
        regions: Vec::new(),
    };
    let (_, phase) = vanished("spot", async |provider| {
        assert_eq!(provider.list(&scope).await.unwrap().len(), 1);
    })
    .await;
    assert!(is_taken(phase), "a list is a look");
}

#[tokio::test]
async fn a_machine_that_is_shown_no_more_and_was_not_taken_back_is_gone() {
    let (_, phase) = vanished("there", async |provider| {
        provider.get(&recorded("there")).await.unwrap();
    })
    .await;
    assert_eq!(phase, None, "on demand");
    let (_, phase) = vanished("spot", async |_| {}).await;
    assert_eq!(phase, None, "never seen");
    let (_, phase) = vanished("spot", async |provider| {
        provider.get(&recorded("spot")).await.unwrap();
        provider.delete(&recorded("spot")).await.unwrap();
    })
    .await;
    assert_eq!(phase, None, "its end was ordered");
}

#[test]
fn an_end_whose_answer_proves_nothing_goes_on_until_a_look_tells() {
    let failed = |kind| Err(ProviderError::new(kind, "end it", "no"));
    for asked in [Ok(()), failed(ErrorKind::NotFound)] {
        assert_eq!(until_unseen(asked), Ok(Deletion::InProgress));
    }
    let refused = until_unseen(failed(ErrorKind::Permission)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Permission);
}

#[tokio::test]
async fn what_the_cloud_does_not_find_needs_no_end() {
    let (provider, asked) = connected(vec![thing("there", false)], Vec::new());
    let machine = MachineRef::of(&fixtures::order());
    assert_eq!(provider.delete(&machine).await.unwrap(), Deletion::Gone);
    assert_eq!(*asked.lock(), ["end there"]);
}

#[tokio::test]
async fn what_an_order_left_is_no_machine_until_the_order_went_on_there() {
    let (provider, asked) = connected(vec![thing("begun", false)], Vec::new());
    let order = fixtures::order();
    assert_eq!(provider.get(&MachineRef::of(&order)).await.unwrap(), None);
    assert_eq!(provider.create(&order).await.unwrap().id, "begun");
    assert!(provider.get(&recorded("begun")).await.unwrap().is_some());
    assert!(asked.lock().is_empty(), "nothing is ordered twice");
    assert_eq!(
        provider.delete(&MachineRef::of(&order)).await.unwrap(),
        Deletion::Gone
    );
    assert_eq!(*asked.lock(), ["end begun"]);
}

#[rstest]
#[case(ErrorKind::Transient, ErrorKind::Indeterminate)]
#[case(ErrorKind::RateLimited(None), ErrorKind::Indeterminate)]
#[case(ErrorKind::Outage, ErrorKind::Indeterminate)]
#[case(ErrorKind::NotFound, ErrorKind::Indeterminate)]
#[case(ErrorKind::AlreadyExists, ErrorKind::Indeterminate)]
#[case::another_offer_is_tried(ErrorKind::NoCapacity, ErrorKind::NoCapacity)]
#[case::a_person_mends_it(ErrorKind::Permission, ErrorKind::Permission)]
#[case::nothing_was_sent(ErrorKind::NotLeading, ErrorKind::NotLeading)]
#[tokio::test]
async fn an_order_that_fails_after_it_made_a_machine_goes_on_there_though_no_list_shows_it(
    #[case] fails: ErrorKind,
    #[case] told: ErrorKind,
) {
    let (provider, asked) = lagging(vec![thing("new", false)], Some(fails));
    let order = fixtures::order();
    assert_eq!(provider.create(&order).await.unwrap_err().kind, told);
    assert_eq!(provider.create(&order).await.unwrap().id, "new");
    assert_eq!(asked.lock().len(), 1, "nothing is ordered twice");
    // By its mark, too.
    assert!(provider.get(&MachineRef::of(&order)).await.unwrap().is_some());
    provider.delete(&MachineRef::of(&order)).await.unwrap();
    assert_eq!(asked.lock()[1..], ["end new"]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_ordered_a_moment_ago_and_is_shown_nowhere_is_not_ordered_again_yet() {
    let (provider, asked) = lagging(Vec::new(), None);
    let order = fixtures::order();
    provider.create(&order).await.unwrap();
    let doubted = provider.create(&order).await.unwrap_err();
    assert_eq!(doubted.kind, ErrorKind::Indeterminate, "{doubted}");
    assert_eq!(provider.get(&MachineRef::of(&order)).await.unwrap(), None);
    assert_eq!(asked.lock().len(), 1);
    tokio::time::advance(provider.capabilities().settle_time).await;
    provider.create(&order).await.unwrap();
    assert_eq!(asked.lock().len(), 2);
}

#[tokio::test]
async fn a_machine_that_was_deleted_is_not_in_doubt() {
    let (provider, asked) = lagging(Vec::new(), None);
    let order = fixtures::order();
    provider.create(&order).await.unwrap();
    let deleted = provider.delete(&MachineRef::of(&order)).await.unwrap();
    assert_eq!(deleted, Deletion::Gone);
    provider.create(&order).await.unwrap();
    assert_eq!(asked.lock().len(), 2);
}

#[tokio::test]
async fn a_new_machine_whose_mark_is_not_shown_yet_is_neither_ordered_again_nor_ended() {
    let unmarked = Thing {
        mark: None,
        ..thing("new", false)
    };
    let (provider, asked) = lagging(vec![unmarked], None);
    let order = fixtures::order();
    provider.create(&order).await.unwrap();
    for error in [
        provider.create(&order).await.unwrap_err(),
        provider.delete(&MachineRef::of(&order)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Transient, "{error}");
    }
    assert_eq!(asked.lock().len(), 1);
}

#[tokio::test]
async fn what_is_left_of_a_machine_that_is_gone_answers_no_order() {
    let (provider, asked) = connected(vec![thing("part", false)], Vec::new());
    assert_eq!(provider.create(&fixtures::order()).await.unwrap().id, "new");
    assert_eq!(*asked.lock(), ["end part", r#"order {"disk":1}"#]);
}

#[tokio::test]
async fn a_part_of_a_machine_that_is_gone_is_ended_with_it_and_a_second_machine_is_not() {
    for (id, ended) in [("begun", vec!["end begun"]), ("second", Vec::new())] {
        let (provider, asked) = connected(vec![thing(id, false)], Vec::new());
        assert_eq!(provider.get(&recorded("gone")).await.unwrap(), None);
        assert_eq!(provider.delete(&recorded("gone")).await.unwrap(), Deletion::Gone);
        assert_eq!(*asked.lock(), ended);
    }
}

#[tokio::test]
async fn a_pool_gives_back_what_is_its_own_and_a_later_look_is_the_proof() {
    let left = |id: &str, pool: &str| Leftover {
        kind: "key",
        id: id.to_owned(),
        region: String::new(),
        pool_uid: pool.to_owned(),
    };
    let (provider, asked) = connected(Vec::new(), vec![left("a", "p-uid"), left("b", "another")]);
    let pool = |uid: &str| PoolScope {
        cluster: "c-uid".into(),
        pool_uid: uid.into(),
        regions: Vec::new(),
    };
    assert_eq!(
        provider.release(&pool("p-uid")).await.unwrap(),
        Deletion::InProgress
    );
    assert_eq!(*asked.lock(), ["give back a"]);
    assert_eq!(provider.release(&pool("third")).await.unwrap(), Deletion::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_refused_passes_at_first_and_is_told_when_it_lasts() {
    let leaving = Leaving::default();
    let fails = |kind| Err(ProviderError::new(kind, "remove it", "it is in use"));
    assert!(leaving.judge("a", fails(ErrorKind::Transient)).is_ok());
    tokio::time::advance(LEAVES.saturating_sub(Duration::from_secs(1))).await;
    assert!(leaving.judge("a", fails(ErrorKind::Transient)).is_ok());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(leaving.judge("a", fails(ErrorKind::Transient)).is_err());
    assert!(
        leaving.judge("b", fails(ErrorKind::Transient)).is_ok(),
        "another one"
    );
    for other in [ErrorKind::Permission, ErrorKind::NotLeading, ErrorKind::NotFound] {
        assert_eq!(leaving.judge("c", fails(other.clone())).unwrap_err().kind, other);
    }
    assert!(leaving.judge("a", Ok(())).is_ok());
}

#[tokio::test]
async fn orders_at_the_same_time_make_a_shared_thing_once() {
    let maker = Maker::default();
    let since = Instant::now();
    let made = Mutex::new(0);
    let one = || {
        maker.make("key".to_owned(), since, async {
            *made.lock() += 1;
            tokio::task::yield_now().await;
            Ok("id".to_owned())
        })
    };
    let (a, b) = tokio::join!(one(), one());
    assert_eq!(
        (a.unwrap(), b.unwrap(), *made.lock()),
        ("id".into(), "id".into(), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_made_long_ago_is_not_remembered() {
    let maker = Maker::default();
    for name in ["one", "two"] {
        let making = async { Ok("id".to_owned()) };
        maker.make(name.to_owned(), Instant::now(), making).await.unwrap();
        tokio::time::advance(MADE).await;
    }
    let made = maker.made.lock().await;
    assert_eq!(made.keys().collect::<Vec<_>>(), ["two"]);
}
