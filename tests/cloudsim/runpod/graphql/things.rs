//! Objects that pods refer to: templates, credentials and network volumes.

use serde_json::{Value, json};

use super::input::{count, env, is, items, text, texts};
use crate::core::cloud::{Refusal, Visit};
use crate::core::resource::Resource;
use crate::runpod::templates::Template;
use crate::runpod::volumes::{self, Size, Storage};
use crate::runpod::{Runpod, all_of, catalogue};

fn shown(id: &str, template: &Template) -> Value {
    let env: Vec<Value> = template
        .env
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    let volume = template.volume.as_ref();
    json!({
        "id": id, "name": template.name, "imageName": template.image, "dockerArgs": template.args,
        "containerDiskInGb": template.disk, "containerRegistryAuthId": template.registry,
        "volumeInGb": volume.map_or(0, |(size, _)| *size), "volumeMountPath": volume.map(|(_, path)| path),
        "ports": template.ports.join(","), "portsConfig": [], "env": env, "category": template.category,
        "readme": template.readme, "isPublic": template.public, "isRunpod": template.official,
        "isServerless": template.serverless, "startSsh": template.start_ssh,
        "startJupyter": template.start_jupyter, "allowedCudaVersions": template.cuda, "boundEndpointId": null,
    })
}

/// A network volume with its data center.
pub(super) fn shown_volume(volume: &Resource) -> Value {
    let mut value = volumes::flat(volume);
    let mut centers = catalogue::DATA_CENTERS.iter();
    let center = centers.find(|(id, ..)| *id == volume.region);
    let center = center.map(|(id, name, _, country, _)| {
        json!({"id": id, "name": name, "location": country, "listed": true, "gpuAvailability": []})
    });
    if let Value::Object(fields) = &mut value {
        fields.insert("dataCenter".to_owned(), center.unwrap_or_default());
    }
    value
}

/// The network volumes of an account.
pub(super) fn all_volumes(visit: &Visit<'_>) -> Vec<Value> {
    let all = all_of(visit.world, &visit.account, volumes::KIND);
    all.into_iter().map(shown_volume).collect()
}

/// `createNetworkVolume`.
pub(super) fn create_volume(visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
    let (name, place) = (text(input, "name"), text(input, "dataCenterId"));
    let size = Size {
        size: count(input, "size"),
        storage: Storage::Standard,
    };
    let id = volumes::make(visit, &name.unwrap_or_default(), &place.unwrap_or_default(), size)?;
    volumes::find(visit.world, &visit.account, &id).map(shown_volume)
}

/// `updateNetworkVolume`.
pub(super) fn update_volume(visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
    let id = text(input, "id").unwrap_or_default();
    let size = input.get("size").filter(|size| size.is_number());
    let size = size.map(|_| count(input, "size"));
    volumes::change(visit, &id, text(input, "name"), size)?;
    volumes::find(visit.world, &visit.account, &id).map(shown_volume)
}

impl Runpod {
    /// `deleteNetworkVolume`. Clients know the words of its failure.
    pub(super) fn delete_volume_by_graphql(
        &self,
        visit: &mut Visit<'_>,
        input: &Value,
    ) -> Result<Value, Refusal> {
        let id = text(input, "id").unwrap_or_default();
        match self.remove_volume(visit, &id) {
            Ok(()) => Ok(Value::Null),
            Err(Refusal::NotFound(_)) => Err(Refusal::Bad(
                "Tried to delete nonexistent network volume".to_owned(),
            )),
            Err(refusal) => Err(refusal),
        }
    }

    /// `podTemplates` of `myself`.
    pub(super) fn own_templates(&self, visit: &Visit<'_>) -> Vec<Value> {
        let own = self.templates_of(visit).into_iter();
        own.map(|(id, template)| shown(id, template)).collect()
    }

    /// `podTemplates`: templates of RunPod, templates that others share, or both.
    pub(super) fn shared_templates(&self, input: &Value) -> Value {
        let official = input.get("isRunpod").and_then(Value::as_bool);
        let shared = self.templates.iter().filter(|(_, template)| template.public);
        shared
            .filter(|(_, template)| official.is_none_or(|official| template.official == official))
            .map(|(id, template)| {
                let template = Template {
                    registry: None,
                    ..template.clone()
                };
                shown(id, &template)
            })
            .collect()
    }

    /// `podTemplate`; null where there is none.
    pub(super) fn one_template(&self, visit: &Visit<'_>, id: &str) -> Value {
        match self.template(&visit.account, id) {
            Ok(template) => shown(id, template),
            Err(_) => Value::Null,
        }
    }

    /// `saveTemplate`: a new one, or with an id a change of that one, in which what is not
    /// given stays.
    pub(super) fn save_by_graphql(&mut self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = text(input, "id");
        let old = match &id {
            Some(id) => self.own_template(&visit.account, id)?.clone(),
            None => Template {
                category: "NVIDIA".to_owned(),
                start_ssh: true,
                start_jupyter: true,
                ..Template::default()
            },
        };
        let flag = |name: &str, old: bool| input.get(name).map_or(old, |_| is(input, name));
        let size = count(input, "volumeInGb");
        let path = text(input, "volumeMountPath").unwrap_or_else(|| "/workspace".to_owned());
        let cuda = texts(input, "allowedCudaVersions");
        let template = Template {
            name: text(input, "name").unwrap_or(old.name),
            image: text(input, "imageName").unwrap_or(old.image),
            args: text(input, "dockerArgs").unwrap_or(old.args),
            disk: count(input, "containerDiskInGb"),
            volume: (size > 0).then_some((size, path)),
            ports: items(input, "ports").unwrap_or(old.ports),
            env: env(input).unwrap_or(old.env),
            registry: text(input, "containerRegistryAuthId").or(old.registry),
            category: text(input, "category").unwrap_or(old.category),
            readme: text(input, "readme").unwrap_or(old.readme),
            cuda: if cuda.is_empty() { old.cuda } else { cuda },
            serverless: flag("isServerless", old.serverless),
            public: flag("isPublic", old.public),
            start_ssh: flag("startSsh", old.start_ssh),
            start_jupyter: flag("startJupyter", old.start_jupyter),
            account: old.account,
            official: old.official,
        };
        if template.serverless && template.volume.is_some() {
            return Err(Refusal::Bad(
                "volumeInGb of a serverless template is 0".to_owned(),
            ));
        }
        let id = self.save_template(visit, id.as_deref(), template)?;
        Ok(self.one_template(visit, &id))
    }

    /// `deleteTemplate`, by its name.
    pub(super) fn delete_template_by_name(
        &mut self,
        visit: &mut Visit<'_>,
        name: &str,
    ) -> Result<Value, Refusal> {
        let own = self.templates_of(visit);
        let found = own.iter().find(|(_, template)| template.name == name);
        let id = found.map(|(id, _)| (*id).clone());
        let id = id.ok_or_else(|| Refusal::NotFound("Template not found".to_owned()))?;
        self.remove_template(visit, &id)?;
        Ok(Value::Null)
    }

    /// `saveRegistryAuth`.
    pub(super) fn save_registry(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        self.store_registry(visit, &text(input, "name").unwrap_or_default())
    }

    /// `updateRegistryAuth`: the secret is another, and nothing that can be seen.
    pub(super) fn change_registry(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = text(input, "id").unwrap_or_default();
        visit.subject = Some(id.clone());
        self.registry_of(visit, &id)
    }
}
