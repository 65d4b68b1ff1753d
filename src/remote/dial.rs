//! From an endpoint to a byte stream.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use skyward_core::machine::Dial;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

/// How long a machine may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Reaches a port of a Pod through the API server, for a controller outside the cluster.
#[async_trait]
pub trait PodDialer: Send + Sync {
    /// Opens a stream to that port.
    async fn dial(&self, namespace: &str, pod: &str, port: u16) -> io::Result<Box<dyn Stream>>;
}

/// Opens a stream to the SSH server.
pub(crate) async fn dial(to: &Dial, pods: Option<&Arc<dyn PodDialer>>) -> io::Result<Box<dyn Stream>> {
    let attempt = async {
        let stream: Box<dyn Stream> = match to {
            Dial::Address(address) => Box::new(tcp(TcpStream::connect(address).await?)?),
            Dial::Host(host, port) => Box::new(tcp(TcpStream::connect((host.as_str(), *port)).await?)?),
            Dial::PodPort { namespace, pod, port } => match pods {
                Some(pods) => pods.dial(namespace, pod, *port).await?,
                None => return Err(io::Error::other("this controller has no way to a Pod's port")),
            },
        };
        Ok(stream)
    };
    match timeout(CONNECT, attempt).await {
        Ok(result) => {
            result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", describe(to))))
        }
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{}: no answer within {} s", describe(to), CONNECT.as_secs()),
        )),
    }
}

fn tcp(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The endpoint in words.
pub(crate) fn describe(to: &Dial) -> String {
    match to {
        Dial::Address(address) => format!("could not connect to {address}"),
        Dial::Host(host, port) => format!("could not connect to {host}:{port}"),
        Dial::PodPort { namespace, pod, port } => {
            format!("could not connect to port {port} of Pod \"{namespace}/{pod}\"")
        }
    }
}
