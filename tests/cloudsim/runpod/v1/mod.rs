//! REST v1, which RunPod ended on 15 November 2026 and which is 410 here until the control
//! `v1` brings it back: programs that others publish still speak it (`runpodctl` for all but
//! the orders of pods, SkyPilot for volumes, the provider for Terraform), and what they do
//! shows whether the world under all three APIs is one.
//!
//! Its description tells few answers that are no success: those are not checked against it.

mod pods;
mod things;
mod wire;

use std::sync::Arc;

use serde_json::json;

use super::{LEFT_OUT, Runpod, calls};
use crate::core::cloud::{Call, Refusal, Visit};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};

/// REST v1 while it is answered.
pub(super) struct Served {
    description: Option<Arc<Description>>,
}

impl Served {
    pub(super) fn new() -> Self {
        Self {
            description: Description::load("runpod-rest-v1.json"),
        }
    }

    pub(super) fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        let mut wrong = wire::check(request, call);
        if let Some(description) = &self.description {
            wrong.extend(description.check(request));
        }
        wrong
    }

    /// Only `restart` is described without its success.
    pub(super) fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        match &self.description {
            Some(description) if answer.status < 300 && !request.path.ends_with("/restart") => {
                description.check_answer(request, answer)
            }
            Some(_) | None => Vec::new(),
        }
    }
}

fn error(status: u16, message: &str) -> Answer {
    Answer::json(status, &json!({"error": message, "status": status}))
}

/// A refusal in the words of REST v1.
pub(super) fn refuse(refusal: &Refusal, request: &Request) -> Answer {
    match refusal {
        Refusal::TooMany { retry_after } => {
            error(429, "too many requests").with("retry-after", retry_after.unwrap_or(1).to_string())
        }
        Refusal::Server(status) => error(*status, "internal error"),
        // Clients know it by these words; the status is what RunPod sent.
        Refusal::NoCapacity => error(500, "create pod: There are no instances currently available"),
        Refusal::Quota(what) => error(500, &format!("You have reached your limit of {what}")),
        Refusal::Funds => error(402, "Your balance is too low to rent this pod"),
        Refusal::Unauthorized | Refusal::Expired => Answer::json(401, &json!({"message": "unauthorized"})),
        Refusal::Forbidden => error(403, "access denied"),
        Refusal::Invalid(what) => error(400, &what.join("; ")),
        Refusal::Bad(what) => error(400, what),
        Refusal::NotFound(what) => error(404, what),
        Refusal::UnknownCall if calls::is_left_out(request) => error(501, LEFT_OUT),
        Refusal::UnknownCall => error(404, "not found"),
        Refusal::Answer(answer) => answer.clone(),
    }
}

impl Runpod {
    pub(super) fn answer_v1(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        match visit.call.name {
            "v1.pods.list" => Ok(self.v1_pods(visit)),
            "v1.pods.create" => self.v1_create_pod(visit),
            "v1.pods.get" => self.v1_pod(visit, id),
            "v1.pods.update" => self.v1_update_pod(visit, id),
            "v1.pods.delete" => self.v1_delete_pod(visit, id),
            "v1.pods.start" | "v1.pods.stop" | "v1.pods.reset" | "v1.pods.restart" => {
                self.v1_act_on_pod(visit, id)
            }
            "v1.templates.list" => Ok(self.v1_templates(visit)),
            "v1.templates.create" => self.v1_create_template(visit),
            "v1.templates.get" => self.v1_template(visit, id),
            "v1.templates.update" => self.v1_update_template(visit, id),
            "v1.templates.delete" => self.delete_template(visit, id),
            "v1.volumes.list" => Ok(things::volumes(visit)),
            "v1.volumes.create" => things::create_volume(visit),
            "v1.volumes.get" => things::volume(visit, id),
            "v1.volumes.update" => things::update_volume(visit, id),
            "v1.volumes.delete" => self.v1_delete_volume(visit, id),
            "v1.registries.list" => Ok(self.v1_registries(visit)),
            "v1.registries.create" => self.v1_create_registry(visit),
            "v1.registries.get" => self.get_registry(visit, id),
            "v1.registries.delete" => self.delete_registry(visit, id),
            "v1.billing.pods" => self.v1_bill_pods(visit),
            "v1.billing.volumes" => things::bill_volumes(visit),
            _ => Err(Refusal::UnknownCall),
        }
    }
}
