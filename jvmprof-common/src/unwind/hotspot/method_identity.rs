//! Identity of a method: the check value that distinguishes one tenant of a `Method`'s address from
//! the next.

use crate::address::Avma;
use crate::frame::mix;
use crate::jvm::JvmLayout;
use crate::unwind::Memory;

/// A method's identity beyond its address: where its `ConstMethod` is, and a check over what names
/// it. Class unloading lets another class's method take over the very same addresses; the check
/// then differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodIdentity {
    /// Address of the `ConstMethod`.
    pub const_method: u64,
    /// Over the addresses of `ConstMethod`, `ConstantPool`, holder and the holder's name, the
    /// method's code size, name and signature indices and idnum, and the length and last eight
    /// bytes of the holder's name.
    pub check: u64,
}

/// Reads what identifies the method at this address now.
#[inline(always)]
pub fn method_identity(method: Avma, layout: &JvmLayout, memory: &mut impl Memory) -> Option<MethodIdentity> {
    let mut field = |object: u64, offset: u16| memory.read_object(Avma(object + u64::from(offset)));
    let const_method = field(method.0, layout.method_const)?;
    let pool = field(const_method, layout.const_constants)?;
    let shape = field(const_method, layout.const_code_size)?;
    let holder = field(pool, layout.pool_holder)?;
    let name = field(holder, layout.klass_name)?;
    let length = field(name, layout.symbol_length)? & 0xffff;
    // Names of classes that take each other's place mostly differ at their ends.
    let end = if length > 8 { length } else { 8 };
    let last = memory.read_object(Avma(name + u64::from(layout.symbol_body) + end - 8))?;
    let last = if length >= 8 { last } else { last & ((1 << (length * 8)) - 1) };
    let mut check = 0xcbf2_9ce4_8422_2325;
    for word in [const_method, pool, shape, holder, name, length, last] {
        check = mix(check, word);
    }
    Some(MethodIdentity { const_method, check })
}
