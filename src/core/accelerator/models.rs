//! The catalogue: every accelerator that the clouds sell, with its sizes of memory and
//! the other names that it goes by. Names are written as their makers write them.

use super::FormFactor;

/// One model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Canonical name.
    pub name: &'static str,
    /// Sizes in which it is sold, in GB; the usual one first.
    pub memory_gb: &'static [f64],
    /// Other names. Case, spaces and punctuation do not matter, nor do the names of makers
    /// and families.
    aliases: &'static [&'static str],
}

impl Model {
    /// Its usual memory, for how it is built in.
    pub fn memory(&self, form_factor: Option<FormFactor>) -> f64 {
        match (self.name, form_factor) {
            ("H100", Some(FormFactor::Nvl)) => 94.0,
            _ => self.memory_gb.first().copied().unwrap_or_default(),
        }
    }

    /// The largest size in which it is sold.
    pub fn largest_memory(&self) -> f64 {
        self.memory_gb.iter().copied().fold(0.0, f64::max)
    }

    /// All names that mean it.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

const fn model(name: &'static str, memory_gb: &'static [f64], aliases: &'static [&'static str]) -> Model {
    Model {
        name,
        memory_gb,
        aliases,
    }
}

/// The catalogue. No two models share a name (a test holds that).
pub const MODELS: &[Model] = &[
    // NVIDIA: data centre
    model("K80", &[12.0], &[]),
    model("M60", &[8.0], &[]),
    model("P4", &[8.0], &[]),
    model("P40", &[24.0], &[]),
    model("P100", &[16.0, 12.0], &[]),
    model("V100", &[16.0, 32.0], &["V100S"]),
    model("T4", &[16.0], &[]),
    model("T4G", &[16.0], &[]),
    model("A2", &[16.0], &[]),
    model("A10", &[24.0], &[]),
    model("A10G", &[24.0], &[]),
    model("A16", &[16.0], &[]),
    model("A30", &[24.0], &[]),
    model("A40", &[48.0], &[]),
    model("A100", &[80.0, 40.0], &[]),
    model("A100X", &[80.0], &[]),
    model("A800", &[80.0, 40.0], &[]),
    model("L4", &[24.0], &[]),
    model("L40", &[48.0], &["L40G"]),
    model("L40S", &[48.0], &[]),
    model("H20", &[96.0, 141.0], &[]),
    model("H100", &[80.0, 94.0, 64.0], &[]),
    model("H800", &[80.0], &[]),
    model("H200", &[141.0], &[]),
    model("GH200", &[96.0, 144.0], &[]),
    model("B100", &[192.0], &[]),
    model("B200", &[192.0, 180.0], &[]),
    model("B300", &[288.0, 270.0], &[]),
    model("GB200", &[192.0, 186.0], &["GB200 NVL72"]),
    model("GB300", &[288.0, 279.0], &["GB300 NVL72"]),
    // NVIDIA: GeForce
    model("GTX 1050", &[2.0], &[]),
    model("GTX 1050 Ti", &[4.0], &[]),
    model("GTX 1060", &[6.0, 3.0], &[]),
    model("GTX 1070", &[8.0], &[]),
    model("GTX 1070 Ti", &[8.0], &[]),
    model("GTX 1080", &[8.0], &[]),
    model("GTX 1080 Ti", &[11.0], &[]),
    model("GTX 1650", &[4.0], &[]),
    model("GTX 1650 Super", &[4.0], &["GTX 1650 S"]),
    model("GTX 1660", &[6.0], &[]),
    model("GTX 1660 Super", &[6.0], &["GTX 1660 S"]),
    model("GTX 1660 Ti", &[6.0], &[]),
    model("RTX 2060", &[6.0, 12.0], &[]),
    model("RTX 2060 Super", &[8.0], &["RTX 2060 S"]),
    model("RTX 2070", &[8.0], &[]),
    model("RTX 2070 Super", &[8.0], &["RTX 2070 S"]),
    model("RTX 2080", &[8.0], &[]),
    model("RTX 2080 Super", &[8.0], &["RTX 2080 S"]),
    model("RTX 2080 Ti", &[11.0, 22.0], &[]),
    model("RTX 3050", &[8.0, 6.0], &[]),
    model("RTX 3060", &[12.0, 8.0], &[]),
    model("RTX 3060 Laptop", &[6.0], &[]),
    model("RTX 3060 Ti", &[8.0], &[]),
    model("RTX 3070", &[8.0], &[]),
    model("RTX 3070 Ti", &[8.0], &[]),
    model("RTX 3080", &[10.0, 12.0], &[]),
    model("RTX 3080 Ti", &[12.0], &[]),
    model("RTX 3090", &[24.0], &[]),
    model("RTX 3090 Ti", &[24.0], &[]),
    model("RTX 4060", &[8.0], &[]),
    model("RTX 4060 Ti", &[8.0, 16.0], &[]),
    model("RTX 4070", &[12.0], &[]),
    model("RTX 4070 Super", &[12.0], &["RTX 4070 S"]),
    model("RTX 4070 Ti", &[12.0], &[]),
    model("RTX 4070 Ti Super", &[16.0], &["RTX 4070 Ti S", "RTX 4070S Ti"]),
    model("RTX 4080", &[16.0], &[]),
    model("RTX 4080 Super", &[16.0], &["RTX 4080 S"]),
    model("RTX 4090", &[24.0, 48.0], &[]),
    model("RTX 4090D", &[24.0, 48.0], &[]),
    model("RTX 5060", &[8.0], &[]),
    model("RTX 5060 Ti", &[16.0, 8.0], &[]),
    model("RTX 5070", &[12.0], &[]),
    model("RTX 5070 Ti", &[16.0], &[]),
    model("RTX 5080", &[16.0], &[]),
    model("RTX 5090", &[32.0], &[]),
    model("RTX 5090D", &[32.0, 24.0], &[]),
    model("Titan V", &[12.0], &[]),
    model("Titan Xp", &[12.0], &[]),
    model("Titan RTX", &[24.0], &[]),
    model("CMP 50HX", &[10.0], &[]),
    // NVIDIA: workstation. RTX 6000 alone is the card of 2018.
    model("Quadro P2000", &[5.0], &[]),
    model("Quadro P4000", &[8.0], &[]),
    model("Quadro P5000", &[16.0], &[]),
    model("Quadro P6000", &[24.0], &[]),
    model("Quadro RTX 4000", &[8.0], &["RTX 4000"]),
    model("Quadro RTX 5000", &[16.0], &["RTX 5000"]),
    model("Quadro RTX 6000", &[24.0], &["RTX 6000"]),
    model("Quadro RTX 8000", &[48.0], &["RTX 8000"]),
    model("RTX A2000", &[12.0, 6.0], &["A2000"]),
    model("RTX A4000", &[16.0], &["A4000"]),
    model("RTX A4500", &[20.0], &["A4500"]),
    model("RTX A5000", &[24.0], &["A5000"]),
    model("RTX A5000 Pro", &[24.0], &[]),
    model("RTX A5500", &[24.0], &["A5500"]),
    model("RTX A6000", &[48.0], &["A6000"]),
    model("RTX 2000 Ada", &[16.0], &[]),
    model("RTX 4000 Ada", &[20.0], &["RTX 4000 SFF Ada"]),
    model("RTX 4500 Ada", &[24.0], &[]),
    model("RTX 5000 Ada", &[32.0], &[]),
    model("RTX 5880 Ada", &[48.0], &[]),
    model("RTX 6000 Ada", &[48.0], &["A6000 Ada", "RTX A6000 Ada"]),
    model("RTX PRO 4000", &[24.0], &["PRO 4000"]),
    model("RTX PRO 4500", &[32.0], &["PRO 4500"]),
    model("RTX PRO 5000", &[48.0, 72.0], &["PRO 5000"]),
    // Server and workstation editions have the same chip and memory.
    model(
        "RTX PRO 6000",
        &[96.0],
        &[
            "PRO 6000",
            "RTX PRO 6000 S",
            "RTX PRO 6000 SE",
            "RTX PRO 6000 WS",
            "RTX PRO 6000 WK",
        ],
    ),
    model("RTX PRO 6000 Max-Q", &[96.0], &["RTX PRO 6000 MQ"]),
    // AMD
    model("MI25", &[16.0], &[]),
    model("MI50", &[16.0, 32.0], &[]),
    model("MI60", &[32.0], &[]),
    model("MI100", &[32.0], &[]),
    model("MI210", &[64.0], &[]),
    model("MI250", &[128.0], &[]),
    model("MI250X", &[128.0], &[]),
    model("MI300A", &[128.0], &[]),
    model("MI300B", &[192.0], &[]),
    model("MI300X", &[192.0], &[]),
    model("MI308X", &[192.0, 128.0], &[]),
    model("MI325X", &[256.0], &[]),
    model("MI350X", &[288.0], &[]),
    model("MI355X", &[288.0], &[]),
    model("Radeon Pro V520", &[8.0], &["V520"]),
    model("Radeon Pro V710", &[28.0, 16.0], &["V710"]),
    // Amazon
    model("Trainium1", &[32.0], &["Trainium", "Trainium v1", "Trn1"]),
    model("Trainium2", &[96.0], &["Trainium v2", "Trn2"]),
    model("Trainium3", &[144.0], &["Trainium v3", "Trn3"]),
    model("Inferentia1", &[8.0], &["Inferentia", "Inferentia v1", "Inf1"]),
    model("Inferentia2", &[32.0], &["Inferentia v2", "Inf2"]),
    // Google: memory of one chip
    model("TPUv2", &[16.0, 8.0], &["v2 TPU"]),
    model("TPUv3", &[32.0, 16.0], &["v3 TPU"]),
    model("TPUv4", &[32.0], &["v4 TPU", "ct4p"]),
    model(
        "TPUv5e",
        &[16.0],
        &["TPU v5 lite", "TPU v5 litepod", "v5litepod", "ct5l", "ct5lp"],
    ),
    model("TPUv5p", &[95.0], &["v5p TPU", "ct5p"]),
    model("TPUv6e", &[32.0], &["TPUv6", "Trillium", "TPU Trillium", "ct6e"]),
    model(
        "TPUv7",
        &[192.0],
        &["TPU7x", "TPUv7x", "Ironwood", "TPU Ironwood"],
    ),
    // Intel
    model("Gaudi", &[32.0], &["Gaudi1", "HL-205"]),
    model("Gaudi2", &[96.0], &["HL-225"]),
    model("Gaudi3", &[128.0], &["HL-325"]),
];
