//! Versions of the protocol. Version N−1 is understood by both sides, so that controller
//! and agents can be replaced one after the other.

/// The newest version this build speaks.
pub const PROTOCOL_MAX: u32 = 1;
/// The oldest version this build speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// Version of the agent.
pub const AGENT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version that both sides speak: the newest of the common ones.
pub fn negotiate(their_min: u32, their_max: u32) -> Option<u32> {
    let newest = PROTOCOL_MAX.min(their_max);
    (newest >= PROTOCOL_MIN.max(their_min)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        assert_eq!(negotiate(PROTOCOL_MIN, PROTOCOL_MAX + 3), Some(PROTOCOL_MAX));
        assert_eq!(negotiate(PROTOCOL_MAX + 1, PROTOCOL_MAX + 3), None);
        assert_eq!(negotiate(0, 0), None);
    }
}
