//! What the helper of a fetch is told and what it answers. The words of users are checked here, before git or
//! ssh sees one of them: none may be read as an option, as another kind of name, or by a shell.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::protocol::{FetchGitRequest, GitCredential};

/// Bytes of a URL, and of a folder in the repository.
const URL_BYTES: usize = 2048;
const PATH_BYTES: usize = 1024;
/// Bytes of a reference.
const REFERENCE_BYTES: usize = 255;
/// Bytes of a user's name, a password and a key: less than a pipe takes at once.
const CREDENTIAL_BYTES: usize = 16 * 1024;
/// Bytes of the host keys.
const KNOWN_HOSTS_BYTES: usize = 16 * 1024;

/// A fetch. It has no `Debug`: it holds a credential.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) url: String,
    /// Branch, tag or id of a commit.
    pub(super) reference: String,
    /// The commit that counts; empty: the one that the reference names now.
    pub(super) commit: String,
    /// Folder of the repository; empty: all of it.
    pub(super) path: String,
    pub(super) include: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) known_hosts: String,
    pub(super) credential: Credential,
}

/// What a helper needs besides its order.
#[derive(Serialize, Deserialize)]
pub(super) struct Place {
    /// Its folder, which nobody else writes to.
    pub(super) folder: PathBuf,
    /// User, group and groups that it takes on; `None`: it stays the agent's user.
    pub(super) identity: Option<(u32, u32, Vec<u32>)>,
    /// Certificates to trust instead of the machine's own.
    pub(super) certificates: Option<PathBuf>,
    /// Bytes that the repository may take on the disk.
    pub(super) most_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Credential {
    None,
    Password { username: String, password: String },
    Key(String),
}

impl Credential {
    /// The texts that must not be shown.
    pub(super) fn secrets(&self) -> Vec<&str> {
        match self {
            Self::None => Vec::new(),
            Self::Password { password, .. } => vec![password],
            Self::Key(key) => key.lines().filter(|line| !line.starts_with("-----")).collect(),
        }
    }
}

/// How a fetch ended: the first line of what the helper answers. Behind a commit comes the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    Commit(String),
    Unavailable(String),
    Invalid(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Https,
    Ssh,
}

impl Order {
    /// The fetch that a request asks for; the error says which word of it is refused.
    pub(crate) fn of(request: FetchGitRequest) -> Result<Self, String> {
        let FetchGitRequest {
            epoch: _,
            url,
            reference,
            commit,
            path,
            include,
            exclude,
            known_hosts,
            credential,
        } = request;
        let (scheme, host) = remote(&url)?;
        check_reference(&reference)?;
        if !commit.is_empty() && !is_commit(&commit) {
            return Err("the recorded commit is no id of a commit".to_owned());
        }
        check_path(&path)?;
        if known_hosts.len() > KNOWN_HOSTS_BYTES || known_hosts.contains('\0') {
            return Err(format!(
                "the host keys have more than {KNOWN_HOSTS_BYTES} bytes, or a NUL"
            ));
        }
        if scheme == Scheme::Ssh && known_hosts.trim().is_empty() {
            return Err("there are no host keys to trust: a repository over ssh needs knownHosts".to_owned());
        }
        let credential = credential.map_or(Ok(Credential::None), |given| {
            check_credential(given, scheme, host)
        })?;
        Ok(Self {
            url,
            reference,
            commit,
            path,
            include,
            exclude,
            known_hosts,
            credential,
        })
    }

    pub(super) fn is_ssh(&self) -> bool {
        self.url.starts_with("ssh://")
    }
}

/// Scheme, and host with its port, of a URL in the one form that is taken.
fn remote(url: &str) -> Result<(Scheme, &str), String> {
    let refuse = |why: &str| Err(format!("the URL of the repository {why}"));
    if url.len() > URL_BYTES {
        return refuse(&format!("has more than {URL_BYTES} bytes"));
    }
    let (scheme, rest) = if let Some(rest) = url.strip_prefix("https://") {
        (Scheme::Https, rest)
    } else if let Some(rest) = url.strip_prefix("ssh://") {
        (Scheme::Ssh, rest)
    } else {
        return refuse("must begin with https:// or ssh://, such as ssh://git@git.example/team/code.git");
    };
    let Some((authority, path)) = rest.split_once('/').filter(|(_, path)| !path.is_empty()) else {
        return refuse("names no repository behind its host");
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/+%=@,".contains(&byte);
    if !path.bytes().all(is_plain) {
        return refuse("has characters in its path that are not taken; write them as %20");
    }
    let host = match (scheme, authority.rsplit_once('@')) {
        (_, None) => authority,
        (Scheme::Https, Some(_)) => return refuse("has a user before its host: put it into the Secret"),
        (Scheme::Ssh, Some((user, host))) if is_name(user) => host,
        (Scheme::Ssh, Some(_)) => return refuse("has a user before its host that is no plain name"),
    };
    let (name, port) = match host.rsplit_once(':') {
        // Within brackets a colon belongs to the address.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_address = |name: &str| {
        let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
    };
    if !is_name(name) && !is_address(name) {
        return refuse("has a host that is neither a name nor an address");
    }
    if port
        .is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit()) || port.parse::<u16>().is_err())
    {
        return refuse("has a port that is no number");
    }
    Ok((scheme, host))
}

/// Letters, digits and `-._`, of which the first is a letter or digit.
fn is_name(text: &str) -> bool {
    text.bytes()
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

fn check_reference(reference: &str) -> Result<(), String> {
    // Git's own rules allow more; nothing here can be an option, a refspec, a pattern or an expression.
    let first = reference.bytes().next();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/+@#=".contains(&byte);
    let is_taken = first.is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
        && reference.len() <= REFERENCE_BYTES
        && reference.bytes().all(is_plain)
        && !reference.contains("..")
        && !reference.contains("//")
        && !reference.ends_with(['/', '.'])
        && reference.strip_suffix(".lock").is_none();
    if is_taken {
        return Ok(());
    }
    Err("ref is not the name of a branch or tag, or the id of a commit".to_owned())
}

fn check_path(path: &str) -> Result<(), String> {
    let is_taken = path.is_empty()
        || (path.len() <= PATH_BYTES
            && !path.chars().any(char::is_control)
            && path.split('/').all(|name| !matches!(name, "" | "." | "..")));
    if is_taken {
        return Ok(());
    }
    Err("path is not a folder of the repository, such as exp/train".to_owned())
}

fn check_credential(given: GitCredential, scheme: Scheme, host: &str) -> Result<Credential, String> {
    let GitCredential {
        host: meant,
        username,
        password,
        ssh_key,
    } = given;
    if meant != host {
        return Err("the credential is for another host than the URL's".to_owned());
    }
    if [&username, &password, &ssh_key]
        .iter()
        .any(|text| text.len() > CREDENTIAL_BYTES)
    {
        return Err(format!("the credential has more than {CREDENTIAL_BYTES} bytes"));
    }
    // Git reads a credential line by line.
    let is_line = |text: &str| !text.is_empty() && !text.contains(['\n', '\r', '\0']);
    match scheme {
        Scheme::Https if is_line(&username) && is_line(&password) => {
            Ok(Credential::Password { username, password })
        }
        Scheme::Https => Err("the credential has no user and password of one line each".to_owned()),
        Scheme::Ssh if !ssh_key.trim().is_empty() && !ssh_key.contains('\0') => Ok(Credential::Key(ssh_key)),
        Scheme::Ssh => Err("the credential has no private key".to_owned()),
    }
}

/// Whether this is the whole id of a commit, as SHA-1 or SHA-256 makes it.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str) -> FetchGitRequest {
        FetchGitRequest {
            url: url.into(),
            reference: "main".into(),
            known_hosts: "git.example ssh-ed25519 AAAA".into(),
            ..FetchGitRequest::default()
        }
    }

    #[test]
    fn a_url_has_one_form_and_its_host_is_the_one_that_git_asks() {
        for (url, host) in [
            ("https://git.example/team/code.git", "git.example"),
            ("https://git.example:8443/~a/code", "git.example:8443"),
            ("https://10.0.0.1/a%20b", "10.0.0.1"),
            ("https://[::1]:443/a", "[::1]:443"),
            ("https://[fe80::1]/a", "[fe80::1]"),
            ("ssh://git@git.example/team/code.git", "git.example"),
            ("ssh://git.example:2222/a", "git.example:2222"),
        ] {
            assert_eq!(remote(url).map(|(_, host)| host), Ok(host), "{url}");
        }
        for url in [
            "",
            "git.example/a",
            "http://git.example/a",
            "file:///etc",
            "ext::sh -c id",
            "git@git.example:a",
            "HTTPS://git.example/a",
            "--upload-pack=id",
            "https://",
            "https://git.example",
            "https://git.example/",
            "https:///a",
            "https://user@git.example/a",
            "https://user:canary@git.example/a",
            "https://good.example@evil.example/a",
            "https://-oProxyCommand=id/a",
            "https://git.example\\@evil.example/a",
            "https://git.example#@evil.example/a",
            "https://git.example?@evil.example/a",
            "https://git.example/a?b",
            "https://git.example/a#b",
            "https://git.example/a b",
            "https://git.example/a'b",
            "https://git.example/$(id)",
            "https://git.example/a\nb",
            "https://git.example:/a",
            "https://git.example:99999/a",
            "https://git.example:+1/a",
            "https://[::1/a",
            "https://[::1]x/a",
            "https://é.example/a",
            "ssh://-oProxyCommand=id/a",
            "ssh://-l@git.example/a",
            "ssh://a:b@git.example/a",
            "ssh://git@-git.example/a",
            &format!("https://git.example/{}", "a".repeat(URL_BYTES)),
        ] {
            let refused = Order::of(request(url)).err();
            assert!(refused.is_some_and(|why| !why.contains("canary")), "{url}");
        }
    }

    #[test]
    fn a_reference_is_no_option_no_refspec_and_no_expression() {
        for reference in [
            "main",
            "v1.0",
            "release/1.x",
            "feature/a_b-c",
            "v1+build",
            "refs/tags/v1",
            "_x",
        ] {
            assert!(check_reference(reference).is_ok(), "{reference}");
        }
        for reference in [
            "",
            "-main",
            "--upload-pack=id",
            "+main",
            "main:main",
            "^main",
            "a*",
            "a..b",
            "HEAD~1",
            "HEAD^",
            "a@{1}",
            "a b",
            "a\nb",
            "a//b",
            "a/",
            "a.",
            "a.lock",
            "/a",
            ".a",
            ":/text",
            &"a".repeat(256),
        ] {
            assert!(check_reference(reference).is_err(), "{reference}");
        }
    }

    #[test]
    fn a_path_stays_inside_of_the_repository() {
        for path in ["", "exp", "exp/train", "a b", "-x", "é"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in ["/", "/exp", "exp/", "..", "a/../b", "./a", "a//b", "a\nb", "a\0"] {
            assert!(check_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_credential_goes_to_the_host_that_it_names_alone() {
        let with = |url: &str, host: &str, username: &str, password: &str, ssh_key: &str| {
            let credential = GitCredential {
                host: host.into(),
                username: username.into(),
                password: password.into(),
                ssh_key: ssh_key.into(),
            };
            Order::of(FetchGitRequest {
                credential: Some(credential),
                ..request(url)
            })
            .map(drop)
        };
        let (https, ssh) = ("https://git.example:8443/a", "ssh://git@git.example/a");
        assert_eq!(with(https, "git.example:8443", "u", "p", ""), Ok(()));
        assert_eq!(with(ssh, "git.example", "", "", "key\n"), Ok(()));
        for (url, host, username, password, key) in [
            (https, "git.example", "u", "p", ""),
            (https, "evil.example:8443", "u", "p", ""),
            (https, "", "u", "p", ""),
            (https, "git.example:8443", "", "p", ""),
            (https, "git.example:8443", "u", "", ""),
            (https, "git.example:8443", "u", "p\nhost=evil.example", ""),
            (https, "git.example:8443", "u\nurl=https://evil.example", "p", ""),
            (
                https,
                "git.example:8443",
                "u",
                &"p".repeat(CREDENTIAL_BYTES + 1),
                "",
            ),
            (ssh, "git.example", "u", "p", ""),
            (ssh, "git.example", "", "", "\n"),
        ] {
            let refused = with(url, host, username, password, key);
            assert!(
                refused.is_err_and(|why| !why.contains("evil.example/")),
                "{url} {host}"
            );
        }
        let unknown = FetchGitRequest {
            known_hosts: " \n".into(),
            ..request(ssh)
        };
        assert!(Order::of(unknown).is_err(), "ssh without host keys");
    }
}
