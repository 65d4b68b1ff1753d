//! The Python package `skyward`, carried inside the agent and installed where every run finds it.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
};

use super::{files, home::Home};

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../../python/skyward/", $name)))),*]
    };
}

const FILES: &[(&str, &str)] = files![
    "__init__.py",
    "_accelerator.py",
    "_credentials.py",
    "_hooks.py",
    "_http.py",
    "_info.py",
    "_items.py",
    "_output.py",
    "_pickled.py",
    "_progress.py",
    "_run.py",
    "_sampler.py",
    "_shard.py",
    "_sign.py",
    "_storage.py",
    "_values.py",
    "_warm.py",
    "py.typed",
    "storage.py"
];

/// Writes the package's files that are missing or differ. Each replaces the old one whole:
/// runs may be importing it.
pub(super) fn install(home: &Home) -> io::Result<()> {
    let folder = home.python_path().join("skyward");
    files::make_folders(&folder, 0o755)?;
    fs::set_permissions(home.python_path(), Permissions::from_mode(0o755))?;
    fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    for (name, content) in FILES {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|present| present == *content) {
            continue;
        }
        let next = folder.join(format!(".{name}.next"));
        fs::write(&next, content)?;
        fs::set_permissions(&next, Permissions::from_mode(0o644))?;
        fs::rename(next, path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_complete_and_replaced_when_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        install(&home).unwrap();
        let file = home.python_path().join("skyward/__init__.py");
        fs::write(&file, "old").unwrap();
        install(&home).unwrap();
        assert!(fs::read_to_string(file).unwrap().contains("instance_info"));

        let mut sources: Vec<String> =
            fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/skyward"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != "__pycache__")
                .collect();
        sources.sort();
        let carried: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(sources, carried);
    }
}
