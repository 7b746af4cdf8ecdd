//! What happens next in a random history.

/// A small random number generator: histories are the same on every machine.
pub struct Noise(pub u64);

impl Noise {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    /// A place in a list of this length.
    pub fn place(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap())).unwrap()
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.place(all.len())]
    }

    /// One or more of these, in their order.
    pub fn some_of<T: Copy, const N: usize>(&mut self, all: &[T; N]) -> Vec<T> {
        let bits = 1 + self.below((1 << N) - 1);
        (0..N).filter(|bit| bits & (1 << bit) != 0).map(|bit| all[bit]).collect()
    }
}
