//! Reading requests of the `ec2` and `query` protocols: a form whose dotted
//! names are a tree, read by the service model.
//!
//! Whatever the model does not have is a problem, and each problem fails the
//! test that made the request: the real service would refuse it, or worse,
//! would overlook it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::model::{Kind, Model, Reference, check_limits};

/// Which names a protocol gives to members and list entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// EC2: `queryName`, else the upper-cased `locationName`; lists are flat.
    Ec2,
    /// Query (STS): `locationName` as it is; lists have `.member.N`.
    Query,
}

/// Parameters as the model names them, and what was wrong with the request.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The parameters.
    pub input: Value,
    /// Each deviation from the model, as text.
    pub problems: Vec<Problem>,
}

/// One deviation from the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its kind, which decides the service's error code.
    pub kind: ProblemKind,
    /// Its description.
    pub text: String,
}

/// Kinds of deviations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// A parameter that the model does not have.
    Unknown,
    /// A required one that is missing.
    Missing,
    /// One of a wrong type or value.
    Malformed,
}

impl Problem {
    pub(super) fn new(kind: ProblemKind, text: String) -> Self {
        Self { kind, text }
    }
}

#[derive(Debug, Default)]
struct Node {
    value: Option<String>,
    children: BTreeMap<String, Node>,
}

/// Reads the parameters of `operation` from the form, without its `Action` and
/// `Version`.
pub fn decode(
    model: &Model,
    dialect: Dialect,
    operation: &str,
    pairs: &[(String, String)],
) -> Result<Decoded, String> {
    let operation = model
        .operations
        .get(operation)
        .ok_or_else(|| format!("no operation {operation}"))?;
    let mut problems = Vec::new();
    let mut root = Node::default();
    for (name, value) in pairs {
        if name == "Action" || name == "Version" {
            continue;
        }
        let mut node = &mut root;
        for part in name.split('.') {
            node = node.children.entry(part.to_owned()).or_default();
        }
        if node.value.replace(value.clone()).is_some() {
            problems.push(Problem::new(
                ProblemKind::Malformed,
                format!("{name} is given twice"),
            ));
        }
    }
    let mut reader = Reader {
        model,
        dialect,
        problems,
    };
    let input = match &operation.input {
        Some(reference) => reader.value(reference, "", &root)?.unwrap_or(Value::Null),
        None => Value::Object(Map::new()),
    };
    Ok(Decoded {
        input,
        problems: reader.problems,
    })
}

struct Reader<'a> {
    model: &'a Model,
    dialect: Dialect,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, kind: ProblemKind, text: String) {
        self.problems.push(Problem::new(kind, text));
    }

    fn wire_name(&self, member: &str, reference: &Reference) -> String {
        match self.dialect {
            Dialect::Ec2 => match (&reference.query_name, &reference.location_name) {
                (Some(name), _) => name.clone(),
                (None, Some(name)) => upper_first(name),
                (None, None) => member.to_owned(),
            },
            Dialect::Query => reference
                .location_name
                .clone()
                .unwrap_or_else(|| member.to_owned()),
        }
    }

    fn value(&mut self, reference: &Reference, path: &str, node: &Node) -> Result<Option<Value>, String> {
        let shape = self.model.shape(reference)?;
        let value = match shape.kind {
            Kind::Structure => {
                self.no_value(path, node);
                let mut names = BTreeMap::new();
                for (member, used) in &shape.members {
                    names.insert(self.wire_name(member, used), (member, used));
                }
                let mut fields = Map::new();
                for (name, child) in &node.children {
                    let below = join(path, name);
                    match names.get(name) {
                        Some((member, used)) => {
                            if let Some(value) = self.value(used, &below, child)? {
                                fields.insert((*member).clone(), value);
                            }
                        }
                        None => self.problem(
                            ProblemKind::Unknown,
                            format!("the parameter {below} is not recognized"),
                        ),
                    }
                }
                for required in &shape.required {
                    if !fields.contains_key(required) {
                        let name = shape
                            .members
                            .get(required)
                            .map_or_else(|| required.clone(), |used| self.wire_name(required, used));
                        self.problem(
                            ProblemKind::Missing,
                            format!("the request must contain the parameter {}", join(path, &name)),
                        );
                    }
                }
                Value::Object(fields)
            }
            Kind::List => self.list(reference, path, node)?,
            Kind::Map => {
                self.problem(ProblemKind::Unknown, format!("{path}: maps are not used here"));
                return Ok(None);
            }
            _ => {
                for name in node.children.keys() {
                    let below = join(path, name);
                    self.problem(
                        ProblemKind::Unknown,
                        format!("the parameter {below} is not recognized"),
                    );
                }
                let Some(text) = &node.value else { return Ok(None) };
                match scalar(shape.kind, text) {
                    Ok(value) => value,
                    Err(reason) => {
                        self.problem(ProblemKind::Malformed, format!("{path}: {reason}"));
                        return Ok(None);
                    }
                }
            }
        };
        let mut wrong = Vec::new();
        check_limits(shape, &reference.shape, path, &value, &mut wrong);
        for text in wrong {
            self.problem(ProblemKind::Malformed, text);
        }
        Ok(Some(value))
    }

    fn list(&mut self, reference: &Reference, path: &str, node: &Node) -> Result<Value, String> {
        let shape = self.model.shape(reference)?;
        let entry = shape
            .member
            .as_deref()
            .ok_or_else(|| format!("{} holds nothing", reference.shape))?;
        let mut entries = node;
        if self.dialect == Dialect::Query && !shape.flattened {
            // An empty list is written as the bare name.
            if node.value.as_deref() == Some("") && node.children.is_empty() {
                return Ok(Value::Array(Vec::new()));
            }
            let element = entry.location_name.as_deref().unwrap_or("member");
            for name in node.children.keys().filter(|name| name.as_str() != element) {
                let below = join(path, name);
                self.problems.push(Problem::new(
                    ProblemKind::Unknown,
                    format!("the parameter {below} is not recognized"),
                ));
            }
            match node.children.get(element) {
                Some(found) => entries = found,
                None => return Ok(Value::Array(Vec::new())),
            }
        }
        self.no_value(path, entries);
        let mut numbered = BTreeMap::new();
        for (name, child) in &entries.children {
            match name.parse::<usize>() {
                Ok(number) if number >= 1 => {
                    numbered.insert(number, child);
                }
                _ => {
                    let below = join(path, name);
                    self.problem(
                        ProblemKind::Unknown,
                        format!("the parameter {below} is not recognized"),
                    );
                }
            }
        }
        let mut items = Vec::new();
        for (position, (number, child)) in numbered.into_iter().enumerate() {
            if number != position + 1 {
                self.problem(
                    ProblemKind::Malformed,
                    format!("{path}: entry {} is missing", position + 1),
                );
            }
            if let Some(value) = self.value(entry, &join(path, &number.to_string()), child)? {
                items.push(value);
            }
        }
        Ok(Value::Array(items))
    }

    fn no_value(&mut self, path: &str, node: &Node) {
        if node.value.is_some() {
            self.problem(
                ProblemKind::Malformed,
                format!("the parameter {path} is not a single value"),
            );
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn upper_first(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn scalar(kind: Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::String => Ok(Value::String(text.to_owned())),
        Kind::Integer => text
            .parse::<i32>()
            .map(Value::from)
            .map_err(|_| format!("'{text}' is not an integer")),
        Kind::Long => text
            .parse::<i64>()
            .map(Value::from)
            .map_err(|_| format!("'{text}' is not an integer")),
        Kind::Double | Kind::Float => text
            .parse::<f64>()
            .ok()
            .and_then(Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| format!("'{text}' is not a number")),
        Kind::Boolean => match text {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            other => Err(format!("'{other}' is neither true nor false")),
        },
        Kind::Timestamp => text
            .parse::<jiff::Timestamp>()
            .map(|moment| Value::String(moment.to_string()))
            .map_err(|_| format!("'{text}' is not a moment in ISO 8601")),
        Kind::Blob => STANDARD
            .decode(text)
            .map(|_| Value::String(text.to_owned()))
            .map_err(|_| format!("'{text}' is not base64")),
        Kind::Structure | Kind::List | Kind::Map => Err("not a single value".to_owned()),
    }
}
