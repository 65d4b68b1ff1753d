//! A ledger outside of the cluster: work on machines tells it line by line what it does, and goes on once the line is
//! kept. Thus a line that is missing was never said, whatever has become of the machine.

use std::{
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::{Cluster, Result};

/// Bytes of the longest line.
const LINE: u64 = 4096;

/// Keeps lines until it is dropped.
pub struct Ledger {
    /// Where Pods reach it, as `HOST PORT`.
    pub address: String,
    accepting: JoinHandle<()>,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Ledger {
    /// Listens on an address that Pods reach: that of the API server, which runs on this machine. Each line that can be
    /// read comes to the end of `marks` and is answered with `ok`.
    pub async fn start<T>(cluster: &Cluster, marks: Arc<Mutex<Vec<T>>>) -> Result<Self>
    where
        T: FromStr + Send + 'static,
    {
        let path = "jsonpath={.clusters[0].cluster.server}";
        let server = cluster
            .kubectl(&["config", "view", "--minify", "-o", path])
            .await?
            .ok()?;
        let server = server.trim().trim_start_matches("https://");
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let listener = TcpListener::bind((host, 0)).await?;
        let address = format!("{host} {}", listener.local_addr()?.port());
        let accepting = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    // A caller that says nothing harms only itself.
                    Ok((stream, _)) => drop(tokio::spawn(keep(stream, marks.clone()))),
                    // A caller may be gone again.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        Ok(Self { address, accepting })
    }
}

async fn keep<T: FromStr>(stream: TcpStream, marks: Arc<Mutex<Vec<T>>>) -> Result {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = String::new();
        (&mut read).take(LINE).read_line(&mut line).await?;
        // A line that breaks off was not told.
        let Some(line) = line.strip_suffix('\n') else {
            return Ok(());
        };
        let Ok(mark) = line.parse() else { return Ok(()) };
        marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
        write.write_all(b"ok\n").await?;
    }
}
