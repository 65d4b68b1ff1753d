//! Randomness that a seed repeats: ids, and faults with a probability.

/// A small generator (SplitMix64): the same seed gives the same world everywhere.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator that begins at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound` (0 when that is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// True with the given probability.
    pub fn hits(&mut self, probability: f64) -> bool {
        (self.bits() >> 11) as f64 / ((1_u64 << 53) as f64) < probability
    }

    /// `length` characters of an alphabet.
    pub fn text(&mut self, length: usize, alphabet: &str) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        (0..length)
            .filter_map(|_| letters.get(self.below(letters.len() as u64) as usize).copied())
            .collect()
    }

    /// `length` hexadecimal digits.
    pub fn hex(&mut self, length: usize) -> String {
        self.text(length, "0123456789abcdef")
    }

    /// A UUID of version 4.
    pub fn uuid(&mut self) -> String {
        let digits = self.hex(30);
        let variant = self.text(1, "89ab");
        format!(
            "{}-{}-4{}-{variant}{}-{}",
            &digits[..8],
            &digits[8..12],
            &digits[12..15],
            &digits[15..18],
            &digits[18..30]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_ids_and_another_one_others() {
        let ids = |seed| {
            let mut chance = Chance::new(seed);
            (chance.uuid(), chance.hex(17), chance.below(1000))
        };
        assert_eq!(ids(7), ids(7));
        assert_ne!(ids(7), ids(8));
    }

    #[test]
    fn a_probability_is_met_about_as_often_as_it_says() {
        let mut chance = Chance::new(1);
        let hits = (0..10_000).filter(|_| chance.hits(0.25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
    }
}
