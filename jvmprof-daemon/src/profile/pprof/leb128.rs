//! Numbers in LEB128: seven bits a byte, the lowest first.

/// Appends a number.
pub(in crate::profile) fn write(mut number: u32, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number off the front; `None` if there is none, or one of more than 32 bits.
pub(super) fn read(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..u32::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u32::from(byte & 0x7f);
        number |= bits << shift;
        if bits << shift >> shift != bits {
            return None;
        }
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let numbers = [0, 1, 127, 128, 300, 16_383, 16_384, u32::MAX - 1, u32::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|number| write(*number, &mut bytes));
        let mut rest = &*bytes;
        assert_eq!(numbers.map(|_| read(&mut rest)), numbers.map(Some));
        assert_eq!((read(&mut rest), rest.len()), (None, 0));
    }

    #[test]
    fn what_has_no_end_or_too_many_bits_is_no_number() {
        for bytes in [&[0x80_u8][..], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80, 0x80, 0x80, 0x80, 0x80, 1]] {
            assert_eq!(read(&mut &*bytes), None, "{bytes:?}");
        }
    }
}
