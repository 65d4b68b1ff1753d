//! The agent's executables, one for each architecture, by digest.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Names of each architecture; the first is that of `uname -m`.
const ARCHITECTURES: [[&str; 2]; 2] = [["x86_64", "amd64"], ["aarch64", "arm64"]];

/// One executable of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Where it lies on this machine.
    pub path: PathBuf,
    /// SHA-256 in hexadecimal.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// The same in gzip's format, less than half the size, where it lies beside it. The machine compares what it unpacks with
    /// `digest`.
    pub compressed: Option<PathBuf>,
}

impl Binary {
    /// Measures an executable.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let mut file = std::fs::File::open(&path)?;
        let mut hash = Sha256::new();
        let size = io::copy(&mut file, &mut hash)?;
        let compressed = PathBuf::from(format!("{}.gz", path.display()));
        Ok(Self {
            compressed: compressed.is_file().then_some(compressed),
            path,
            digest: format!("{:x}", hash.finalize()),
            size,
        })
    }

    /// Name of its file on a machine.
    pub fn file_name(&self) -> String {
        format!("skyward-agent-{}", &self.digest[..12])
    }
}

/// The agent's executables, by what `uname -m` says on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentBinaries(BTreeMap<String, Binary>);

impl AgentBinaries {
    /// The binaries in a directory: `<architecture>/skyward-agent`, and perhaps `skyward-agent.gz` beside it.
    pub fn from_directory(directory: &Path) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        for names in ARCHITECTURES {
            for name in names {
                let path = directory.join(name).join("skyward-agent");
                if path.is_file() && !found.contains_key(names[0]) {
                    found.insert(names[0].to_owned(), Binary::new(path)?);
                }
            }
        }
        if found.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "no agent in \"{}\": expected <architecture>/skyward-agent, for example x86_64/skyward-agent",
                    directory.display()
                ),
            ));
        }
        Ok(Self(found))
    }

    /// One executable, for machines of this machine's architecture.
    pub fn of_this_architecture(path: impl Into<PathBuf>) -> io::Result<Self> {
        Ok(Self(BTreeMap::from([(
            std::env::consts::ARCH.to_owned(),
            Binary::new(path)?,
        )])))
    }

    /// The executable for an architecture as `uname -m` names it.
    pub fn get(&self, architecture: &str) -> Option<&Binary> {
        let name = ARCHITECTURES
            .iter()
            .find(|names| names.contains(&architecture))
            .map_or(architecture, |n| n[0]);
        self.0.get(name)
    }

    /// Architectures that have executables.
    pub fn architectures(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// SHA-256 of a text in hexadecimal.
pub(crate) fn digest_of(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_are_found_under_either_name_of_an_architecture() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("arm64")).unwrap();
        std::fs::write(directory.path().join("arm64/skyward-agent"), b"agent").unwrap();
        let binaries = AgentBinaries::from_directory(directory.path()).unwrap();
        assert_eq!(binaries.get("aarch64"), binaries.get("arm64"));
        let binary = binaries.get("aarch64").unwrap();
        assert_eq!(binary.digest, digest_of("agent"));
        assert_eq!(
            binary.file_name(),
            format!("skyward-agent-{}", &digest_of("agent")[..12])
        );
        assert!(binaries.get("x86_64").is_none());
    }

    #[test]
    fn a_directory_without_agents_says_what_was_expected() {
        let directory = tempfile::tempdir().unwrap();
        let error = AgentBinaries::from_directory(directory.path()).unwrap_err();
        assert!(error.to_string().contains("x86_64/skyward-agent"), "{error}");
    }
}
