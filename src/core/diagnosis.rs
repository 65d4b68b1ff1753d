//! What a step that failed says about itself: the line that tells the most, what it has in
//! common with other failures, and what would help. Pure: texts in, texts out.
//!
//! Two failures are the same when the step, how it ended and [`Diagnosis::pattern`] are. A pattern
//! has no numbers, times, addresses, temporary paths and digests, which differ between machines.
//! Output of a machine is hostile: all that is kept of it is bounded.

use serde::{Deserialize, Serialize};

/// Longest line that is shown, in bytes.
const LINE: usize = 300;
/// Longest pattern, in bytes.
const PATTERN: usize = 200;
/// Lines of a message that its program has wrapped; more are no message.
const WRAPPED: usize = 8;

/// Why a step failed, as far as its output tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// How it ended, such as `failed (exit code 1)`.
    pub ended: String,
    /// The line that tells the most; `""` where nothing was printed.
    pub line: String,
    /// That line without the parts that differ between machines.
    pub pattern: String,
    /// What it failed for, where that is known.
    pub cause: Option<Cause>,
    /// The end of its output, secrets masked.
    pub output: String,
}

/// What a step may fail for that no change of its packages mends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum Cause {
    /// A certificate that the machine does not trust.
    Certificates,
    /// A server that the machine does not reach.
    Unreachable,
}

impl Cause {
    /// What would help, for the user.
    pub fn remedy(self, step: &str) -> &'static str {
        match (self, step) {
            (Self::Certificates, _) => {
                "The machine does not trust that certificate: name a ConfigMap with your authority's certificates under the key ca.crt in image.caBundleRef. Where the image trusts no public authorities, as slim ones do not, name ca-certificates in image.apt."
            }
            (Self::Unreachable, "packages") => {
                "The machine does not reach the index of packages: name one that it reaches in image.pipIndexes, or a proxy (https_proxy) or an index of all packages (UV_DEFAULT_INDEX) in a Secret of image.stepsEnvFrom."
            }
            (Self::Unreachable, _) => {
                "The machine does not reach that server: name a proxy (http_proxy, https_proxy) in a Secret of image.stepsEnvFrom, or put what the step fetches into the image."
            }
        }
    }
}

impl Diagnosis {
    /// From how a step ended and the end of its output.
    pub fn of(ended: &str, output: &str) -> Self {
        let lines: Vec<&str> = output.lines().collect();
        let (cause, at) = match cause(&lines) {
            Some((cause, at)) => (Some(cause), Some(at)),
            None => (None, error(&lines)),
        };
        let (line, common) = at.map_or_else(Default::default, |at| {
            let line = sentence(&lines, at);
            // Each machine may name another of several packages as the first that it did not get.
            let common = if cause.is_some() { lines[at] } else { &line };
            (in_context(&lines, at, &line), pattern(common.trim()))
        });
        Self {
            ended: cut(ended, LINE),
            pattern: if common.is_empty() { pattern(ended) } else { common },
            line: cut(&line, LINE),
            cause,
            output: output.to_owned(),
        }
    }
}

/// What programs say of a certificate that is not trusted, in lower case.
const CERTIFICATES: [&str; 14] = [
    "certificate_verify_failed",
    "certificate verify failed",
    "certificate verification failed",
    "ssl certificate problem",
    "certificate is not trusted",
    "invalid peer certificate",
    "unknownissuer",
    "self-signed certificate",
    "self signed certificate",
    "unable to get local issuer certificate",
    "unable to get issuer certificate",
    "problem confirming the ssl certificate",
    "signed by unknown authority",
    "x509: certificate",
];
/// What programs say of a server that does not answer, in lower case.
const UNREACHABLE: [&str; 22] = [
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "no address associated with hostname",
    "nodename nor servname",
    "could not resolve",
    "couldn't resolve",
    "failed to lookup address information",
    "dns error",
    "connection refused",
    "connection reset by peer",
    "connection timed out",
    "network is unreachable",
    "no route to host",
    "connecttimeouterror",
    "connect timeout",
    "read timed out",
    "operation timed out",
    "failed to connect to",
    "could not connect to",
    "unable to connect to",
    "tunnel connection failed",
];

/// What an output shows to be the cause, with the place of its last line that does.
fn cause(lines: &[&str]) -> Option<(Cause, usize)> {
    let says = |line: &&str, words: &[&str]| {
        let lower = line.to_ascii_lowercase();
        !is_retried(line) && words.iter().any(|word| lower.contains(word))
    };
    let of = |cause, words: &[&str]| Some((cause, lines.iter().rposition(|line| says(line, words))?));
    of(Cause::Certificates, &CERTIFICATES).or_else(|| of(Cause::Unreachable, &UNREACHABLE))
}

/// Whether a program says that it will try again, so that it may have succeeded afterwards.
fn is_retried(line: &str) -> bool {
    // pip: the last one has total=0.
    line.contains("Retrying (Retry(total=") && !line.contains("(total=0,")
        // apt: errors that count are told as E: at the end.
        || line.starts_with("Ign:")
}

/// What begins a line that says what failed.
const ERRORS: [&str; 12] = [
    "error:",
    "error ",
    "e:",
    "fatal:",
    "curl: (",
    "×",
    "╰─▶",
    "exception:",
    "oserror:",
    "runtimeerror:",
    "modulenotfounderror:",
    "failed:",
];
/// What begins a line that says nothing of a failure.
const NOISE: [&str; 9] = [
    "[notice]",
    "warning:",
    "hint:",
    "w:",
    "n:",
    "note:",
    "the following information may help",
    "the python packages could not be installed",
    "some index files failed to download",
];

/// Whether a line begins with one of these words.
fn begins(line: &str, words: &[&str]) -> bool {
    let line = line.trim_start().to_lowercase();
    words.iter().any(|word| line.starts_with(word))
}

/// Where the line stands that tells the most: the last that names an error, else the last that is
/// no advice.
fn error(lines: &[&str]) -> Option<usize> {
    let useful = |line: &&str| line.chars().any(char::is_alphanumeric) && !begins(line, &NOISE);
    let names_it = |line: &&str| useful(line) && begins(line, &ERRORS);
    let last = || lines.iter().rposition(useful);
    lines.iter().rposition(names_it).or_else(last)
}

/// What a line says, without what draws its place in a tree. A message that its program has wrapped
/// is one line.
fn sentence(lines: &[&str], at: usize) -> String {
    let mut text = bare(lines[at]).to_owned();
    if lines[at].contains('▶') {
        for line in below(lines, at).filter(|line| !is_in_tree(line)) {
            text.push(' ');
            text.push_str(line.trim());
        }
    }
    text
}

/// That sentence, with what it is the cause of: uv names the package first, then causes below it.
fn in_context(lines: &[&str], at: usize, sentence: &str) -> String {
    let heads = |line: &&str| line.trim_start().starts_with('×') || begins(line, &["error:"]);
    let is_cause = |line: &str| names_cause(line).is_some() || is_in_tree(line);
    let head = lines[..at].iter().rposition(heads);
    let has_causes = |head: usize| lines[head].trim_start().starts_with('×') || is_cause(lines[head + 1]);
    match head {
        // Between the head and a line outside of the tree stands the output of a build.
        Some(head) if is_cause(lines[at]) || has_causes(head) => {
            format!("{}: {sentence}", bare(lines[head]).trim_end_matches(':'))
        }
        _ if heads(&lines[at]) => match below(lines, at).filter(|line| is_cause(line)).last() {
            Some(root) => format!("{}: {}", sentence.trim_end_matches(':'), bare(root)),
            None => sentence.to_owned(),
        },
        _ => sentence.to_owned(),
    }
}

/// What uv and cargo begin the line of a cause with: uv since 0.13 with the second.
const CAUSED_BY: [&str; 2] = ["Caused by:", "cause:"];

/// The cause that a line names.
fn names_cause(line: &str) -> Option<&str> {
    let line = line.trim_start();
    CAUSED_BY.iter().find_map(|words| line.strip_prefix(words))
}

/// Whether a line stands in a tree of causes.
fn is_in_tree(line: &str) -> bool {
    line.trim_start().starts_with(['├', '╰'])
}

/// A line without what draws its place.
fn bare(line: &str) -> &str {
    let text = line.trim().trim_start_matches(['×', '├', '╰', '─', '▶', ' ']);
    names_cause(text).map_or(text, str::trim_start)
}

/// Indented lines below one, as far as they belong to its message.
fn below<'a>(lines: &'a [&'a str], at: usize) -> impl Iterator<Item = &'a str> {
    let is_more = |line: &&str| !line.trim().is_empty() && line.starts_with([' ', '\t']);
    lines[at + 1..].iter().take(WRAPPED).copied().take_while(is_more)
}

/// A line without the parts that differ between machines: numbers, digests and addresses become
/// `#`, the rest of a path to a temporary file is left out, and the line is cut at the bound.
pub fn pattern(line: &str) -> String {
    let mut text = String::new();
    for word in line.split_whitespace() {
        if text.len() > PATTERN {
            break;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&general(word));
    }
    cut(&text, PATTERN)
}

/// Folders whose files have other names each time.
const TEMPORARY: [&str; 5] = ["/tmp/", "/var/tmp/", "/dev/shm/", "/run/user/", ".tmp"];

/// One word of a pattern.
fn general(word: &str) -> String {
    let file = TEMPORARY.iter().find_map(|folder| word.split_once(folder));
    if let Some((before, _)) = file {
        return format!("{}/tmp/#", numberless(before));
    }
    numberless(word)
}

/// A word with each run of letters and digits replaced that is a number or a digest.
fn numberless(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    let mut run = String::new();
    for c in word.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            run.push(c);
            continue;
        }
        if is_different_each_time(&run) {
            // `1.2.3` and `10:04:07` are one, as are IPv6 addresses.
            if !(text.ends_with('#') || text.ends_with("#.") || text.ends_with("#:")) {
                text.push('#');
            } else if !text.ends_with('#') {
                text.pop();
            }
        } else {
            text.push_str(&run);
        }
        run.clear();
        if c != '\n' {
            text.push(c);
        }
    }
    text
}

/// Whether letters and digits are a number, with its unit or without, or a digest.
fn is_different_each_time(run: &str) -> bool {
    let digits = run.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 {
        return false;
    }
    let hexadecimal = run
        .trim_start_matches("0x")
        .bytes()
        .all(|b| b.is_ascii_hexdigit());
    let unit = run.trim_start_matches(|c: char| c.is_ascii_digit());
    // Also with a unit, and as in `23T03`.
    let is_number = unit.len() < run.len() && (unit.len() <= 3 || digits * 2 > run.len());
    // Random names, as `q3k2x9abcd`, have digits among many letters.
    is_number || (hexadecimal && run.len() >= 4) || (run.len() >= 8 && digits >= 2)
}

/// The text, shortened to at most that many bytes at a character.
fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
