//! Bytes on disk that know whether they are whole: length, checksum, payload. The journal is
//! a row of such frames, the record of a run's end is one. A frame that was cut or never written
//! (zeros) does not count.

use sha2::{Digest, Sha256};

const HEADER: usize = 8;
/// No payload of ours comes near this; a larger length is garbage.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;

/// Appends `payload` to `out` as a frame.
pub(crate) fn write(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(payload));
    out.extend_from_slice(payload);
}

/// The payload of the frame at the start of `bytes` and the length of the frame; `None` where
/// no whole frame is. A frame is never empty, so zeros are none.
pub(crate) fn read(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    if length == 0 || length > MAX_PAYLOAD {
        return None;
    }
    let payload = bytes.get(HEADER..HEADER + length)?;
    (bytes[4..HEADER] == checksum(payload)).then_some((payload, HEADER + length))
}

fn checksum(payload: &[u8]) -> [u8; 4] {
    let digest = Sha256::digest(payload);
    [digest[0], digest[1], digest[2], digest[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_or_changed_frame_is_not_there() {
        let mut bytes = Vec::new();
        write(b"hello", &mut bytes);
        assert_eq!(read(&bytes), Some((&b"hello"[..], bytes.len())));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), None);
        }
        for index in 4..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(read(&changed), None);
        }
        assert_eq!(read(&[0; 64]), None);
    }
}
