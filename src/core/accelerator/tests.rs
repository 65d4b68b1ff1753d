use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn parsed(name: &str, memory_gb: Option<f64>, form_factor: Option<FormFactor>, count: Option<f64>) -> Parsed {
    Parsed {
        name: name.to_owned(),
        memory_gb,
        form_factor,
        count,
    }
}

#[test]
fn what_is_unknown_is_kept_and_tidied() {
    assert_eq!(canonical("frob_9000-x"), "FROB 9000 X");
    assert_eq!(canonical("My-GPU"), canonical("my gpu"));
}

#[test]
fn what_clouds_write_is_read() {
    use FormFactor::{Nvl, Pcie, Sxm};
    for (text, expected) in [
        ("H100", parsed("H100", None, None, None)),
        (
            "NVIDIA H100 80GB HBM3",
            parsed("H100", Some(80.0), Some(Sxm), None),
        ),
        (
            "1x H100 SXM5 80GB",
            parsed("H100", Some(80.0), Some(Sxm), Some(1.0)),
        ),
        (
            "8x H100 SXM5 80GB",
            parsed("H100", Some(80.0), Some(Sxm), Some(8.0)),
        ),
        ("8xH100", parsed("H100", None, None, Some(8.0))),
        ("H100x8", parsed("H100", None, None, Some(8.0))),
        ("H100:8", parsed("H100", None, None, Some(8.0))),
        ("H100 SXM", parsed("H100", None, Some(Sxm), None)),
        ("H100 (80 GB SXM5)", parsed("H100", Some(80.0), Some(Sxm), None)),
        ("H100-80G-PCIe", parsed("H100", Some(80.0), Some(Pcie), None)),
        ("H100 PCIE", parsed("H100", None, Some(Pcie), None)),
        ("NVIDIA H100 NVL", parsed("H100", None, Some(Nvl), None)),
        ("H100NVL", parsed("H100", None, Some(Nvl), None)),
        ("A100-SXM4-80GB", parsed("A100", Some(80.0), Some(Sxm), None)),
        (
            "NVIDIA A100-SXM4-40GB",
            parsed("A100", Some(40.0), Some(Sxm), None),
        ),
        (
            "A100 PCIe 40960 MiB",
            parsed("A100", Some(40.0), Some(Pcie), None),
        ),
        ("Tesla T4", parsed("T4", None, None, None)),
        ("T4g", parsed("T4G", None, None, None)),
        (
            "Tesla V100-SXM2-16GB",
            parsed("V100", Some(16.0), Some(Sxm), None),
        ),
        ("RTX 4090", parsed("RTX 4090", None, None, None)),
        ("RTX_4090", parsed("RTX 4090", None, None, None)),
        ("GeForce RTX 4090", parsed("RTX 4090", None, None, None)),
        ("NVIDIA GeForce RTX 4090", parsed("RTX 4090", None, None, None)),
        (
            "geforcertx4090-pcie-24gb",
            parsed("RTX 4090", Some(24.0), Some(Pcie), None),
        ),
        ("4090", parsed("RTX 4090", None, None, None)),
        ("4090D", parsed("RTX 4090D", None, None, None)),
        ("RTX 4090 D", parsed("RTX 4090D", None, None, None)),
        ("RTX 4070S Ti", parsed("RTX 4070 Ti Super", None, None, None)),
        ("RTX 4070 Ti SUPER", parsed("RTX 4070 Ti Super", None, None, None)),
        ("RTX 4080S", parsed("RTX 4080 Super", None, None, None)),
        (
            "RTX 6000 Ada Generation",
            parsed("RTX 6000 Ada", None, None, None),
        ),
        ("RTX 6000Ada", parsed("RTX 6000 Ada", None, None, None)),
        (
            "RTX 6000 (24 GB)",
            parsed("Quadro RTX 6000", Some(24.0), None, None),
        ),
        ("RTX A6000", parsed("RTX A6000", None, None, None)),
        ("A6000", parsed("RTX A6000", None, None, None)),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            parsed("RTX PRO 6000", None, None, None),
        ),
        ("RTX PRO Server 6000", parsed("RTX PRO 6000", None, None, None)),
        ("L40", parsed("L40", None, None, None)),
        ("L40S", parsed("L40S", None, None, None)),
        ("0.125x L4", parsed("L4", None, None, Some(0.125))),
        ("NVIDIA GH200 480GB", parsed("GH200", None, None, None)),
        ("AMD Instinct MI300X", parsed("MI300X", None, None, None)),
        ("Trainium", parsed("Trainium1", None, None, None)),
        ("Inferentia2", parsed("Inferentia2", None, None, None)),
        ("TPU_v5p", parsed("TPUv5p", None, None, None)),
        ("TPUv5p-8", parsed("TPUv5p", None, None, Some(8.0))),
        ("v5litepod-16", parsed("TPUv5e", None, None, Some(16.0))),
        ("", parsed("", None, None, None)),
    ] {
        assert_eq!(parse(text), expected, "{text:?}");
    }
}

#[test]
fn a_partition_is_not_the_whole_gpu() {
    assert_ne!(canonical("H100 MIG 1g.10gb"), "H100");
}

#[test]
fn every_canonical_name_is_its_own() {
    for model in MODELS {
        assert_eq!(canonical(model.name), model.name);
        assert_eq!(parse(model.name).count, None, "{}", model.name);
        assert!(!model.memory_gb.is_empty(), "{}", model.name);
        for name in model.names() {
            assert_eq!(canonical(name), model.name, "{name}");
            assert_eq!(
                canonical(&name.to_lowercase().replace(' ', "_")),
                model.name,
                "{name}"
            );
        }
    }
}

#[test]
fn no_two_models_share_a_name() {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for model in MODELS {
        for name in model.names() {
            let key = tokens(name).concat();
            if let Some(other) = seen.insert(key, model.name) {
                assert_eq!(other, model.name, "both are called {name}");
            }
        }
    }
}

#[test]
fn memory_is_what_stands_on_the_box() {
    for (name, mebibytes, expected) in [
        ("H100", 81_920.0, 80.0),
        ("H100", 81_559.0, 80.0),
        ("H100", 95_830.0, 94.0),
        ("H200", 144_384.0, 141.0),
        ("B200", 183_359.0, 192.0),
        ("L4", 22_888.0, 24.0),
        ("A10G", 22_888.0, 24.0),
        ("A100", 40_960.0, 40.0),
        ("T4", 16_384.0, 16.0),
        ("V100", 32_768.0, 32.0),
        // An eighth of one is no variant.
        ("L4", 3_072.0, 3.0),
        ("FROB", 10_240.0, 10.0),
    ] {
        assert!(
            (nominal_memory_gb(name, mebibytes) - expected).abs() < 0.01,
            "{name} {mebibytes}: {}",
            nominal_memory_gb(name, mebibytes)
        );
    }
    assert_eq!(memory_gb("H100 NVL"), Some(94.0));
    assert_eq!(memory_gb("A100 40GB"), Some(40.0));
    assert_eq!(memory_gb("frob"), None);
}

#[test]
fn partitions_fit_their_gpu() {
    for table in mig::TABLES {
        assert!(model(table.gpu).is_some(), "{}", table.gpu);
        for profile in table.profiles {
            let slices = profile.slices * profile.per_gpu;
            assert!(slices <= table.slices, "{} of {}", profile.name, table.gpu);
            let memory = f64::from(profile.memory_gb) * f64::from(profile.per_gpu);
            assert!(
                memory <= table.memory_gb * 1.03,
                "{} of {}",
                profile.name,
                table.gpu
            );
            assert_eq!(
                profile.name,
                format!("{}g.{}gb", profile.slices, profile.memory_gb)
            );
        }
    }
}

#[test]
fn a_partition_is_found_by_gpu_and_memory() {
    assert_eq!(mig::find("H100", None, "3g.40gb").map(|p| p.per_gpu), Some(2));
    assert_eq!(
        mig::find("NVIDIA A100-SXM4-40GB", None, "3g.20gb").map(|p| p.per_gpu),
        Some(2)
    );
    assert_eq!(mig::find("A100", None, "3g.20gb"), None);
    assert_eq!(
        mig::find("H100 NVL", None, "3g.47gb").map(|p| p.memory_gb),
        Some(47)
    );
    assert_eq!(mig::find("RTX 4090", None, "1g.10gb"), None);
}

/// What `nvidia-smi mig -lgip` printed of an H200 with driver 580.159.04 on 2026-11-27, without the lines of its media engines.
const PARTITIONS_OF_AN_H200: &str = "
|   0  MIG 1g.18gb         19     7/7        16.00      No     16     1     0   |
|   0  MIG 1g.18gb+me      20     1/1        16.00      No     16     1     0   |
|   0  MIG 1g.35gb         15     4/4        32.50      No     26     1     0   |
|   0  MIG 2g.35gb         14     3/3        32.50      No     32     2     0   |
|   0  MIG 3g.71gb          9     2/2        69.75      No     60     3     0   |
|   0  MIG 4g.71gb          5     1/1        69.75      No     64     4     0   |
|   0  MIG 7g.141gb         0     1/1        140.00     No     132    7     0   |
";

#[test]
fn the_partitions_of_an_h200_are_those_that_its_driver_lists() {
    let listed = PARTITIONS_OF_AN_H200.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, total) = (words.get(3)?, words.get(5)?.split_once('/')?.1);
        (!name.ends_with("+me")).then(|| ((*name).to_owned(), total.parse::<u8>().unwrap()))
    });
    let table = mig::table("NVIDIA H200", Some(143_771.0 / 1024.0)).unwrap();
    let known = table.profiles.iter().map(|p| (p.name.to_owned(), p.per_gpu));
    assert_eq!(known.collect::<Vec<_>>(), listed.collect::<Vec<_>>());
}

proptest! {
    #[test]
    fn a_canonical_name_is_canonical(text in "[ -~]{0,24}") {
        let once = canonical(&text);
        prop_assert_eq!(canonical(&once), once);
    }

    #[test]
    fn what_is_around_a_name_does_not_change_it(
        model in 0..MODELS.len(),
        before in prop::sample::select(vec!["", "NVIDIA ", "2x ", "8x NVIDIA "]),
        after in prop::sample::select(vec!["", " 80GB", " (24 GB)", " PCIe", " SXM5 80GB"]),
    ) {
        let name = MODELS[model].name;
        prop_assert_eq!(canonical(&format!("{before}{name}{after}")), name);
    }

    #[test]
    fn whatever_is_written_is_read_without_a_panic(text in "\\PC{0,40}") {
        let parsed = parse(&text);
        prop_assert!(parsed.memory_gb.is_none_or(f64::is_finite));
    }
}

/// The number counts, not the unit, and clouds leave a little of it out.
#[test]
fn a_card_has_the_memory_that_it_is_sold_with_and_no_other_one_of_its_kind_has() {
    for model in MODELS {
        for sold in model.memory_gb {
            assert!(has_memory(*sold, *sold), "{} {sold}", model.name);
            for smaller in model.memory_gb.iter().filter(|size| **size < sold * 0.9) {
                assert!(
                    !has_memory(*smaller, *sold),
                    "{} {smaller} is no {sold}",
                    model.name
                );
            }
        }
    }
    // What drivers leave, in GiB: T4, L40S, H100; and what some clouds call a B200.
    for (left, sold) in [(15.0, 16.0), (44.99, 48.0), (79.65, 80.0), (180.0, 192.0)] {
        assert!(has_memory(left, sold), "{left} of {sold}");
    }
    for (offered, asked) in [(40.0, 80.0), (11.0, 12.0), (16.0, 24.0), (80.0, 94.0)] {
        assert!(!has_memory(offered, asked), "{offered} for {asked}");
    }
}
