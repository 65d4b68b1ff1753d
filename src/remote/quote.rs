//! The one function that puts a value into a shell script.

/// The value as one word of a POSIX shell, whatever it contains. Words that need no
/// quotes stay as they are, so that scripts and their snapshots stay readable.
///
/// A NUL byte cannot exist in a shell's value at all; it is left out.
pub(crate) fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    // A leading `=` or `%` means something in zsh and in job control, `-` an option.
    if !value.is_empty() && value.chars().all(plain) && !value.starts_with(['=', '%', '-']) {
        return value.to_owned();
    }
    let mut word = String::with_capacity(value.len() + 2);
    word.push('\'');
    for c in value.chars() {
        match c {
            '\'' => word.push_str("'\\''"),
            '\0' => {}
            c => word.push(c),
        }
    }
    word.push('\'');
    word
}

/// Whether the shell accepts it as the name of a variable.
pub(crate) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn through_shell(word: &str) -> String {
        let output = Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("printf %s {word}"))
            .output()
            .expect("/bin/sh runs");
        assert!(output.status.success(), "{word}");
        String::from_utf8(output.stdout).expect("UTF-8 in, UTF-8 out")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn any_value_comes_out_of_the_shell_as_it_went_in(value in "\\PC{0,40}|[ -~\n\t'\"\\\\$`!*?]{0,40}") {
            prop_assert_eq!(through_shell(&quote(&value)), value);
        }
    }

    #[test]
    fn dangerous_values_are_one_word() {
        for value in [
            "", "'", "''", "$(id)", "`id`", "a b", "a\nb", "-n", "~", "*", "\\", "!x", "x;y", "é'ß",
        ] {
            assert_eq!(through_shell(&quote(value)), value, "{value:?}");
        }
        assert_eq!(quote("/opt/skyward"), "/opt/skyward");
        assert_eq!(quote("a\0b"), "'ab'");
    }

    #[test]
    fn names_of_variables() {
        for (name, good) in [
            ("A", true),
            ("_x1", true),
            ("1x", false),
            ("", false),
            ("a-b", false),
            ("a b", false),
        ] {
            assert_eq!(is_name(name), good, "{name}");
        }
    }
}
