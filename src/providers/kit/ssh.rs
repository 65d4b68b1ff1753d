//! What a command that logs in to a machine dials, as some clouds tell it instead of an address. Pure.

use std::net::IpAddr;

use skyward_core::machine::{Dial, Endpoint};

/// Most bytes of a name of a host.
const HOST: usize = 253;
/// Most bytes of a name of a user.
const USER: usize = 32;
/// Options whose value is the next word.
const WITH_VALUE: &[&str] = &["-o", "-i", "-l", "-F", "-J", "-L", "-R", "-D"];

/// What a command like `ssh -o StrictHostKeyChecking=no -p 11223 root@host` dials, as this user where it names none.
pub fn endpoint(command: &str, user: &str) -> Option<Endpoint> {
    let mut words = command.split_whitespace();
    if words.next() != Some("ssh") {
        return None;
    }
    let (mut port, mut target) = (Some(22), None);
    while let Some(word) = words.next() {
        if word == "-p" {
            port = words.next()?.parse().ok();
        } else if let Some(number) = word.strip_prefix("-p") {
            port = number.parse().ok();
        } else if WITH_VALUE.contains(&word) {
            words.next()?;
        } else if !word.starts_with('-') && target.is_none() {
            target = Some(word);
        }
    }
    let port: u16 = port.filter(|port| *port != 0)?;
    let target: &str = target?;
    let (user, host) = target.rsplit_once('@').unwrap_or((user, target));
    let dial = match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => return None,
        Ok(address) => Dial::Address((address, port).into()),
        Err(_) if is_host(host) => Dial::Host(host.to_owned(), port),
        Err(_) => return None,
    };
    is_user(user).then(|| Endpoint {
        dial,
        user: user.to_owned(),
        password: None,
    })
}

fn is_user(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= USER && !name.starts_with('-') && name.chars().all(plain)
}

fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && !label.starts_with('-') && label.chars().all(plain)
    };
    name.len() <= HOST && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "ssh -o StrictHostKeyChecking=no -p 11223 root@ssh.example.net",
        "root",
        "ssh.example.net",
        11_223
    )]
    #[case("ssh cloud@ssh.example.net", "cloud", "ssh.example.net", 22)]
    #[case::joined("ssh -p2222 -v host", "ubuntu", "host", 2222)]
    #[case::in_capitals(" ssh -A -p 7 Ubuntu@proxy ", "Ubuntu", "proxy", 7)]
    #[case::after_the_host("ssh root@host.example -p 7", "root", "host.example", 7)]
    fn a_command_is_dialled_as_ssh_would(
        #[case] command: &str,
        #[case] user: &str,
        #[case] host: &str,
        #[case] port: u16,
    ) {
        let found = endpoint(command, "ubuntu").unwrap();
        assert_eq!(found.user, user);
        assert_eq!(found.dial, Dial::Host(host.to_owned(), port));
    }

    #[test]
    fn an_address_is_dialled_without_a_question_to_the_dns() {
        let found = endpoint("ssh -p 22 root@198.51.100.2", "root").unwrap();
        assert_eq!(found.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    }

    #[rstest]
    #[case("")]
    #[case("ssh")]
    #[case("ssh -p")]
    #[case("ssh -p 0 root@host")]
    #[case("ssh -p 70000 root@host")]
    #[case("ssh -p many root@host")]
    #[case("ssh @host")]
    #[case("ssh Root$@host")]
    #[case("ssh -x@host")]
    #[case("ssh root@ho_st/../")]
    #[case("ssh root@-oProxyCommand=x")]
    #[case("ssh root@-host")]
    #[case("ssh root@")]
    #[case("ssh root@0.0.0.0")]
    #[case("scp root@host")]
    #[case("rm -rf root@host")]
    fn what_ssh_would_not_dial_is_no_endpoint(#[case] command: &str) {
        assert_eq!(endpoint(command, "root"), None);
        assert_eq!(endpoint(&format!("ssh root@{}", "x".repeat(300)), "root"), None);
    }
}
