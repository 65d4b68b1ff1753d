//! Templates: settings of containers under a name, which orders refer to. An order takes over
//! what it does not say itself, once: later changes of the template do not reach the pod.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::order::{LETTERS, Order};
use super::wire::{CreateTemplate, UpdateTemplate, given};
use super::{Runpod, all_of};
use crate::core::account::AccountId;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;

/// The kind of templates among resources.
const KIND: &str = "template";

/// GB of a container's disk where no size is given.
pub(super) const DISK: u32 = 20;

/// A template.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    /// The account that owns it; "" for RunPod's own templates and templates of strangers.
    pub(super) account: AccountId,
    pub(super) name: String,
    pub(super) image: String,
    pub(super) args: String,
    pub(super) disk: u32,
    /// Size and path.
    pub(super) volume: Option<(u32, String)>,
    pub(super) ports: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) registry: Option<String>,
    pub(super) category: String,
    pub(super) readme: String,
    pub(super) cuda: Vec<String>,
    pub(super) serverless: bool,
    pub(super) public: bool,
    /// Made by RunPod.
    pub(super) official: bool,
    pub(super) start_ssh: bool,
    pub(super) start_jupyter: bool,
}

/// Settings of the container of an order, as far as the order gives them.
#[derive(Clone, Debug, Default)]
pub(super) struct Container {
    pub(super) image: Option<String>,
    pub(super) args: Option<String>,
    pub(super) disk: Option<u32>,
    pub(super) volume: Option<(u32, String)>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) env: BTreeMap<String, String>,
    /// Null says that there is none, whatever the template has.
    pub(super) registry: Option<Value>,
    pub(super) start_ssh: Option<bool>,
}

impl Container {
    /// What is not given comes from the template; of variables each by itself. A `bare` pod
    /// has no disk of its own: it has a network volume, or is a CPU pod.
    pub(super) fn over(mut self, template: &Template, bare: bool) -> Self {
        let disk = template.volume.as_ref().filter(|_| !bare);
        let mut env = template.env.clone();
        env.append(&mut self.env);
        Self {
            image: self.image.or_else(|| Some(template.image.clone())),
            args: self.args.or_else(|| Some(template.args.clone())),
            disk: self.disk.or(Some(template.disk)),
            volume: self.volume.or_else(|| disk.cloned()),
            ports: self.ports.or_else(|| Some(template.ports.clone())),
            env,
            registry: self
                .registry
                .or_else(|| template.registry.clone().map(Value::from)),
            start_ssh: self.start_ssh.or(Some(template.start_ssh)),
        }
    }

    /// The order with these settings.
    pub(super) fn complete(self, order: Order) -> Result<Order, Refusal> {
        let image = self.image.filter(|image| !image.is_empty());
        Ok(Order {
            image: image.ok_or_else(|| Refusal::Bad("image is required".to_owned()))?,
            args: self.args.unwrap_or_default(),
            disk: self.disk.unwrap_or(DISK),
            volume: self.volume,
            ports: self.ports.unwrap_or_default(),
            env: self.env,
            registry: self.registry.as_ref().and_then(Value::as_str).map(str::to_owned),
            start_ssh: self.start_ssh.unwrap_or(false),
            ..order
        })
    }
}

/// The templates that everybody may use: RunPod's own, and one of a stranger.
pub(super) fn catalogue() -> BTreeMap<String, Template> {
    let shared = |name: &str, image: &str, disk, category: &str, official| Template {
        name: name.to_owned(),
        image: image.to_owned(),
        disk,
        ports: ["8888/http", "22/tcp"].map(str::to_owned).to_vec(),
        category: category.to_owned(),
        public: true,
        official,
        start_ssh: true,
        start_jupyter: true,
        ..Template::default()
    };
    let ubuntu = shared("Runpod Ubuntu", "runpod/base:1.0.3-ubuntu2204", 20, "CPU", true);
    let torch = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404";
    let torch = shared("PyTorch 2.8", torch, 50, "NVIDIA", true);
    let stranger = shared("Somebody's ComfyUI", "somebody/comfyui:2", 40, "NVIDIA", false);
    BTreeMap::from([
        ("runpod-ubuntu".to_owned(), ubuntu),
        ("30zmvf89kd".to_owned(), torch),
        ("c0ffeec0ff".to_owned(), stranger),
    ])
}

fn missing() -> Refusal {
    Refusal::NotFound("template not found".to_owned())
}

/// A template as REST v2 shows it to an account.
fn shown(id: &str, template: &Template, account: &str) -> Value {
    let mounts = template.volume.as_ref().map_or_else(
        || json!({}),
        |(size, path)| json!({"persistent": {"size": size, "path": path}}),
    );
    json!({
        "id": id, "name": template.name, "image": template.image, "args": template.args, "disk": template.disk,
        "mounts": mounts, "ports": template.ports, "env": template.env,
        "registry": template.registry.as_ref().filter(|_| template.account == account),
        "serverless": template.serverless, "public": template.public, "category": template.category,
        "startSsh": template.start_ssh, "startJupyter": template.start_jupyter,
        "allowedCudaVersions": template.cuda,
    })
}

impl Runpod {
    /// A template that an account can read: one of its own, or a public one.
    pub(super) fn template(&self, account: &str, id: &str) -> Result<&Template, Refusal> {
        self.templates
            .get(id)
            .filter(|template| template.public || template.account == account)
            .ok_or_else(missing)
    }

    /// One that an account can change.
    pub(super) fn own_template(&self, account: &str, id: &str) -> Result<&Template, Refusal> {
        self.templates
            .get(id)
            .filter(|template| template.account == account)
            .ok_or_else(missing)
    }

    /// One of which pods can be made.
    pub(super) fn pod_template(&self, account: &str, id: &str) -> Result<&Template, Refusal> {
        let template = self.template(account, id)?;
        if template.serverless {
            return Err(Refusal::Invalid(vec![
                "templateId: a serverless template makes no pods".to_owned(),
            ]));
        }
        Ok(template)
    }

    /// The templates of an account with their ids, the oldest first.
    pub(super) fn templates_of(&self, visit: &Visit<'_>) -> Vec<(&String, &Template)> {
        let ids = all_of(visit.world, &visit.account, KIND);
        ids.iter()
            .filter_map(|found| self.templates.get_key_value(&found.id))
            .collect()
    }

    /// Makes one, or replaces another; returns its id.
    pub(super) fn save_template(
        &mut self,
        visit: &mut Visit<'_>,
        id: Option<&str>,
        template: Template,
    ) -> Result<String, Refusal> {
        let account = &visit.account;
        if let Some(id) = id {
            self.own_template(account, id)?;
        }
        let namesake = self.templates.iter().any(|(known, other)| {
            other.account == *account && other.name == template.name && Some(known.as_str()) != id
        });
        if namesake {
            return Err(Refusal::Bad("Template name must be unique".to_owned()));
        }
        if let Some(registry) = &template.registry {
            let known = self.registry_of(visit, registry);
            known.map_err(|_| Refusal::Bad("no such registry credential".to_owned()))?;
        }
        let id = if let Some(id) = id {
            if let Some(found) = visit.world.resources.get_mut(id) {
                found.name.clone_from(&template.name);
            }
            id.to_owned()
        } else {
            let id = visit.world.chance.text(10, LETTERS);
            let resource = visit
                .world
                .new_resource(&id, KIND, &visit.account, &template.name);
            visit.world.add_resource(resource, Decimal::ZERO);
            id
        };
        visit.subject = Some(id.clone());
        let template = Template {
            account: visit.account.clone(),
            official: false,
            ..template
        };
        self.templates.insert(id.clone(), template);
        Ok(id)
    }

    /// Deletes one that no pod refers to.
    pub(super) fn remove_template(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<(), Refusal> {
        visit.subject = Some(id.to_owned());
        self.own_template(&visit.account, id)?;
        let in_use = self.has_pod(visit.world, &visit.account, |order| {
            order.template.as_deref() == Some(id)
        });
        if in_use {
            return Err(Refusal::Bad("the template is in use by a pod".to_owned()));
        }
        visit.world.end_resource(id);
        self.templates.remove(id);
        Ok(())
    }

    pub(super) fn list_templates(&self, visit: &Visit<'_>) -> Answer {
        let all: Vec<Value> = self
            .templates_of(visit)
            .into_iter()
            .map(|(id, template)| shown(id, template, &visit.account))
            .collect();
        Answer::json(200, &json!({ "templates": all }))
    }

    /// The public templates: RunPod's own, or templates of others. None are verified here.
    pub(super) fn public_templates(&self, visit: &Visit<'_>) -> Answer {
        let source = visit.request.parameter("source").unwrap_or("official");
        let all: Vec<Value> = self
            .templates
            .iter()
            .filter(|(_, template)| match source {
                "official" => template.official,
                "community" => template.public && !template.official,
                _ => false,
            })
            .map(|(id, template)| shown(id, template, &visit.account))
            .take(100)
            .collect();
        Answer::json(200, &json!({ "templates": all }))
    }

    pub(super) fn get_template(&self, visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let template = self.template(&visit.account, id)?;
        Ok(Answer::json(200, &shown(id, template, &visit.account)))
    }

    pub(super) fn create_template(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreateTemplate = given(visit.request)?;
        let template = Template {
            account: String::new(),
            name: given.name,
            image: given.image,
            args: given.args,
            disk: given.disk.unwrap_or(DISK),
            volume: given.mounts.persistent.map(|mount| (mount.size, mount.path)),
            ports: given.ports,
            env: given.env,
            registry: given.registry,
            category: given.category.unwrap_or_else(|| "NVIDIA".to_owned()),
            readme: String::new(),
            cuda: given.allowed_cuda_versions,
            serverless: given.serverless,
            public: given.public,
            official: false,
            start_ssh: given.start_ssh.unwrap_or(true),
            start_jupyter: given.start_jupyter.unwrap_or(true),
        };
        let id = self.save_template(visit, None, template)?;
        let template = self.own_template(&visit.account, &id)?;
        Ok(Answer::json(201, &shown(&id, template, &visit.account)))
    }

    pub(super) fn update_template(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let given: UpdateTemplate = given(visit.request)?;
        let old = self.own_template(&visit.account, id)?.clone();
        let registry = match given.registry {
            Some(registry) => registry.as_str().map(str::to_owned),
            None => old.registry,
        };
        let volume = given.mounts.and_then(|mounts| mounts.persistent);
        let template = Template {
            name: given.name.unwrap_or(old.name),
            image: given.image.unwrap_or(old.image),
            args: given.args.unwrap_or(old.args),
            disk: given.disk.unwrap_or(old.disk),
            volume: volume.map(|mount| (mount.size, mount.path)).or(old.volume),
            ports: given.ports.unwrap_or(old.ports),
            env: given.env.unwrap_or(old.env),
            registry,
            category: given.category.unwrap_or(old.category),
            cuda: given.allowed_cuda_versions.unwrap_or(old.cuda),
            serverless: given.serverless.unwrap_or(old.serverless),
            public: given.public.unwrap_or(old.public),
            start_ssh: given.start_ssh.unwrap_or(old.start_ssh),
            start_jupyter: given.start_jupyter.unwrap_or(old.start_jupyter),
            account: old.account,
            readme: old.readme,
            official: old.official,
        };
        self.save_template(visit, Some(id), template)?;
        self.get_template(visit, id)
    }

    pub(super) fn delete_template(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        self.remove_template(visit, id)?;
        Ok(Answer::empty(204))
    }
}
