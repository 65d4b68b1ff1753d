//! Whole plans as text, with their reasons: what the controller would do, and why.
//!
//! Each test here is a situation, named by a sentence. A small [`world`] plays it with the real
//! plans; [`render`] writes each look down: why, the status that is written, what is done, the
//! Events, and when it looks again. The text is compared with `text/<name of the test>.txt`, which
//! `UPDATE_EXPECT=1 cargo test -p skyward-planner --lib` writes anew. Times are counted from
//! the start of the story.
//!
//! What a plan decides stands here; what other layers decide does not:
//!
//! | situation of `docs/bad-input.md` | who decides |
//! | --- | --- |
//! | everything under "Refused at once" | the API server: the definitions and the admission policy |
//! | a RoleBinding that is gone, several namespaces in one list | the controller's watches |
//! | transfers, limits of agents and of SSH, bootstrap output without end | `skyward-remote` and the agent |
//! | results too large, not JSON, bad sources, full disks, forks | the agent and the runner |
//! | the result store's quotas and its volume | the store; what a Task says of it: `task/dispatcher/tests` |
//! | two controllers, Leases, panics, strangers' requests | the controller's rooms for these |

mod admission;
mod clouds;
mod lives;
mod machines;
mod providers;
mod render;
mod restored;
mod world;

/// Compares a story with the file of the test that tells it.
macro_rules! tells {
    ($text:expr) => {{
        fn here() {}
        $crate::tests::compare(std::any::type_name_of_val(&here), $text.as_ref());
    }};
}
pub(crate) use tells;

pub(crate) use render::Block;

/// Compares a story with its file; `place` is the path of a function inside of the test.
pub(crate) fn compare(place: &str, story: &str) {
    let name = place.rsplit("::").nth(1).unwrap();
    let file = expect_test::expect_file![format!("text/{name}.txt")];
    let title = name.replace('_', " ");
    let (first, rest) = title.split_at(1);
    file.assert_eq(&format!("{}{rest}.\n{story}", first.to_uppercase()));
}

#[test]
fn each_text_belongs_to_a_test() {
    let sources = [
        include_str!("admission.rs"),
        include_str!("clouds.rs"),
        include_str!("lives.rs"),
        include_str!("machines.rs"),
        include_str!("providers.rs"),
        include_str!("restored.rs"),
        include_str!("../task/dispatcher/tests/told.rs"),
    ];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/text");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let test = format!("fn {}()", path.file_stem().unwrap().to_str().unwrap());
        let is_told = sources.iter().any(|source| source.contains(&test));
        assert!(is_told, "{} is told by no test", path.display());
    }
}
