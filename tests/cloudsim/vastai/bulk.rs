//! Calls about several instances at once. No description has them; the service's own command
//! line uses them for `create instances`, `start instances`, `stop instances` and
//! `destroy instances`.
//!
//! Assumed, since no fact says it: what cannot be done for some of them is done for the others.

use serde_json::{Value, json};

use super::context::Context;
use super::contracts;
use super::reply::{Failure, Outcome};

fn numbers(context: &Context<'_, '_>, name: &str) -> Result<Vec<i64>, Failure> {
    let body = context.body()?;
    let given = body.get(name).and_then(Value::as_array);
    let numbers: Vec<i64> = given.into_iter().flatten().filter_map(Value::as_i64).collect();
    if numbers.is_empty() {
        return Err(Failure::arguments(format!("{name} has to be a list of ids")));
    }
    Ok(numbers)
}

fn each(
    context: &mut Context<'_, '_>,
    ids: &[i64],
    one: impl Fn(&mut Context<'_, '_>, &str) -> Outcome,
) -> Outcome {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for id in ids {
        match one(context, &id.to_string()) {
            Ok(_) => done.push(*id),
            Err(_) => failed.push(*id),
        }
    }
    context.visit.subject = done.first().map(ToString::to_string);
    if done.is_empty() {
        let text = format!("None of the instances {failed:?} was found.");
        return Err(Failure::new(404, "no_such_instance", text));
    }
    Ok(json!({"success": true, "instances": done, "failed": failed}))
}

/// `PUT /api/v0/instances/`: state or label of several.
pub fn change(context: &mut Context<'_, '_>) -> Outcome {
    let ids = numbers(context, "ids")?;
    each(context, &ids, contracts::change)
}

/// `DELETE /api/v0/instances/`.
pub fn delete(context: &mut Context<'_, '_>) -> Outcome {
    let ids = numbers(context, "instance_ids")?;
    each(context, &ids, contracts::delete)
}

/// `POST /api/v0/asks/bulk/`: the same order for several offers.
pub fn create(context: &mut Context<'_, '_>) -> Outcome {
    let offers = numbers(context, "ids")?;
    let mut order = context.body()?;
    order.remove("ids");
    let mut results = Vec::new();
    for offer in offers {
        let outcome = contracts::order(context, &offer.to_string(), order.clone());
        let mut result = outcome.unwrap_or_else(|failure| failure.body());
        result["ask_id"] = json!(offer);
        results.push(result);
    }
    let success = results.iter().any(|result| result["success"] == true);
    let made: Vec<&Value> = results
        .iter()
        .filter_map(|result| result.get("new_contract"))
        .collect();
    Ok(json!({"success": success, "new_contracts": made, "results": results}))
}
