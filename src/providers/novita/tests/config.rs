use rstest::rstest;

use super::*;

fn starts(image: Option<&str>, least: Option<&str>) -> Vec<String> {
    let settings = Settings {
        docker_image: image.map(str::to_owned),
        min_cuda_version: least.map(str::to_owned),
        ..Settings::default()
    };
    let shown = |(image, cuda): Start| {
        let (_, tag) = image.rsplit_once(':').unwrap();
        format!("{tag} {}", cuda.unwrap_or_default())
    };
    settings.starts().into_iter().map(shown).collect()
}

#[test]
fn a_default_image_is_that_of_the_seeds_and_each_older_one_asks_for_less() {
    let (images, asked): (Vec<_>, Vec<_>) = Settings::default().starts().into_iter().unzip();
    assert_eq!(images[0], "nvcr.io/nvidia/cuda:12.9.1-runtime-ubuntu24.04");
    let versions = ["12.9", "12.8", "12.6", "12.4", "11.8"].map(|version| Some(version.to_owned()));
    assert_eq!(asked, versions);
    // An image needs what the host must support.
    let needed: Vec<_> = images.iter().map(|image| version_of(image)).collect();
    assert_eq!(needed, asked);
}

#[rstest]
#[case::a_least("12.6", &["12.9.1-runtime-ubuntu24.04 12.9", "12.8.1-runtime-ubuntu24.04 12.8", "12.6.3-runtime-ubuntu24.04 12.6"])]
#[case::versions_are_no_decimals("12.10", &["12.9.1-runtime-ubuntu24.04 12.10"])]
#[case::newer_than_all("13.0", &["12.9.1-runtime-ubuntu24.04 13.0"])]
fn a_least_cuda_is_kept(#[case] least: &str, #[case] expected: &[&str]) {
    assert_eq!(starts(None, Some(least)), expected);
}

#[rstest]
#[case::that_of_its_name("nvidia/cuda:12.4.1-base", None, "12.4.1-base 12.4")]
#[case::that_of_the_settings("nvidia/cuda:12.4.1-base", Some("12.8"), "12.4.1-base 12.8")]
#[case::none("pytorch/pytorch:latest", None, "latest ")]
#[case::a_name_that_says_none("nvidia/cuda:latest", None, "latest ")]
fn an_image_of_the_user_is_taken_as_it_is(
    #[case] image: &str,
    #[case] least: Option<&str>,
    #[case] expected: &str,
) {
    assert_eq!(starts(Some(image), least), [expected]);
}
