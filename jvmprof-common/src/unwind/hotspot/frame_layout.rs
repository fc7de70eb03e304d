//! The layout of a compiled frame at one pc: where the return address and the caller's rbp are.

use crate::verifier::Scalar;

/// Location of the caller's rbp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRbp {
    InRegister,
    /// Bytes above the stack pointer.
    AtSp(u64),
}

/// Locations of the return address and the caller's rbp, from the stack pointer on, at one pc of an
/// nmethod.
///
/// One word: offsets, which are multiples of 8, fit 31 bits. The return address's is in the upper
/// half; the lower half is 0 if rbp is in its register, else rbp's offset and the lowest bit.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameLayout(u64);

const LOWER_HALF: u64 = (1 << 32) - 1;

impl FrameLayout {
    /// Nothing is pushed yet, or everything is popped already.
    pub const AT_ENTRY: Self = Self::new(0, SavedRbp::InRegister);
    /// Only rbp is pushed.
    pub const RBP_PUSHED: Self = Self::new(8, SavedRbp::AtSp(0));

    #[inline(always)]
    pub const fn new(return_address: u64, rbp: SavedRbp) -> Self {
        let rbp = match rbp {
            SavedRbp::InRegister => 0,
            SavedRbp::AtSp(offset) => offset | 1,
        };
        Self(return_address << 32 | rbp)
    }

    /// Returns the layout of a whole frame of `bytes`, 16 or more.
    #[inline(always)]
    pub const fn built(bytes: u64) -> Self {
        Self::new(bytes - 8, SavedRbp::AtSp(bytes - 16))
    }

    /// Returns the return address's offset in bytes above the stack pointer.
    #[inline(always)]
    pub const fn return_address(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    pub const fn saved_rbp(self) -> SavedRbp {
        let rbp = self.0 & LOWER_HALF;
        if rbp == 0 { SavedRbp::InRegister } else { SavedRbp::AtSp(rbp & !1) }
    }

    /// Returns the layout with rbp in its register if `mask` is all ones; as it is if it is zero.
    #[inline(always)]
    #[must_use]
    pub const fn with_rbp_in_register(self, mask: u64) -> Self {
        Self(self.0 & !(LOWER_HALF & mask))
    }

    /// Returns the layout as one word, to lie where other things may lie.
    #[inline(always)]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The reverse of [`Self::to_bits`].
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl Scalar for FrameLayout {
    #[inline(always)]
    fn to_scalar(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn from_scalar(scalar: u64) -> Self {
        Self(scalar)
    }
}

/// No layout has all bits set.
const NO_LAYOUT: u64 = u64::MAX;

impl Scalar for Option<FrameLayout> {
    #[inline(always)]
    fn to_scalar(self) -> u64 {
        match self {
            Some(layout) => layout.0,
            None => NO_LAYOUT,
        }
    }

    #[inline(always)]
    fn from_scalar(scalar: u64) -> Self {
        if scalar == NO_LAYOUT { None } else { Some(FrameLayout(scalar)) }
    }
}
