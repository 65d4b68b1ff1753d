//! `PUT /v1/instances`: actions on instances.

use jiff::SignedDuration;
use serde_json::json;

use super::instances::status;
use super::wire::{Act, Action, OnDiscontinue, given};
use super::{Verda, error};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::world::World;

/// After so long, an instance that still provisions can be deleted as well.
const STUCK: SignedDuration = SignedDuration::from_mins(10);

/// The result of an action on one instance.
enum Done {
    Yes,
    AlreadySo,
    No(u16, &'static str),
}

impl Verda {
    pub(super) fn act(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let act: Act = given(visit.request)?;
        let ids = act.id.all();
        visit.subject = ids.first().cloned();
        let results: Vec<(String, Done)> = ids
            .iter()
            .map(|id| (id.clone(), self.act_on(visit, &act, id)))
            .collect();
        // A list of one that fails is refused as that one: 207 is for some of several.
        if let [(_, single)] = results.as_slice() {
            match single {
                Done::AlreadySo if act.id.is_one() => return Ok(Answer::empty(204)),
                Done::No(404, message) => return Err(Refusal::NotFound((*message).to_owned())),
                Done::No(status, message) => {
                    return Err(Refusal::Answer(error(*status, "invalid_request", *message)));
                }
                Done::Yes | Done::AlreadySo => {}
            }
        }
        let failed = results.iter().any(|(_, done)| matches!(done, Done::No(..)));
        let items: Vec<_> = results
            .iter()
            .map(|(id, done)| match done {
                Done::Yes | Done::AlreadySo => {
                    json!({"instanceId": id, "action": act.action.name(), "status": "success"})
                }
                Done::No(status, message) => json!({
                    "instanceId": id, "action": act.action.name(), "status": "error", "error": message, "statusCode": status,
                }),
            })
            .collect();
        Ok(Answer::json(if failed { 207 } else { 202 }, &items.into()))
    }

    fn act_on(&mut self, visit: &mut Visit<'_>, act: &Act, id: &str) -> Done {
        let now = visit.now();
        let own = |machine: &&Machine| machine.account == visit.account;
        let Some(machine) = visit.world.machines.get(id).filter(own) else {
            return Done::No(404, "Invalid instance id");
        };
        let (phase, age) = (machine.phase, now.duration_since(machine.created()));
        tracing::debug!(
            id,
            status = status(machine, phase, None, now),
            action = act.action.name(),
            "action"
        );
        match act.action {
            Action::Delete | Action::Discontinue | Action::DeleteStuck => match phase {
                Phase::Pending if act.action != Action::DeleteStuck && age < STUCK => {
                    Done::No(400, "Can't discontinue a provisioning instance")
                }
                Phase::Ending => Done::AlreadySo,
                Phase::Ended => Done::No(400, "Can't discontinue a discontinued instance"),
                Phase::Pending | Phase::Running | Phase::Halted | Phase::Failed => {
                    let takes = visit.world.end_takes;
                    visit.world.end(id, Cause::Asked, takes);
                    self.after_delete(visit.world, id, act.volume_ids.as_deref(), act.delete_permanently);
                    Done::Yes
                }
            },
            // It discontinues the instance and retains its volumes: nothing is there to restore,
            // and the description has no such action.
            Action::Hibernate => match phase {
                Phase::Halted => {
                    let takes = visit.world.end_takes;
                    visit.world.end(id, Cause::Asked, takes);
                    self.after_delete(visit.world, id, Some(&[]), false);
                    Done::Yes
                }
                Phase::Pending | Phase::Running | Phase::Failed | Phase::Ending | Phase::Ended => {
                    Done::No(400, "Can't hibernate an instance that is not shut down")
                }
            },
            Action::Shutdown | Action::ForceShutdown => match phase {
                Phase::Running => {
                    visit.world.halt(id, Cause::Asked);
                    Done::Yes
                }
                Phase::Halted => Done::AlreadySo,
                Phase::Pending | Phase::Failed | Phase::Ending | Phase::Ended => {
                    Done::No(400, "Can't shutdown an instance that is not running")
                }
            },
            Action::Boot | Action::Start => match phase {
                Phase::Halted => {
                    visit.world.resume(id, visit.boot.clone());
                    Done::Yes
                }
                Phase::Running => Done::AlreadySo,
                Phase::Pending | Phase::Failed | Phase::Ending | Phase::Ended => {
                    Done::No(400, "Can't start an instance that is not offline")
                }
            },
            Action::ConfigureSpot | Action::Deploy | Action::Transfer => {
                Done::No(400, "This action is not allowed for this instance")
            }
        }
    }

    /// What becomes of the volumes of an instance that is deleted: named ones go, to the trash
    /// unless permanently; without names the OS volume goes to the trash; others stay, detached.
    fn after_delete(&mut self, world: &mut World, id: &str, named: Option<&[String]>, permanently: bool) {
        let attached: Vec<(String, bool)> = self
            .attached(id)
            .map(|(id, volume)| (id.clone(), volume.is_os))
            .collect();
        for (volume, is_os) in attached {
            let policy = match named {
                Some(named) if named.contains(&volume) && permanently => OnDiscontinue::DeletePermanently,
                Some(named) if named.contains(&volume) => OnDiscontinue::MoveToTrash,
                None if is_os => OnDiscontinue::MoveToTrash,
                Some(_) | None => OnDiscontinue::KeepDetached,
            };
            self.leave_volume(world, &volume, id, policy);
        }
    }
}
