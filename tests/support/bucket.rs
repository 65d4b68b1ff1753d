//! A server of S3 beside the cluster, for an operator whose result store is a bucket and for Tasks that keep files in one. It
//! listens on the node, so that Pods reach it, and keeps each object as a file of a folder that goes with it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{Cluster, OPERATOR_NAMESPACE, PATIENCE, Result, clouds::node_address};

/// Names the folder of the servers' programs, which `hack/s3-servers.sh` prints.
const PROGRAMS: &str = "SKYWARD_S3_SERVERS";
/// The Secret with its keys, in the operator's namespace.
const SECRET: &str = "store-bucket";
/// Servers that this process has started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A bucket of a server of its own, which ends with it.
pub struct Bucket {
    process: Child,
    folder: PathBuf,
    endpoint: String,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Whether it works shows in the next story; in here nothing can wait for it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Bucket {
    /// Name of the bucket.
    pub const NAME: &str = "results";
    /// The id of its pair of keys.
    pub const ACCESS: &str = "test-access-key";
    /// The secret one of them.
    pub const KEY: &str = "test-secret-key";

    /// Starts the server; `None`, with a line of output: `SKYWARD_S3_SERVERS` names no folder with its program.
    #[expect(
        clippy::print_stdout,
        reason = "a story that is skipped says so where it is run"
    )]
    pub async fn start(cluster: &Cluster) -> Result<Option<Self>> {
        let Some(programs) = std::env::var_os(PROGRAMS).filter(|path| !path.is_empty()) else {
            println!("skipped: {PROGRAMS} does not name a folder (hack/s3-servers.sh makes one)");
            return Ok(None);
        };
        let host = node_address(cluster).await?;
        let folder = std::env::temp_dir().join(format!(
            "skyward-bucket-{}-{}",
            std::process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        ));
        let (data, metadata) = (folder.join("data"), folder.join("metadata"));
        // A folder there is a bucket.
        fs::create_dir_all(data.join(Self::NAME))?;
        fs::create_dir_all(&metadata)?;
        // A port that is free now.
        let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
            .local_addr()?
            .port();
        let process = Command::new(Path::new(&programs).join("versitygw"))
            .args(["--port", &format!("0.0.0.0:{port}")])
            .args(["--access", Self::ACCESS, "--secret", Self::KEY])
            .args(["posix", "--sidecar"])
            .args([&metadata, &data])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start versitygw of {PROGRAMS}"))?;
        let bucket = Self {
            process,
            folder,
            endpoint: format!("http://{host}:{port}"),
        };
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        while TcpStream::connect((host.as_str(), port)).await.is_err() {
            ensure!(Instant::now() < deadline, "versitygw did not start");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(Some(bucket))
    }

    /// The server's URL, as Pods reach it.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Writes down the keys for the operator; `--set` values of the chart that give it this bucket in the place of its
    /// folder on the node.
    pub async fn operator_values(&self, cluster: &Cluster) -> Result<Vec<String>> {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": OPERATOR_NAMESPACE},
            "stringData": {"AWS_ACCESS_KEY_ID": Self::ACCESS, "AWS_SECRET_ACCESS_KEY": Self::KEY}});
        cluster.apply(&secret.to_string()).await?.ok()?;
        Ok(vec![
            "store.hostPath=".to_owned(),
            format!("store.bucket.url=s3://{}/team/skyward", Self::NAME),
            format!("store.bucket.endpoint={}", self.endpoint),
            "store.bucket.region=us-east-1".to_owned(),
            format!("store.bucket.credentialsSecret={SECRET}"),
        ])
    }

    /// The keys of the objects in the bucket that have this word.
    pub fn objects(&self, word: &str) -> Vec<String> {
        let root = self.folder.join("data").join(Self::NAME);
        let mut keys = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            // What is deleted meanwhile is not there.
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Ok(key) = path.strip_prefix(&root) {
                    keys.push(key.display().to_string());
                }
            }
        }
        keys.retain(|key| key.contains(word));
        keys.sort_unstable();
        keys
    }
}
