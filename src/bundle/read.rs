//! Reads a bundle: first the manifest, which is checked as a whole, then one content after the other.

use std::io::{self, ErrorKind, Read};

use sha2::{Digest as _, Sha256};

use crate::{Digest, Entry, Error, Limits, MAGIC, MANIFEST_BYTES, Manifest, quoted};

/// A bundle whose manifest was read.
#[derive(Debug)]
pub struct Reader<R> {
    manifest: Manifest,
    from: R,
}

impl<R: Read> Reader<R> {
    /// Reads and checks the manifest.
    pub fn open(mut from: R, limits: Limits) -> Result<Self, Error> {
        let mut magic = [0; MAGIC.len()];
        let mut length = [0; 4];
        exactly(&mut from, &mut magic)?;
        if magic != MAGIC {
            return Err(refused("the bytes are no bundle, or one of a later version"));
        }
        exactly(&mut from, &mut length)?;
        let length = u32::from_be_bytes(length);
        if length > MANIFEST_BYTES {
            return Err(refused("the bundle's manifest is too long"));
        }
        // Grows with the bytes that are there, and not with the length that is announced.
        let mut text = Vec::new();
        from.by_ref().take(length.into()).read_to_end(&mut text)?;
        if text.len() != length as usize {
            return Err(too_short());
        }
        let manifest = Manifest::parse(&text, limits).map_err(Error::Refused)?;
        Ok(Self { manifest, from })
    }

    /// What is in it.
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The digest that it has if [`Reader::unpack`] succeeds.
    pub fn digest(&self) -> Digest {
        self.manifest.digest()
    }

    /// Gives each file and its content to `each`, sorted by name. Only after the last one is it sure that the
    /// contents are those of the manifest: after an error nothing that was given out may be used.
    pub fn unpack(
        mut self,
        mut each: impl FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
    ) -> Result<(), Error> {
        for entry in self.manifest.entries() {
            let mut content = Content {
                from: (&mut self.from).take(entry.size),
                hash: Sha256::new(),
            };
            each(entry, &mut content)?;
            io::copy(&mut content, &mut io::sink())?;
            if content.from.limit() > 0 {
                return Err(too_short());
            }
            let found: [u8; 32] = content.hash.finalize().into();
            if found != entry.sha256 {
                let path = quoted(&entry.path);
                return Err(refused(&format!(
                    "the content of {path} is not the one that the bundle names"
                )));
            }
        }
        let mut more = [0];
        match self.from.read_exact(&mut more) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Err(refused("there are bytes behind the bundle's last file")),
        }
    }

    /// Checks all contents.
    pub fn verify(self) -> Result<(), Error> {
        self.unpack(|_, _| Ok(()))
    }
}

/// The content of one file, hashed while it is read.
struct Content<R> {
    from: io::Take<R>,
    hash: Sha256,
}

impl<R: Read> Read for Content<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

fn exactly(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), Error> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => too_short(),
        _ => error.into(),
    })
}

fn refused(why: &str) -> Error {
    Error::Refused(why.to_owned())
}

fn too_short() -> Error {
    refused("the bundle ends too early")
}
