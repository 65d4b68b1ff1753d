//! Commands of containers. REST v2 and GraphQL have one text, REST v1 has lists: the text is
//! a command line, or JSON with `entrypoint` and `cmd`, which is how lists are kept.

use serde_json::{Value, json};

/// Entrypoint and command as lists; empty where the image's own are meant.
pub(super) fn lists(text: &str) -> (Vec<String>, Vec<String>) {
    let object = serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
    let Some(object) = object else {
        return (Vec::new(), words(text));
    };
    let list = |name: &str| -> Vec<String> {
        let items = object.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    (list("entrypoint"), list("cmd"))
}

/// What runs, as one list.
pub(super) fn command(text: &str) -> Vec<String> {
    let (mut all, rest) = lists(text);
    all.extend(rest);
    all
}

/// Lists as one text.
pub(super) fn text(entrypoint: &[String], cmd: &[String]) -> String {
    if entrypoint.is_empty() && cmd.is_empty() {
        return String::new();
    }
    json!({"entrypoint": entrypoint, "cmd": cmd}).to_string()
}

/// The words of a command line, with quotes as a shell has them.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quote, mut begun) = (None, false);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('"') | None, '\\') => {
                word.extend(letters.next());
                begun = true;
            }
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                begun = true;
            }
            (None, _) if letter.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            (None, _) => {
                word.push(letter);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_as_a_shell_does() {
        assert_eq!(words("bash -c 'a \"b\" $C'"), ["bash", "-c", "a \"b\" $C"]);
        assert_eq!(words(" a\\ b \"c 'd'\" '' "), ["a b", "c 'd'", ""]);
        assert!(words("").is_empty());
    }

    #[test]
    fn lists_are_kept_in_a_text_and_run_one_after_the_other() {
        let (shell, line) = (["/bin/sh", "-c"].map(str::to_owned), ["a && b".to_owned()]);
        let kept = text(&shell, &line);
        assert_eq!(lists(&kept), (shell.to_vec(), line.to_vec()));
        assert_eq!(command(&kept), ["/bin/sh", "-c", "a && b"]);
        assert_eq!(
            lists("sleep 1"),
            (vec![], vec!["sleep".to_owned(), "1".to_owned()])
        );
        assert_eq!(text(&[], &[]), "");
    }
}
