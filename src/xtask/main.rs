//! Developer commands.
//!
//! `cargo xtask generate` writes what is made from the code (CRDs, the chart's copy,
//! the reference, settings in the providers' pages, the tables of their kinds, the pictures of
//! ARCHITECTURE.md, the agent protocol); `cargo xtask check` fails when one of them is stale, when a
//! crate or a room of the controller uses what it must not (`layers`, `rooms`) or is too large
//! (`lines`, `sizes`), when tests would compile again what programs compiled (`features`) or when
//! documentation says what it must not (`words`). `cargo xtask lines` counts code. None needs a
//! network.

#![expect(
    clippy::print_stdout,
    reason = "a command line tool speaks on its standard output"
)]

mod crds;
mod features;
mod kinds;
mod layers;
mod lines;
mod output;
mod pages;
mod pictures;
mod protocol;
mod reference;
mod rooms;
mod sizes;
mod words;

use std::{cmp::Reverse, path::PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use crate::output::Output;

/// How many crates `cargo xtask lines` names at its end.
const LARGEST: usize = 5;

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
    /// Print the lines of code in production, by folder, and the largest crates.
    Lines,
}

fn main() -> Result<()> {
    let check = match Arguments::parse().command {
        Command::Generate => false,
        Command::Check => true,
        Command::Lines => {
            return print_lines();
        }
    };
    let mut output = Output::new(root(), check);
    crds::generate(&mut output)?;
    reference::generate(&mut output)?;
    pages::generate(&mut output)?;
    kinds::generate(&mut output)?;
    pictures::generate(&mut output, &root())?;
    if let Err(error) = protocol::generate(check) {
        output.problem(format!("{error:#}"));
    }

    let mut problems = output.finish();
    if check {
        problems.extend(layers::problems(&root())?);
        problems.extend(rooms::problems(&root())?);
        problems.extend(features::problems(&root())?);
        problems.extend(lines::problems(&root())?);
        problems.extend(sizes::problems(&root())?);
        problems.extend(words::problems(&root())?);
    }
    for problem in &problems {
        println!("{problem}");
    }
    ensure!(problems.is_empty(), "{} to mend", count(problems.len()));
    Ok(())
}

/// Prints each folder, then the largest crates with their share of all.
fn print_lines() -> Result<()> {
    for (folder, lines) in lines::by_folder(&root())? {
        println!("{lines:>7}  {folder}");
    }
    let mut crates: Vec<_> = lines::by_crate(&root())?.into_iter().collect();
    let all: usize = crates.iter().map(|(_, lines)| lines).sum();
    crates.sort_by_key(|(_, lines)| Reverse(*lines));
    println!("\nThe largest crates, each without crates inside its folder, of {all} lines:");
    for (name, lines) in crates.iter().take(LARGEST) {
        println!("{lines:>7}  {name} ({}%)", lines * 100 / all.max(1));
    }
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
