//! Numbers of simulations: the same ones in each run of a test.

/// A generator of uniformly distributed numbers (xorshift64*).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn number(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}
