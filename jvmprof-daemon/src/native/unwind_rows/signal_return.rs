//! Return code of signal handlers, and the frame that the kernel made for the signal.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Row};

use super::row_table::RowRange;

/// `mov rax, 15; syscall`, and `mov eax, 15; syscall`.
const FORMS: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Bytes of the longer form of that code.
pub(super) const MAX_SIGNAL_RETURN: usize = FORMS[0].len();
/// Bytes of the longest row of [`signal_returns`]: that code, with a byte before and one behind.
pub(super) const MAX_ROW: u64 = MAX_SIGNAL_RETURN as u64 + 2;

/// Returns the bytes of the code that a signal's handler returns to; `None` if this is other code.
pub(super) fn signal_return_length(code: &[u8]) -> Option<usize> {
    FORMS.iter().find(|form| code.starts_with(form)).map(|form| form.len())
}

/// Row of the frame that the kernel makes for a signal, whose handler has returned: `rsp` points to
/// the `ucontext` (Linux arch/x86/include/asm/sigframe.h, include/uapi/asm/ucontext.h,
/// sigcontext.h).
pub(super) const SIGNAL_RETURN: Row = Row {
    cfa: CfaRule::RspIndirect { at: 160, add: 0 },
    rbp: RbpRule::AtRsp(120),
    ra: RaRule::AtRsp(168),
    signal: true,
};

/// Returns the rows of signal handlers' return code, each with the byte before, since a return
/// address is looked up before it, and the byte behind, if no function begins there: within the
/// system call a thread has that address.
pub(super) fn signal_returns(code: &[u8], base: u64) -> Vec<RowRange> {
    let found = (1..code.len()).filter_map(|at| {
        let end = at + signal_return_length(&code[at..])?;
        let end = end + usize::from(is_padding(&code[end..]));
        Some((base + at as u64 - 1, base + end as u64, SIGNAL_RETURN))
    });
    found.collect()
}

/// Returns true if no function begins with this code, which is what stands between two of them.
pub(super) fn is_padding(code: &[u8]) -> bool {
    if code.starts_with(&[0, 0]) {
        return true;
    }
    let first = Decoder::new(64, code, DecoderOptions::NONE).decode();
    matches!(first.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_behind_the_system_call_belongs_to_it_where_no_function_begins() {
        const NOP: [u8; 7] = [0x0f, 0x1f, 0x80, 0, 0, 0, 0];
        const PUSH_RBP: [u8; 1] = [0x55];
        for form in FORMS {
            let length = form.len() as u64;
            for (behind, end) in [(&NOP[..], 1), (&[0xcc], 1), (&[0, 0], 1), (&PUSH_RBP, 0), (&[], 0)] {
                let code = [&[0xcc], form, behind].concat();
                let expected = (0x1000, 0x1001 + length + end, SIGNAL_RETURN);
                assert_eq!(signal_returns(&code, 0x1000), [expected], "{form:x?} {behind:x?}");
            }
            assert!(signal_returns(form, 0x1000).is_empty(), "there is no byte before");
        }
    }
}
