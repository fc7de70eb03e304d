//! Rows of hand-assembled code in the patterns that HotSpot generates.

use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Register, Row};

use super::*;

const BASE: Avma = Avma(0x7f00_0000_1000);

/// Instructions by their bytes.
fn code(instructions: &[&[u8]]) -> Vec<u8> {
    instructions.concat()
}

fn analyze(code: &[u8], base: Avma, kind: BlobKind, seeds: &[Avma]) -> Vec<RowSpan> {
    analyze_piece(code, base, kind, seeds).0
}

/// The row before each of the instructions.
fn rows(kind: BlobKind, instructions: &[&[u8]]) -> Vec<Option<Row>> {
    let spans = analyze(&code(instructions), BASE, kind, &[]);
    let mut at = BASE.0;
    let starts = instructions.iter().map(|bytes| {
        let start = at;
        at += bytes.len() as u64;
        start
    });
    starts.map(|start| row_at(&spans, start)).collect()
}

fn row_at(spans: &[RowSpan], address: u64) -> Option<Row> {
    let behind = spans.partition_point(|span| span.start.0 <= address);
    spans[behind - 1].row
}

fn row(cfa: CfaRule, ra: RaRule, rbp: RbpRule) -> Option<Row> {
    Some(Row { cfa, ra, rbp, signal: false })
}

/// The row of a frame without frame pointer whose return address is `bytes` - 8 above `rsp`.
fn by_rsp(bytes: i32) -> Option<Row> {
    row(CfaRule::Rsp(bytes), RaRule::AtCfa(-8), RbpRule::Same)
}

const BY_RBP: Option<Row> =
    Some(Row { cfa: CfaRule::Rbp(16), ra: RaRule::AtCfa(-8), rbp: RbpRule::AtCfa(-16), signal: false });

const INTERPRETED: Option<Row> = Some(Row {
    cfa: CfaRule::RbpIndirect { at: -8, add: 0 },
    ra: RaRule::AtRbp(8),
    rbp: RbpRule::AtRbp(0),
    signal: false,
});

const PUSH_RBP: &[u8] = &[0x55];
const MOV_RBP_RSP: &[u8] = &[0x48, 0x8b, 0xec];
const LEAVE: &[u8] = &[0xc9];
const RET: &[u8] = &[0xc3];
const AND_RSP_16: &[u8] = &[0x48, 0x83, 0xe4, 0xf0];
/// To far outside the code.
const CALL: &[u8] = &[0xe8, 0, 0, 0, 0x10];
const JMP_RAX: &[u8] = &[0xff, 0xe0];

#[test]
fn a_frame_pointer_carries_over_unknown_moves_of_the_stack_pointer() {
    let found = rows(
        BlobKind::Stub,
        &[PUSH_RBP, MOV_RBP_RSP, AND_RSP_16, &[0x48, 0x2b, 0xe0] /* sub rsp, rax */, CALL, LEAVE, RET],
    );
    let called = Some(Row::AT_CALL);
    assert_eq!(found, [called, by_rsp(16), BY_RBP, BY_RBP, BY_RBP, BY_RBP, called]);
}

#[test]
fn frames_without_frame_pointer_are_counted_through_both_ways_of_a_branch() {
    let found = rows(
        BlobKind::Stub,
        &[
            &[0x53],                   // push rbx
            &[0x48, 0x83, 0xec, 0x20], // sub rsp, 0x20
            &[0x48, 0x85, 0xc0],       // test rax, rax
            &[0x74, 0x06],             // je to the pop
            &[0x48, 0x83, 0xc4, 0x20], // add rsp, 0x20
            &[0x5b],                   // pop rbx
            RET,
            &[0x48, 0x8d, 0x64, 0x24, 0x20], // lea rsp, [rsp+0x20]
            &[0x5b],                         // pop rbx
            RET,
        ],
    );
    let bytes = [8, 16, 48, 48, 48, 16, 8, 48, 16, 8];
    assert_eq!(found, bytes.map(by_rsp));
}

#[test]
fn ways_that_disagree_leave_nothing_known_behind_them() {
    let found = rows(
        BlobKind::Stub,
        &[
            &[0x74, 0x01], // je over the push
            &[0x50],       // push rax
            &[0x90],       // nop
            JMP_RAX,
        ],
    );
    assert_eq!(found, [by_rsp(8), by_rsp(8), None, None]);
}

#[test]
fn an_interpreted_methods_entry_is_followed_until_its_frame_is_whole() {
    let r13 = CfaRule::Register(Register::R13);
    let in_rax = RaRule::Register(Register::RAX);
    let found = rows(
        BlobKind::InterpreterEntry,
        &[
            &[0x58],                         // pop rax
            &[0x4c, 0x8d, 0x74, 0xcc, 0xf8], // lea r14, [rsp+rcx*8-8]
            &[0x85, 0xd2],                   // test edx, edx
            &[0x7e, 0x06],                   // jle over the loop
            &[0x6a, 0x00],                   // push 0
            &[0xff, 0xca],                   // dec edx
            &[0x7f, 0xfa],                   // jg back to the push
            &[0x50],                         // push rax
            PUSH_RBP,
            MOV_RBP_RSP,
            &[0x41, 0x55], // push r13
            &[0x53],       // push rbx
            JMP_RAX,
        ],
    );
    let popped = row(r13, in_rax, RbpRule::Same);
    assert_eq!(found[0], row(r13, RaRule::AtRsp(0), RbpRule::Same));
    assert_eq!(found[1..8], [popped; 7]);
    assert_eq!(found[8], row(r13, RaRule::AtRsp(0), RbpRule::Same));
    assert_eq!(found[9], row(r13, RaRule::AtRsp(8), RbpRule::Same));
    assert_eq!(found[10], row(r13, RaRule::AtRbp(8), RbpRule::AtRbp(0)));
    assert_eq!(found[11..], [INTERPRETED; 2]);
}

#[test]
fn an_interpreted_frame_is_followed_as_it_is_taken_down() {
    let found = rows(
        BlobKind::InterpreterFrame,
        &[
            &[0x50],                   // push rax
            &[0x48, 0x8b, 0x5d, 0xf8], // mov rbx, [rbp-8]
            LEAVE,
            &[0x41, 0x5d],       // pop r13
            &[0x48, 0x8b, 0xe3], // mov rsp, rbx
            &[0x41, 0xff, 0xe5], // jmp r13
        ],
    );
    let in_rbx = CfaRule::Register(Register::RBX);
    let in_r13 = RaRule::Register(Register::R13);
    assert_eq!(found[..3], [INTERPRETED; 3]);
    assert_eq!(found[3], row(in_rbx, RaRule::AtRsp(0), RbpRule::Same));
    assert_eq!(found[4], row(in_rbx, in_r13, RbpRule::Same));
    assert_eq!(found[5], row(CfaRule::Rsp(0), in_r13, RbpRule::Same));
}

#[test]
fn a_call_within_the_interpreter_stays_in_its_frame() {
    let found = rows(
        BlobKind::InterpreterFrame,
        &[
            &[0xe8, 0x02, 0, 0, 0], // call over the jump
            JMP_RAX,
            &[0x48, 0x8d, 0x44, 0x24, 0x08], // lea rax, [rsp+8]
            CALL,
            RET,
        ],
    );
    assert_eq!(found, [INTERPRETED; 5]);
}

#[test]
fn a_c2i_adapter_moves_the_return_address_below_the_arguments() {
    let found = rows(
        BlobKind::Adapter,
        &[
            &[0x48, 0x8b, 0x04, 0x24], // i2c: mov rax, [rsp]
            &[0x4c, 0x8b, 0xdc],       // mov r11, rsp
            AND_RSP_16,
            &[0x50],                         // push rax
            &[0x41, 0xff, 0xe3],             // jmp r11
            &[0x58],                         // c2i: pop rax
            &[0x4c, 0x8b, 0xec],             // mov r13, rsp
            &[0x48, 0x83, 0xec, 0x20],       // sub rsp, 0x20
            &[0x48, 0x89, 0x04, 0x24],       // mov [rsp], rax
            &[0x48, 0x89, 0x74, 0x24, 0x18], // mov [rsp+0x18], rsi
            JMP_RAX,
        ],
    );
    assert_eq!(found[..3], [by_rsp(8); 3]);
    assert_eq!(found[3], row(CfaRule::Register(Register::R13), RaRule::AtCfa(-8), RbpRule::Same));
    assert_eq!(found[4..6], [by_rsp(8); 2], "to the compiled callee this is any call");
    let in_rax = RaRule::Register(Register::RAX);
    assert_eq!(found[6..8], [row(CfaRule::Rsp(0), in_rax, RbpRule::Same); 2]);
    assert_eq!(found[8], row(CfaRule::Rsp(0x20), in_rax, RbpRule::Same));
    assert_eq!(found[9..], [row(CfaRule::Rsp(0x20), RaRule::AtCfa(-0x20), RbpRule::Same); 2]);
}

#[test]
fn a_c2i_adapter_that_pushes_the_return_address_has_its_caller_above_the_arguments() {
    // JDK 25.
    let found = rows(
        BlobKind::Adapter,
        &[
            JMP_RAX,                         // the i2c entry
            &[0x4c, 0x8d, 0x6c, 0x24, 0x08], // c2i: lea r13, [rsp + 8]
            &[0x58],                         // pop rax
            &[0x48, 0x83, 0xec, 0x40],       // sub rsp, 0x40
            &[0x50],                         // push rax
            &[0x48, 0x89, 0x74, 0x24, 0x40], // mov [rsp + 0x40], rsi
            JMP_RAX,
        ],
    );
    let in_rax = RaRule::Register(Register::RAX);
    assert_eq!(found[1..3], [by_rsp(8); 2]);
    assert_eq!(found[3], row(CfaRule::Rsp(0), in_rax, RbpRule::Same));
    assert_eq!(found[4], row(CfaRule::Rsp(0x40), in_rax, RbpRule::Same));
    assert_eq!(found[5..], [row(CfaRule::Rsp(0x48), RaRule::AtCfa(-0x48), RbpRule::Same); 2]);
}

#[test]
fn an_adapters_saved_stack_pointer_leads_out_of_the_call_that_patches_the_caller() {
    let found = rows(
        BlobKind::Adapter,
        &[
            JMP_RAX,                            // the i2c entry
            &[0x4c, 0x8b, 0xec],                // mov r13, rsp
            AND_RSP_16,                         // compiled callers keep the stack aligned: 8 bytes
            &[0x9c],                            // pushfq
            &[0x48, 0x81, 0xec, 0x80, 0, 0, 0], // sub rsp, 0x80
            CALL,
            &[0x49, 0x8b, 0xe5], // mov rsp, r13
            &[0x58],             // pop rax
            JMP_RAX,
        ],
    );
    let bytes = [8, 8, 8, 16, 24, 152, 152, 8];
    assert_eq!(found[..8], bytes.map(by_rsp));
}

#[test]
fn an_exception_blob_is_entered_with_the_throwing_address_in_rdx() {
    let found = rows(
        BlobKind::Exception,
        &[
            &[0x52],                   // push rdx
            &[0x48, 0x83, 0xec, 0x08], // sub rsp, 8
            &[0x48, 0x89, 0x2c, 0x24], // mov [rsp], rbp
            AND_RSP_16,
            CALL,
            &[0x48, 0x8b, 0x2c, 0x24], // mov rbp, [rsp]
            JMP_RAX,
        ],
    );
    assert_eq!(found[0], row(CfaRule::Rsp(0), RaRule::Register(Register(2)), RbpRule::Same));
    assert_eq!(found[1], by_rsp(8));
    assert_eq!(found[2..], [by_rsp(16); 5]);
}

/// Nothing is written to its place between taking it off the stack and leaving the code.
#[test]
fn a_return_address_that_was_taken_off_the_stack_is_still_below_it() {
    let found = rows(
        BlobKind::Exception,
        &[
            &[0x52], // push rdx
            PUSH_RBP,
            &[0x48, 0x83, 0xc4, 0x10],          // add rsp, 16
            &[0x4c, 0x8b, 0xc0],                // mov r8, rax
            &[0x49, 0x8b, 0x97, 0x88, 4, 0, 0], // mov rdx, [r15+0x488]
            CALL,
            &[0x50], // push rax
            JMP_RAX,
        ],
    );
    assert_eq!(found[2], by_rsp(16));
    assert_eq!(found[3], row(CfaRule::Rsp(0), RaRule::Register(Register(2)), RbpRule::Same));
    assert_eq!(found[4], found[3]);
    assert_eq!(found[5], row(CfaRule::Rsp(0), RaRule::AtRsp(-8), RbpRule::Same));
    assert_eq!(found[6..], [None; 2], "a function was called, or something pushed");
}

#[test]
fn a_safepoint_poll_has_a_return_address_once_it_is_stored() {
    let found = rows(
        BlobKind::Safepoint,
        &[
            &[0x53], // push rbx
            PUSH_RBP,
            MOV_RBP_RSP,
            &[0x49, 0x8b, 0x5f, 0x40], // mov rbx, [r15+0x40]
            &[0x48, 0x89, 0x5d, 0x08], // mov [rbp+8], rbx
            CALL,
            LEAVE,
            RET,
        ],
    );
    assert_eq!(found[..5], [None; 5]);
    assert_eq!(found[5..], [BY_RBP, BY_RBP, by_rsp(8)]);
}

/// Code by which JDK 25 puts interpreted frames in place of a compiled one, from where that is gone
/// to where they are filled.
const REPLACE_FRAMES: &[&[u8]] = &[
    &[0x8b, 0x0f],                                                 // mov ecx, [rdi]
    &[0x48, 0x03, 0xe1],                                           // add rsp, rcx
    &[0x48, 0x8b, 0x6f, 0x30],                                     // mov rbp, [rdi+0x30]
    &[0x48, 0x8b, 0x4f, 0x18],                                     // mov rcx, [rdi+0x18]
    &[0x48, 0x83, 0xc4, 0x08],                                     // add rsp, 0x8
    &[0x48, 0x8b, 0x77, 0x10],                                     // mov rsi, [rdi+0x10]
    &[0x8b, 0x57, 0x08],                                           // mov edx, [rdi+0x8]
    &[0x4c, 0x8b, 0xc4],                                           // mov r8, rsp
    &[0x8b, 0x5f, 0x04],                                           // mov ebx, [rdi+0x4]
    &[0x48, 0x2b, 0xe3],                                           // sub rsp, rbx
    &[0x48, 0x8b, 0x1e],                                           // mov rbx, [rsi]
    &[0x48, 0x83, 0xeb, 0x10],                                     // sub rbx, 0x10
    &[0x48, 0xff, 0x31],                                           // push [rcx]
    &[0x55],                                                       // push rbp
    &[0x48, 0x8b, 0xec],                                           // mov rbp, rsp
    &[0x48, 0x2b, 0xe3],                                           // sub rsp, rbx
    &[0x48, 0xc7, 0x45, 0xf0, 0x00, 0x00, 0x00, 0x00],             // mov [rbp-0x10], 0x0
    &[0x4c, 0x89, 0x45, 0xf8],                                     // mov [rbp-0x8], r8
    &[0x4c, 0x8b, 0xc4],                                           // mov r8, rsp
    &[0x48, 0x83, 0xc6, 0x08],                                     // add rsi, 0x8
    &[0x48, 0x83, 0xc1, 0x08],                                     // add rcx, 0x8
    &[0xff, 0xca],                                                 // dec edx
    &[0x75, 0xd4],                                                 // jne to the load of rbx
    &[0x48, 0xff, 0x31],                                           // push [rcx]
    &[0x55],                                                       // push rbp
    &[0x48, 0x8b, 0xec],                                           // mov rbp, rsp
    &[0x48, 0x81, 0xec, 0x10, 0x0b, 0x00, 0x00],                   // sub rsp, 0xb10
    &[0xc5, 0xfb, 0x11, 0x84, 0x24, 0xa0, 0x00, 0x00, 0x00],       // vmovsd [rsp+0xa0], xmm0
    &[0x48, 0x89, 0x84, 0x24, 0xf8, 0x0a, 0x00, 0x00],             // mov [rsp+0xaf8], rax
    &[0xc5, 0xf8, 0x77],                                           // vzeroupper
    &[0x49, 0x89, 0xaf, 0x90, 0x04, 0x00, 0x00],                   // mov [r15+0x490], rbp
    &[0x49, 0xba, 0x8f, 0x0b, 0x45, 0x8c, 0x9b, 0x7f, 0x00, 0x00], // movabs r10, 0x7f9b8c450b8f
    &[0x4d, 0x89, 0x97, 0x88, 0x04, 0x00, 0x00],                   // mov [r15+0x488], r10
    &[0x49, 0x89, 0xa7, 0x80, 0x04, 0x00, 0x00],                   // mov [r15+0x480], rsp
    &[0x48, 0x83, 0xe4, 0xf0],                                     // and rsp, -16
    &[0x49, 0x8b, 0xff],                                           // mov rdi, r15
    &[0x41, 0x8b, 0xf6],                                           // mov esi, r14d
    &[0xe8, 0x00, 0xfd, 0x74, 0x10],                               // call Deoptimization::unpack_frames
];

#[test]
fn frames_that_deoptimization_pushes_are_walked_by_their_frame_pointers() {
    let found = rows(BlobKind::UncommonTrap, &[REPLACE_FRAMES, &[LEAVE, RET]].concat());
    let in_r8 = CfaRule::Register(Register(8));
    assert_eq!(found[2..13], [None; 11], "the caller's pc is in the list of them alone");
    // The caller's stack pointer is in r8, further away than the end of the frame if the caller was
    // compiled.
    assert_eq!(found[13], row(in_r8, RaRule::AtRsp(0), RbpRule::Same));
    assert_eq!(found[14], row(in_r8, RaRule::AtRsp(8), RbpRule::Same));
    assert_eq!(found[15..18], [row(in_r8, RaRule::AtRbp(8), RbpRule::AtRbp(0)); 3]);
    assert_eq!(found[18..24], [INTERPRETED; 6]);
    // The stub's own frame returns to the youngest of them.
    assert_eq!(found[24..26], [by_rsp(8), by_rsp(16)]);
    assert_eq!(found[26..39], [BY_RBP; 13]);
    assert_eq!(found[39], by_rsp(8));
}

#[test]
fn a_frame_in_place_of_another_is_not_walked_without_its_callers_stack_pointer() {
    let found = rows(
        BlobKind::UncommonTrap,
        &[
            &[0x48, 0x03, 0xe1], // add rsp, rcx: the compiled frame is gone
            &[0xff, 0x31],       // push [rcx]
            PUSH_RBP,
            MOV_RBP_RSP,
            CALL,
            LEAVE,
            RET,
        ],
    );
    assert_eq!(found[1..], [None; 6]);
}

#[test]
fn an_exceptions_deoptimization_has_a_return_address_once_it_is_stored() {
    let found = rows(
        BlobKind::Deoptimization,
        &[
            &[0x49, 0x89, 0x97, 0xe8, 0x05, 0, 0], // mov [r15+0x5e8], rdx
            &[0x6a, 0x00],                         // push 0: the other entry, with anything in rdx
            PUSH_RBP,
            MOV_RBP_RSP,
            &[0x52],                               // push rdx
            &[0x49, 0x8b, 0x97, 0xe8, 0x05, 0, 0], // mov rdx, [r15+0x5e8]
            &[0x48, 0x89, 0x55, 0x08],             // mov [rbp+8], rdx
            CALL,
            LEAVE,
            RET,
        ],
    );
    assert_eq!(found[0], row(CfaRule::Rsp(0), RaRule::Register(Register(2)), RbpRule::Same));
    assert_eq!(found[2..7], [None; 5]);
    assert_eq!(found[7..], [BY_RBP, BY_RBP, by_rsp(8)]);
}

#[test]
fn entries_are_found_behind_tables() {
    let mut bytes = code(&[PUSH_RBP, MOV_RBP_RSP, LEAVE, RET]);
    bytes.resize(16, 0x90);
    bytes.extend([0x06; 32]); // no 64-bit instruction
    bytes.extend(code(&[&[0x53], &[0x5b], RET]));
    let spans = analyze(&bytes, BASE, BlobKind::StubRoutines, &[]);
    assert_eq!(row_at(&spans, BASE.0 + 4), BY_RBP);
    assert_eq!(row_at(&spans, BASE.0 + 16), None);
    assert_eq!(row_at(&spans, BASE.0 + 47), None);
    assert_eq!(row_at(&spans, BASE.0 + 48), by_rsp(8));
    assert_eq!(row_at(&spans, BASE.0 + 49), by_rsp(16));
}

/// As the JVM's stub that asks the processor what it can do: it keeps its argument in rbp.
#[test]
fn registers_that_only_new_processors_have_are_no_end_of_what_is_known() {
    let r16: &[u8] = &[0xd5, 0x18, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]; // mov r16, 0
    let stored: &[u8] = &[0xd5, 0x48, 0x89, 0x06]; // mov [rsi], r16
    let bytes = code(&[PUSH_RBP, &[0x48, 0x8b, 0xef], r16, stored, &[0x5d], RET]);
    let spans = analyze(&bytes, BASE, BlobKind::Stub, &[]);
    let pushed = row(CfaRule::Rsp(16), RaRule::AtCfa(-8), RbpRule::AtCfa(-16));
    assert_eq!(row_at(&spans, BASE.0), by_rsp(8));
    for offset in [1, 4, 15, 18] {
        assert_eq!(row_at(&spans, BASE.0 + offset).map(|row| row.cfa), pushed.map(|row| row.cfa), "{offset}");
    }
    assert_eq!(row_at(&spans, BASE.0 + 20), by_rsp(8));
}

#[test]
fn code_that_returns_from_elsewhere_was_not_called() {
    // Jumped to with eight bytes on the stack: nothing says so but the addition before the return.
    let mut bytes = code(&[RET]);
    bytes.resize(16, 0x90);
    bytes.extend(code(&[&[0x48, 0x83, 0xc4, 0x08], RET])); // add rsp, 8
    let spans = analyze(&bytes, BASE, BlobKind::StubRoutines, &[]);
    assert_eq!(row_at(&spans, BASE.0), by_rsp(8));
    assert_eq!(row_at(&spans, BASE.0 + 16), None);
}

#[test]
fn blobs_and_codelets_have_their_kinds_by_name_in_every_jdk() {
    let blobs = [
        ("StubRoutines (2)", Some(BlobKind::StubRoutines)),
        ("StubRoutines (compilerstubs)", Some(BlobKind::StubRoutines)),
        ("StubRoutines (continuation stubs)", Some(BlobKind::Continuations)),
        ("I2C/C2I adapters(0xbabe)", Some(BlobKind::Adapter)),
        ("C1 Runtime handle_exception_blob", Some(BlobKind::Stub)),
        ("handle_exception Runtime1 stub", Some(BlobKind::Stub)),
        ("polling_page_return_handler_blob (shared runtime)", Some(BlobKind::Safepoint)),
        ("SafepointBlob", Some(BlobKind::Safepoint)),
        ("exception_blob (C2 runtime)", Some(BlobKind::Exception)),
        ("handle_exception_blob (C1 runtime)", Some(BlobKind::Stub)),
        ("forward_exception_blob (C1 runtime)", Some(BlobKind::Framed)),
        ("Shared Runtime deopt_blob", Some(BlobKind::Deoptimization)),
        ("deopt_blob (shared runtime)", Some(BlobKind::Deoptimization)),
        ("uncommon_trap_blob (C2 runtime)", Some(BlobKind::UncommonTrap)),
        ("initial_blob (stub gen)", Some(BlobKind::StubRoutines)),
        ("continuation_blob (stub gen)", Some(BlobKind::Continuations)),
        ("vtable chunks", Some(BlobKind::Frameless)),
        ("nmethod", None),
        ("C1 temporary CodeBuffer", None),
        ("adapters", None),
    ];
    for (name, kind) in blobs {
        assert_eq!(kind_of_blob(name), kind, "{name}");
    }
    assert_eq!(kind_of_codelet("native method entry point (kind = native)"), BlobKind::InterpreterEntry);
    assert_eq!(kind_of_codelet("slow signature handler"), BlobKind::Stub);
    assert_eq!(kind_of_codelet("invokevirtual"), BlobKind::InterpreterFrame);
}

proptest::proptest! {
    #[test]
    fn any_bytes_give_sorted_spans_from_the_ranges_start_on(bytes in proptest::collection::vec(0u8.., 0..600)) {
        for kind in [BlobKind::StubRoutines, BlobKind::Stub, BlobKind::InterpreterFrame, BlobKind::Adapter,
            BlobKind::InterpreterEntry, BlobKind::Deoptimization, BlobKind::MethodHandles] {
            let spans = analyze(&bytes, BASE, kind, &[Avma(BASE.0 + 3), Avma(BASE.0 + 100_000)]);
            proptest::prop_assert_eq!(spans[0].start, BASE);
            proptest::prop_assert!(spans.is_sorted_by(|one, next| one.start < next.start && one.row != next.row));
            proptest::prop_assert!(spans.iter().all(|span| span.start.0 <= BASE.0 + bytes.len() as u64));
        }
    }
}
