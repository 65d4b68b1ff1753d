//! Generated files: written, or compared with the existing ones.

use std::{fs, io, path::PathBuf};

use anyhow::{Context, Result};

/// Where generated files go. In check mode nothing is written and each file that is
/// missing or differs becomes a problem.
pub(crate) struct Output {
    root: PathBuf,
    check: bool,
    problems: Vec<String>,
}

impl Output {
    pub(crate) fn new(root: PathBuf, check: bool) -> Self {
        Self {
            root,
            check,
            problems: Vec::new(),
        }
    }

    /// The present content of a file, by its path from the root of the checkout.
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>> {
        match fs::read_to_string(self.root.join(path)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {path}")),
        }
    }

    /// One file, by its path from the root of the checkout.
    pub(crate) fn file(&mut self, path: &str, content: &str) -> Result<()> {
        let target = self.root.join(path);
        let present = self.read(path)?;
        if present.as_deref() == Some(content) {
            return Ok(());
        }
        if self.check {
            let state = if present.is_some() {
                "is not what the code says"
            } else {
                "is missing"
            };
            self.problems
                .push(format!("{path} {state}; run `make generate` and commit it"));
            return Ok(());
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making the folder of {path}"))?;
        }
        fs::write(&target, content).with_context(|| format!("writing {path}"))
    }

    /// A problem of another kind.
    pub(crate) fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// The problems found.
    pub(crate) fn finish(self) -> Vec<String> {
        self.problems
    }
}

/// What a page says up to its line that starts with `begin`, without the end of that line, and what
/// it says from `end` on; what stands between is generated.
pub(crate) fn between<'a>(page: &'a str, begin: &str, end: &str) -> Result<(&'a str, &'a str), String> {
    let lacks =
        || format!("it needs a line that begins with '{begin}', and '{end}' after what is generated there");
    let start = page.find(begin).ok_or_else(lacks)?;
    let rest = page.get(start..).unwrap_or_default();
    let line = start + rest.lines().next().map_or(0, str::len);
    let end = start + rest.find(end).ok_or_else(lacks)?;
    Ok((
        page.get(..line).unwrap_or_default(),
        page.get(end..).unwrap_or_default(),
    ))
}
