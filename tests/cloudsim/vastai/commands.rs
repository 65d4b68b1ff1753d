//! Requests to running instances: commands, logs, copies.

use serde_json::{Map, Value, json};

use super::context::Context;
use super::reply::{Failure, Outcome};

/// Where the disk of an instance is on its host.
const DISK: &str = "/var/lib/docker/overlay2/merged";

/// Keeps a text for a client that asks for the file, and says where the file is.
fn kept(context: &mut Context<'_, '_>, file: &str, text: String) -> String {
    context.state.results.insert(file.to_owned(), text);
    let host = context.visit.request.header("host").unwrap_or("localhost");
    format!("http://{host}/_logs/{file}")
}

/// `PUT /api/v0/instances/request_logs/{id}/`.
pub fn logs(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    context
        .instance(id)
        .map_err(|_| Failure::new(404, "invalid_id", "Invalid instance id."))?;
    let body = context.body().unwrap_or_default();
    let wanted = Context::text(&body, "filter");
    let who = if Context::text(&body, "daemon_logs") == "true" {
        "daemon of"
    } else {
        "container"
    };
    let all = [format!("{who} C.{id} created"), format!("{who} C.{id} started")];
    let lines: Vec<&String> = all.iter().filter(|line| line.contains(&wanted)).collect();
    let tail = Context::text(&body, "tail").parse().unwrap_or(1_000);
    let mut text = String::new();
    for line in lines.iter().skip(lines.len().saturating_sub(tail)) {
        text.push_str(line);
        text.push('\n');
    }
    let url = kept(context, &format!("{id}.log"), text);
    Ok(json!({"success": true, "msg": "", "result_url": url}))
}

/// `PUT /api/v0/instances/command/{id}/`: the few commands that are allowed, also of an instance
/// that is stopped. What they say does not come from the machine.
pub fn execute(context: &mut Context<'_, '_>, id: &str) -> Outcome {
    let command = Context::text(&context.body()?, "command");
    context
        .instance(id)
        .map_err(|_| Failure::new(400, "invalid_container", "No such instance."))?;
    let (name, path) = command.split_once(' ').unwrap_or((command.as_str(), ""));
    let said = match name {
        "ls" => "total 0\n".to_owned(),
        "du" => format!("0\t{DISK}{path}\n"),
        "rm" => String::new(),
        _ => return Err(Failure::arguments("Invalid command given.")),
    };
    let number = context.number();
    let url = kept(context, &format!("{id}-{number}.log"), said);
    context.visit.subject = Some(id.to_owned());
    let msg = "Command is executing, wait a few seconds and then view the result_url";
    Ok(json!({"success": true, "writeable_path": DISK, "result_url": url, "msg": msg}))
}

/// One end of a copy.
enum End {
    /// The machine of the client.
    Local,
    /// An instance, by its id.
    Instance(String),
    /// Something else that exists.
    Other,
}

/// What `C.123`, `123`, `V.123` or `local` is; other names are of connections to other clouds.
fn end(context: &Context<'_, '_>, body: &Map<String, Value>, name: &str) -> Result<End, Failure> {
    let given = match body.get(name) {
        None | Some(Value::Null) => return Ok(End::Local),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let absent = || {
        Failure::new(
            404,
            "no_such_instance",
            format!("{name}: nothing is {given:?} here."),
        )
    };
    if given == "local" {
        return Ok(End::Local);
    }
    if let Some(volume) = given.strip_prefix("V.") {
        let mut own = context.visit.world.resources_of(&context.visit.account, "volume");
        return match own.find(|one| one.id == volume) {
            Some(_) => Ok(End::Other),
            None => Err(absent()),
        };
    }
    let id = given.strip_prefix("C.").unwrap_or(&given);
    match context.instance(id) {
        Ok(machine) => Ok(End::Instance(machine.id.clone())),
        Err(_) => Err(absent()),
    }
}

/// `PUT /api/v0/commands/copy_direct/`, and `rsync/` with the machine of the client. Nothing is
/// copied.
pub fn copy(context: &Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    for path in ["src_path", "dst_path"] {
        if Context::text(&body, path).is_empty() {
            return Err(Failure::arguments(format!("Invalid {path}.")));
        }
    }
    let (from, to) = (end(context, &body, "src_id")?, end(context, &body, "dst_id")?);
    let mut answer = json!({
        "success": true,
        "msg": "Remote to Remote copy initiated - check instance status bar for progress updates (~30 seconds delayed).",
    });
    // The client of the service runs rsync itself when one end is its machine.
    let ends = match (&from, &to) {
        (End::Instance(id), End::Local) => Some((id, "src_addr", "src_port")),
        (End::Local, End::Instance(id)) => Some((id, "dst_addr", "dst_port")),
        (End::Local, _) | (_, End::Local) => {
            return Err(Failure::arguments("One end has to be an instance."));
        }
        _ => None,
    };
    if let Some((id, address, port)) = ends
        && let Some(endpoint) = &context.instance(id)?.endpoint
    {
        answer[address] = json!(endpoint.address);
        answer[port] = json!(endpoint.port);
    }
    Ok(answer)
}

/// `DELETE /api/v0/commands/copy_direct/` and `rclone/`: nothing is under way.
pub fn cancel(context: &Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    match end(context, &body, "dst_id")? {
        End::Local => Err(Failure::arguments("Invalid dst_id.")),
        End::Instance(_) | End::Other => Ok(json!({"success": true})),
    }
}

/// `POST /api/v0/commands/rclone/`: nobody has connections to other clouds.
pub fn sync(context: &Context<'_, '_>) -> Outcome {
    let body = context.body()?;
    let selected = Context::text(&body, "selected");
    Err(Failure::arguments(format!("No such connection: {selected:?}.")))
}
