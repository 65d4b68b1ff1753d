//! Manifests that are accepted, and manifests that are refused with a message that says what to
//! write instead.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;
use skyward_control_plane_tests::{api, cluster, object, path, refusal};

use crate::{manifests::bad, taken::GOOD};

#[tokio::test]
async fn bad_manifests_are_refused_with_what_to_write_instead() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("bad").await?;
    let mut wrong = Vec::new();
    for (kind, spec, expected) in bad() {
        let answer = refusal(
            &api(&cluster.client, kind, &space.name),
            &object(kind, "x", spec)?,
        )
        .await?;
        match answer {
            Some(message) if message.contains(expected) => {}
            Some(message) => wrong.push(format!(
                "{kind} {spec}\n  expected: {expected}\n  answer:   {message}"
            )),
            None => wrong.push(format!(
                "{kind} {spec}\n  expected: {expected}\n  answer:   taken"
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    space.finish().await
}

/// The Pool in a Task.
const TEMPLATE: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/poolTemplate/properties/spec";

/// The messages of all rules of one schema and those below it.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            let rules = fields.get("x-kubernetes-validations").and_then(Value::as_array);
            found.extend(
                rules
                    .into_iter()
                    .flatten()
                    .filter_map(|rule| rule["message"].as_str().map(str::to_owned)),
            );
            fields.values().for_each(|value| messages(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| messages(value, found)),
        _ => {}
    }
}

#[test]
fn every_rule_has_a_mistake_that_shall_reach_it() -> Result<()> {
    for kind in ["Provider", "Pool", "Task"] {
        let file = format!("crds/{}s.yaml", kind.to_lowercase());
        let mut found = BTreeSet::new();
        let mut definition: Value = serde_yaml::from_str(&std::fs::read_to_string(path(&file))?)?;
        // The rules of a Pool are tried as those of a Pool.
        if let Some(template) = definition.pointer_mut(TEMPLATE) {
            *template = Value::Null;
        }
        messages(&definition, &mut found);
        assert!(found.len() > 5, "{file}: {found:?}");
        // Changes are made in changes.rs, and what is too large in limits.rs.
        found.retain(|message| {
            let is_tried = |(of, _, expected): (&str, &str, &str)| of == kind && message.contains(expected);
            let elsewhere = ["cannot be changed", "has at most 131072 characters"];
            !elsewhere.iter().any(|words| message.contains(words)) && !bad().any(is_tried)
        });
        assert!(found.is_empty(), "no mistake reaches these of {file}: {found:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn good_manifests_are_taken() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("good").await?;
    for (kind, spec) in GOOD {
        // YAML 1.2 reads `Yes` as text, as our own manifests are written in JSON.
        let answer = refusal(
            &api(&cluster.client, kind, &space.name),
            &object(kind, "x", spec)?,
        )
        .await?;
        assert_eq!(answer, None, "{kind} {spec}");
    }
    space.finish().await
}

#[tokio::test]
async fn a_wrong_field_name_is_not_ignored_by_kubectl() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("unknown").await?;
    let yaml = "{apiVersion: skyward.dev/v1alpha1, kind: Pool, metadata: {name: p}, spec: {provider: x, node: {desired: 1}}}";
    let message = space.apply(yaml).await?.refused()?;
    assert!(message.contains(r#"unknown field "spec.node""#), "{message}");
    space.finish().await
}
