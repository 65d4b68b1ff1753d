//! The quota of one namespace in the store, as a flag has it.

use std::{fmt, str::FromStr};

use crate::ledger::{Held, Space};

/// How much of the store one namespace may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Bytes.
    Bytes(u64),
    /// A part of the volume, in percent.
    Percent(u8),
}

impl Default for Quota {
    fn default() -> Self {
        Self::Percent(20)
    }
}

impl Quota {
    /// The quota in bytes and files. A percentage of an unknown volume limits nothing. An amount of
    /// bytes allows the same share of the volume's files.
    pub(crate) fn limit(self, space: Option<Space>) -> Held {
        let Some(Space { total, files, .. }) = space else {
            return match self {
                Self::Bytes(bytes) => Held {
                    bytes,
                    files: u64::MAX,
                },
                Self::Percent(_) => Held::EVERYTHING,
            };
        };
        let part = |of: u64, (share, whole): (u64, u64)| {
            let part = u128::from(of) * u128::from(share) / u128::from(whole.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let (bytes, share) = match self {
            Self::Bytes(bytes) => (bytes, (bytes.min(total), total)),
            Self::Percent(percent) => {
                let share = (u64::from(percent), 100);
                (part(total, share), share)
            }
        };
        let files = match files {
            0 => u64::MAX,
            _ => part(files, share),
        };
        Held { bytes, files }
    }
}

const UNITS: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];
/// A smaller quota is a mistake, such as a number without its unit.
const LEAST: u64 = 1 << 20;

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "\"{text}\" is no quota; write an amount such as 2Gi, or a part of the volume such as 20%"
            )
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().map_err(|_| wrong())?;
            return if (1..=100).contains(&percent) {
                Ok(Self::Percent(percent))
            } else {
                Err(wrong())
            };
        }
        let bytes = parse_amount(text).ok_or_else(wrong)?;
        if bytes < LEAST {
            return Err(format!("a quota of \"{text}\" holds no log; write 2Gi, not 2"));
        }
        Ok(Self::Bytes(bytes))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&amount(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The bytes of an amount such as `2Gi`; `None`: it is none.
pub fn parse_amount(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
        .unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Bytes for people, such as `1.5 GiB`.
pub fn amount(bytes: u64) -> String {
    const NAMES: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    match NAMES.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = bytes / (unit / 10).max(1);
            match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                tenth => format!("{}.{tenth} {name}", tenths / 10),
            }
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(total: u64, files: u64) -> Space {
        Space {
            total,
            free: 0,
            files,
            files_free: 0,
        }
    }

    #[test]
    fn a_quota_is_an_amount_or_a_part_of_the_volume() {
        for (text, quota) in [
            ("2Gi", Quota::Bytes(2 << 30)),
            ("500M", Quota::Bytes(500_000_000)),
            ("1048576", Quota::Bytes(1 << 20)),
            ("20%", Quota::Percent(20)),
        ] {
            assert_eq!(text.parse(), Ok(quota), "{text}");
        }
        for text in [
            "",
            "2",
            "Gi",
            "-1Gi",
            "0%",
            "101%",
            "20 %",
            "9999999999Ti",
            "1.5Gi",
        ] {
            assert!(text.parse::<Quota>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quota_limits_files_by_the_same_part_as_bytes() {
        let of = |quota: Quota, space| {
            let Held { bytes, files } = quota.limit(space);
            (bytes, files)
        };
        assert_eq!(of(Quota::Percent(20), Some(volume(1000, 500))), (200, 100));
        assert_eq!(of(Quota::Bytes(100), Some(volume(1000, 500))), (100, 50));
        assert_eq!(of(Quota::Bytes(5000), Some(volume(1000, 500))), (5000, 500));
        assert_eq!(
            of(Quota::Percent(20), Some(volume(1000, 0))),
            (200, u64::MAX),
            "a file system without a count of files"
        );
        assert_eq!(of(Quota::Percent(20), None), (u64::MAX, u64::MAX));
        assert_eq!(of(Quota::Bytes(100), None), (100, u64::MAX));
    }

    #[test]
    fn amounts_are_words_for_people() {
        for (bytes, words) in [
            (999, "999 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (2 << 30, "2 GiB"),
            (300 << 20, "300 MiB"),
        ] {
            assert_eq!(amount(bytes), words);
        }
    }
}
