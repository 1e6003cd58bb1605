//! A hash that is the same on every machine and in every run, for structural keys and for maps
//! that are looked up but never iterated.

use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A map with [`StableHasher`]; its iteration order must not reach any output.
pub(crate) type StableMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<StableHasher>>;

/// Multiply-and-rotate mixing of 64-bit words; integers are hashed by value, not by their bytes.
#[derive(Clone, Default)]
pub(crate) struct StableHasher {
    state: u64,
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl StableHasher {
    fn mix(&mut self, word: u64) {
        self.state = (self.state.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
    }
}

impl Hasher for StableHasher {
    fn finish(&self) -> u64 {
        let mixed = (self.state ^ (self.state >> 32)).wrapping_mul(MULTIPLIER);
        mixed ^ (mixed >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn write_u8(&mut self, number: u8) {
        self.mix(u64::from(number));
    }

    fn write_u16(&mut self, number: u16) {
        self.mix(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.mix(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }

    fn write_i64(&mut self, number: i64) {
        self.mix(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number as u64);
    }
}

/// The stable hash of a value.
pub(crate) fn stable_hash(value: &impl Hash) -> u64 {
    let mut hasher = StableHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}
