//! Why a fetch failed, in words for the user.

use std::{fmt, io};

use super::order::Verdict;

/// Bytes of git's words that a message repeats.
const WORDS_BYTES: usize = 400;
/// Lines of them.
const LINES: usize = 3;
/// A shorter text is no secret that could be told from other text.
const SECRET_BYTES: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It may succeed later.
    Unavailable(String),
    /// It fails as long as the repository is what it is.
    Invalid(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unavailable(why) | Self::Invalid(why)) = self;
        f.write_str(why)
    }
}

impl From<Fault> for Verdict {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable(why) => Self::Unavailable(why),
            Fault::Invalid(why) => Self::Invalid(why),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Unavailable(match error.kind() {
            io::ErrorKind::StorageFull => "the disk of the machine is full".to_owned(),
            _ => format!("the machine cannot fetch it: {error}"),
        })
    }
}

impl From<nix::errno::Errno> for Fault {
    fn from(error: nix::errno::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// The last words of a program: up to the line in which git says that it gives up, on one line, short, and
/// without the secrets.
pub(super) fn last_words(output: &str, secrets: &[&str]) -> String {
    let masked = secrets
        .iter()
        .filter(|secret| secret.len() >= SECRET_BYTES)
        .fold(output.to_owned(), |text, secret| text.replace(secret, "***"));
    let mut lines = Vec::new();
    for line in masked.lines().map(str::trim).filter(|line| !line.is_empty()) {
        lines.push(line);
        // Behind it git gives general advice.
        if line.starts_with("fatal:") {
            break;
        }
    }
    let last = lines[lines.len().saturating_sub(LINES)..].join("; ");
    let plain: String = last
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    let start = plain.len().saturating_sub(WORDS_BYTES);
    let start = (start..plain.len())
        .find(|at| plain.is_char_boundary(*at))
        .unwrap_or(plain.len());
    plain[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_git_are_short_plain_and_without_the_credential() {
        let output = "remote: canary-token\x1b[2J\n\nPermission denied (publickey).\nfatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n";
        let words = last_words(output, &["canary-token", ""]);
        assert_eq!(
            words,
            "remote: *** [2J; Permission denied (publickey).; fatal: Could not read from remote repository."
        );
        let long = last_words(&"é".repeat(10_000), &[]);
        assert!(long.len() <= WORDS_BYTES && long.len() > WORDS_BYTES - 4);
        assert_eq!(last_words("", &["x"]), "");
    }
}
