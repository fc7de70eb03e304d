//! Properties of a Java line that have no field in pprof, in the line's `column`.
//!
//! pprof's tools don't take the column for part of a function's identity and don't show it unless
//! they are asked to; Parca drops it. Bits 0 to 16
//! are the index of the bytecode plus one, or 0; from bit 17 on stands the execution mode plus one,
//! or 0.

use crate::profile::model::ExecutionMode;

/// Bits of a bytecode index plus one: 0 to 65,536.
const BCI_BITS: u32 = 17;

/// The execution modes in the order of their numbers.
const MODES: [ExecutionMode; 5] = [
    ExecutionMode::Interpreted,
    ExecutionMode::C1,
    ExecutionMode::C2,
    ExecutionMode::Inlined,
    ExecutionMode::Native,
];

/// Contents of the column of a line in a mapping `jvm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JavaLineDetails {
    /// Index of the bytecode where the class file has no line for it.
    pub bci: Option<u16>,
    /// The way in which the method ran.
    pub mode: Option<ExecutionMode>,
}

impl JavaLineDetails {
    /// Returns the column that stands for these details.
    pub fn to_column(self) -> u32 {
        let bci = self.bci.map_or(0, |bci| u32::from(bci) + 1);
        bci | self.mode.map_or(0, |mode| (mode as u32 + 1) << BCI_BITS)
    }

    /// Returns what a column stands for; of one that others wrote, what fits.
    pub fn from_column(column: i64) -> Self {
        let bci = (column & ((1 << BCI_BITS) - 1)) - 1;
        let mode = usize::try_from((column >> BCI_BITS) - 1).ok();
        Self { bci: u16::try_from(bci).ok(), mode: mode.and_then(|mode| MODES.get(mode)).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_tells_what_it_was_made_of() {
        let bcis = [None, Some(0), Some(7), Some(u16::MAX)];
        let modes = MODES.map(Some).into_iter().chain([None]);
        for (bci, mode) in bcis.into_iter().flat_map(|bci| modes.clone().map(move |mode| (bci, mode))) {
            let details = JavaLineDetails { bci, mode };
            assert_eq!(JavaLineDetails::from_column(details.to_column().into()), details);
        }
        assert_eq!(JavaLineDetails::default().to_column(), 0);
    }

    #[test]
    fn columns_of_others_are_no_modes() {
        for column in [-1, i64::MIN, i64::MAX, 6 << BCI_BITS] {
            assert_eq!(JavaLineDetails::from_column(column).mode, None, "{column}");
        }
    }
}
