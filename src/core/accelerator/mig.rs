//! Multi-Instance GPU: the partitions into which NVIDIA's large GPUs can be cut.
//!
//! A profile such as `3g.40gb` has three of the seven compute slices and 40 GB. The
//! `+me` profiles (media engines) are left out: they are the same size, one per GPU.

use super::{Parsed, parse};

/// One kind of partition of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// As NVIDIA writes it: `1g.10gb`.
    pub name: &'static str,
    /// Compute slices that it takes.
    pub slices: u8,
    /// Its memory in GB.
    pub memory_gb: u16,
    /// How many fit on one GPU.
    pub per_gpu: u8,
}

/// The partitions of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Canonical name of the GPU.
    pub gpu: &'static str,
    /// Its memory in GB.
    pub memory_gb: f64,
    /// Its compute slices.
    pub slices: u8,
    /// Smallest first.
    pub profiles: &'static [Profile],
}

const fn profile(name: &'static str, slices: u8, memory_gb: u16, per_gpu: u8) -> Profile {
    Profile {
        name,
        slices,
        memory_gb,
        per_gpu,
    }
}

const HALF_80: &[Profile] = &[
    profile("1g.10gb", 1, 10, 7),
    profile("1g.20gb", 1, 20, 4),
    profile("2g.20gb", 2, 20, 3),
    profile("3g.40gb", 3, 40, 2),
    profile("4g.40gb", 4, 40, 1),
    profile("7g.80gb", 7, 80, 1),
];

/// Every GPU that can be cut, by name and memory.
pub const TABLES: &[Table] = &[
    Table {
        gpu: "A30",
        memory_gb: 24.0,
        slices: 4,
        profiles: &[
            profile("1g.6gb", 1, 6, 4),
            profile("2g.12gb", 2, 12, 2),
            profile("4g.24gb", 4, 24, 1),
        ],
    },
    Table {
        gpu: "A100",
        memory_gb: 40.0,
        slices: 7,
        profiles: &[
            profile("1g.5gb", 1, 5, 7),
            profile("1g.10gb", 1, 10, 4),
            profile("2g.10gb", 2, 10, 3),
            profile("3g.20gb", 3, 20, 2),
            profile("4g.20gb", 4, 20, 1),
            profile("7g.40gb", 7, 40, 1),
        ],
    },
    Table {
        gpu: "A100",
        memory_gb: 80.0,
        slices: 7,
        profiles: HALF_80,
    },
    Table {
        gpu: "H100",
        memory_gb: 80.0,
        slices: 7,
        profiles: HALF_80,
    },
    Table {
        gpu: "H100",
        memory_gb: 94.0,
        slices: 7,
        profiles: &[
            profile("1g.12gb", 1, 12, 7),
            profile("1g.24gb", 1, 24, 4),
            profile("2g.24gb", 2, 24, 3),
            profile("3g.47gb", 3, 47, 2),
            profile("4g.47gb", 4, 47, 1),
            profile("7g.94gb", 7, 94, 1),
        ],
    },
    Table {
        gpu: "GH200",
        memory_gb: 96.0,
        slices: 7,
        profiles: &[
            profile("1g.12gb", 1, 12, 7),
            profile("1g.24gb", 1, 24, 4),
            profile("2g.24gb", 2, 24, 3),
            profile("3g.48gb", 3, 48, 2),
            profile("4g.48gb", 4, 48, 1),
            profile("7g.96gb", 7, 96, 1),
        ],
    },
    Table {
        gpu: "H200",
        memory_gb: 141.0,
        slices: 7,
        profiles: &[
            profile("1g.18gb", 1, 18, 7),
            profile("1g.35gb", 1, 35, 4),
            profile("2g.35gb", 2, 35, 3),
            profile("3g.71gb", 3, 71, 2),
            profile("4g.71gb", 4, 71, 1),
            profile("7g.141gb", 7, 141, 1),
        ],
    },
    Table {
        gpu: "B200",
        memory_gb: 192.0,
        slices: 7,
        profiles: &[
            profile("1g.23gb", 1, 23, 7),
            profile("1g.45gb", 1, 45, 4),
            profile("2g.45gb", 2, 45, 3),
            profile("3g.90gb", 3, 90, 2),
            profile("4g.90gb", 4, 90, 1),
            profile("7g.180gb", 7, 180, 1),
        ],
    },
];

/// The partitions of a GPU; without a memory, those of its usual size. `None` where it
/// cannot be cut.
pub fn table(gpu: &str, memory_gb: Option<f64>) -> Option<&'static Table> {
    let Parsed {
        name,
        memory_gb: written,
        form_factor,
        ..
    } = parse(gpu);
    let model = super::model(&name)?;
    let memory = memory_gb.or(written).unwrap_or_else(|| model.memory(form_factor));
    TABLES
        .iter()
        .filter(|table| table.gpu == name)
        .min_by(|a, b| {
            (a.memory_gb - memory)
                .abs()
                .total_cmp(&(b.memory_gb - memory).abs())
        })
        .filter(|table| (table.memory_gb / memory - 1.0).abs() < 0.1)
}

/// One kind of partition of a GPU: `3g.40gb` of an H100.
pub fn find(gpu: &str, memory_gb: Option<f64>, name: &str) -> Option<&'static Profile> {
    table(gpu, memory_gb)?
        .profiles
        .iter()
        .find(|profile| profile.name.eq_ignore_ascii_case(name.trim()))
}
