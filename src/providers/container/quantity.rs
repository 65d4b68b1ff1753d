//! Amounts as Kubernetes writes them: `500m`, `8Gi`, `1e3`.

/// The amount; `None` when it is not one.
pub(super) fn parse(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 14] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        // 1e18, or 2E (exa): only the latter ends with the letter.
        .or_else(|| text.strip_suffix('E').map(|number| (number, 1e18)))
        .unwrap_or((text, 1.0));
    if number.is_empty() || !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    number
        .parse::<f64>()
        .ok()
        .map(|n| n * factor)
        .filter(|n| n.is_finite())
}

/// CPUs, in thousandths: `1500m`.
pub(super) fn cpu(cpus: f64) -> String {
    let milli = (cpus * 1000.0).ceil() as u64;
    if milli.is_multiple_of(1000) {
        format!("{}", milli / 1000)
    } else {
        format!("{milli}m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, want) in [
            ("4", Some(4.0)),
            ("3920m", Some(3.92)),
            ("0.5", Some(0.5)),
            ("23456Ki", Some(24_018_944.0)),
            ("8Gi", Some(8_589_934_592.0)),
            ("8G", Some(8e9)),
            ("1e3", Some(1000.0)),
            ("2E", Some(2e18)),
            ("110", Some(110.0)),
            ("", None),
            ("Gi", None),
            ("-1", None),
            ("abc", None),
        ] {
            assert_eq!(parse(text), want, "{text}");
        }
    }

    #[test]
    fn amounts_are_written_without_loss() {
        assert_eq!(cpu(0.1), "100m");
        assert_eq!(cpu(4.0), "4");
    }
}
