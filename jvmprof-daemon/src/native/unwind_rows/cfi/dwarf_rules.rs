//! Conversion of a row of DWARF to one that the unwinder can follow.
//!
//! Register numbers: System V ABI AMD64 supplement, figure 3.36.

use gimli::{
    CommonInformationEntry, Operation, Reader, RegisterRule, UnwindExpression, UnwindSection, UnwindTableRow,
    X86_64,
};
use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Register, Row};
use smallvec::SmallVec;

/// Longest expression that is parsed; the longest of those that compilers and linkers write (the
/// PLT's) has nine operations.
const MAX_OPERATIONS: usize = 10;

pub(crate) fn row<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    row: &UnwindTableRow<usize>,
    cie: &CommonInformationEntry<R>,
    section: &S,
) -> Row {
    let read = |expression: &UnwindExpression<usize>| operations(expression, cie, section);
    let cfa = cfa(row, read);
    let rbp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => RbpRule::Same,
        Some(RegisterRule::Undefined) => RbpRule::Undefined,
        Some(RegisterRule::Offset(offset)) => {
            i32::try_from(offset).map_or(RbpRule::Unsupported, RbpRule::AtCfa)
        }
        Some(RegisterRule::Expression(expression)) => match address(&read(&expression)) {
            Some((X86_64::RSP, offset)) => RbpRule::AtRsp(offset),
            Some((X86_64::RBP, offset)) => RbpRule::AtRbp(offset),
            _ => RbpRule::Unsupported,
        },
        Some(_) => RbpRule::Unsupported,
    };
    let ra = match row.register(X86_64::RA) {
        _ if cie.return_address_register() != X86_64::RA => RaRule::Unsupported,
        Some(RegisterRule::Undefined) => RaRule::Undefined,
        Some(RegisterRule::Offset(offset)) => {
            i32::try_from(offset).map_or(RaRule::Unsupported, RaRule::AtCfa)
        }
        Some(RegisterRule::Expression(expression)) => match address(&read(&expression)) {
            Some((X86_64::RSP, offset)) => RaRule::AtRsp(offset),
            _ => RaRule::Unsupported,
        },
        Some(RegisterRule::Register(register)) => {
            general(register).map_or(RaRule::Unsupported, RaRule::Register)
        }
        _ => RaRule::Unsupported,
    };
    Row { cfa, rbp, ra, signal: cie.is_signal_trampoline() }
}

fn cfa(
    row: &UnwindTableRow<usize>,
    read: impl Fn(&UnwindExpression<usize>) -> SmallVec<[Op; MAX_OPERATIONS]>,
) -> CfaRule {
    let rule = match row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => match (*register, i32::try_from(*offset)) {
            (X86_64::RSP, Ok(offset)) => CfaRule::Rsp(offset),
            (X86_64::RBP, Ok(offset)) => CfaRule::Rbp(offset),
            (register, Ok(add)) => general(register)
                .map_or(CfaRule::Unsupported, |register| CfaRule::RegisterPlus { register, add }),
            _ => CfaRule::Unsupported,
        },
        gimli::CfaRule::Expression(expression) => cfa_expression(&read(expression)),
    };
    // The caller's rsp is the CFA, unless the row has another rule.
    let stack_is_cfa = match row.register(X86_64::RSP) {
        None | Some(RegisterRule::ValOffset(0)) => true,
        Some(RegisterRule::Expression(expression)) => match (address(&read(&expression)), rule) {
            (Some((X86_64::RSP, saved)), CfaRule::RspIndirect { at, add: 0 }) => saved == at,
            _ => false,
        },
        Some(_) => false,
    };
    if stack_is_cfa { rule } else { CfaRule::Unsupported }
}

/// Returns a general-purpose register by its number in instruction encodings.
pub(crate) fn general(register: gimli::Register) -> Option<Register> {
    // rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, then r8 to r15.
    const ENCODED: [u8; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
    ENCODED.get(usize::from(register.0)).copied().map(Register)
}

fn cfa_expression(operations: &[Op]) -> CfaRule {
    match *operations {
        [Op::Register(X86_64::RSP, offset)] => CfaRule::Rsp(offset),
        [Op::Register(X86_64::RBP, offset)] => CfaRule::Rbp(offset),
        [Op::Register(register, at), Op::Deref, ref rest @ ..] => {
            let add = match *rest {
                [] => 0,
                [Op::Add(add)] => add,
                _ => return CfaRule::Unsupported,
            };
            match register {
                X86_64::RSP => CfaRule::RspIndirect { at, add },
                X86_64::RBP => CfaRule::RbpIndirect { at, add },
                _ => CfaRule::Unsupported,
            }
        }
        // openssl crypto/bn/asm/x86_64-mont.pl.
        [
            Op::Register(X86_64::RSP, at),
            Op::Register(index, 0),
            Op::Constant(8),
            Op::Multiply,
            Op::Plus,
            Op::Deref,
            Op::Add(add),
        ] => general(index).map_or(CfaRule::Unsupported, |index| CfaRule::RspIndexed { index, at, add }),
        // binutils bfd/elf64-x86-64.c, elf_x86_64_eh_frame_lazy_plt and its variants.
        [
            Op::Register(X86_64::RSP, 8),
            Op::Register(X86_64::RA, 0),
            Op::Constant(15),
            Op::And,
            Op::Constant(index_pushed @ 0..=15),
            Op::GreaterOrEqual,
            Op::Constant(3),
            Op::ShiftLeft,
            Op::Plus,
        ] => CfaRule::Plt { index_pushed: index_pushed as u8 },
        _ => CfaRule::Unsupported,
    }
}

/// Returns the register and offset whose sum is the expression's value.
fn address(operations: &[Op]) -> Option<(gimli::Register, i32)> {
    match *operations {
        [Op::Register(register, offset)] => Some((register, offset)),
        _ => None,
    }
}

/// The operations that known expressions consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// The register's value plus an offset.
    Register(gimli::Register, i32),
    Constant(u64),
    Add(i32),
    Deref,
    And,
    GreaterOrEqual,
    ShiftLeft,
    Multiply,
    Plus,
    Other,
}

fn operations<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    expression: &UnwindExpression<usize>,
    cie: &CommonInformationEntry<R>,
    section: &S,
) -> SmallVec<[Op; MAX_OPERATIONS]> {
    let Ok(expression) = expression.get(section) else { return SmallVec::new() };
    let mut list = SmallVec::new();
    let mut operations = expression.operations(cie.encoding());
    while list.len() < MAX_OPERATIONS {
        match operations.next() {
            Ok(Some(operation)) => list.push(Op::from(operation)),
            Ok(None) => break,
            Err(_) => list.push(Op::Other),
        }
    }
    list
}

impl<R: Reader<Offset = usize>> From<Operation<R>> for Op {
    fn from(operation: Operation<R>) -> Self {
        match operation {
            Operation::RegisterOffset { register, offset, base_type: gimli::UnitOffset(0) } => {
                i32::try_from(offset).map_or(Self::Other, |offset| Self::Register(register, offset))
            }
            Operation::UnsignedConstant { value } => Self::Constant(value),
            Operation::PlusConstant { value } => i32::try_from(value).map_or(Self::Other, Self::Add),
            Operation::Deref { base_type: gimli::UnitOffset(0), size: 8, space: false } => Self::Deref,
            Operation::And => Self::And,
            Operation::Ge => Self::GreaterOrEqual,
            Operation::Shl => Self::ShiftLeft,
            Operation::Mul => Self::Multiply,
            Operation::Plus => Self::Plus,
            _ => Self::Other,
        }
    }
}
