//! A git host of its own: real repositories behind the real `git http-backend`, over https, and ways to be hostile.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::Notify,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// `user:canary-password` in base64.
const AUTHORIZATION: &str = "Basic dXNlcjpjYW5hcnktcGFzc3dvcmQ=";
pub(crate) const PASSWORD: &str = "canary-password";

/// A host. Its repositories are under `/plain/`; the first part of the path says how it behaves instead.
pub(crate) struct GitHost {
    pub(crate) port: u16,
    /// The certificate of its authority, as PEM.
    pub(crate) authority: String,
    folder: tempfile::TempDir,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    folder: PathBuf,
    /// Paths that were asked for.
    asked: Mutex<Vec<String>>,
    /// Lets answers under `/slow/` go.
    go: Notify,
    port: u16,
}

impl GitHost {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (authority, acceptor) = certificates();
        let state = Arc::new(State {
            folder: folder.path().to_owned(),
            port,
            ..State::default()
        });
        let serving = state.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), serving.clone());
                tokio::spawn(async move {
                    if let Ok(connection) = acceptor.accept(connection).await {
                        serve(connection, &state).await;
                    }
                });
            }
        });
        Self {
            port,
            authority,
            folder,
            state,
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// The URL of a repository, with that behaviour.
    pub(crate) fn url(&self, behaviour: &str, repository: &str) -> String {
        format!("https://{}/{behaviour}/{repository}", self.name())
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.state.asked.lock().clone()
    }

    /// Answers under `/slow/` go on.
    pub(crate) fn let_go(&self) {
        self.state.go.notify_waiters();
    }

    /// A new repository with that script run in it, where `git` has an author; answers with the folder.
    pub(crate) fn repository(&self, name: &str, script: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        self.run(name, &format!("git init -q -b main .\n{script}"));
        folder
    }

    /// Runs a script in a repository; answers with what it printed.
    pub(crate) fn run(&self, name: &str, script: &str) -> String {
        let output = std::process::Command::new("bash")
            .args(["-e", "-c", script])
            .current_dir(self.folder.path().join(name))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", "/nonexistent")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "someone")))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "someone@example.org")))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn certificates() -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = own.signed_by(&key, &issuer).unwrap().pem();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    (authority, TlsAcceptor::from(Arc::new(config)))
}

type Connection = BufReader<TlsStream<TcpStream>>;

/// A request, without its body.
#[derive(Default)]
struct Request {
    method: String,
    path: String,
    query: String,
    length: usize,
    headers: Vec<(String, String)>,
}

impl Request {
    async fn read(connection: &mut Connection) -> Option<Self> {
        let mut line = String::new();
        connection
            .read_line(&mut line)
            .await
            .ok()
            .filter(|read| *read > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let mut request = Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            ..Self::default()
        };
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await.ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                return Some(request);
            };
            let name = name.to_ascii_lowercase();
            if name == "content-length" {
                request.length = value.parse().ok()?;
            }
            request.headers.push((name, value.to_owned()));
        }
    }

    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}

async fn serve(connection: TlsStream<TcpStream>, state: &State) {
    let mut connection = BufReader::new(connection);
    while let Some(request) = Request::read(&mut connection).await {
        state.asked.lock().push(request.path.clone());
        let mut body = vec![0; request.length];
        if connection.read_exact(&mut body).await.is_err() {
            return;
        }
        let path = request.path.trim_start_matches('/');
        let Some((behaviour, rest)) = path.split_once('/') else {
            return;
        };
        let answer = match behaviour {
            "private" if request.header("authorization") != AUTHORIZATION => {
                plain("401 Unauthorized", "WWW-Authenticate: Basic realm=\"code\"\r\n")
            }
            "redirect" => {
                let to = format!(
                    "Location: https://localhost:{}/plain/{rest}?{}\r\n",
                    state.port, request.query
                );
                plain("302 Found", &to)
            }
            "endless" => {
                endless(&mut connection).await;
                return;
            }
            "slow" => {
                state.go.notified().await;
                backend(&request, rest, &body, state, true).await
            }
            // An older host, which gives out what its branches and tags name alone.
            "old" => backend(&request, rest, &body, state, false).await,
            _ => backend(&request, rest, &body, state, true).await,
        };
        if connection.write_all(&answer).await.is_err() || connection.flush().await.is_err() {
            return;
        }
    }
}

fn plain(status: &str, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n\r\n").into_bytes()
}

/// Names of branches without end.
async fn endless(connection: &mut Connection) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\nConnection: close\r\n\r\n001e# service=git-upload-pack\n0000";
    let _ = connection.write_all(head.as_bytes()).await;
    for number in 0_u64.. {
        let line = format!("{number:040x} refs/heads/{number:020}\n");
        let line = format!("{:04x}{line}", line.len() + 4);
        if connection.write_all(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn backend(request: &Request, path: &str, body: &[u8], state: &State, newer: bool) -> Vec<u8> {
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", &state.folder)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", format!("/{path}"))
        .env("QUERY_STRING", &request.query)
        .env("REQUEST_METHOD", &request.method)
        .env("CONTENT_TYPE", request.header("content-type"))
        .env("CONTENT_LENGTH", request.length.to_string())
        .env("HTTP_CONTENT_ENCODING", request.header("content-encoding"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if newer {
        command.env("GIT_PROTOCOL", request.header("git-protocol"));
    }
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let write = async move {
        let _ = input.write_all(body).await;
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output.unwrap().stdout;
    let end = output
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or(output.len());
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let content = output.get(end + 4..).unwrap_or_default();
    let mut status = "200 OK".to_owned();
    let mut headers = String::new();
    for line in head.lines() {
        match line.strip_prefix("Status: ") {
            Some(other) => other.clone_into(&mut status),
            None => headers.extend([line, "\r\n"]),
        }
    }
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n",
        content.len()
    );
    [head.as_bytes(), content].concat()
}
