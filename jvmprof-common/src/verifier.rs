//! Measures in the code of the steppers, and of what they read, for the sake of the eBPF verifier
//! and for nothing else.
//!
//! - Loops are bounded, and indices are masked with a power of two.
//! - State lies in memory of the CPU, so that the verifier sees the same state at each turn of a
//!   loop.
//! - [`BarrierVar`] and [`bounded`] change what the verifier knows of a value.
//! - What is reached on many paths is a *subprogram*, a global function of the kernel program: the
//!   verifier checks it once, for any arguments, instead of once for each path that leads there.
//!   They are in one table, [`crate::unwind::hotspot::subprograms`]; [`Scalar`] is what they take
//!   and return.

use core::hint::black_box;

use crate::address::{Avma, StackAddress};

/// Memory through which a value passes to lose its history, as libbpf's `barrier_var` does for the
/// compiler.
///
/// An index that is added to a pointer becomes "precise": the verifier then distinguishes states by
/// it, and by everything it was made of, and follows each path through a search or a loop. What
/// comes from a map's memory has no history (Linux kernel/bpf/verifier.c, `mark_chain_precision`).
/// It must lie in a map for that.
#[derive(Debug, Default)]
pub struct BarrierVar(u64);

impl BarrierVar {
    /// Returns the same value, of which neither compiler nor verifier know anything.
    #[inline(always)]
    #[expect(unsafe_code, reason = "volatile access is what keeps the compiler from seeing through")]
    pub fn opaque(&mut self, value: u64) -> u64 {
        // SAFETY: both go to this very field.
        unsafe {
            core::ptr::write_volatile(&raw mut self.0, value);
            core::ptr::read_volatile(&raw const self.0)
        }
    }
}

/// Returns the same number of bytes, in 1..=MAX (a power of two), so that the verifier sees it too.
///
/// A comparison doesn't do: the compiler leaves out one that it knows the result of, and before 6.8
/// the verifier learns nothing where both sides are unknown, nor for a copy of the value that was
/// put on the stack before.
#[inline(always)]
pub fn bounded<const MAX: usize>(bytes: usize) -> usize {
    (black_box(bytes).wrapping_sub(1) & (MAX - 1)) + 1
}

/// Returns true if `left` is less than `right`, by arithmetic: the instruction set has no other
/// comparison than a branch, at each of which the verifier goes both ways.
#[inline(always)]
pub const fn is_less(left: u64, right: u64) -> bool {
    // The borrow of the subtraction.
    let borrow = (!left & right) | ((!left | right) & left.wrapping_sub(right));
    borrow >> 63 != 0
}

/// A value that fits a register: global functions take and return nothing else.
pub trait Scalar: Copy {
    fn to_scalar(self) -> u64;

    /// The reverse of [`Self::to_scalar`].
    fn from_scalar(scalar: u64) -> Self;
}

macro_rules! scalars {
    ($($type:ty: $value:ident => $to:expr, $scalar:ident => $from:expr;)*) => {$(
        impl Scalar for $type {
            #[inline(always)]
            fn to_scalar(self) -> u64 {
                let $value = self;
                $to
            }

            #[inline(always)]
            fn from_scalar($scalar: u64) -> Self {
                $from
            }
        }
    )*};
}

scalars! {
    u64: value => value, scalar => scalar;
    usize: value => value as u64, scalar => scalar as Self;
    bool: value => u64::from(value), scalar => scalar != 0;
    Avma: value => value.0, scalar => Self(scalar);
    StackAddress: value => value.0, scalar => Self(scalar);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comparison_by_arithmetic_is_that_of_unsigned_numbers() {
        let values = [0, 1, 2, 0x7fff_ffff, 1 << 63, (1 << 63) - 1, (1 << 63) + 1, u64::MAX - 1, u64::MAX];
        for left in values {
            for right in values {
                assert_eq!(is_less(left, right), left < right, "{left:#x} {right:#x}");
            }
        }
    }
}
