//! The stepper for native code: by the unwind row of the pc.

use super::{Cursor, Memory, is_code_address};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::rows::{CfaRule, GO_G_M, GO_G_SCHED, RaRule, RbpRule, Register, RowRules};

/// Moves the cursor to the caller by a row.
///
/// # Errors
/// [`Stop::Root`] where the row says that there is no caller; the other reasons name what could not
/// be read or followed.
#[inline(always)]
pub fn step(cursor: &mut Cursor, row: &impl RowRules, memory: &mut impl Memory) -> Result<(), Stop> {
    let here = *cursor;
    // Stacks grow down, so a caller's frame lies above: this is also what ends a walk through
    // garbage. Signal frames may return to another stack; code that holds its return address in a
    // register, or finds it below its stack pointer, may have left its frame already.
    let signal = row.is_signal();
    let ra = row.ra();
    // A root needs no CFA: hand-written entry code often has none.
    if let RaRule::Undefined = ra {
        return Err(Stop::Root);
    }
    if let RaRule::AfterClone = ra
        && register(memory, Register::RAX)? == 0
    {
        return Err(Stop::Root);
    }
    let rule = row.cfa();
    let cfa = cfa(&here, rule, memory)?;
    // Interpreted code that was handed an argument too many has popped more than its caller's stack
    // pointer says. A register is known of the interrupted frame only, so that this can't lead in
    // circles.
    let lowest = match rule {
        CfaRule::Register(_) | CfaRule::OtherStack(_) | CfaRule::Goroutine { .. } => StackAddress(0),
        _ if ra.is_left_behind() => here.sp,
        _ => here.sp + 8,
    };
    if !cfa.is_multiple_of(8) || (cfa < lowest && !signal) {
        return Err(Stop::FramePointerInvalid);
    }
    let return_address = match ra {
        RaRule::AtCfa(offset) => read(memory, add(cfa, offset))?,
        RaRule::AfterClone => read(memory, add(cfa, -8))?,
        RaRule::AtRsp(offset) => read(memory, add(here.sp, offset))?,
        RaRule::AtRbp(offset) => read(memory, add(here.fp, offset))?,
        RaRule::Register(holder) => register(memory, holder)?,
        RaRule::Undefined | RaRule::Unsupported => return Err(Stop::UnsupportedRule),
    };
    let fp = match row.rbp() {
        RbpRule::Same => here.fp,
        RbpRule::AtCfa(offset) => StackAddress(read(memory, add(cfa, offset))?),
        RbpRule::AtRsp(offset) => StackAddress(read(memory, add(here.sp, offset))?),
        RbpRule::AtRbp(offset) => StackAddress(read(memory, add(here.fp, offset))?),
        RbpRule::Undefined => StackAddress(0),
        RbpRule::Unsupported => return Err(Stop::UnsupportedRule),
    };
    if return_address == 0 {
        return Err(Stop::ChainEnded);
    }
    let return_address = Avma(return_address);
    if !is_code_address(return_address) {
        return Err(Stop::ReturnAddressInvalid);
    }
    let sp = match rule {
        CfaRule::Goroutine { .. } => StackAddress(read(memory, cfa)?),
        _ => cfa,
    };
    *cursor = Cursor { pc: return_address, sp, fp, exact: signal };
    Ok(())
}

#[inline(always)]
fn cfa(here: &Cursor, rule: CfaRule, memory: &mut impl Memory) -> Result<StackAddress, Stop> {
    // One instruction reads it, wherever it is.
    let (at, offset) = match rule {
        CfaRule::RspIndirect { at, add: offset } => (add(here.sp, at), offset),
        CfaRule::RbpIndirect { at, add: offset } => (add(here.fp, at), offset),
        CfaRule::RspIndexed { index, at, add: offset } => {
            (add(here.sp, at).wrapping_add(register(memory, index)? << 3), offset)
        }
        CfaRule::Rsp(offset) => return Ok(add(here.sp, offset)),
        CfaRule::Rbp(offset) | CfaRule::OtherStack(offset) => return Ok(add(here.fp, offset)),
        CfaRule::Plt { index_pushed } => {
            return Ok(here.sp + 8 + if here.pc.0 & 15 >= u64::from(index_pushed) { 8 } else { 0 });
        }
        CfaRule::Register(holder) => return register(memory, holder).map(StackAddress),
        CfaRule::RegisterPlus { register: holder, add: offset } => {
            return Ok(add(StackAddress(register(memory, holder)?), offset));
        }
        CfaRule::Goroutine { tls, current } => return gobuf(tls, current, memory),
        CfaRule::Unsupported => return Err(Stop::UnsupportedRule),
    };
    Ok(add(StackAddress(read(memory, at)?), offset))
}

#[inline(always)]
fn register(memory: &mut impl Memory, register: Register) -> Result<u64, Stop> {
    memory.register(register).ok_or(Stop::UnsupportedRule)
}

/// Returns where the registers of the goroutine are that this thread has left for its system stack.
#[inline(always)]
fn gobuf(tls: i32, current: i16, memory: &mut impl Memory) -> Result<StackAddress, Stop> {
    let thread = memory.thread_pointer().ok_or(Stop::UnsupportedRule)?;
    let g = object(memory, thread.wrapping_add_signed(i64::from(tls)))?;
    let m = object(memory, g.wrapping_add(GO_G_M))?;
    let goroutine = object(memory, m.wrapping_add_signed(i64::from(current)))?;
    if goroutine == Avma(0) {
        return Err(Stop::Root);
    }
    Ok(StackAddress(goroutine.wrapping_add(GO_G_SCHED).0))
}

#[inline(always)]
fn object(memory: &mut impl Memory, address: Avma) -> Result<Avma, Stop> {
    memory.read_object(address).map(Avma).ok_or(Stop::StackUnreadable)
}

#[inline(always)]
fn add(base: StackAddress, offset: i32) -> StackAddress {
    base.wrapping_add_signed(i64::from(offset))
}

#[inline(always)]
fn read(memory: &mut impl Memory, address: StackAddress) -> Result<u64, Stop> {
    memory.read_u64(address).ok_or(Stop::StackUnreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Row;

    /// A stack of words from 0x7000 on.
    struct Stack(Vec<u64>);

    impl Memory for Stack {
        fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
            let index = address.0.checked_sub(0x7000)? / 8;
            self.0.get(index as usize).copied()
        }
    }

    const RA: u64 = 0x40_1234;
    const HERE: Cursor =
        Cursor { pc: Avma(0x40_0000), sp: StackAddress(0x7000), fp: StackAddress(0x7010), exact: true };

    #[test]
    fn a_frame_without_frame_pointer_is_stepped_by_its_size() {
        let mut cursor = HERE;
        let row =
            Row { cfa: CfaRule::Rsp(32), rbp: RbpRule::AtCfa(-16), ra: RaRule::AtCfa(-8), signal: false };
        step(&mut cursor, &row, &mut Stack(vec![1, 2, 0xbeef, RA])).expect("the row fits the stack");
        assert_eq!(
            cursor,
            Cursor { pc: Avma(RA), sp: StackAddress(0x7020), fp: StackAddress(0xbeef), exact: false }
        );
    }

    #[test]
    fn a_frame_pointer_row_equals_the_frame_pointer_stepper() {
        let stack = vec![1, 2, 0x7050, RA];
        let row =
            Row { cfa: CfaRule::Rbp(16), rbp: RbpRule::AtCfa(-16), ra: RaRule::AtCfa(-8), signal: false };
        let (mut by_row, mut by_chain) = (HERE, HERE);
        step(&mut by_row, &row, &mut Stack(stack.clone())).expect("the row fits the stack");
        super::super::frame_pointer_stepper::step(&mut by_chain, &mut Stack(stack))
            .expect("the chain is whole");
        assert_eq!(by_row, by_chain);
    }

    #[test]
    fn a_plt_entry_is_one_word_longer_once_it_pushed_its_index() {
        let row = Row { cfa: CfaRule::Plt { index_pushed: 11 }, ..Row::AT_CALL };
        for (pc, index) in [(0x1000a, 0), (0x1000b, 1)] {
            let mut cursor = Cursor { pc: Avma(pc), ..HERE };
            let mut stack = vec![0xbad; 2];
            stack[index] = RA;
            step(&mut cursor, &row, &mut Stack(stack)).expect("the return address is there");
            assert_eq!((cursor.pc.0, cursor.sp.0), (RA, 0x7008 + 8 * index as u64));
        }
    }

    #[test]
    fn a_signal_frame_leads_to_the_interrupted_instruction_on_another_stack() {
        let row = Row {
            cfa: CfaRule::RspIndirect { at: 16, add: 0 },
            rbp: RbpRule::AtRsp(8),
            ra: RaRule::AtRsp(0),
            signal: true,
        };
        let mut cursor = HERE;
        step(&mut cursor, &row, &mut Stack(vec![RA, 0x6ff0, 0x6000])).expect("the context is on the stack");
        assert_eq!(
            cursor,
            Cursor { pc: Avma(RA), sp: StackAddress(0x6000), fp: StackAddress(0x6ff0), exact: true }
        );
    }

    #[test]
    fn a_switch_of_stacks_leads_down_where_the_row_says_so() {
        let row = Row { cfa: CfaRule::OtherStack(16), rbp: RbpRule::AtCfa(-16), ..Row::AT_CALL };
        let mut cursor = Cursor { sp: StackAddress(0x9000), ..HERE };
        step(&mut cursor, &row, &mut Stack(vec![0, 0, 0xbeef, RA])).expect("the frame is there");
        assert_eq!(
            cursor,
            Cursor { pc: Avma(RA), sp: StackAddress(0x7020), fp: StackAddress(0xbeef), exact: false }
        );
    }

    /// A stack, and `r9` or `rax` of the frame that was interrupted.
    struct Interrupted(Stack, Option<u64>);

    impl Memory for Interrupted {
        fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
            self.0.read_u64(address)
        }

        fn register(&self, register: Register) -> Option<u64> {
            self.1.filter(|_| [Register::R9, Register::RAX].contains(&register))
        }
    }

    #[test]
    fn a_stack_pointer_behind_an_array_is_found_by_its_length() {
        let cfa = CfaRule::RspIndexed { index: Register::R9, at: 8, add: 8 };
        let row = Row { cfa, rbp: RbpRule::AtCfa(-24), ..Row::AT_CALL };
        let stack = || Stack(vec![1, 2, 3, 0x7030, 0xbeef, 4, RA]);
        let mut cursor = HERE;
        step(&mut cursor, &row, &mut Interrupted(stack(), Some(2))).expect("the row fits the stack");
        assert_eq!(
            cursor,
            Cursor { pc: Avma(RA), sp: StackAddress(0x7038), fp: StackAddress(0xbeef), exact: false }
        );
        // What r9 was in a frame that has called is not known.
        let mut cursor = HERE;
        assert_eq!(step(&mut cursor, &row, &mut Interrupted(stack(), None)), Err(Stop::UnsupportedRule));
    }

    #[test]
    fn behind_the_system_call_that_makes_a_thread_only_the_parent_has_a_caller() {
        let row = Row { ra: RaRule::AfterClone, ..Row::AT_CALL };
        let stepped = |rax| {
            let mut cursor = HERE;
            step(&mut cursor, &row, &mut Interrupted(Stack(vec![RA]), rax)).map(|()| cursor.pc.0)
        };
        assert_eq!(stepped(Some(4711)), Ok(RA));
        assert_eq!(stepped(Some(0)), Err(Stop::Root));
        assert_eq!(stepped(None), Err(Stop::UnsupportedRule));
    }

    /// A thread of Go at `TLS`, its `g`, `m` and current goroutine below.
    struct Go(Stack);

    impl Memory for Go {
        fn read_u64(&mut self, address: StackAddress) -> Option<u64> {
            self.0.read_u64(address)
        }

        fn thread_pointer(&self) -> Option<Avma> {
            Some(Avma(0x7008))
        }
    }

    #[test]
    fn below_gos_system_stack_the_goroutine_goes_on() {
        let (rbp, ra) = (RbpRule::AtCfa(0x28), RaRule::AtCfa(8));
        let row = Row { cfa: CfaRule::Goroutine { tls: -8, current: 0x10 }, rbp, ra, signal: false };
        // Word 0 is the thread's g; g at 0x7010, its m at 0x7050, the goroutine at 0x7080.
        let mut words = vec![0; 32];
        (words[0], words[8]) = (0x7010, 0x7050);
        words[12] = 0x7080;
        (words[23], words[24], words[28]) = (0x6000, RA, 0xbeef);
        let mut cursor = Cursor { sp: StackAddress(0x9000), ..HERE };
        step(&mut cursor, &row, &mut Go(Stack(words.clone()))).expect("a goroutine");
        assert_eq!(
            cursor,
            Cursor { pc: Avma(RA), sp: StackAddress(0x6000), fp: StackAddress(0xbeef), exact: false }
        );
        words[12] = 0;
        let mut cursor = HERE;
        assert_eq!(step(&mut cursor, &row, &mut Go(Stack(words.clone()))), Err(Stop::Root));
        assert_eq!(step(&mut cursor, &row, &mut Stack(words)), Err(Stop::UnsupportedRule));
    }

    #[test]
    fn what_is_no_frame_is_named_and_leaves_the_cursor() {
        let cases = [
            (Row { ra: RaRule::Undefined, cfa: CfaRule::Unsupported, ..Row::AT_CALL }, vec![RA], Stop::Root),
            (Row { cfa: CfaRule::Unsupported, ..Row::AT_CALL }, vec![RA], Stop::UnsupportedRule),
            (Row { cfa: CfaRule::Rsp(-8), ..Row::AT_CALL }, vec![RA], Stop::FramePointerInvalid),
            (Row { cfa: CfaRule::Rsp(4), ..Row::AT_CALL }, vec![RA], Stop::FramePointerInvalid),
            (Row::AT_CALL, vec![], Stop::StackUnreadable),
            (Row::AT_CALL, vec![12], Stop::ReturnAddressInvalid),
            (Row::AT_CALL, vec![0], Stop::ChainEnded),
        ];
        for (row, stack, stop) in cases {
            let mut cursor = HERE;
            assert_eq!(step(&mut cursor, &row, &mut Stack(stack)), Err(stop), "{row:?}");
            assert_eq!(cursor, HERE);
        }
    }
}
