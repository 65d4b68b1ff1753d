//! XML, as EC2 and STS write it, as JSON values: elements become objects, lists and texts.
//!
//! The values are for comparisons of names alone. So references such as `&amp;` stay as they are, attributes are left out,
//! and nothing is looked up that a document declares.

use serde_json::Value;
use xmlparser::{ElementEnd, Token, Tokenizer};

/// Longest answer that is read, in bytes. The SDK has no bound of its own.
const LONGEST: usize = 16 << 20;
/// Most elements of an answer: a page of a thousand instances has fewer.
const MOST: usize = 1 << 19;
/// Deepest element of an answer.
const DEEPEST: usize = 32;

/// An element whose end has not come yet.
struct Element<'a> {
    name: &'a str,
    text: &'a str,
    inner: Vec<(&'a str, Value)>,
}

impl Element<'_> {
    fn value(self, lists: &[&str]) -> Value {
        let text = self.text.trim();
        if lists.contains(&self.name) {
            self.inner.into_iter().map(|(_, value)| value).collect()
        } else if self.inner.is_empty() && !text.is_empty() {
            Value::from(text)
        } else {
            self.inner.into_iter().collect()
        }
    }
}

/// What stands in the outermost element. XML does not tell an empty list from an empty object, so elements with the
/// names of `lists` are lists. `None`: the text is no XML, or has no end, or is too large.
pub(crate) fn value(xml: &str, lists: &[&str]) -> Option<Value> {
    if xml.len() > LONGEST {
        return None;
    }
    let mut elements = 0;
    let mut open: Vec<Element<'_>> = Vec::new();
    for token in Tokenizer::from(xml) {
        match token.ok()? {
            Token::ElementStart { local, .. } => {
                elements += 1;
                if elements > MOST || open.len() >= DEEPEST {
                    return None;
                }
                open.push(Element {
                    name: local.as_str(),
                    text: "",
                    inner: Vec::new(),
                });
            }
            Token::Text { text } => {
                if let Some(element) = open.last_mut() {
                    element.text = text.as_str();
                }
            }
            Token::ElementEnd { end, .. } if end != ElementEnd::Open => {
                let element = open.pop()?;
                if matches!(end, ElementEnd::Close(_, name) if name.as_str() != element.name) {
                    return None;
                }
                let name = element.name;
                let value = element.value(lists);
                if let Some(parent) = open.last_mut() {
                    parent.inner.push((name, value));
                } else {
                    return Some(value);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_become_objects_lists_and_texts() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
            <Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
                <!-- as EC2 writes it -->
                <instancesSet>
                    <item>
                        <instanceId>i-1</instanceId><reason/>
                        <tagSet/>
                        <placement><availabilityZone>us-east-1a</availabilityZone></placement>
                        <stateReason></stateReason>
                    </item>
                </instancesSet>
                <architectures><item>x86_64</item><item>arm64</item></architectures>
            </Response>
            "#;
        let expected = json!({
            "instancesSet": [{
                "instanceId": "i-1", "reason": {}, "tagSet": [], "stateReason": {},
                "placement": { "availabilityZone": "us-east-1a" },
            }],
            "architectures": ["x86_64", "arm64"],
        });
        assert_eq!(
            value(xml, &["instancesSet", "tagSet", "architectures"]),
            Some(expected)
        );
    }

    #[rstest]
    #[case::nothing("")]
    #[case::text("Service Unavailable")]
    #[case::json("{}")]
    #[case::cut_short("<a><b>1</b>")]
    #[case::cut_within_a_name("<a><b>1</b")]
    #[case::closed_in_another_order("<a><b>1</a></b>")]
    #[case::closed_without_a_beginning("</a>")]
    fn a_text_that_is_no_whole_document_has_no_value(#[case] xml: &str) {
        assert_eq!(value(xml, &[]), None);
    }

    #[test]
    fn a_document_that_is_too_deep_or_too_large_has_no_value() {
        let deep = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
        let wide = |inner: usize| format!("<a>{}</a>", "<b/>".repeat(inner));
        let long = |text: usize| format!("<a>{}</a>", "x".repeat(text));
        for (fits, too_large) in [
            (deep(DEEPEST), deep(DEEPEST + 1)),
            (wide(MOST - 1), wide(MOST)),
            (long(LONGEST - 7), long(LONGEST - 6)),
        ] {
            assert!(value(&fits, &[]).is_some());
            assert_eq!(value(&too_large, &[]), None);
        }
    }

    #[test]
    fn what_a_document_declares_is_not_looked_up() {
        let xml = r#"<!DOCTYPE a [<!ENTITY b "canary">]><a><c>&b;</c></a>"#;
        assert_eq!(value(xml, &[]), Some(json!({ "c": "&b;" })));
    }
}
