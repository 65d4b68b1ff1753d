//! The bytes of an input, read piece by piece: what is missing at the end is zero, so that every input means
//! something. [`Maker`] writes what [`Input`] reads, for the seeds.

/// The rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most so many bytes.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// What is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }

    /// Bytes with their number in front.
    pub(crate) fn sized(&mut self) -> &'a [u8] {
        let length = self.u16();
        self.take(length.into())
    }

    /// The same as text; bytes that are none are replaced.
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.sized()).into_owned()
    }
}

/// Makes an input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maker(Vec<u8>);

impl Maker {
    pub(crate) fn u8(mut self, number: u8) -> Self {
        self.0.push(number);
        self
    }

    pub(crate) fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn sized(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(&bytes[..length.into()]);
        self
    }

    pub(crate) fn end(mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        self.0.extend_from_slice(bytes.as_ref());
        self.0
    }
}
