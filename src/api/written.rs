//! The schema of values that a manifest writes as text, or as a whole number where that is exact:
//! amounts, sizes, durations. The schema admits any text and whole number; a rule judges it and
//! says what to write instead.

use schemars::{Schema, json_schema};

/// A schema of text or a whole number, of at most `longest` characters, with its rule.
pub(crate) fn schema(longest: u32, rule: &str, message: &str) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": longest,
        "x-kubernetes-validations": [{ "rule": rule, "message": message }],
    })
}

/// Gives a type the [`schema`] of these arguments.
macro_rules! written {
    ($type:ident, $longest:expr, $rule:expr, $message:expr) => {
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::written::schema($longest, &$rule, $message)
            }
        }
    };
}
pub(crate) use written;
