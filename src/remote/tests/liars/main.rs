//! A hundred machines that lie at once, each in one of the ways of a table, and one honest machine
//! beside them: first all liars are of one namespace, then of five. The memory of the process that holds their connections is
//! measured; the liars are a process of their own.
//!
//! The program is started again for each side: as the controller with the settings of the C
//! library that the chart gives it, and as the liars.

mod controller;
mod liar;

use std::{env, process::Command};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // The test runner lists the tests of each program: here is one.
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    match arguments.first().map(String::as_str) {
        Some("liars") => liar::serve(&arguments[1..]),
        Some("controller") => controller::hold(arguments[1].parse().expect("a number of namespaces")),
        _ => {
            for namespaces in ["1", "5"] {
                let myself = env::current_exe().expect("a program has a path");
                let status = Command::new(myself)
                    .args(["controller", namespaces])
                    .envs(settings_of_the_chart())
                    .status()
                    .expect("a program can be started");
                assert!(status.success(), "the controller's side failed: {status}");
            }
        }
    }
}

/// The variables of the C library's allocator, with which the controller runs.
fn settings_of_the_chart() -> Vec<(&'static str, &'static str)> {
    let chart = include_str!("../../../../charts/skyward/templates/controller.yaml");
    let mut lines = chart.lines().map(str::trim);
    let mut settings = Vec::new();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("- name: ");
        if let Some(name) = name.filter(|name| name.starts_with("MALLOC_")) {
            let value = lines.next().and_then(|line| line.strip_prefix("value: "));
            settings.push((name, value.expect("a value").trim_matches('"')));
        }
    }
    assert!(!settings.is_empty(), "the chart has settings");
    settings
}
