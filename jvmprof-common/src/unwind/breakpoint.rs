//! The program counter of a thread that has run into the breakpoint of an uprobe.

use crate::address::Avma;
use crate::thread_local::ReadWord;

const INT3: u64 = 0xcc;
/// Compilers begin functions at multiples of this.
const ALIGNMENT: u64 = 16;
/// [`TrapRegisters::orig_rax`] where it isn't a system call that has led into the kernel (Linux
/// arch/x86/entry/entry_64.S, `idtentry_body`).
const NO_SYSTEM_CALL: u64 = u64::MAX;

/// Registers of a thread's user code, as they were when it entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrapRegisters {
    pub pc: u64,
    pub sp: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub orig_rax: u64,
}

/// Returns the address of the instruction that a thread in the kernel goes on with.
///
/// While the kernel handles the breakpoint of an uprobe at a function, the CPU has left the program
/// counter behind the byte that stands for its first instruction. Other exceptions and interrupts
/// look the same where such a byte ends the instruction before.
#[inline(always)]
pub fn next_instruction(memory: &impl ReadWord, registers: TrapRegisters) -> u64 {
    let TrapRegisters { pc, orig_rax, .. } = registers;
    if orig_rax != NO_SYSTEM_CALL || pc % ALIGNMENT != 1 {
        return pc;
    }
    // An aligned word lies in one page.
    let is_breakpoint = memory.read_word(Avma(pc - 1)).is_some_and(|code| code & 0xff == INT3);
    if is_breakpoint && !has_pushed(memory, registers) { pc - 1 } else { pc }
}

/// Returns true if the kernel has carried out the instruction itself, a `push` of one byte by which
/// functions begin, before it lets the thread go on, or another one before it (Linux
/// arch/x86/kernel/uprobes.c, `push_emulate_op`): then the program counter is where it was, and the
/// stack has what was pushed in the return address's place.
#[inline(always)]
fn has_pushed(memory: &impl ReadWord, registers: TrapRegisters) -> bool {
    let TrapRegisters { sp, rbp, rbx, .. } = registers;
    memory.read_word(Avma(sp)).is_some_and(|top| top == rbp || top == rbx)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;
    use crate::thread_local::testing::Words;

    const FUNCTION: u64 = 0x7f00_1230;
    const RETURN: u64 = 0x7f00_9876;

    /// The function's code, and a stack with these words on its top.
    fn memory(code: u64, top: [u64; 2]) -> Words {
        Words(HashMap::from([(FUNCTION, code), (0x5000, top[0]), (0x5008, top[1])]))
    }

    fn at(pc: u64, orig_rax: u64) -> TrapRegisters {
        TrapRegisters { pc, sp: 0x5000, rbp: 0x6000, rbx: 3, orig_rax }
    }

    #[test]
    fn a_thread_at_a_breakpoint_is_at_the_instruction_that_it_stands_for() {
        let called = memory(0x1234_56cc, [RETURN, 0]);
        assert_eq!(next_instruction(&called, at(FUNCTION + 1, u64::MAX)), FUNCTION);
        assert_eq!(next_instruction(&called, at(FUNCTION + 1, 202)), FUNCTION + 1, "a system call");
        assert_eq!(next_instruction(&called, at(FUNCTION + 2, u64::MAX)), FUNCTION + 2);
        let other = memory(0x1234_5655, [RETURN, 0]);
        assert_eq!(next_instruction(&other, at(FUNCTION + 1, u64::MAX)), FUNCTION + 1, "no breakpoint");
        assert_eq!(next_instruction(&Words(HashMap::new()), at(FUNCTION + 1, u64::MAX)), FUNCTION + 1);
    }

    #[test]
    fn a_thread_whose_push_the_kernel_has_carried_out_is_behind_it() {
        let registers = at(FUNCTION + 1, u64::MAX);
        for pushed in [registers.rbp, registers.rbx] {
            let memory = memory(0x1234_56cc, [pushed, RETURN]);
            assert_eq!(next_instruction(&memory, registers), FUNCTION + 1);
        }
    }
}
