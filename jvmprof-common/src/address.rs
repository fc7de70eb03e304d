//! Addresses of the profiled process, by what lies there: none of them is confused with another, or
//! with a number.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// An actual virtual memory address: where something is in a running process (or in the kernel), as
/// a program counter holds it. Code, objects of the Java heap, the JVM's own structures.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Avma(pub u64);

/// The address of a word on a stack, or in an object of the Java heap that holds a stack's frames:
/// what `rsp` and `rbp` hold. `rbp` may hold anything, in code that keeps no frame pointer.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackAddress(pub u64);

macro_rules! arithmetic {
    ($address:ident) => {
        impl $address {
            #[inline(always)]
            #[must_use]
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            #[inline(always)]
            #[must_use]
            pub const fn wrapping_sub(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }

            #[inline(always)]
            #[must_use]
            pub const fn wrapping_add_signed(self, bytes: i64) -> Self {
                Self(self.0.wrapping_add_signed(bytes))
            }

            /// Returns the bytes from `base` to this address, modulo 2^64.
            #[inline(always)]
            pub const fn offset_from(self, base: Self) -> u64 {
                self.0.wrapping_sub(base.0)
            }

            /// Returns the next lower multiple of a power of two.
            #[inline(always)]
            #[must_use]
            pub const fn aligned_down(self, to: u64) -> Self {
                Self(self.0 & !(to - 1))
            }

            #[inline(always)]
            pub const fn is_multiple_of(self, bytes: u64) -> bool {
                self.0.is_multiple_of(bytes)
            }
        }

        impl Add<u64> for $address {
            type Output = Self;

            #[inline(always)]
            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        impl Sub<u64> for $address {
            type Output = Self;

            #[inline(always)]
            fn sub(self, bytes: u64) -> Self {
                Self(self.0 - bytes)
            }
        }

        impl AddAssign<u64> for $address {
            #[inline(always)]
            fn add_assign(&mut self, bytes: u64) {
                self.0 += bytes;
            }
        }

        impl SubAssign<u64> for $address {
            #[inline(always)]
            fn sub_assign(&mut self, bytes: u64) {
                self.0 -= bytes;
            }
        }

        /// The distance in bytes.
        impl Sub for $address {
            type Output = u64;

            #[inline(always)]
            fn sub(self, base: Self) -> u64 {
                self.0 - base.0
            }
        }

        impl fmt::Display for $address {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

arithmetic!(Avma);
arithmetic!(StackAddress);

impl StackAddress {
    /// Returns the word's address as one of anything.
    #[inline(always)]
    pub const fn avma(self) -> Avma {
        Avma(self.0)
    }
}
