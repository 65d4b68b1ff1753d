//! The record and the message of a failed bootstrap: the line that tells the most, what would help,
//! and the end of the output.

use crate::records::OUTPUT;
use skyward_api::machine::BootstrapFailure;
use skyward_core::{
    diagnosis::Diagnosis,
    session::{FailureKind, SessionFailure},
};

/// The failure for the record, to be compared with others.
pub(super) fn record(failure: &SessionFailure) -> Option<BootstrapFailure> {
    let Diagnosis {
        ended,
        line,
        pattern,
        cause,
        output: _,
    } = failure.diagnosis.as_deref()?.clone();
    Some(BootstrapFailure {
        step: failure.step.clone().unwrap_or_default(),
        ended,
        line,
        pattern,
        cause,
    })
}

/// The failure in words for the user.
pub(super) fn message(failure: &SessionFailure) -> String {
    let step = failure.step.as_deref();
    let of = step.map(|step| format!("Step \"{step}\": ")).unwrap_or_default();
    let Some(diagnosis) = failure
        .diagnosis
        .as_deref()
        .filter(|known| !known.output.is_empty())
    else {
        return format!("{of}{}", failure.message);
    };
    let Diagnosis {
        ended,
        line,
        pattern: _,
        cause,
        output,
    } = diagnosis;
    let mut message = format!("{of}{ended}");
    if !line.is_empty() {
        message = format!("{message}: {line}");
    }
    let timed_out = "Allow more time (timeouts.bootstrap), or put what takes long into the image.";
    let remedy = match (cause, failure.kind) {
        (Some(cause), _) => cause.remedy(step.unwrap_or_default()),
        (None, FailureKind::StepTimedOut) => timed_out,
        (None, _) => "",
    };
    let full_stop = |text: &str| if text.ends_with('.') { "" } else { "." };
    if !remedy.is_empty() {
        message = format!("{message}{} {remedy}", full_stop(&message));
    }
    if output.trim() != line.as_str() {
        message = format!("{message}{}{OUTPUT}{output}", full_stop(&message));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::without_output;

    fn failed(kind: FailureKind, step: &str, ended: &str, output: &str) -> SessionFailure {
        SessionFailure {
            kind,
            step: Some(step.to_owned()),
            message: format!("{ended}: {output}"),
            diagnosis: Some(Box::new(Diagnosis::of(ended, output))),
        }
    }

    #[test]
    fn a_failed_step_says_the_line_that_tells_the_most_before_all_of_its_output() {
        let output =
            "Building...\nE: Unable to locate package nope\nthese packages could not be installed: nope";
        let failure = failed(FailureKind::StepFailed, "apt", "failed (exit code 1)", output);
        let said = message(&failure);
        let first = "Step \"apt\": failed (exit code 1): E: Unable to locate package nope.";
        assert_eq!(said, format!("{first} Its last output:\n{output}"));
        assert_eq!(without_output(&said), first);
        assert_eq!(without_output("nothing of the kind"), "nothing of the kind");
        let one = failed(FailureKind::StepFailed, "apt", "failed (exit code 1)", "E: no");
        assert_eq!(
            message(&one),
            "Step \"apt\": failed (exit code 1): E: no",
            "said once"
        );
    }

    #[test]
    fn the_remedy_stands_before_the_output_and_names_the_field() {
        for (kind, output, field) in [
            (
                FailureKind::StepFailed,
                "a\ncurl: (60) SSL certificate problem: x\nb",
                "image.caBundleRef",
            ),
            (
                FailureKind::StepFailed,
                "a\ndns error: Temporary failure in name resolution\nb",
                "image.pipIndexes",
            ),
            (
                FailureKind::StepTimedOut,
                "a\nDownloading torch\n",
                "timeouts.bootstrap",
            ),
        ] {
            let said = message(&failed(kind, "packages", "it ended", output));
            assert!(without_output(&said).contains(field), "{said}");
        }
    }

    #[test]
    fn the_same_failure_of_two_machines_is_one_on_record_and_another_exit_code_is_another() {
        let at = |ended: &str, port: u16| {
            let output = format!("error: connection to 10.0.0.{port} broke");
            record(&failed(FailureKind::StepFailed, "packages", ended, &output)).unwrap()
        };
        assert!(at("failed (exit code 1)", 7).is_same(&at("failed (exit code 1)", 23)));
        assert!(!at("failed (exit code 1)", 7).is_same(&at("failed (exit code 2)", 7)));
        let plain = SessionFailure {
            diagnosis: None,
            ..failed(FailureKind::AuthRefused, "", "", "")
        };
        assert_eq!(record(&plain), None);
    }
}
