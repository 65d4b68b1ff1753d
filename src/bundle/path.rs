//! Names of files. A machine's file system tells `A` from `a`, so names that differ only so are two files;
//! only `.git` is refused in every spelling.

use crate::quoted;

/// Bytes of a name with its folders.
const PATH_BYTES: usize = 1024;
/// Bytes of a name, or of a folder's name, as file systems have it.
const NAME_BYTES: usize = 255;
/// Folders in folders.
const DEPTH: usize = 64;

/// Refuses a name that could lead out of its folder, that no file system takes, or that git would believe.
pub(crate) fn check(path: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("the file {} {why}", quoted(path)));
    if path.is_empty() {
        return Err("a file has no name".to_owned());
    }
    if path.len() > PATH_BYTES {
        return refuse(&format!(
            "has a name of {} bytes; at most {PATH_BYTES} are allowed",
            path.len()
        ));
    }
    if path.chars().any(char::is_control) {
        return refuse("has a control character in its name");
    }
    if path.starts_with('/') {
        return refuse("has an absolute name");
    }
    if path.split('/').count() > DEPTH {
        return refuse(&format!("lies more than {DEPTH} folders deep"));
    }
    for name in path.split('/') {
        if name.is_empty() {
            return refuse("has an empty name in its path");
        }
        if name == "." || name == ".." {
            return refuse("has . or .. in its path");
        }
        if name.eq_ignore_ascii_case(".git") {
            return refuse("lies in a repository of git, whose configuration runs programs: leave .git out");
        }
        if name.len() > NAME_BYTES {
            return refuse(&format!("has a name of more than {NAME_BYTES} bytes in its path"));
        }
    }
    Ok(())
}

/// The folders that a name lies in, the outermost first.
pub(crate) fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}
