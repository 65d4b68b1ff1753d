//! A script as it goes over the wire, and what comes back.
//!
//! Scripts travel on standard input of `sh`, so that no value appears in a process list
//! and the login shell's own syntax does not matter.

use std::time::Duration;

use crate::{
    mask::Mask,
    quote::{is_name, quote},
    ssh::{Connection, ExecError, Exit, Input, Output},
};

const COMMON: &str = include_str!("scripts/common.sh");
/// Last output that is kept of each script: as much as fits into a condition with all that
/// stands around it, since it would be cut at its end, where the error is.
const TAIL: usize = 1024;
/// Room in front of the tail, so that trimming is rare and masking sees whole secrets.
const SLACK: usize = 16 * 1024;
/// All that a script may say to the controller.
const SAID: usize = 4 * 1024 * 1024;

/// In front of each of our variables. No variable of the user begins so.
const OURS: &str = "skyward_";
/// What the shell keeps for itself: some shells end at an assignment, IFS changes how ours are
/// read. Runs have them all the same.
const THE_SHELLS: [&str; 8] = [
    "BASHOPTS",
    "BASH_VERSINFO",
    "EUID",
    "IFS",
    "OPTIND",
    "PPID",
    "SHELLOPTS",
    "UID",
];

/// A script with its values.
#[derive(Clone, Default)]
pub(super) struct Script {
    head: String,
    body: String,
}

impl Script {
    /// Sets a variable of the script, there called `skyward_NAME`.
    pub(super) fn set(mut self, name: &str, value: &str) -> Self {
        debug_assert!(is_name(name), "{name}");
        for part in [OURS, name, "=", &quote(value), "\n"] {
            self.head.push_str(part);
        }
        self
    }

    /// Exports a variable of the user to everything the script runs. Names that no shell takes,
    /// or that would change how the script itself runs, are left out.
    pub(super) fn export(mut self, name: &str, value: &str) -> Self {
        if is_name(name) && !name.starts_with(OURS) && !THE_SHELLS.contains(&name) {
            for part in [name, "=", &quote(value), "\nexport ", name, "\n"] {
                self.head.push_str(part);
            }
        }
        self
    }

    /// Adds text, as it is.
    pub(super) fn then(mut self, text: &str) -> Self {
        self.body.push_str(text);
        self
    }

    /// This one's variables in front of another's.
    pub(super) fn before(mut self, other: Self) -> Self {
        self.head.push_str(&other.head);
        self.body.push_str(&other.body);
        self
    }

    /// The whole text; `tag` marks the lines that are meant for the controller.
    ///
    /// Everything is one function, so that the shell has read all of it before anything
    /// runs that might read standard input, too.
    pub(super) fn text(&self, tag: &str) -> String {
        format!(
            "skyward_main() {{\n{OURS}tag={}\n{}{COMMON}{}\n}}\nskyward_main </dev/null\nexit $?\n",
            quote(tag),
            self.head,
            self.body
        )
    }
}

/// What a script said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Lines for the controller: the first word and the rest.
    pub(super) lines: Vec<(String, String)>,
    /// Last output otherwise, masked.
    pub(super) tail: String,
}

impl Said {
    /// The last line that begins with this word.
    pub(super) fn get(&self, word: &str) -> Option<&str> {
        self.lines
            .iter()
            .rev()
            .find(|(first, _)| first == word)
            .map(|(_, rest)| rest.as_str())
    }

    /// All lines that begin with this word.
    pub(super) fn all<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines
            .iter()
            .filter(move |(first, _)| first == word)
            .map(|(_, rest)| rest.as_str())
    }
}

/// Why a script did not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptError {
    /// The connection is gone; it may go on or not.
    Lost(String),
    /// It ended otherwise than with 0.
    Failed {
        /// How it ended, in words.
        how: String,
        /// What it said until then.
        said: Said,
    },
    /// It took too long and was ended.
    TimedOut {
        /// How long it had.
        limit: Duration,
        /// What it said until then.
        said: Said,
    },
}

/// Runs a script to its end.
pub(super) async fn run(
    connection: &Connection,
    script: &Script,
    limit: Duration,
    mask: &Mask,
) -> Result<Said, ScriptError> {
    let tag = format!("::skyward-{:016x}", rand::random::<u64>());
    run_command(
        connection,
        "exec /bin/sh -s",
        Input::Bytes(script.text(&tag).into()),
        &tag,
        limit,
        mask,
    )
    .await
}

/// Runs a command with its input to its end.
pub(super) async fn run_command(
    connection: &Connection,
    command: &str,
    input: Input,
    tag: &str,
    limit: Duration,
    mask: &Mask,
) -> Result<Said, ScriptError> {
    let mut listener = Listener::new(tag);
    let result = connection
        .exec(command, input, limit, |source, bytes| {
            listener.hear(source, bytes);
        })
        .await;
    match result {
        Ok(Exit::Status(0)) => Ok(listener.said(mask)),
        Ok(exit) => Err(ScriptError::Failed {
            how: in_words(&exit),
            said: listener.said(mask),
        }),
        Err(ExecError::Lost(why)) => Err(ScriptError::Lost(why)),
        Err(ExecError::Refused(why)) => Err(ScriptError::Failed {
            how: why,
            said: Said::default(),
        }),
        Err(ExecError::TimedOut(limit)) => {
            let said = listener.said(mask);
            end(connection, said.get("pid")).await;
            Err(ScriptError::TimedOut { limit, said })
        }
    }
}

fn in_words(exit: &Exit) -> String {
    match exit {
        Exit::Status(status) => format!("exit code {status}"),
        Exit::Signal(signal) => format!("killed by signal {signal}"),
        Exit::Unknown => "the machine did not say how it ended".into(),
    }
}

/// Ends what a given-up script still runs: sshd lets it go on otherwise.
async fn end(connection: &Connection, pid: Option<&str>) {
    let Some(pid) = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit())) else {
        return;
    };
    let command = format!(
        "exec /bin/sh -c 'kill -TERM -{pid} 2> /dev/null; sleep 1; kill -KILL -{pid} 2> /dev/null; exit 0'"
    );
    let _ = connection
        .exec(&command, Input::default(), Duration::from_secs(5), |_, _| {})
        .await;
}

/// Sorts a script's output.
struct Listener {
    tag: String,
    /// The beginning of a line of standard output whose end has not come yet.
    partial: Vec<u8>,
    lines: Vec<(String, String)>,
    said_bytes: usize,
    tail: Vec<u8>,
}

impl Listener {
    fn new(tag: &str) -> Self {
        Self {
            tag: tag.to_owned(),
            partial: Vec::new(),
            lines: Vec::new(),
            said_bytes: 0,
            tail: Vec::new(),
        }
    }

    fn hear(&mut self, source: Output, bytes: &[u8]) {
        if source == Output::Err {
            self.keep(bytes);
            return;
        }
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        let partial = std::mem::take(&mut self.partial);
        while let Some(length) = partial[start..].iter().position(|b| *b == b'\n') {
            self.line(&partial[start..=start + length]);
            start += length + 1;
        }
        self.partial = partial[start..].to_vec();
        // A line without end is output, not a message.
        if self.partial.len() > SAID {
            let line = std::mem::take(&mut self.partial);
            self.keep(&line);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        match text
            .strip_prefix(&self.tag)
            .and_then(|rest| rest.strip_prefix(' '))
        {
            Some(message) if self.said_bytes + message.len() <= SAID => {
                self.said_bytes += message.len();
                let message = message.trim_end();
                let (word, rest) = message.split_once(' ').unwrap_or((message, ""));
                self.lines.push((word.to_owned(), rest.trim().to_owned()));
            }
            Some(_) => {}
            None => self.keep(line),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > TAIL + 2 * SLACK {
            let excess = self.tail.len() - TAIL - SLACK;
            self.tail.drain(..excess);
        }
    }

    fn said(mut self, mask: &Mask) -> Said {
        let partial = std::mem::take(&mut self.partial);
        self.keep(&partial);
        let text = mask.apply(&printable(&String::from_utf8_lossy(&self.tail)));
        Said {
            lines: self.lines,
            tail: last(text.trim(), TAIL).to_owned(),
        }
    }
}

/// As a terminal would leave it: without control characters, and of a line that was
/// written over and over, as progress bars do, what came last.
fn printable(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut line = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // ESC [ parameters final
                if chars.next_if_eq(&'[').is_some() {
                    while chars.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                    chars.next();
                }
            }
            // In front of the line's end it overwrites nothing.
            '\r' if chars.peek().is_none_or(|next| matches!(next, '\n' | '\r')) => {}
            '\r' => result.truncate(line),
            '\n' => {
                result.push(c);
                line = result.len();
            }
            '\t' => result.push(c),
            c if c.is_control() => {}
            c => result.push(c),
        }
    }
    result
}

/// At most so many bytes from the end, beginning with a whole line, or where lines are
/// long with a whole character.
fn last(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let rest = &text[start..];
    match rest.split_once('\n') {
        Some((part, lines)) if start > 0 && part.len() <= limit / 4 && !lines.is_empty() => lines,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(parts: &[(Output, &str)]) -> Said {
        let mut listener = Listener::new("::t");
        for (source, text) in parts {
            listener.hear(*source, text.as_bytes());
        }
        listener.said(&Mask::new(["canary"]))
    }

    #[test]
    fn messages_are_told_from_output_however_they_are_cut() {
        let said = heard(&[
            (Output::Out, "::t os Li"),
            (Output::Out, "nux\nplain ::t no\n::t done apt "),
            (Output::Err, "problem\n"),
            (Output::Out, "abc\n::tx no"),
        ]);
        assert_eq!(said.get("os"), Some("Linux"));
        assert_eq!(said.all("done").collect::<Vec<_>>(), ["apt abc"]);
        assert_eq!(said.tail, "plain ::t no\nproblem\n::tx no");
    }

    #[test]
    fn the_tail_is_the_end_masked_and_as_a_terminal_shows_it() {
        let long = "x".repeat(100_000);
        let said = heard(&[
            (Output::Err, &long),
            (Output::Err, "\u{1b}[31mred\u{1b}[0m\r\n50%\r100% canary\r\n"),
        ]);
        assert_eq!(said.tail.len(), TAIL);
        assert!(
            said.tail.ends_with("red\n100% ***"),
            "{:?}",
            &said.tail[TAIL - 40..]
        );
        assert!(heard(&[(Output::Err, &"ß".repeat(5000))]).tail.len() <= TAIL);
    }

    #[test]
    fn a_tail_begins_with_a_whole_line() {
        let lines = "a line of output\n".repeat(1000) + "error: it broke";
        let said = heard(&[(Output::Err, &lines)]);
        assert!(
            said.tail.len() <= TAIL && said.tail.starts_with("a line of output\n"),
            "{}",
            said.tail
        );
        assert!(said.tail.ends_with("error: it broke"));
    }

    #[test]
    fn a_script_is_read_whole_before_it_runs() {
        let text = Script::default()
            .set("a", "it's")
            .export("B", "x y")
            .export("1bad", "z")
            .export("skyward_a", "z")
            .export("UID", "z")
            .then("cat\n")
            .text("::t");
        assert!(
            text.starts_with("skyward_main() {\nskyward_tag=::t\nskyward_a='it'\\''s'\nB='x y'\nexport B\n#"),
            "{text}"
        );
        assert!(
            text.ends_with("cat\n\n}\nskyward_main </dev/null\nexit $?\n"),
            "{text}"
        );
        assert!(!text.contains("1bad"));
    }
}
