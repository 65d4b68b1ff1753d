//! Writing answers of the `ec2` and `query` protocols by the model's output
//! shapes. An answer with a member that the model does not have is a mistake of the simulator, and
//! is reported instead of being sent.

use std::fmt::Write as _;

use serde_json::Value;

use super::model::{Kind, Model, Reference};
use super::query::Dialect;

/// Writes the answer of `operation`.
pub fn answer(
    model: &Model,
    dialect: Dialect,
    operation: &str,
    output: &Value,
    request_id: &str,
) -> Result<String, String> {
    let described = model
        .operations
        .get(operation)
        .ok_or_else(|| format!("no operation {operation}"))?;
    let mut body = String::new();
    if let Some(reference) = &described.output {
        let mut writer = Writer {
            model,
            out: &mut body,
        };
        writer.members(reference, operation, output)?;
    } else if dialect == Dialect::Ec2 {
        // Operations without an answer of their own say that they succeeded.
        body.push_str("<return>true</return>");
    }
    let namespace = escape(model.namespace());
    let request_id = escape(request_id);
    Ok(match dialect {
        Dialect::Ec2 => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{operation}Response xmlns=\"{namespace}/\"><requestId>{request_id}</requestId>{body}</{operation}Response>"
        ),
        Dialect::Query => {
            let wrapper = described
                .output
                .as_ref()
                .and_then(|output| output.result_wrapper.clone());
            let wrapped = wrapper.map_or(body.clone(), |name| format!("<{name}>{body}</{name}>"));
            format!(
                "<{operation}Response xmlns=\"{namespace}\">{wrapped}<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>"
            )
        }
    })
}

/// Writes an error as the dialect has it.
pub fn error(dialect: Dialect, namespace: &str, code: &str, message: &str, request_id: &str) -> String {
    let (code, message, request_id) = (escape(code), escape(message), escape(request_id));
    match dialect {
        Dialect::Ec2 => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>{request_id}</RequestID></Response>"
        ),
        Dialect::Query => format!(
            "<ErrorResponse xmlns=\"{}\"><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>",
            escape(namespace)
        ),
    }
}

struct Writer<'a> {
    model: &'a Model,
    out: &'a mut String,
}

impl Writer<'_> {
    fn members(&mut self, reference: &Reference, path: &str, value: &Value) -> Result<(), String> {
        let shape = self.model.shape(reference)?;
        let fields = value
            .as_object()
            .ok_or_else(|| format!("{path} has to be an object"))?;
        for (name, inner) in fields {
            let member = shape
                .members
                .get(name)
                .ok_or_else(|| format!("{path}.{name} is not in the model ({})", reference.shape))?;
            if inner.is_null() {
                continue;
            }
            let element = member.location_name.as_deref().unwrap_or(name);
            self.element(member, element, &format!("{path}.{name}"), inner)?;
        }
        Ok(())
    }

    fn element(
        &mut self,
        reference: &Reference,
        element: &str,
        path: &str,
        value: &Value,
    ) -> Result<(), String> {
        let shape = self.model.shape(reference)?;
        match shape.kind {
            Kind::Structure => {
                let _ = write!(self.out, "<{element}>");
                self.members(reference, path, value)?;
                let _ = write!(self.out, "</{element}>");
            }
            Kind::List => {
                let items = value
                    .as_array()
                    .ok_or_else(|| format!("{path} has to be a list"))?;
                let entry = shape
                    .member
                    .as_deref()
                    .ok_or_else(|| format!("{path} holds nothing"))?;
                let name = entry.location_name.as_deref().unwrap_or("item");
                let _ = write!(self.out, "<{element}>");
                for item in items {
                    self.element(entry, name, path, item)?;
                }
                let _ = write!(self.out, "</{element}>");
            }
            Kind::Map => return Err(format!("{path}: maps are not written")),
            kind => {
                let text = match (kind, value) {
                    (Kind::String | Kind::Timestamp | Kind::Blob, Value::String(text)) => {
                        if !shape.allowed.is_empty()
                            && reference.shape != "InstanceType"
                            && !shape.allowed.contains(text)
                        {
                            return Err(format!("{path}: '{text}' is not one of the model's values"));
                        }
                        escape(text)
                    }
                    (Kind::Boolean, Value::Bool(flag)) => flag.to_string(),
                    (Kind::Integer | Kind::Long, Value::Number(number)) if !number.is_f64() => {
                        number.to_string()
                    }
                    (Kind::Double | Kind::Float, Value::Number(number)) => number.to_string(),
                    _ => return Err(format!("{path}: {value} does not fit {kind:?}")),
                };
                let _ = write!(self.out, "<{element}>{text}</{element}>");
            }
        }
        Ok(())
    }
}

/// Text as it may stand in XML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}
