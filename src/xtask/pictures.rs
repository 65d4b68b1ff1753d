//! The pictures of ARCHITECTURE.md that are drawn from the code: our crates, and the rooms of the
//! controller and of the planner, each with arrows to what it uses. They stand between two lines:
//!
//! ```text
//! <!-- picture of src -->
//! <!-- end of picture -->
//! ```
//!
//! An arrow is left out where others lead there on a way through more, so that it says nothing new
//! about what depends on what (a transitive reduction).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use anyhow::Result;

use crate::{
    layers,
    output::{Output, between},
    rooms,
};

const PAGE: &str = "ARCHITECTURE.md";
const END: &str = "<!-- end of picture -->";

/// Names, each with the names of what it uses.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Draws (or compares) every picture.
pub(crate) fn generate(output: &mut Output, root: &Path) -> Result<()> {
    let mut page = output.read(PAGE)?.unwrap_or_default();
    let mut pictures = vec![("src", layers::arrows(root)?)];
    pictures.extend(rooms::arrows(root)?);
    for (name, arrows) in pictures {
        match between(&page, &format!("<!-- picture of {name} -->"), END) {
            Ok((before, after)) => page = format!("{before}\n\n{}\n{after}", drawn(&arrows)),
            Err(problem) => output.problem(format!("{PAGE}: {problem}")),
        }
    }
    output.file(PAGE, &page)
}

/// A flowchart of Mermaid.
fn drawn(arrows: &Arrows) -> String {
    // Mermaid's own names are words; others are written beside theirs.
    let id = |name: &str| name.replace(['/', '.'], "_");
    let node = |name: &str| {
        let id = id(name);
        if id == name {
            id
        } else {
            format!("{id}[\"{name}\"]")
        }
    };
    let mut picture = "```mermaid\nflowchart TB\n".to_owned();
    for (from, uses) in reduced(arrows) {
        let uses: Vec<_> = uses.into_iter().map(|to| id(to)).collect();
        let arrow = if uses.is_empty() { "" } else { " --> " };
        // Writing to a String cannot fail.
        let _ = writeln!(picture, "  {}{arrow}{}", node(from), uses.join(" & "));
    }
    picture.push_str("```\n");
    picture
}

/// The arrows without those to what another arrow leads to.
fn reduced(arrows: &Arrows) -> BTreeMap<&String, Vec<&String>> {
    let ways: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|name| (name, reached(arrows, name))).collect();
    let needed = |uses: &BTreeSet<String>, to: &String| {
        let leads = |by: &String| by != to && ways.get(by).is_some_and(|found| found.contains(to));
        !uses.iter().any(leads)
    };
    arrows
        .iter()
        .map(|(from, uses)| (from, uses.iter().filter(|to| needed(uses, to)).collect()))
        .collect()
}

/// All that arrows lead to from one name, on ways of any length.
pub(crate) fn reached(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for next in arrows.get(name).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(names: &[(&str, &[&str])]) -> Arrows {
        let owned = |name: &&str| (*name).to_owned();
        names
            .iter()
            .map(|(from, uses)| (owned(from), uses.iter().map(owned).collect()))
            .collect()
    }

    #[test]
    fn an_arrow_to_what_another_arrow_leads_to_is_not_drawn() {
        let drawn = drawn(&arrows(&[
            ("base", &[]),
            ("accounts", &["base"]),
            ("accounts/sweeps", &["accounts", "base"]),
            ("runtime", &["accounts", "accounts/sweeps", "base", "logs"]),
            ("logs", &["base"]),
        ]));
        assert_eq!(
            drawn,
            "```mermaid\nflowchart TB\n  accounts --> base\n  \
             accounts_sweeps[\"accounts/sweeps\"] --> accounts\n  base\n  logs --> base\n  \
             runtime --> accounts_sweeps & logs\n```\n"
        );
    }

    #[test]
    fn what_uses_each_other_is_drawn_so() {
        let both = arrows(&[("a", &["b"]), ("b", &["a"])]);
        assert!(drawn(&both).contains("a --> b\n  b --> a\n"), "{}", drawn(&both));
    }
}
