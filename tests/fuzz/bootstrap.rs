//! The output of a bootstrap, which a machine's programs and its users write.

use std::{collections::BTreeMap, sync::Arc};

use skyward_core::{Secret, diagnosis::Diagnosis};
use skyward_remote::{
    bootstrap::Spec,
    budget::Budget,
    hostile::{Heard, bootstrap},
    transcript::MOST,
};

use crate::input::{Input, Maker};

const TAG: &str = "::skyward-0123456789abcdef";
/// A value that is never shown.
const SECRET: &str = "canary-of-4";
/// Bytes of the last output that is kept of a script.
const TAIL: usize = 1024;
/// Lines to the controller.
const LINES: usize = 512;

/// Adds the tag to a line that begins with `@`, which no mutation would find.
fn tagged(bytes: &[u8]) -> Vec<u8> {
    let mut tagged = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"@") {
            tagged.extend_from_slice(TAG.as_bytes());
            tagged.push(b' ');
            tagged.extend_from_slice(rest);
        } else {
            tagged.extend_from_slice(line);
        }
    }
    tagged
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let facts = b"@step probe\n@os Linux\n@arch x86_64\n@uid 0\n@user root\n@home /opt/skyward\n\
        @path /usr/bin:/bin\n@disk_free_kb 12345678\n@python 3.9.18\n@socket\n@env_digest abc\n\
        @environment 0123456789ab\n@lock 6e756d70793d3d32\n@done apt 0123\n@var GPU 48313030\n@prepared yes\n";
    vec![
        Maker::default().u8(1).u8(0).sized(facts).end([]),
        Maker::default()
            .u8(2)
            .u8(1)
            .sized("\u{1b}[31mE: Unable to locate package\u{1b}[0m\r\n50%\r100% canary-of-4\r\n")
            .u8(4)
            .sized("x")
            .u8(0)
            .sized("https://me:hunter2@index.example/x\nERROR: no matching distribution\n")
            .end([]),
    ]
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.u8();
    let spec = Spec {
        pip: vec!["numpy".into()],
        apt: vec!["git".into()],
        python: (how & 1 == 1).then(|| "3.12".into()),
        shell_vars: BTreeMap::from([("GPU".to_owned(), "nvidia-smi -L".to_owned())]),
        ca_bundle: (how & 2 == 2).then(|| Arc::from("PEM")),
        worker_user: Some("skyward".into()),
        masked: Arc::new(vec![Secret::new(SECRET)]),
        ..Spec::default()
    };
    let mut pieces = Vec::new();
    while !input.is_empty() {
        let how = input.u8();
        let again = match how >> 1 {
            many @ 112.. => 2 * usize::from(many),
            few => 1 + usize::from(few % 8),
        };
        pieces.push((how & 1 == 1, tagged(input.sized()).repeat(again)));
    }
    let account = Budget::default().account("team");
    let said = pieces
        .iter()
        .map(|(is_error, bytes)| (*is_error, bytes.as_slice()));
    let heard = bootstrap(&spec, vec![Secret::new(SECRET)], &account, TAG, said);
    kept_within_bounds(&heard);
}

fn kept_within_bounds(heard: &Heard) {
    assert!(heard.lines <= LINES, "{} lines", heard.lines);
    assert!(heard.tail.len() <= TAIL, "{} bytes of a tail", heard.tail.len());
    // A byte that is no text becomes three, and a short value `***`.
    let shown = heard.transcript.len();
    assert!(shown <= 3 * MOST + 100, "{shown} bytes of a transcript");
    for text in [&heard.tail, &heard.transcript] {
        assert!(!text.contains(SECRET), "the value of a Secret is shown");
        let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
        assert!(text.chars().all(is_plain), "a control character is shown");
    }
    for name in heard.environment.keys() {
        assert!(!name.is_empty() && !name.contains(['=', '\0', ' ']), "{name:?}");
    }
    let diagnosis = Diagnosis::of("failed (exit code 1)", &heard.tail);
    assert!(diagnosis.line.len() <= 300 && diagnosis.pattern.len() <= 200);
    let _ = diagnosis.cause.map(|cause| cause.remedy("packages"));
    assert!(heard.scripts.iter().all(|script| !script.is_empty()));
}
