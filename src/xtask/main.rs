//! Developer commands.
//!
//! `cargo xtask generate` writes the files that are made from the code (CRDs, the chart's copy,
//! the reference, settings in the providers' pages, the agent protocol); `cargo xtask check`
//! fails when one of them is stale, when a crate or a room of the controller uses what it must
//! not (`layers`, `rooms`), when tests would compile dependencies of programs again (`features`) or
//! when documentation breaks a rule (`words`). `cargo xtask lines` counts code. None needs a
//! network,

#![expect(
    clippy::print_stdout,
    reason = "a command line tool speaks on its standard output"
)]

mod crds;
mod features;
mod layers;
mod lines;
mod output;
mod pages;
mod protocol;
mod reference;
mod rooms;
mod sizes;
mod words;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::output::Output;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of Skyward")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write everything that is made from the code.
    Generate,
    /// Fail when something generated is stale or a rule of the architecture is broken.
    Check,
    /// Print the lines of code in production, by folder.
    Lines,
}

fn main() -> Result<()> {
    let check = match Arguments::parse().command {
        Command::Generate => false,
        Command::Check => true,
        Command::Lines => {
            for (folder, lines) in lines::by_folder(&root())? {
                println!("{lines:>7}  {folder}");
            }
            return Ok(());
        }
    };
    let mut output = Output::new(root(), check);
    crds::generate(&mut output)?;
    reference::generate(&mut output)?;
    pages::generate(&mut output)?;
    if let Err(error) = protocol::generate(check) {
        output.problem(format!("{error:#}"));
    }

    let mut problems = output.finish();
    if check {
        problems.extend(layers::problems(&root())?);
        problems.extend(rooms::problems(&root())?);
        problems.extend(features::problems(&root())?);
        problems.extend(sizes::problems(&root())?);
        problems.extend(words::problems(&root())?);
    }
    for problem in &problems {
        println!("{problem}");
    }
    ensure!(problems.is_empty(), "{} to mend", count(problems.len()));
    Ok(())
}

fn count(problems: usize) -> String {
    if problems == 1 {
        "one problem".to_owned()
    } else {
        format!("{problems} problems")
    }
}

/// The checkout: two folders above this crate's.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}
