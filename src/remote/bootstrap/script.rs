//! A script as it goes over the wire, and its output.
//!
//! Scripts travel on standard input of `sh`, so that no value appears in a process list
//! and the login shell's own syntax does not matter.

use std::time::Duration;

use tokio::sync::Notify;

use crate::{
    budget::{Account, Charge, Room},
    quote::{is_name, quote},
    ssh::{Connection, ExecError, Exit, Input, Output},
    transcript::{Transcript, extend},
};

const COMMON: &str = include_str!("scripts/common.sh");
/// Last output that is kept of each script: as much as fits into a condition with the words around
/// it, which would otherwise cut its end, where the error is.
const TAIL: usize = 1024;
/// Room in front of the tail, so that trimming is rare and masking sees whole secrets.
const SLACK: usize = 16 * 1024;
/// Most bytes that a script may send to the controller: values of 32 variables of 32 KiB each, in
/// hexadecimal, and a little.
const SAID: usize = 32 * LINE;
/// Longest line to the controller.
const LINE: usize = 2 * 32 * 1024 + 1024;
/// Most lines to the controller.
const LINES: usize = 512;
/// Memory of a line besides its bytes.
const LINE_COSTS: usize = 64;
/// Bytes that a script may send before room is asked for: enough to recognise a script with too
/// many lines even without room.
const SAID_FREE: usize = 40 * 1024;

/// Prefix of our variables. No variable of the user begins so.
const OURS: &str = "skyward_";
/// Names that the shell keeps for itself: some shells end at an assignment, and IFS changes how our
/// scripts are read. Runs have these variables all the same.
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

    /// Puts this script's variables before another's.
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

/// The output of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Lines for the controller: the first word and the rest.
    pub(super) lines: Vec<(String, String)>,
    /// Last output otherwise, masked.
    pub(super) tail: String,
    /// Room for the lines.
    pub(super) room: Room,
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

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptError {
    /// The connection is gone; the script may go on.
    Lost(String),
    /// The script did not exit with 0.
    Failed {
        /// How it ended, in words.
        how: String,
        /// Its output until then.
        said: Said,
    },
    /// It sent more than any script of ours.
    Broken(String),
    /// It took too long and was ended.
    TimedOut {
        /// How long it had.
        limit: Duration,
        /// Its output until then.
        said: Said,
    },
}

/// Runs a script to its end.
pub(super) async fn run(
    connection: &Connection,
    account: &Account,
    script: &Script,
    limit: Duration,
    transcript: &Transcript,
) -> Result<Said, ScriptError> {
    let tag = format!("::skyward-{:016x}", rand::random::<u64>());
    run_command(
        connection,
        account,
        "exec /bin/sh -s",
        Input::Bytes(script.text(&tag).into()),
        &tag,
        limit,
        transcript,
    )
    .await
}

/// Runs a command with its input to its end.
pub(super) async fn run_command(
    connection: &Connection,
    account: &Account,
    command: &str,
    input: Input,
    tag: &str,
    limit: Duration,
    transcript: &Transcript,
) -> Result<Said, ScriptError> {
    let mut listener = Listener::new(tag, account, transcript);
    let too_much = Notify::new();
    let exec = connection.exec(command, input, limit, |source, bytes| {
        listener.hear(source, bytes);
        if listener.trouble.is_some() {
            too_much.notify_one();
        }
    });
    let result = tokio::select! {
        result = exec => Some(result),
        () = too_much.notified() => None,
    };
    if let Some(trouble) = listener.trouble.take() {
        return Err(trouble);
    }
    let Some(result) = result else {
        return Err(ScriptError::Lost("it was not heard to its end".into()));
    };
    match result {
        // Other output is kept only for a script that sent no lines.
        Ok(Exit::Status(0)) if !listener.lines.is_empty() => Ok(listener.messages()),
        Ok(Exit::Status(0)) => Ok(listener.all_said()),
        Ok(exit) => Err(ScriptError::Failed {
            how: in_words(&exit),
            said: listener.all_said(),
        }),
        Err(ExecError::Lost(why)) => Err(ScriptError::Lost(why)),
        Err(ExecError::Refused(why)) => Err(ScriptError::Failed {
            how: why,
            said: Said::default(),
        }),
        Err(ExecError::TimedOut(limit)) => {
            let said = listener.all_said();
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

/// Ends the processes of a script that was given up: sshd would let them go on.
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
pub(super) struct Listener<'a> {
    tag: String,
    account: &'a Account,
    /// Receives output that is no message.
    transcript: &'a Transcript,
    /// The charges for its output.
    room: Vec<Charge>,
    /// Why its output is not read on: it broke a limit, or there is no room for it now.
    pub(super) trouble: Option<ScriptError>,
    /// The beginning of a line of standard output whose end has not come yet.
    partial: Vec<u8>,
    lines: Vec<(String, String)>,
    said_bytes: usize,
    tail: Vec<u8>,
}

impl<'a> Listener<'a> {
    pub(super) fn new(tag: &str, account: &'a Account, transcript: &'a Transcript) -> Self {
        Self {
            tag: tag.to_owned(),
            account,
            transcript,
            room: Vec::new(),
            trouble: None,
            partial: Vec::new(),
            lines: Vec::new(),
            said_bytes: 0,
            tail: Vec::new(),
        }
    }

    pub(super) fn hear(&mut self, source: Output, bytes: &[u8]) {
        if self.trouble.is_some() {
            return;
        }
        if source == Output::Err {
            self.keep(bytes);
            return;
        }
        // A machine may send a byte at a time: earlier bytes are not read again.
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let (line, behind) = rest.split_at(end + 1);
            rest = behind;
            if self.partial.is_empty() {
                self.line(line);
            } else {
                extend(&mut self.partial, line, LINE);
                self.with_partial(Self::line);
            }
        }
        extend(&mut self.partial, rest, LINE);
        // A line without end is output, not a message.
        if self.partial.len() > LINE {
            self.with_partial(Self::keep);
        }
    }

    /// Calls `take` with the unfinished line, and empties its buffer.
    fn with_partial(&mut self, take: impl FnOnce(&mut Self, &[u8])) {
        let mut partial = std::mem::take(&mut self.partial);
        take(self, &partial);
        partial.clear();
        self.partial = partial;
    }

    fn line(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        match text
            .strip_prefix(&self.tag)
            .and_then(|rest| rest.strip_prefix(' '))
        {
            Some(message) => self.said(message.trim_end()),
            None => self.keep(line),
        }
    }

    /// A line for the controller.
    fn said(&mut self, message: &str) {
        let said = self.said_bytes + message.len() + LINE_COSTS;
        if said > SAID || self.lines.len() == LINES {
            self.trouble.get_or_insert(ScriptError::Broken(format!(
                "more than {LINES} lines or {SAID} bytes in answer to one script"
            )));
            return;
        }
        let charged = self.room.len() * LINE + SAID_FREE;
        if said > charged {
            let Some(room) = self.account.try_take_for_script(LINE) else {
                // Other machines of its namespace use up the room: the step is tried again.
                self.trouble.get_or_insert(ScriptError::Lost(
                    "the machines of its namespace have filled all memory that there is for what they say"
                        .into(),
                ));
                return;
            };
            self.room.push(room);
        }
        self.said_bytes = said;
        let (word, rest) = message.split_once(' ').unwrap_or((message, ""));
        self.lines.push((word.to_owned(), rest.trim().to_owned()));
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.transcript.push(bytes);
        let kept = &bytes[bytes.len().saturating_sub(TAIL + SLACK)..];
        if self.tail.len() + kept.len() > TAIL + 2 * SLACK {
            let earlier = TAIL + SLACK - kept.len();
            self.tail.drain(..self.tail.len().saturating_sub(earlier));
        }
        extend(&mut self.tail, kept, TAIL + 2 * SLACK);
    }

    fn messages(self) -> Said {
        Said {
            lines: self.lines,
            tail: String::new(),
            room: self.room.into(),
        }
    }

    pub(super) fn all_said(mut self) -> Said {
        let partial = std::mem::take(&mut self.partial);
        self.keep(&partial);
        let text = self
            .transcript
            .mask()
            .apply(&printable(&String::from_utf8_lossy(&self.tail)));
        Said {
            lines: self.lines,
            tail: last(text.trim(), TAIL).to_owned(),
            room: self.room.into(),
        }
    }
}

/// The text as a terminal would leave it: without control characters, and of an overwritten line,
/// such as a progress bar, the last state.
pub(crate) fn printable(text: &str) -> String {
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
            // Before the end of the line it overwrites nothing.
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
    use crate::{budget::Budget, mask::Mask};

    fn transcript(account: &Account) -> Transcript {
        Transcript::new(account.clone(), Mask::of(&["canary"]))
    }

    fn heard(parts: &[(Output, &str)]) -> Said {
        let account = Budget::default().account("tests");
        let transcript = transcript(&account);
        let mut listener = Listener::new("::t", &account, &transcript);
        for (source, text) in parts {
            listener.hear(*source, text.as_bytes());
        }
        listener.all_said()
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
    fn a_line_that_comes_a_byte_at_a_time_is_neither_copied_nor_read_anew_for_each_byte() {
        let account = Budget::default().account("tests");
        let transcript = transcript(&account);
        let mut listener = Listener::new("::t", &account, &transcript);
        let mut buffers = 0;
        let mut buffer = (listener.partial.as_ptr(), 0);
        for _ in 0..3 * LINE {
            listener.hear(Output::Out, b"x");
            let now = (listener.partial.as_ptr(), listener.partial.capacity());
            buffers += usize::from(now != buffer);
            buffer = now;
        }
        assert!(buffers < 50, "{buffers} buffers for one line");
        listener.hear(Output::Out, b"\n::t a b\n");
        assert_eq!(listener.lines, [("a".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn what_is_kept_of_lines_without_end_takes_no_more_room_than_it_may_have() {
        let account = Budget::default().account("tests");
        let transcript = transcript(&account);
        let mut listener = Listener::new("::t", &account, &transcript);
        let packet = [b'x'; 10_000];
        for _ in 0..100 {
            listener.hear(Output::Out, &packet);
            listener.hear(Output::Err, &packet);
        }
        assert!(listener.partial.capacity() <= LINE + packet.len());
        assert!(listener.tail.capacity() <= TAIL + 2 * SLACK);
        listener.hear(Output::Out, b"\n");
        listener.hear(Output::Err, b"the end");
        assert!(listener.tail.len() >= TAIL + SLACK);
        assert!(listener.all_said().tail.ends_with("xx\nthe end"));
    }

    /// The outcome of a script that sends that line so often.
    fn told(line: &str, often: usize) -> (usize, Option<ScriptError>) {
        let account = Budget::default().account("tests");
        let transcript = transcript(&account);
        let mut listener = Listener::new("::t", &account, &transcript);
        for _ in 0..often {
            listener.hear(Output::Out, line.as_bytes());
        }
        (listener.lines.len(), listener.trouble)
    }

    #[test]
    fn a_script_that_says_more_than_any_of_ours_breaks_a_limit() {
        let variable = format!("::t var NAME {}\n", "61".repeat(32 * 1024));
        assert!(matches!(told(&variable, 31), (31, None)));
        assert!(matches!(told(&variable, 40), (32, Some(ScriptError::Broken(_)))));
        assert!(matches!(told("::t a\n", LINES), (LINES, None)));
        assert!(matches!(
            told("::t a\n", 2_000_000),
            (LINES, Some(ScriptError::Broken(_)))
        ));
        assert!(matches!(told("no message\n", 100_000), (0, None)));
    }

    #[test]
    fn scripts_of_one_namespace_that_say_much_at_once_wait_for_each_other() {
        let budget = Budget::default();
        let line = format!("::t a {}\n", "x".repeat(LINE - 100));
        let accounts: Vec<_> = (0..100).map(|_| budget.account("tests")).collect();
        let transcripts: Vec<_> = accounts.iter().map(transcript).collect();
        let mut listeners: Vec<_> = accounts
            .iter()
            .zip(&transcripts)
            .map(|(account, transcript)| Listener::new("::t", account, transcript))
            .collect();
        for listener in &mut listeners {
            for _ in 0..30 {
                listener.hear(Output::Out, line.as_bytes());
            }
        }
        let held: usize = listeners.iter().map(|listener| listener.said_bytes).sum();
        assert!(held <= 20 << 20, "{held} bytes");
        assert!(
            listeners
                .iter()
                .any(|l| matches!(l.trouble, Some(ScriptError::Lost(_))))
        );
        assert!(listeners.iter().any(|l| l.trouble.is_none()));
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
