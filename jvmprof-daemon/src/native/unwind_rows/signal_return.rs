//! Return code of signal handlers, and the frame that the kernel made for the signal.

use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Row};

use super::row_table::RowRange;

/// Returns true if this is the code that a signal's handler returns to: `mov rax, 15; syscall`, or
/// `mov eax, 15; syscall`.
pub(super) fn is_signal_return(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
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

/// Returns the rows of signal handlers' return code, each with the byte before: a return address is
/// looked up before it.
pub(super) fn signal_returns(code: &[u8], base: u64) -> Vec<RowRange> {
    let places = (1..code.len()).filter(|at| is_signal_return(&code[*at..]));
    let at = |at: usize| base + at as u64;
    places.map(|place| (at(place) - 1, at(place + MAX_SIGNAL_RETURN), SIGNAL_RETURN)).collect()
}

/// Bytes of the longer form of that code.
pub(super) const MAX_SIGNAL_RETURN: usize = 9;
/// Bytes of the longest row of [`signal_returns`]: that code, with the byte before.
pub(super) const MAX_ROW: u64 = MAX_SIGNAL_RETURN as u64 + 1;
