//! Random numbers that are the same in every run.

/// Numbers without a pattern (xorshift).
pub struct Noise(pub u64);

impl Noise {
    /// A number from 0 to `end`, without `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    /// Any one of them.
    pub fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}
