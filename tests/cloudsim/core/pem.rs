//! Files of keys as PEM has them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Letters in a line of a key file.
const WIDTH: usize = 64;

/// Bytes as lines of Base64.
pub fn lines(bytes: &[u8]) -> Vec<String> {
    let letters: Vec<char> = STANDARD.encode(bytes).chars().collect();
    letters.chunks(WIDTH).map(|line| line.iter().collect()).collect()
}

/// Bytes between the lines that say what they are.
pub fn framed(label: &str, bytes: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----",
        lines(bytes).join("\n")
    )
}

/// The bytes of a key file; `None` where it is none.
pub fn unframed(pem: &str) -> Option<Vec<u8>> {
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    STANDARD.decode(lines.map(str::trim).collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_has_short_lines_and_its_bytes_come_back() {
        let bytes: Vec<u8> = (0..100).collect();
        let file = framed("PRIVATE KEY", &bytes);
        assert!(file.lines().all(|line| line.len() <= WIDTH), "{file}");
        assert!(file.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{file}");
        assert_eq!(unframed(&file), Some(bytes));
        assert_eq!(unframed("no key"), None);
    }
}
