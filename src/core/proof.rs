//! The proof of a machine's host key by its boot data.
//!
//! The boot data carry a token that is this machine's alone. At its first boot the machine writes
//! an HMAC-SHA-256 of the token over its host key into [`FILE`]. Only the machine and the readers
//! of its boot data know the token, so nobody else can make the proof for another host key. The
//! token itself is never sent over SSH.

use crate::secret::Secret;

/// The file with the proof. It is readable by every user, since it proves one public key and
/// nothing else, and only root can write there.
pub const FILE: &str = "/etc/ssh/skyward_host_key_proof";
/// The host key that is proved: the only kind that the controller accepts.
const KEY: &str = "/etc/ssh/ssh_host_ed25519_key.pub";
/// Seconds that a machine waits for its own host key.
const PATIENCE: u32 = 900;

/// A POSIX shell script, to be run once as root at the first boot, after the machine made its host
/// keys or before: it returns at once, and waits for the key in the background.
///
/// `token` has 64 hexadecimal digits. The script must reach the machine as a file: a command line
/// is shown to every user of the machine. Everything in it but `sha256sum`, `sleep` and `mv` is
/// built into the shell, and none of these is given the token as an argument.
pub fn script(token: &Secret) -> String {
    // HMAC fills its key up to a block of 64 bytes with zeros: hence the zeros behind the token.
    format!(
        "(\n\
         trap '' HUP\n\
         umask 022\n\
         tries=0\n\
         until [ -s {KEY} ]; do\n\
         tries=$((tries + 1))\n\
         [ \"$tries\" -lt {PATIENCE} ] || exit 1\n\
         sleep 1\n\
         done\n\
         bytes() {{\n\
         left=$1\n\
         while [ -n \"$left\" ]; do\n\
         rest=${{left#??}}\n\
         printf \"\\\\$(printf %o \"$((0x${{left%\"$rest\"}} ^ $2))\")\"\n\
         left=$rest\n\
         done\n\
         }}\n\
         read -r kind key rest <{KEY}\n\
         token={token}$(printf %064d 0)\n\
         inner=$({{ bytes \"$token\" 54; printf %s \"$kind $key\"; }} | sha256sum)\n\
         outer=$({{ bytes \"$token\" 92; bytes \"${{inner%% *}}\" 0; }} | sha256sum)\n\
         printf '%s\\n' \"${{outer%% *}}\" >{FILE}.new && mv -f {FILE}.new {FILE}\n\
         ) >/dev/null 2>&1 </dev/null &\n",
        token = token.expose(),
    )
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

    use super::*;

    /// First byte of a token of 32 consecutive ones, and the HMAC of [`LINE`] as Python's `hmac` makes it.
    const PROOFS: [(u8, &str); 8] = [
        (
            0,
            "c2a7f0fb2fac00d03c97059cdada8dfe3698b1a077729757d3fc9da0b2385690",
        ),
        (
            32,
            "0ec91e6e81dab1bf4f430956cc4a9cb038bb5637e54791d8b0df188008faa217",
        ),
        (
            64,
            "b4a3e9cddf556f41e5cc1f068ca57a1b19d9a525ce53e4a87a7a329b92bb062f",
        ),
        (
            96,
            "44168c43a83f9ccdd42d4aad3b0f878b68fec90afae50bd406509fd95879e463",
        ),
        (
            128,
            "633d243644dbd411f5a94281f14c560419fac977e96facec2ac11843c44b12c7",
        ),
        (
            160,
            "e1c70f0d1c2c00e0575b8de51eb9554aa2696f6582010344f5519f741d55023d",
        ),
        (
            192,
            "d4b89478371d89242af6f1a4578c42598fbf8a69837e4f193d59e90ba2ebe54a",
        ),
        (
            224,
            "79a09fa111a1e384b8dce1719ba55d10173f746d955aaaacff5f91a385790a2a",
        ),
    ];
    const LINE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    /// Runs the script by this shell with files of its own, as a file; answers with the proof.
    fn proof(shell: &str, token: &str, public_key: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::write(path("key.pub"), public_key).unwrap();
        let text = script(&Secret::new(token))
            .replace(KEY, &path("key.pub"))
            .replace(FILE, &path("proof"));
        fs::write(path("script"), format!("{text}wait\n")).unwrap();
        let ran = Command::new(shell).arg(path("script")).status().unwrap();
        assert!(ran.success());
        assert!(!Path::new(&path("proof.new")).exists());
        fs::read_to_string(path("proof")).unwrap()
    }

    #[test]
    fn no_process_of_the_script_has_the_token_among_its_arguments_or_variables() {
        let folder = tempfile::tempdir().unwrap();
        let (log, path) = (folder.path().join("log"), std::env::var("PATH").unwrap());
        for name in ["sha256sum", "sleep", "mv"] {
            let noting = format!(
                "#!/bin/sh\nPATH='{path}'\n{{ printf '%s\\n' \"$0\" \"$@\"; env; }} >>'{}'\nexec {name} \"$@\"\n",
                log.display()
            );
            let file = folder.path().join(name);
            fs::write(&file, noting).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let noted = format!("{}:{path}", folder.path().display());
        let token = "c0ffee".repeat(10) + "beef";
        let file = |name: &str| folder.path().join(name).display().to_string();
        fs::write(file("key.pub"), format!("{LINE}\n")).unwrap();
        let text = script(&Secret::new(token.as_str()))
            .replace(KEY, &file("key.pub"))
            .replace(FILE, &file("proof"));
        fs::write(file("script"), format!("{text}wait\n")).unwrap();
        let mut shell = Command::new("sh");
        let ran = shell.arg(file("script")).env("PATH", noted).status().unwrap();
        assert!(ran.success() && Path::new(&file("proof")).exists());
        let seen = fs::read_to_string(log).unwrap();
        assert_eq!(seen.matches("/sha256sum\n").count(), 2, "{seen}");
        assert!(seen.contains("/mv\n") && !seen.contains(&token), "{seen}");
    }

    /// The shells that are installed.
    fn shells() -> Vec<&'static str> {
        ["sh", "dash", "bash"]
            .into_iter()
            .filter(|shell| Command::new(shell).args(["-c", ":"]).status().is_ok())
            .collect()
    }

    #[test]
    fn the_proof_is_the_hmac_of_rfc_4231() {
        // Case 1: a key of 20 bytes, which HMAC fills up with zeros as it does with a token.
        let token = format!("{}{}", "0b".repeat(20), "00".repeat(12));
        for shell in shells() {
            assert_eq!(
                proof(shell, &token, "Hi There\n"),
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7\n",
                "{shell}"
            );
        }
    }

    #[test]
    fn every_byte_of_a_token_counts_and_a_comment_of_the_key_does_not() {
        for (first, expected) in PROOFS {
            let bytes: Vec<String> = (first..=first + 31).map(|byte| format!("{byte:02x}")).collect();
            let token = bytes.concat();
            for shell in shells() {
                for comment in ["\n", " root@host\n"] {
                    let made = proof(shell, &token, &format!("{LINE}{comment}"));
                    assert_eq!(made, format!("{expected}\n"), "{shell} {first}");
                }
            }
        }
    }

    #[test]
    fn the_script_returns_at_once_and_no_command_gets_the_token() {
        let token = "c0ffee".repeat(10) + "beef";
        let script = script(&Secret::new(token.as_str()));
        assert!(script.trim_end().ends_with('&'), "it would hold up the boot");
        let lines: Vec<&str> = script.lines().filter(|line| line.contains(&token)).collect();
        assert_eq!(lines, [format!("token={token}$(printf %064d 0)")]);
    }
}
