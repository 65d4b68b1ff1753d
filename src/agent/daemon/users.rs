//! Users and groups of the machine, read from `/etc/passwd` and `/etc/group` themselves: the
//! static binary cannot use the C library's name services.

use std::path::PathBuf;

use nix::unistd::{Gid, Uid};

/// A user that work can run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
    /// All groups, its own among them.
    pub(crate) groups: Vec<u32>,
}

/// Finds a user of the machine by name or number.
pub(crate) fn find(name: &str) -> Option<User> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
    parse(name, &passwd, &group)
}

/// The user of this process; it may be missing in `/etc/passwd`, as in many containers.
pub(crate) fn own() -> User {
    let (uid, gid) = (Uid::effective().as_raw(), Gid::effective().as_raw());
    find(&uid.to_string()).unwrap_or_else(|| User {
        name: uid.to_string(),
        uid,
        gid,
        home: std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from),
        groups: vec![gid],
    })
}

pub(super) fn parse(name: &str, passwd: &str, group: &str) -> Option<User> {
    let number: Option<u32> = name.parse().ok();
    let entries = || passwd.lines().filter_map(entry);
    let mut user = entries()
        .find(|user| user.name == name)
        .or_else(|| number.and_then(|uid| entries().find(|user| user.uid == uid)))?;
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else {
            continue;
        };
        let Ok(gid) = gid.parse() else { continue };
        if gid != user.gid && members.split(',').any(|member| member == user.name) {
            user.groups.push(gid);
        }
    }
    Some(user)
}

fn entry(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/");
    Some(User {
        name: name.to_owned(),
        uid,
        gid,
        home: home.into(),
        groups: vec![gid],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\nbroken\nworker:x:1000:1001:,,,:/home/worker:/bin/sh\n";
    const GROUP: &str =
        "root:x:0:\nvideo:x:44:worker,other\nrender:x:107:otherworker\nworker:x:1001:worker\n";

    #[test]
    fn a_user_is_found_by_name_and_by_number_with_all_its_groups() {
        let worker = parse("worker", PASSWD, GROUP).unwrap();
        assert_eq!(
            (worker.uid, worker.gid, worker.home.as_path()),
            (1000, 1001, "/home/worker".as_ref())
        );
        assert_eq!(worker.groups, [1001, 44]);
        assert_eq!(parse("1000", PASSWD, GROUP), Some(worker));
        assert_eq!(parse("nobody", PASSWD, GROUP), None);
    }
}
