//! The way in for tests that make up the output of a bootstrap. Nothing else uses it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use skyward_core::Secret;

use super::{
    Spec, lock,
    plan::{self, Facts, Python},
    script::Listener,
    steps,
};
use crate::{budget::Account, mask::Mask, ssh::Output, transcript::Transcript};

/// What is kept of the output of a bootstrap's first script, and made of it.
#[derive(Debug)]
pub struct Heard {
    /// Why it was not heard to its end.
    pub trouble: Option<String>,
    /// Lines for the controller.
    pub lines: usize,
    /// The end of the rest of the output.
    pub tail: String,
    /// The transcript as people read it.
    pub transcript: String,
    /// The environment of each run.
    pub environment: BTreeMap<String, String>,
    /// The scripts that follow.
    pub scripts: Vec<String>,
}

/// Hears pieces of standard output, or of standard error where that is said, whose lines for the
/// controller begin with `tag`.
pub fn bootstrap<'a>(
    spec: &Spec,
    secrets: Vec<Secret>,
    account: &Account,
    tag: &str,
    pieces: impl IntoIterator<Item = (bool, &'a [u8])>,
) -> Heard {
    let transcript = Transcript::new(account.clone(), Mask::new(Arc::new(secrets)));
    transcript.begin("probe");
    let mut listener = Listener::new(tag, account, &transcript);
    for (is_error, bytes) in pieces {
        let source = if is_error { Output::Err } else { Output::Out };
        listener.hear(source, bytes);
    }
    let trouble = listener.trouble.take().map(|trouble| format!("{trouble:?}"));
    let said = listener.all_said();
    let facts = Facts::read(&said);
    let limit = Duration::from_mins(1);
    let mut marked = vec![
        steps::certificates(spec, &facts),
        steps::apt(spec, &facts, limit),
        steps::resolve(spec, &facts, None),
        steps::packages(spec, &facts, None, &lock::read(&said).unwrap_or_default()),
        steps::shell_vars(spec, &facts),
    ];
    if let Python::Installed(version) = plan::python(spec, facts.python.as_deref()) {
        marked.push(steps::python(spec, &facts, &version));
    }
    let mut scripts: Vec<String> = marked.iter().map(|step| step.script.text(tag)).collect();
    scripts.extend(
        plan::steps(spec, Some(&facts))
            .iter()
            .map(|step| step.name().to_owned()),
    );
    Heard {
        trouble,
        lines: said.lines.len(),
        transcript: transcript.text(),
        environment: plan::run_environment(spec, &facts, &plan::variables(&said)),
        scripts,
        tail: said.tail,
    }
}
