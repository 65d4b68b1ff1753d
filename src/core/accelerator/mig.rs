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

/// A GPU of seven slices. Its memory comes in eighths, and a partition has one, two, four or
/// all of them; the sizes are as NVIDIA writes them.
macro_rules! sevenths {
    ($gpu:literal, $memory_gb:literal, $eighth:literal, $quarter:literal, $half:literal, $all:literal) => {
        Table {
            gpu: $gpu,
            memory_gb: $memory_gb,
            slices: 7,
            profiles: &[
                profile(concat!("1g.", $eighth, "gb"), 1, $eighth, 7),
                profile(concat!("1g.", $quarter, "gb"), 1, $quarter, 4),
                profile(concat!("2g.", $quarter, "gb"), 2, $quarter, 3),
                profile(concat!("3g.", $half, "gb"), 3, $half, 2),
                profile(concat!("4g.", $half, "gb"), 4, $half, 1),
                profile(concat!("7g.", $all, "gb"), 7, $all, 1),
            ],
        }
    };
}

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
    sevenths!("A100", 40.0, 5, 10, 20, 40),
    sevenths!("A100", 80.0, 10, 20, 40, 80),
    sevenths!("H100", 80.0, 10, 20, 40, 80),
    sevenths!("H100", 94.0, 12, 24, 47, 94),
    sevenths!("GH200", 96.0, 12, 24, 48, 96),
    sevenths!("H200", 141.0, 18, 35, 71, 141),
    sevenths!("B200", 192.0, 23, 45, 90, 180),
];

/// The partitions of a GPU; without a memory, the partitions of its usual size. `None` where it
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
