use jvmprof_common::frame::FrameWord;

use super::*;

fn record(kernel: u16, user: u16, tail: u16, words: &[u64]) -> Vec<u8> {
    record_with_far(kernel, user, tail, 0, words)
}

fn record_with_far(kernel: u16, user: u16, tail: u16, far: u16, words: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(SAMPLE_MAGIC.to_le_bytes());
    bytes.extend(7u64.to_le_bytes());
    bytes.extend(8u64.to_le_bytes());
    bytes.extend(9u32.to_le_bytes());
    bytes.extend(10u32.to_le_bytes());
    bytes.extend(*b"worker\0\0\0\0\0\0\0\0\0\0");
    bytes.extend(0x7000u64.to_le_bytes());
    bytes.extend(0x7010u64.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    for length in [kernel, user, tail] {
        bytes.extend(length.to_le_bytes());
    }
    bytes.push(Stop::ChainEnded as u8);
    bytes.push(FLAG_KERNEL_MODE);
    bytes.extend(0u16.to_le_bytes());
    bytes.extend(far.to_le_bytes());
    bytes.extend(0x5000u64.to_le_bytes());
    bytes.extend(0x6000u64.to_le_bytes());
    bytes.extend((0..16u64).flat_map(u64::to_le_bytes));
    assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

#[test]
fn a_record_is_taken_apart() {
    let user = [FrameWord::exact(0x401_000).0, FrameWord::return_address(0x402_000).0];
    let sample = StackSample::parse(&record(1, 2, 1, &[0xffff_ffff_8100_0000, user[0], user[1], 42]))
        .expect("the record is well-formed");
    assert_eq!(sample.kernel(), [0xffff_ffff_8100_0000]);
    assert_eq!(sample.user(), user);
    assert_eq!((sample.header.held_monitor, sample.header.registers[13]), (0x6000, 13));
    assert_eq!(sample.tail(), [42]);
    assert_eq!((sample.comm().as_str(), sample.stop, sample.in_kernel()), ("worker", Stop::ChainEnded, true));
    assert_eq!((sample.header.pid, sample.header.tid, sample.header.cpu), (9, 10, 1));
}

#[test]
fn a_record_may_end_in_its_threads_context() {
    let with_flags = |flags: u8, context: &[u64]| {
        let words = [&[1, 2][..], context].concat();
        let mut bytes = record(0, 1, 1, &words);
        bytes[std::mem::offset_of!(SampleHeader, flags)] = flags;
        StackSample::parse(&bytes)
    };
    let sample = with_flags(FLAG_THREAD_CONTEXT, &[7, 8, 9, 10]).expect("a record");
    assert_eq!((sample.user(), sample.tail()), (&[1][..], &[2][..]));
    assert_eq!((sample.thread_context(), sample.all_words()), (&[7, 8, 9, 10][..], &[1, 2][..]));
    let sample = with_flags(0, &[]).expect("a record");
    assert!(sample.thread_context().is_empty());
    for words in [0, 3, 81] {
        let refused = with_flags(FLAG_THREAD_CONTEXT, &vec![0; words]);
        assert_eq!(refused, Err(MalformedSample { event: EventType::Cpu }), "{words} words");
    }
}

#[test]
fn stretches_end_where_a_length_does_not_fit() {
    let stretches = |far: &[u64]| -> Vec<(Avma, Vec<u64>)> {
        let words = [&[1, 2], far].concat();
        let sample =
            StackSample::parse(&record_with_far(0, 1, 1, far.len() as u16, &words)).expect("a record");
        assert_eq!((sample.tail(), sample.header.thread_pointer), (&[2][..], 0x5000));
        sample.stretches().map(|(start, words)| (start, words.to_vec())).collect()
    };
    let whole = [(Avma(0x10), vec![7]), (Avma(0x20), vec![]), (Avma(0x30), vec![8, 9])];
    assert_eq!(stretches(&[0x10, 1, 7, 0x20, 0, 0x30, 2, 8, 9]), whole);
    assert_eq!(stretches(&[0x10, 1, 7, 0x20, 0, 0x30, 3, 8, 9]), whole[..2]);
    assert_eq!(stretches(&[0x10, u64::MAX, 7]), []);
    assert_eq!(stretches(&[0x10]), []);
}

#[test]
fn a_thread_that_waits_has_its_own_registers_and_the_stack_as_its_tail() {
    let thread = WaitingThread {
        tid: 8,
        pid: 7,
        process_start_ns: 5,
        registers: std::array::from_fn(|index| 100 + index as u64),
        ..WaitingThread::default()
    };
    let stack: Vec<u64> = (0..40).collect();
    let sample = StackSample::of_waiting(&thread, WaitRecord::default(), 3, &stack, &[9; 4]);
    let header = &sample.header;
    assert_eq!((header.pid, header.tid, header.start_ns, header.time_ns), (7, 8, 5, 3));
    assert_eq!((header.tail_sp, header.tail_fp), (119, 104));
    // rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    let numbered = [110, 111, 112, 105, 119, 104, 113, 114, 109, 108, 107, 106, 103, 102, 101, 100];
    assert_eq!(header.registers, numbered);
    assert_eq!((sample.user(), sample.tail()), (&[FrameWord::exact(116).0][..], &stack[..]));
    assert_eq!(sample.thread_context(), [9; 4]);
    assert_eq!(sample.tail_start(), Avma(0));
    assert_eq!(sample.event.event_type(), EventType::OffCpu);
    let unreadable = StackSample::of_waiting(&thread, WaitRecord::default(), 3, &stack[..16], &[]);
    assert!(unreadable.tail().is_empty());
}

#[test]
fn a_buffer_that_was_given_up_is_a_record_of_its_own() {
    let words = [TLAB_MAGIC, 1, 2, 3 | 4 << 32, 5, 6, 7, 8, 9];
    let record: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let Ok(RingRecord::Tlab(tlab)) = RingRecord::parse(&record) else { panic!("it is a buffer") };
    let expected = TlabRecord {
        magic: TLAB_MAGIC,
        time_ns: 1,
        start_ns: 2,
        pid: 3,
        tid: 4,
        start: 5,
        used: 6,
        large_first: 7,
        collections: 8,
        interval: 9,
    };
    assert_eq!(tlab, expected);
    let refused = RingRecord::parse(&record[..record.len() - 1]).map(drop);
    assert_eq!(refused, Err(MalformedSample { event: EventType::Allocation }));
}

#[test]
fn a_record_cut_short_or_of_another_version_is_refused() {
    let whole = record(1, 1, 1, &[1, 2, 3]);
    for length in 0..whole.len() {
        let refused = StackSample::parse(&whole[..length]);
        assert_eq!(refused, Err(MalformedSample { event: EventType::Cpu }), "{length} bytes");
    }
    let mut other = whole;
    other[7] = 0;
    assert_eq!(StackSample::parse(&other), Err(MalformedSample { event: EventType::Cpu }));
    other[std::mem::offset_of!(SampleHeader, flags)] |= FLAG_ALLOCATION;
    assert_eq!(StackSample::parse(&other), Err(MalformedSample { event: EventType::Allocation }));
}
