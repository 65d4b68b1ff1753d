//! The cluster under test, and the commands a user would type.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use kube::{Client, Config, config::KubeConfigOptions};
use tokio::{io::AsyncWriteExt as _, process::Command, time::Instant};

use crate::{PATIENCE, Result, Space};

/// What a command printed.
#[derive(Clone, Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
}

impl Output {
    /// Standard output, or an error with all output.
    pub fn ok(self) -> Result<String> {
        if self.code == Some(0) {
            Ok(self.stdout)
        } else {
            bail!("exit {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
        }
    }

    /// Standard error of a command that must fail.
    pub fn refused(self) -> Result<String> {
        if self.code == Some(0) {
            bail!("it succeeded, but should have been refused: {}", self.stdout)
        }
        Ok(self.stderr)
    }
}

/// The cluster that `make test` started.
#[derive(Clone)]
pub struct Cluster {
    /// Client with full rights.
    pub client: Client,
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// Folder of kubectl and helm.
    pub bin: PathBuf,
}

impl Cluster {
    /// Connects to the cluster of `SKYWARD_TEST_KUBECONFIG`.
    pub async fn connect() -> Result<Self> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = std::env::var("SKYWARD_TEST_KUBECONFIG").context(
            "SKYWARD_TEST_KUBECONFIG is not set: these tests need a real cluster; run `make test`",
        )?;
        let bin = std::env::var("SKYWARD_BIN_DIR")
            .context("SKYWARD_BIN_DIR is not set: kubectl and helm are needed; run `make test`")?;
        let config = kube::config::Kubeconfig::read_from(&kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        config.read_timeout = Some(Duration::from_secs(300));
        let client = Client::try_from(config)?;
        Ok(Self {
            client,
            kubeconfig: kubeconfig.into(),
            bin: bin.into(),
        })
    }

    /// A namespace of its own for one story; deleted when the story ends, after its evidence was
    /// saved if it failed.
    pub async fn namespace(&self, story: &str) -> Result<Space> {
        Space::create(self, story).await
    }

    /// Runs `kubectl` with these arguments.
    pub async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.run("kubectl", args, None, Duration::from_secs(330)).await
    }

    /// Standard output of a `kubectl` that does no harm when it is run again, and is while it fails: where another story has
    /// killed the leader, the API gives up after a while.
    pub async fn patiently(&self, args: &[&str]) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        loop {
            let output = self.kubectl(args).await?;
            if output.code == Some(0) || Instant::now() >= deadline {
                return output.ok();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Runs `helm` with these arguments.
    pub async fn helm(&self, args: &[&str]) -> Result<Output> {
        self.run("helm", args, None, Duration::from_secs(300)).await
    }

    /// Runs `kubectl apply -f -` on this text.
    pub async fn apply(&self, yaml: &str) -> Result<Output> {
        self.run(
            "kubectl",
            &["apply", "-f", "-"],
            Some(yaml),
            Duration::from_secs(180),
        )
        .await
    }

    /// Runs a program of the bin folder, or of the path, against this cluster.
    pub async fn run(
        &self,
        program: &str,
        args: &[&str],
        input: Option<&str>,
        limit: Duration,
    ) -> Result<Output> {
        let ours = self.bin.join(program);
        let mut command = if ours.exists() {
            Command::new(ours)
        } else {
            Command::new(program)
        };
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", self.path())
            .stdin(if input.is_some() {
                std::process::Stdio::piped()
            } else {
                std::process::Stdio::null()
            })
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("start {program}"))?;
        if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(text.as_bytes()).await?;
        }
        let output = tokio::time::timeout(limit, child.wait_with_output())
            .await
            .with_context(|| format!("{program} {args:?} took longer than {limit:?}"))??;
        Ok(Output {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        })
    }

    fn path(&self) -> String {
        let target = std::env::var("SKYWARD_TARGET_BIN").unwrap_or_default();
        format!(
            "{}:{target}:{}",
            self.bin.display(),
            std::env::var("PATH").unwrap_or_default()
        )
    }
}
