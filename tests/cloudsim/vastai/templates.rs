//! Templates: settings for orders that name one.

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::filter;
use super::reply::{Failure, Outcome};

/// The kind of templates among resources.
const TEMPLATE: &str = "template";
/// The field in which an instance keeps its template.
pub const MARK: &str = "template";
/// Fields of a template that cannot be changed.
const FIXED: [&str; 3] = ["id", "hash_id", "creator_id"];

/// One that Vast.ai itself offers to everybody.
fn public() -> Map<String, Value> {
    let fields = [
        ("id", json!(62_897)),
        ("hash_id", json!("62897d6ba2c4f2c4b4a6a9b1d8a4e5f0")),
        ("creator_id", json!(62_897)),
        ("name", json!("Ubuntu 24.04")),
        ("image", json!("vastai/base-image")),
        ("tag", json!("cuda-12.9.1-auto")),
        ("env", json!("-p 8080:8080 -e OPEN_BUTTON_PORT=8080")),
        ("onstart", json!("entrypoint.sh")),
        ("runtype", json!("ssh")),
        ("use_ssh", json!(true)),
        ("ssh_direct", json!(true)),
        ("recommended", json!(true)),
        ("recommended_disk_space", json!(16.0)),
        ("private", json!(false)),
    ];
    fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The templates that the account may use.
fn all(context: &Context<'_, '_>) -> Vec<Map<String, Value>> {
    let own = context
        .visit
        .world
        .resources_of(&context.visit.account, TEMPLATE)
        .filter_map(|template| template.detail.as_object().cloned());
    std::iter::once(public()).chain(own).collect()
}

/// The account's own of this number or hash.
fn own(context: &Context<'_, '_>, number: Option<i64>, hash: &str) -> Result<String, Failure> {
    let wanted = |template: &Value| {
        (number.is_some() && template["id"].as_i64() == number)
            || (!hash.is_empty() && template["hash_id"].as_str() == Some(hash))
    };
    context
        .visit
        .world
        .resources_of(&context.visit.account, TEMPLATE)
        .find(|template| wanted(&template.detail))
        .map(|template| template.id.clone())
        .ok_or_else(|| Failure::new(404, "no_such_template", "No such template."))
}

/// `GET /api/v0/template/`: the account's own and public ones.
pub fn search(context: &Context<'_, '_>) -> Outcome {
    let filters = context.filters("select_filters")?;
    let mut found = Vec::new();
    for template in all(context) {
        if filter::matches(&template, &filters).map_err(Failure::arguments)? {
            found.push(template);
        }
    }
    let total = found.len();
    Ok(json!({"success": true, "templates_found": total, "templates": context.cut(found)}))
}

/// `POST /api/v0/template/`.
pub fn create(context: &mut Context<'_, '_>) -> Outcome {
    let mut fields = context.body()?;
    fields.retain(|_, value| !value.is_null());
    let name = Context::text(&fields, "name");
    if name.is_empty() || Context::text(&fields, "image").is_empty() {
        return Err(Failure::arguments("'name' and 'image' are required."));
    }
    let id = context.number();
    let hash = context.visit.world.chance.hex(32);
    fields.insert("id".to_owned(), json!(id));
    fields.insert("hash_id".to_owned(), json!(hash));
    fields.insert("creator_id".to_owned(), json!(context.user()));
    let mut resource =
        context
            .visit
            .world
            .new_resource(&id.to_string(), TEMPLATE, &context.visit.account, &name);
    resource.detail = Value::Object(fields.clone());
    context.visit.world.add_resource(resource, Decimal::ZERO);
    context.visit.subject = Some(id.to_string());
    Ok(json!({"success": true, "msg": "Template created.", "template": fields}))
}

/// `PUT /api/v0/template/` and `/api/v1/template/`: its hash is another afterwards.
pub fn edit(context: &mut Context<'_, '_>) -> Outcome {
    let mut body = context.body()?;
    let id = own(context, None, &Context::text(&body, "hash_id"))?;
    body.retain(|name, value| !value.is_null() && !FIXED.contains(&name.as_str()));
    let hash = context.visit.world.chance.hex(32);
    context.visit.subject = Some(id.clone());
    let Some(resource) = context.visit.world.resources.get_mut(&id) else {
        return Err(Failure::new(404, "no_such_template", "No such template."));
    };
    if let Some(name) = body.get("name").and_then(Value::as_str) {
        name.clone_into(&mut resource.name);
    }
    if let Some(fields) = resource.detail.as_object_mut() {
        fields.extend(body);
        fields.insert("hash_id".to_owned(), json!(hash));
    }
    Ok(json!({"success": true, "msg": "Template changed.", "template": resource.detail}))
}

/// `DELETE /api/v0/template/`.
pub fn delete(context: &mut Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let number = body.get("template_id").and_then(Value::as_i64);
    let id = own(context, number, &Context::text(&body, "hash_id"))?;
    context.visit.world.end_resource(&id);
    context.visit.subject = Some(id);
    Ok(json!({"success": true, "msg": "Template deleted."}))
}

/// An order with what its template has and it does not: what it says itself goes before, and
/// of variables the one of the same name.
pub fn merged(
    context: &Context<'_, '_>,
    mut order: Map<String, Value>,
) -> Result<Map<String, Value>, Failure> {
    let hash = Context::text(&order, "template_hash_id");
    if hash.is_empty() {
        return Ok(order);
    }
    let template = all(context)
        .into_iter()
        .find(|template| template["hash_id"].as_str() == Some(hash.as_str()))
        .ok_or_else(|| {
            Failure::arguments("error 400/3469: Invalid args: 'template_hash_id' is of no template")
        })?;
    let mut env = options(&Context::text(&template, "env"));
    if let Some(Value::Object(own)) = order.get("env") {
        env.extend(own.clone());
    }
    order.insert("env".to_owned(), Value::Object(env));
    let image = Context::text(&template, "image");
    let tag = Context::text(&template, "tag");
    let defaults = [
        (
            "image",
            Some(json!(if tag.is_empty() {
                image
            } else {
                format!("{image}:{tag}")
            })),
        ),
        ("runtype", Some(json!(run_type(&template)))),
        ("onstart", template.get("onstart").cloned()),
        ("args_str", template.get("args_str").cloned()),
        ("disk", template.get("recommended_disk_space").cloned()),
    ];
    for (name, value) in defaults {
        let given = order.get(name).is_some_and(|value| !value.is_null());
        if let (false, Some(value)) = (given, value) {
            order.insert(name.to_owned(), value);
        }
    }
    let mark = json!({"id": template["id"], "hash_id": hash, "name": template["name"]});
    order.insert(MARK.to_owned(), mark);
    Ok(order)
}

/// How an instance of a template runs, in the words of orders.
fn run_type(template: &Map<String, Value>) -> &'static str {
    let direct = |name: &str| template.get(name) == Some(&Value::Bool(true));
    match Context::text(template, "runtype").as_str() {
        "ssh" if direct("ssh_direct") => "ssh_direct",
        "ssh" => "ssh_proxy",
        "jupyter" if direct("jup_direct") => "jupyter_direct",
        "jupyter" => "jupyter_proxy",
        _ => "args",
    }
}

/// Options of docker as orders have them: variables by name, others with "1".
fn options(text: &str) -> Map<String, Value> {
    let mut found = Map::new();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-e" => {
                if let Some((name, value)) = words.next().and_then(|pair| pair.split_once('=')) {
                    found.insert(name.to_owned(), json!(value));
                }
            }
            "-p" | "-n" | "-h" => {
                let value = words.next().unwrap_or_default();
                found.insert(format!("{word} {value}"), json!("1"));
            }
            other => {
                found.insert(other.to_owned(), json!("1"));
            }
        }
    }
    found
}
