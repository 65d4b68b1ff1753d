//! The daemon's own log, `agent.log`: bounded, the newest part and the one before it.

use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
};

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::{files, home::Home};

const LIMIT: u64 = 4 * 1024 * 1024;

/// Writes to `agent.log` and starts it anew when it has grown too large.
#[derive(Debug)]
pub(super) struct BoundedLog {
    path: PathBuf,
    file: Mutex<File>,
}

impl BoundedLog {
    pub(super) fn open(home: &Home) -> io::Result<Self> {
        let path = home.log();
        Ok(Self {
            file: Mutex::new(files::append(&path)?),
            path,
        })
    }
}

/// One line of the log.
pub(super) struct Line<'a>(&'a BoundedLog);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.file.lock();
        if file.metadata()?.len() > LIMIT {
            std::fs::rename(&self.0.path, self.0.path.with_extension("log.1"))?;
            *file = files::append(&self.0.path)?;
        }
        // A full disk must not keep the daemon from working.
        let _ = file.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for BoundedLog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}
