//! Parser of class files: the methods' lines, and the instructions from which other methods can be
//! reached.

use std::collections::HashMap;

use anyhow::Context as _;
use noak::error::DecodeError;
use noak::reader::attributes::{AttributeContent, Code, RawInstruction};
use noak::reader::cpool::{self, ConstantPool, Index, Item};
use noak::reader::{Class as Reader, Method as MethodReader};
use noak::{AccessFlags, MStr};

/// A class. Names are internal ones: `java/lang/String`.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) name: String,
    pub(super) super_class: Option<String>,
    pub(super) interfaces: Vec<String>,
    pub(super) is_interface: bool,
    /// The `SourceFile` attribute.
    pub(super) source: Option<String>,
    /// Overloads of each name.
    pub(super) methods: HashMap<String, Vec<Method>>,
}

/// A method with those of its instructions that can reach other methods.
#[derive(Debug, Default)]
pub(super) struct Method {
    pub(super) descriptor: String,
    pub(super) is_native: bool,
    /// First bytecode index and line, in the order of the file. Empty without a `LineNumberTable`.
    lines: Vec<(u32, u32)>,
    instructions: Vec<(u32, Instruction)>,
}

/// A place in a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodPlace {
    Anywhere,
    Line(u32),
    /// The instruction at this bytecode index.
    Bytecode(u32),
}

/// An instruction that can lead to other Java code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Invoke {
        kind: InvokeKind,
        class: String,
        name: String,
        descriptor: String,
    },
    InvokeDynamic,
    /// Instructions `new`, `getstatic`, `putstatic`: the class is initialised.
    Initialise(String),
    /// Instructions `checkcast`, `instanceof`, `anewarray`, `getfield` and their like: the class is
    /// resolved, so perhaps loaded.
    Resolve(String),
    /// Instruction `ldc` of a class, a method handle, a method type or a dynamic constant.
    LoadConstant,
    /// Instructions that may make the JVM throw one of these exceptions (`java/lang/...`).
    Throws(&'static [&'static str]),
}

/// The instruction by which a method is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InvokeKind {
    Virtual,
    Special,
    Static,
    Interface,
}

impl Class {
    /// Parses a class file.
    ///
    /// # Errors
    /// It isn't well-formed.
    pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        Self::read(bytes).context("parsing a class file")
    }

    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let class = Reader::new(bytes)?;
        let pool = class.pool();
        let mut methods: HashMap<String, Vec<Method>> = HashMap::new();
        for method in class.methods() {
            let method = method?;
            let name = text(pool.retrieve(method.name())?);
            methods.entry(name).or_default().push(read_method(&method, pool)?);
        }
        let super_class = class.super_class().map(|index| pool.retrieve(index)).transpose()?;
        let interfaces: Result<Vec<String>, DecodeError> =
            class.interfaces().iter().map(|index| Ok(text(pool.retrieve(index?)?.name))).collect();
        Ok(Self {
            name: text(pool.retrieve(class.this_class())?.name),
            super_class: super_class.map(|class| text(class.name)),
            interfaces: interfaces?,
            is_interface: class.access_flags().contains(AccessFlags::INTERFACE),
            source: read_source(&class)?,
            methods,
        })
    }
}

fn read_source(class: &Reader<'_>) -> Result<Option<String>, DecodeError> {
    let pool = class.pool();
    for attribute in class.attributes() {
        let attribute = attribute?;
        if pool.retrieve(attribute.name())?.as_bytes() == b"SourceFile"
            && let AttributeContent::SourceFile(source) = attribute.read_content(pool)?
        {
            return Ok(Some(text(pool.retrieve(source.source_file())?)));
        }
    }
    Ok(None)
}

impl Method {
    pub(super) fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(super) fn has_line(&self, line: u32) -> bool {
        self.lines.iter().any(|(_, of)| *of == line)
    }

    /// Returns the instructions at a place.
    pub(super) fn instructions_at(&self, place: MethodPlace) -> impl Iterator<Item = &Instruction> {
        let here = move |bci: u32| match place {
            MethodPlace::Anywhere => true,
            MethodPlace::Line(line) => self.line_of(bci) == Some(line),
            MethodPlace::Bytecode(at) => bci == at,
        };
        self.instructions.iter().filter(move |(bci, _)| here(*bci)).map(|(_, instruction)| instruction)
    }

    /// Returns the line of a bytecode index as HotSpot does: the first entry that begins here, else
    /// the last of those that begin nearest before (`openjdk jdk-21
    /// src/hotspot/share/oops/method.cpp` `Method::line_number_from_bci`).
    fn line_of(&self, bci: u32) -> Option<u32> {
        let exact = self.lines.iter().find(|(start, _)| *start == bci);
        let nearest = || self.lines.iter().filter(|(start, _)| *start < bci).max_by_key(|(start, _)| *start);
        exact.or_else(nearest).map(|(_, line)| *line)
    }
}

fn text(name: &MStr) -> String {
    name.display().to_string()
}

fn read_method<'a>(method: &MethodReader<'a>, pool: &ConstantPool<'a>) -> Result<Method, DecodeError> {
    let mut read = Method {
        descriptor: text(pool.retrieve(method.descriptor())?),
        is_native: method.access_flags().contains(AccessFlags::NATIVE),
        ..Method::default()
    };
    for attribute in method.attributes() {
        let attribute = attribute?;
        if pool.retrieve(attribute.name())?.as_bytes() == b"Code"
            && let AttributeContent::Code(code) = attribute.read_content(pool)?
        {
            read_code(&code, pool, &mut read)?;
        }
    }
    Ok(read)
}

fn read_code<'a>(code: &Code<'a>, pool: &ConstantPool<'a>, method: &mut Method) -> Result<(), DecodeError> {
    for attribute in code.attributes() {
        let attribute = attribute?;
        if pool.retrieve(attribute.name())?.as_bytes() == b"LineNumberTable" {
            // noak 0.7 takes the start of an entry for four bytes; it has two.
            let pairs = attribute.content().get(2..).unwrap_or_default().chunks_exact(4);
            let number = |high: u8, low: u8| u32::from(u16::from_be_bytes([high, low]));
            method.lines.extend(pairs.map(|pair| (number(pair[0], pair[1]), number(pair[2], pair[3]))));
        }
    }
    for instruction in code.raw_instructions() {
        let (bci, instruction) = instruction?;
        if let Some(instruction) = read_instruction(&instruction, pool)? {
            method.instructions.push((bci.as_u32(), instruction));
        }
    }
    Ok(())
}

const NULL: &[&str] = &["NullPointerException"];
const ARRAY: &[&str] = &["NullPointerException", "ArrayIndexOutOfBoundsException"];
const ARRAY_STORE: &[&str] =
    &["NullPointerException", "ArrayIndexOutOfBoundsException", "ArrayStoreException"];
const ARITHMETIC: &[&str] = &["ArithmeticException"];
const ARRAY_SIZE: &[&str] = &["NegativeArraySizeException"];
const MONITOR: &[&str] = &["NullPointerException", "IllegalMonitorStateException"];

fn read_instruction<'a>(
    raw: &RawInstruction<'a>,
    pool: &ConstantPool<'a>,
) -> Result<Option<Instruction>, DecodeError> {
    use RawInstruction as Raw;
    let class = |index: Index<cpool::Class<'a>>| -> Result<String, DecodeError> {
        Ok(text(pool.retrieve(index)?.name))
    };
    Ok(Some(match raw {
        Raw::InvokeVirtual { index } => {
            let method = pool.retrieve(*index)?;
            invoke(InvokeKind::Virtual, method.class.name, &method.name_and_type)
        }
        Raw::InvokeInterface { index, .. } => {
            let method = pool.retrieve(*index)?;
            invoke(InvokeKind::Interface, method.class.name, &method.name_and_type)
        }
        Raw::InvokeSpecial { index } => return invoke_item(InvokeKind::Special, *index, pool),
        Raw::InvokeStatic { index } => return invoke_item(InvokeKind::Static, *index, pool),
        Raw::InvokeDynamic { .. } => Instruction::InvokeDynamic,
        Raw::New { index } => Instruction::Initialise(class(*index)?),
        Raw::GetStatic { index } | Raw::PutStatic { index } => {
            Instruction::Initialise(text(pool.retrieve(*index)?.class.name))
        }
        Raw::GetField { index } | Raw::PutField { index } => {
            Instruction::Resolve(text(pool.retrieve(*index)?.class.name))
        }
        Raw::CheckCast { index }
        | Raw::InstanceOf { index }
        | Raw::ANewArray { index }
        | Raw::MultiANewArray { index, .. } => Instruction::Resolve(class(*index)?),
        Raw::LdC { index } | Raw::LdCW { index } | Raw::LdC2W { index } => match pool.get(*index)? {
            Item::Class(_) | Item::MethodHandle(_) | Item::MethodType(_) | Item::Dynamic(_) => {
                Instruction::LoadConstant
            }
            _ => return Ok(None),
        },
        Raw::IDiv | Raw::IRem | Raw::LDiv | Raw::LRem => Instruction::Throws(ARITHMETIC),
        Raw::NewArray { .. } => Instruction::Throws(ARRAY_SIZE),
        Raw::ArrayLength | Raw::AThrow => Instruction::Throws(NULL),
        Raw::MonitorEnter | Raw::MonitorExit => Instruction::Throws(MONITOR),
        Raw::AAStore => Instruction::Throws(ARRAY_STORE),
        Raw::AALoad
        | Raw::BALoad
        | Raw::BAStore
        | Raw::CALoad
        | Raw::CAStore
        | Raw::DALoad
        | Raw::DAStore
        | Raw::FALoad
        | Raw::FAStore
        | Raw::IALoad
        | Raw::IAStore
        | Raw::LALoad
        | Raw::LAStore
        | Raw::SALoad
        | Raw::SAStore => Instruction::Throws(ARRAY),
        _ => return Ok(None),
    }))
}

fn invoke(
    kind: InvokeKind,
    class: &MStr,
    target: &noak::reader::cpool::value::NameAndType<'_>,
) -> Instruction {
    Instruction::Invoke {
        kind,
        class: text(class),
        name: text(target.name),
        descriptor: text(target.descriptor),
    }
}

/// Returns the method that `invokespecial` or `invokestatic` names, of a class or of an interface.
fn invoke_item<'a>(
    kind: InvokeKind,
    index: Index<Item<'a>>,
    pool: &ConstantPool<'a>,
) -> Result<Option<Instruction>, DecodeError> {
    let (class, target) = match pool.get(index)? {
        Item::MethodRef(method) => (method.class, method.name_and_type),
        Item::InterfaceMethodRef(method) => (method.class, method.name_and_type),
        _ => return Ok(None),
    };
    Ok(Some(invoke(kind, pool.retrieve(class)?.name, &pool.retrieve(target)?)))
}
