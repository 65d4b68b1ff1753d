//! The CustomResourceDefinitions as they are installed.
//!
//! kube derives them from the types; [`all`] finishes what a derive cannot know:
//! `null` means absent (as in Kubernetes' own kinds) but for arguments of functions, defaults stand only where the
//! API server must apply them, types of Kubernetes itself get bounds, and what each
//! value of an enumeration means becomes part of `kubectl explain`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::{Map, Value, json};

use crate::{CronTask, Machine, Offer, Pool, Provider, Task, condition::MAX_MESSAGE, provider::CONTAINER};

/// Defaults that the API server applies, because `/scale` reads these fields of a Pool; a template of
/// a Pool has them too, so that the same rules read it. All others are applied by the controller, so
/// that a manifest stays what its author wrote and a default can change with a version.
const SERVER_DEFAULTS: [&str; 6] = [
    "Pool.spec.nodes",
    "Pool.spec.nodes.desired",
    "Task.spec.poolTemplate.spec.nodes",
    "Task.spec.poolTemplate.spec.nodes.desired",
    "CronTask.spec.taskTemplate.spec.poolTemplate.spec.nodes",
    "CronTask.spec.taskTemplate.spec.poolTemplate.spec.nodes.desired",
];

/// Marks a value without a schema of its own.
const ANY_JSON: &str = "x-kubernetes-preserve-unknown-fields";

/// Largest accepted size of one CRD as YAML, in bytes.
pub const MAX_CRD_BYTES: usize = 200 * 1024;

/// A kind of account that a Provider can be, besides `container`.
#[derive(Clone, Debug)]
pub struct AccountKind {
    /// Its field in the Provider's spec.
    pub name: &'static str,
    /// Schema of its settings, by [`settings_schema`].
    pub schema: Value,
    /// Settings that no order can carry: they decide what is offered, or are of the account.
    pub fixed: &'static [&'static str],
}

/// Schema of the settings of a kind of account, as a CRD wants it.
pub fn settings_schema<T: schemars::JsonSchema>() -> Value {
    let generator = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(kube::core::schema::StructuralSchemaRewriter)
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    if let Value::Object(schema) = &mut schema {
        finish_schema(schema, "Provider.spec.settings");
    }
    schema
}

/// All our CRDs, in the order in which people meet them. `clouds` are the kinds of
/// account that a Provider can be besides `container`.
pub fn all(clouds: &[AccountKind]) -> Vec<CustomResourceDefinition> {
    [
        Provider::crd(),
        Offer::crd(),
        Pool::crd(),
        Machine::crd(),
        Task::crd(),
        CronTask::crd(),
    ]
    .into_iter()
    .map(|crd| finished(crd, clouds))
    .collect()
}

fn finished(crd: CustomResourceDefinition, clouds: &[AccountKind]) -> CustomResourceDefinition {
    let kind = crd.spec.names.kind.clone();
    let mut value = serde_json::to_value(crd).expect("a CRD is plain data");
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        if let Some(Value::Object(schema)) = version.pointer_mut("/schema/openAPIV3Schema") {
            finish_schema(schema, &kind);
            if kind == "Provider"
                && let Some(Value::Object(spec)) =
                    schema.get_mut("properties").and_then(|p| p.get_mut("spec"))
            {
                add_clouds(spec, clouds);
            }
            if kind == "CronTask"
                && let Some(Value::Object(template)) = schema.get_mut("properties").and_then(|all| {
                    let spec = all.get_mut("spec")?.get_mut("properties")?;
                    spec.get_mut("taskTemplate")
                })
            {
                forget_transitions(template);
            }
        }
    }
    serde_json::from_value(value).expect("finishing keeps the shape of a CRD")
}

/// A Task cannot be changed, and what later Tasks are like can: takes the rules about changes out of a template.
fn forget_transitions(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(rules)) = schema.get_mut("x-kubernetes-validations") {
        rules.retain(|rule| !rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf")));
        if rules.is_empty() {
            schema.remove("x-kubernetes-validations");
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(Map::values_mut) {
        if let Value::Object(property) = property {
            forget_transitions(property);
        }
    }
}

/// The fields of the clouds, and that a Provider is exactly one kind of account for ever.
fn add_clouds(spec: &mut Map<String, Value>, clouds: &[AccountKind]) {
    let names: Vec<&str> = std::iter::once(CONTAINER)
        .chain(clouds.iter().map(|cloud| cloud.name))
        .collect();
    if let Some(Value::Object(properties)) = spec.get_mut("properties") {
        for cloud in clouds {
            properties.insert(cloud.name.to_owned(), cloud.schema.clone());
        }
    }
    let count: Vec<String> = names
        .iter()
        .map(|name| format!("(has(self.{name}) ? 1 : 0)"))
        .collect();
    let same: Vec<String> = names
        .iter()
        .map(|name| format!("has(self.{name}) == has(oldSelf.{name})"))
        .collect();
    let rules = spec
        .entry("x-kubernetes-validations")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(rules) = rules {
        rules.push(json!({
            "rule": format!("{} == 1", count.join(" + ")),
            "message": format!(
                "a Provider needs exactly one kind of account: one of {}; write `container: {{}}` for Pods of this cluster",
                names.join(", ")
            ),
        }));
        for cloud in clouds.iter().filter(|cloud| !cloud.fixed.is_empty()) {
            let names: Vec<String> = cloud.fixed.iter().map(|name| format!("'{name}'")).collect();
            rules.push(json!({
                "rule": format!(
                    "!has(self.{}) || !has(self.overridable) || !self.overridable.exists(name, name in [{}])",
                    cloud.name,
                    names.join(", ")
                ),
                "message": format!(
                    "overridable cannot name {} of {}: an order cannot carry them; make another Provider",
                    cloud.fixed.join(", "),
                    cloud.name
                ),
            }));
        }
        rules.push(json!({
            "rule": same.join(" && "),
            "message": "the kind of account cannot be changed; create another Provider",
        }));
    }
}

/// One schema and all below it; `path` names it for [`SERVER_DEFAULTS`].
fn finish_schema(schema: &mut Map<String, Value>, path: &str) {
    // Without `nullable` the API server drops a null of a map, and no rule that compares a list with
    // one in it can be evaluated: any JSON keeps what its type says.
    if schema.contains_key("type") || !schema.contains_key(ANY_JSON) {
        schema.remove("nullable");
    }
    if !SERVER_DEFAULTS.contains(&path) {
        schema.remove("default");
    }
    let title = schema.remove("title");
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
        if let Some(variants) = title.as_ref().and_then(Value::as_str) {
            let text = schema
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            schema.insert("description".into(), format!("{text}\n\n{variants}").into());
        }
    }
    plain_format(schema);
    bound_kubernetes_types(schema);

    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties {
            if let Value::Object(property) = property {
                finish_schema(property, &format!("{path}.{name}"));
            }
        }
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(Value::Object(child)) = schema.get_mut(key) {
            finish_schema(child, &format!("{path}{mark}"));
        }
    }
}

/// The API server knows no unsigned formats and warns about them: their meaning is
/// kept as a range.
fn plain_format(schema: &mut Map<String, Value>) {
    let maximum = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        _ => return,
    };
    schema.insert("format".into(), "int64".into());
    schema.entry("minimum").or_insert_with(|| 0.into());
    schema.entry("maximum").or_insert_with(|| maximum.into());
}

/// Bounds (and shorter texts) for Condition, LabelSelector and Toleration, which carry
/// none of their own. They are recognised by their properties, wherever they are used.
fn bound_kubernetes_types(schema: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    let has = |names: &[&str]| names.iter().all(|name| properties.contains_key(*name));
    let bounds: Value = if has(&["lastTransitionTime", "reason", "status", "type"]) {
        json!({
            "type": { "maxLength": 64, "minLength": 1, "description": "What it is about." },
            "status": { "enum": ["True", "False", "Unknown"], "description": "`True`, `False` or `Unknown`." },
            "reason": { "maxLength": 64, "minLength": 1, "description": "Why, as one word for programs." },
            "message": { "maxLength": MAX_MESSAGE, "description": "Why, and what to do, for people." },
            "lastTransitionTime": { "description": "When `status` last changed." },
            "observedGeneration": { "description": "Generation of the spec that it is about." },
        })
    } else if has(&["matchLabels", "matchExpressions"]) {
        json!({
            "matchLabels": {
                "maxProperties": 16,
                "additionalProperties": { "type": "string", "maxLength": 63 },
                "description": "Labels that must have exactly these values.",
            },
            "matchExpressions": { "maxItems": 16, "description": "Conditions on labels; all must hold." },
        })
    } else if has(&["key", "operator", "values"]) {
        json!({
            "key": { "minLength": 1, "maxLength": 317, "description": "The label." },
            "operator": {
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                "description": "`In` or `NotIn` (one of `values`), `Exists` or `DoesNotExist` (no `values`).",
            },
            "values": {
                "maxItems": 64,
                "items": { "type": "string", "maxLength": 63 },
                "description": "Values for `In` and `NotIn`.",
            },
        })
    } else if has(&["effect", "tolerationSeconds"]) {
        json!({
            "key": { "maxLength": 317, "description": "Key of the taint; all keys when left out." },
            "operator": { "enum": ["Exists", "Equal"], "description": "`Equal` (default: the value is `value`) or `Exists`." },
            "value": { "maxLength": 63, "description": "Value of the taint." },
            "effect": {
                "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                "description": "`NoSchedule`, `PreferNoSchedule` or `NoExecute`; all when left out.",
            },
            "tolerationSeconds": { "description": "How long `NoExecute` is tolerated; for ever when left out." },
        })
    } else {
        return;
    };
    for (name, bound) in bounds.as_object().into_iter().flatten() {
        if let (Some(Value::Object(property)), Some(bound)) = (properties.get_mut(name), bound.as_object()) {
            property.extend(bound.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kubectl explain provider.spec`.
    #[test]
    fn the_spec_of_a_provider_leads_to_the_page_that_compares_the_kinds() {
        let all = serde_json::to_value(all(&[])).unwrap();
        let version = &all[0]["spec"]["versions"][0];
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let told = spec["description"].as_str().unwrap();
        let page = "docs/providers/README.md";
        assert!(told.contains(page), "{told}");
        let root = env!("CARGO_MANIFEST_DIR");
        assert!(std::path::Path::new(root).join("../..").join(page).is_file());
    }

    /// Calls `visit` with the path and schema of everything in every CRD.
    fn each(mut visit: impl FnMut(&str, &Map<String, Value>)) {
        fn walk(path: &str, schema: &Map<String, Value>, visit: &mut impl FnMut(&str, &Map<String, Value>)) {
            visit(path, schema);
            for (name, property) in schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                walk(&format!("{path}.{name}"), property.as_object().unwrap(), visit);
            }
            for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
                if let Some(child) = schema.get(key).and_then(Value::as_object) {
                    walk(&format!("{path}{mark}"), child, visit);
                }
            }
        }
        for crd in all(&[]) {
            let schema = crd.spec.versions[0]
                .schema
                .clone()
                .unwrap()
                .open_api_v3_schema
                .unwrap();
            let schema = serde_json::to_value(schema).unwrap();
            for part in ["spec", "status"] {
                if let Some(schema) = schema["properties"][part].as_object() {
                    walk(&format!("{}.{part}", crd.spec.names.kind), schema, &mut visit);
                }
            }
        }
    }

    fn spec_of(kind: &str) -> Map<String, Value> {
        let mut found = None;
        each(|path, schema| {
            if path == format!("{kind}.spec") {
                found = Some(schema.clone());
            }
        });
        found.unwrap()
    }

    #[test]
    fn every_list_map_and_text_is_bounded() {
        let mut unbounded = Vec::new();
        each(|path, schema| {
            let has = |key: &str| schema.contains_key(key);
            let bounded = match schema.get("type").and_then(Value::as_str) {
                Some("array") => has("maxItems"),
                Some("string") => {
                    has("maxLength") || has("enum") || schema.get("format") == Some(&"date-time".into())
                }
                Some("object") => !has("additionalProperties") || has("maxProperties"),
                Some("integer" | "number" | "boolean") => true,
                // Any JSON: bounded by the API server's limit on a whole object.
                _ => has("x-kubernetes-int-or-string") || has("x-kubernetes-preserve-unknown-fields"),
            };
            if !bounded {
                unbounded.push(path.to_owned());
            }
        });
        assert_eq!(unbounded, Vec::<String>::new());
    }

    #[test]
    fn any_json_is_admitted_in_few_places_only() {
        let mut places = Vec::new();
        each(|path, schema| {
            if schema.contains_key("x-kubernetes-preserve-unknown-fields") {
                places.push(path.to_owned());
            }
        });
        places.sort();
        assert_eq!(
            places,
            [
                "CronTask.spec.taskTemplate.spec.forEach.items[]",
                "CronTask.spec.taskTemplate.spec.forEach.matrix.axes[].values[]",
                "CronTask.spec.taskTemplate.spec.forEach.matrix.exclude[]",
                "CronTask.spec.taskTemplate.spec.forEach.matrix.include[]",
                "CronTask.spec.taskTemplate.spec.function.args[]",
                "CronTask.spec.taskTemplate.spec.function.kwargs{}",
                "CronTask.spec.taskTemplate.spec.poolTemplate.spec.candidates[].settings",
                "Machine.spec.settings",
                "Pool.spec.candidates[].settings",
                "Task.spec.forEach.items[]",
                "Task.spec.forEach.matrix.axes[].values[]",
                "Task.spec.forEach.matrix.exclude[]",
                "Task.spec.forEach.matrix.include[]",
                "Task.spec.function.args[]",
                "Task.spec.function.kwargs{}",
                "Task.spec.poolTemplate.spec.candidates[].settings",
                "Task.status.results[].value"
            ]
        );
    }

    #[test]
    fn the_api_server_fills_in_only_what_scale_and_rules_read() {
        let mut defaults = Vec::new();
        each(|path, schema| {
            if schema.contains_key("default") {
                defaults.push(path.to_owned());
            }
        });
        assert_eq!(defaults, SERVER_DEFAULTS);
    }

    #[test]
    fn the_api_server_knows_every_format() {
        each(|path, schema| {
            let format = schema.get("format").and_then(Value::as_str).unwrap_or("int64");
            assert!(
                ["int32", "int64", "double", "date-time"].contains(&format),
                "{path}: {format}"
            );
        });
    }

    #[test]
    fn null_is_a_value_among_arguments_alone() {
        let mut nullable = Vec::new();
        each(|path, schema| {
            if schema.contains_key("nullable") {
                nullable.push(path.to_owned());
            }
            let values = schema.get("enum").and_then(Value::as_array);
            assert!(
                !values.is_some_and(|values| values.contains(&Value::Null)),
                "{path}"
            );
        });
        assert_eq!(
            nullable,
            [
                "Task.spec.forEach.items[]",
                "Task.spec.forEach.matrix.axes[].values[]",
                "Task.spec.function.args[]",
                "Task.spec.function.kwargs{}",
                "CronTask.spec.taskTemplate.spec.forEach.items[]",
                "CronTask.spec.taskTemplate.spec.forEach.matrix.axes[].values[]",
                "CronTask.spec.taskTemplate.spec.function.args[]",
                "CronTask.spec.taskTemplate.spec.function.kwargs{}",
            ]
        );
    }

    #[test]
    fn every_field_explains_itself() {
        each(|path, schema| {
            if !path.ends_with("[]") && !path.ends_with("{}") {
                let text = schema
                    .get("description")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                assert!(text.ends_with('.'), "{path}: {text:?}");
            }
        });
    }

    #[test]
    fn every_value_of_an_enumeration_explains_itself() {
        let mut explained = Vec::new();
        each(|path, schema| {
            let text = schema
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
                let value = value.as_str().unwrap();
                assert!(text.contains(&format!("`{value}`")), "{path}: {value}");
                explained.push(value.to_owned());
            }
        });
        assert!(explained.contains(&"TrustOnFirstUse".to_owned()));
    }

    #[test]
    fn a_task_is_fixed_but_for_four_fields() {
        const CHANGEABLE: [&str; 4] = ["priority", "retention", "suspend", "ttlSecondsAfterFinished"];
        let spec = spec_of("Task");
        let fixed: Vec<_> = spec["x-kubernetes-validations"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["rule"].as_str().unwrap().contains("oldSelf"))
            .map(|rule| {
                rule["fieldPath"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches('.')
                    .to_owned()
            })
            .collect();
        for field in spec["properties"].as_object().unwrap().keys() {
            assert_ne!(
                fixed.contains(field),
                CHANGEABLE.contains(&field.as_str()),
                "{field}"
            );
        }
    }

    #[test]
    fn a_template_of_tasks_may_change_and_keeps_every_other_rule_of_a_task() {
        let (mut of_tasks, mut of_template) = (Vec::new(), Vec::new());
        each(|path, schema| {
            let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
            let (prefix, found) = match path.strip_prefix("Task.spec") {
                Some(rest) => (rest, &mut of_tasks),
                None => match path.strip_prefix("CronTask.spec.taskTemplate.spec") {
                    Some(rest) => (rest, &mut of_template),
                    None => return,
                },
            };
            for rule in rules.into_iter().flatten() {
                found.push(format!("{prefix}: {}", rule["rule"]));
            }
        });
        assert!(of_template.iter().all(|rule| !rule.contains("oldSelf")));
        of_tasks.retain(|rule| !rule.contains("oldSelf"));
        assert_eq!(of_template, of_tasks);
        assert!(of_template.len() > 10);
    }

    #[test]
    fn every_field_of_a_pool_says_what_a_change_does() {
        for (name, field) in spec_of("Pool")["properties"].as_object().unwrap() {
            let text = field["description"].as_str().unwrap().replace('\n', " ");
            let says = [
                "Immutable",
                "replaces machines when idle",
                "May be changed at any time",
                "takes effect at once",
                "is applied in place",
            ];
            assert!(says.iter().any(|words| text.contains(words)), "{name}: {text}");
        }
    }

    #[test]
    fn only_one_rule_of_a_provider_keeps_container_from_being_overridden() {
        let spec = spec_of("Provider");
        let rules = spec["x-kubernetes-validations"].as_array().unwrap();
        let about = rules
            .iter()
            .filter(|rule| rule["rule"].as_str().unwrap().contains("self.overridable"));
        assert_eq!(about.count(), 1);
    }

    #[test]
    fn messages_of_rules_are_one_line_and_name_a_remedy() {
        each(|path, schema| {
            for rule in schema
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let message = rule["message"].as_str().unwrap_or_default();
                assert!(message.len() > 20 && !message.contains('\n'), "{path}: {message}");
            }
        });
    }
}
