//! Chance that is the same in every run.

/// Numbers without a pattern (xorshift).
pub struct Noise(pub u64);

impl Noise {
    /// From 0 to `end`, which does not come.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    /// Any of them.
    pub fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}
