//! Writes `src/agent/protocol/generated.rs` from `agent.v1.proto`. The compiler is protox, so
//! nobody needs `protoc`; the output is committed, so a build needs neither.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const PROTO: &str = "agent.v1.proto";
const PACKAGE: &str = "skyward.agent.v1";

const HEADER: &str = "\
// Generated from agent.v1.proto by `cargo xtask generate`. Do not edit.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = \"generated code\"
)]

";

/// Writes the generated protocol; with `check` it only says whether that would change it.
pub(crate) fn generate(check: bool) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/protocol");
    let target = folder.join("generated.rs");
    let text = compile(&folder)?;
    if check {
        let present = std::fs::read_to_string(&target).unwrap_or_default();
        if present != text {
            bail!("src/agent/protocol/generated.rs is stale: run `cargo xtask generate`");
        }
        return Ok(());
    }
    std::fs::write(&target, text).with_context(|| format!("cannot write {}", target.display()))
}

fn compile(folder: &Path) -> anyhow::Result<String> {
    let descriptors =
        protox::compile([PROTO], [folder]).with_context(|| format!("{PROTO} does not compile"))?;
    let output = Scratch::new()?;
    tonic_prost_build::configure()
        .out_dir(&output.0)
        .emit_rerun_if_changed(false)
        .build_transport(true)
        // Large payloads are passed on without a copy; maps print in one order.
        .bytes(".skyward.agent.v1.Chunk.data")
        .bytes(".skyward.agent.v1.PutBundleRequest.data")
        .bytes(".skyward.agent.v1.ToWorkers.Chunk.items")
        .bytes(".skyward.agent.v1.ItemEnded.value")
        .btree_map(".skyward.agent.v1.RunSpec.env")
        // Environments may hold secrets, and credentials are secrets: they never reach a log by `{:?}`.
        .skip_debug(["skyward.agent.v1.RunSpec", "skyward.agent.v1.GitCredential"])
        .compile_fds(descriptors)
        .context("cannot generate the protocol")?;
    let generated = std::fs::read_to_string(output.0.join(format!("{PACKAGE}.rs")))?;
    Ok(format!("{HEADER}{generated}"))
}

/// A folder of our own that goes away with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("skyward-protocol-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
