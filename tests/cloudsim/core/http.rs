//! Requests and answers as plain values, so that a cloud is a function of them.

use bytes::Bytes;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;
use serde_json::Value;

/// One request, read whole.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Its path, as it came (percent-encoding and trailing slash kept).
    pub path: String,
    /// Its query in order, decoded.
    pub query: Vec<(String, String)>,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Request {
    /// A request made by hand, for tests without a socket.
    pub fn new(method: Method, target: &str, body: impl Into<Bytes>) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            method,
            path: path.to_owned(),
            query: decode_form(query),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    /// The first value of a header, when it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The first value of a query parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a query parameter.
    pub fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The token of `Authorization: Bearer …`.
    pub fn bearer(&self) -> Option<&str> {
        self.header("authorization")?
            .strip_prefix("Bearer ")
            .map(str::trim)
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(|error| format!("the body is not JSON: {error}"))
    }

    /// The body as form fields, in order.
    pub fn form(&self) -> Vec<(String, String)> {
        decode_form(&String::from_utf8_lossy(&self.body))
    }

    /// The decoded segments of the path, without empty ones: `/v1/pods/` is `["v1", "pods"]`.
    pub fn segments(&self) -> Vec<String> {
        self.path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| decode(part, false))
            .collect()
    }
}

/// Fields of a query or form body, decoded.
pub fn decode_form(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        })
        .collect()
}

fn decode(text: &str, plus_is_space: bool) -> String {
    let text = if plus_is_space {
        text.replace('+', " ")
    } else {
        text.to_owned()
    };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

fn reshape(value: &mut Value, field: Option<&str>, to: Option<&str>) {
    match value {
        Value::Array(entries) => {
            for entry in entries {
                reshape(entry, field, to);
            }
        }
        Value::Object(fields) => {
            for inner in fields.values_mut() {
                reshape(inner, field, to);
            }
            let taken = match field {
                Some(field) => fields.remove(field),
                None => fields.values().next().cloned(),
            };
            if let (Some(taken), Some(to)) = (taken, to) {
                fields.insert(to.to_owned(), taken);
            }
        }
        // AWS's price list has its entries as texts.
        Value::String(text) if text.starts_with('{') => {
            if let Ok(mut inner) = serde_json::from_str(text) {
                reshape(&mut inner, field, to);
                *text = inner.to_string();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The same of XML without space between its elements, whose lists have entries named `item`.
fn reshape_xml(body: &str, field: Option<&str>, to: Option<&str>) -> String {
    let Some(field) = field else {
        let later = to.map(|to| format!("<{to}>1</{to}>")).unwrap_or_default();
        return extend(body, &later);
    };
    let (begin, end) = (format!("<{field}>"), format!("</{field}>"));
    if let Some(to) = to {
        let renamed = body.replace(&begin, &format!("<{to}>"));
        return renamed.replace(&end, &format!("</{to}>"));
    }
    let mut parts = body.split(&begin);
    let first = parts.next().unwrap_or_default();
    let kept = parts.filter_map(|part| Some(part.split_once(&end)?.1));
    [first].into_iter().chain(kept).collect()
}

/// Adds an element at the end of each element that ends with another one, which is no entry of a list.
fn extend(body: &str, later: &str) -> String {
    let mut extended = String::new();
    let mut last = "";
    for part in body.split_inclusive('>') {
        if part.starts_with("</") && last.contains("</") && !last.ends_with("</item>") {
            extended.push_str(later);
        }
        extended.push_str(part);
        last = part;
    }
    extended
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers, content type included.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// An answer of any content type.
    pub fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
        }
    }

    /// Gives a body in JSON or XML another shape: [`Fault::Reshaped`](crate::core::fault::Fault::Reshaped).
    pub fn reshape(&mut self, field: Option<&str>, to: Option<&str>) {
        if let Ok(mut body) = serde_json::from_slice::<Value>(&self.body) {
            reshape(&mut body, field, to);
            self.body = body.to_string().into();
        } else if self.body.starts_with(b"<") {
            let reshaped = reshape_xml(&String::from_utf8_lossy(&self.body), field, to);
            self.body = reshaped.into();
        }
    }

    /// An answer in JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_and_keeps_repeated_parameters() {
        let request = Request::new(Method::GET, "/v1/instances?tag=a%3Db+c&tag=d", "");
        assert_eq!(request.parameters("tag").collect::<Vec<_>>(), ["a=b c", "d"]);
        assert_eq!(request.segments(), ["v1", "instances"]);
    }

    #[test]
    fn a_body_gets_another_shape_at_every_depth() {
        let reshaped = |field: Option<&str>, to: Option<&str>| {
            let body = serde_json::json!({ "all": [{ "id": 1, "more": { "id": 2 } }] });
            let mut answer = Answer::json(200, &body);
            answer.reshape(field, to);
            String::from_utf8(answer.body.to_vec()).unwrap()
        };
        assert_eq!(reshaped(Some("id"), None), r#"{"all":[{"more":{}}]}"#);
        let renamed = reshaped(Some("id"), Some("uid"));
        assert!(!renamed.contains(r#""id""#), "{renamed}");
        assert!(
            renamed.contains(r#""uid":1"#) && renamed.contains(r#""uid":2"#),
            "{renamed}"
        );
        let extended = reshaped(None, Some("later"));
        // Each of the three objects has one; that of the outermost is a copy of its list, with two.
        assert_eq!(extended.matches("later").count(), 5, "{extended}");
    }

    #[test]
    fn json_in_a_text_gets_another_shape_and_other_texts_stay() {
        let body = serde_json::json!({ "PriceList": [r#"{"id":1}"#, "{id", "id"] });
        let mut answer = Answer::json(200, &body);
        answer.reshape(Some("id"), Some("uid"));
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            body,
            serde_json::json!({ "PriceList": [r#"{"uid":1}"#, "{id", "id"] })
        );
    }

    #[test]
    fn a_body_in_xml_gets_another_shape_at_every_depth() {
        let xml = r#"<?xml version="1.0"?>
<R xmlns="a/"><set><item><id>1</id><more><id></id></more></item></set><ids><item>a</item></ids><idle>b</idle></R>"#;
        let reshaped = |field: Option<&str>, to: Option<&str>| {
            let mut answer = Answer::new(200, "text/xml", xml);
            answer.reshape(field, to);
            String::from_utf8(answer.body.to_vec()).unwrap()
        };
        let gone = xml.replace("<id>1</id>", "").replace("<id></id>", "");
        assert_eq!(reshaped(Some("id"), None), gone);
        let renamed = xml.replace("<id>", "<uid>").replace("</id>", "</uid>");
        assert_eq!(reshaped(Some("id"), Some("uid")), renamed);
        // The three objects have one each, the lists have none.
        let extended = xml
            .replace("</more>", "<later>1</later></more><later>1</later>")
            .replace("</R>", "<later>1</later></R>");
        assert_eq!(reshaped(None, Some("later")), extended);
        assert_eq!(reshaped(None, None), xml);
    }

    #[test]
    fn an_escape_that_is_cut_short_is_kept_as_it_is() {
        assert_eq!(decode("100%2", true), "100%2");
        assert_eq!(decode("%zz+", false), "%zz+");
    }
}
