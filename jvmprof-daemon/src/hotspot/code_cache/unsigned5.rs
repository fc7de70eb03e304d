//! HotSpot's variable-length integers, as debug information and line tables have them.
//!
//! One to five little-endian digits in base 64; a byte below a limit is the last one. JDK 20
//! excluded the byte zero, so the same bytes mean other numbers before and after: openjdk
//! src/hotspot/share/code/compressedStream.cpp (8-19), src/hotspot/share/utilities/unsigned5.hpp
//! (20 and later).

/// The encoding that a JVM uses, of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsigned5Encoding {
    /// JDK 8-19: bytes below 192 end a number.
    WithZero,
    /// JDK 20 and later: one is subtracted from each byte, and zero doesn't occur.
    WithoutZero,
}

/// Bytes of one number, at most.
const MAX_BYTES: u32 = 5;
/// Bytes from here on say that another one follows; 192 in both encodings, as bytes are stored.
const HIGH: u8 = 192;

impl Unsigned5Encoding {
    /// The encoding of a JDK, by its feature version.
    pub fn of_feature(feature: u32) -> Self {
        if feature >= 20 { Self::WithoutZero } else { Self::WithZero }
    }
}

/// Reads numbers from bytes.
#[derive(Clone, Copy, Debug)]
pub struct Unsigned5Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    encoding: Unsigned5Encoding,
}

impl<'b> Unsigned5Reader<'b> {
    /// Reads from `at` on.
    pub fn new(bytes: &'b [u8], at: usize, encoding: Unsigned5Encoding) -> Self {
        Self { bytes, at, encoding }
    }

    /// The next byte as it is.
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// The next number; it wraps around at 32 bits as HotSpot's own arithmetic does. `None` at the
    /// end of the bytes or where an excluded byte stands.
    pub fn unsigned(&mut self) -> Option<u32> {
        let excluded = u8::from(self.encoding == Unsigned5Encoding::WithoutZero);
        let mut sum: u32 = 0;
        for digit in 0..MAX_BYTES {
            let byte = self.byte()?;
            let value = u32::from(byte.checked_sub(excluded)?);
            sum = sum.wrapping_add(value.wrapping_shl(6 * digit));
            if byte < HIGH {
                break;
            }
        }
        Some(sum)
    }

    /// The next number with its sign in the lowest bit.
    pub fn signed(&mut self) -> Option<i32> {
        let value = self.unsigned()?;
        Some(((value >> 1) ^ (value & 1).wrapping_neg()).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a number as HotSpot does (`write_uint`), so that reading is checked against another
    /// formulation.
    fn write(value: u32, encoding: Unsigned5Encoding) -> Vec<u8> {
        let excluded = u32::from(encoding == Unsigned5Encoding::WithoutZero);
        let low = 256 - excluded - 64;
        let (mut rest, mut bytes) = (value, Vec::new());
        while rest >= low && bytes.len() < 4 {
            rest -= low;
            bytes.push((excluded + low + rest % 64) as u8);
            rest >>= 6;
        }
        bytes.push((excluded + rest) as u8);
        bytes
    }

    #[test]
    fn every_length_and_its_borders_are_read_back() {
        let mut values = vec![0, 1, 63, 64, 190, 191, 192, 193, 12_414, 12_415, 12_416, 0x000c_207e];
        values.extend([0x0030_8207, 0x0308_207f, 0x0308_2080, i32::MAX as u32, u32::MAX - 1, u32::MAX]);
        for encoding in [Unsigned5Encoding::WithZero, Unsigned5Encoding::WithoutZero] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| write(*value, encoding)).collect();
            let mut reader = Unsigned5Reader::new(&bytes, 0, encoding);
            for value in &values {
                assert_eq!(reader.unsigned(), Some(*value), "{encoding:?}");
            }
            assert_eq!(reader.unsigned(), None);
        }
    }

    #[test]
    fn the_encodings_differ_by_the_byte_zero() {
        assert_eq!(Unsigned5Reader::new(&[0], 0, Unsigned5Encoding::WithZero).unsigned(), Some(0));
        assert_eq!(Unsigned5Reader::new(&[0], 0, Unsigned5Encoding::WithoutZero).unsigned(), None);
        assert_eq!(Unsigned5Reader::new(&[1], 0, Unsigned5Encoding::WithoutZero).unsigned(), Some(0));
        assert_eq!(
            Unsigned5Reader::new(&[192], 0, Unsigned5Encoding::WithZero).unsigned(),
            None,
            "a number cut short"
        );
    }

    #[test]
    fn signs_are_in_the_lowest_bit() {
        let bytes: Vec<u8> =
            [0u32, 1, 2, 3, 4].iter().flat_map(|v| write(*v, Unsigned5Encoding::WithZero)).collect();
        let mut reader = Unsigned5Reader::new(&bytes, 0, Unsigned5Encoding::WithZero);
        let read: Vec<i32> = std::iter::from_fn(|| reader.signed()).collect();
        assert_eq!(read, [0, -1, 1, -2, 2]);
    }
}
