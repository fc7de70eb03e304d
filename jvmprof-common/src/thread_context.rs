//! The context of the request that a thread works on, as its process publishes it for profilers.
//!
//! Layout and protocol: OpenTelemetry's OTEP 4947 (oteps/profiles/4947-thread-ctx.md). The
//! thread-local variable `otel_thread_ctx_v1` points to the record of the thread, or is null. Only
//! the thread itself writes it, so that it is whole while the thread is interrupted.

/// Bytes of a record before its attributes: trace id (16), span id (8), valid (1), trace flags (1),
/// bytes of attributes (2).
pub const RECORD_HEADER_BYTES: usize = 28;
/// Offset of `valid`: 1 if there is a context.
pub const VALID_OFFSET: usize = 24;
/// Offset of the number of bytes of attributes: a `u16`.
pub const ATTRIBUTES_SIZE_OFFSET: usize = 26;
/// Bytes of a record that are copied, at most: what the OTEP recommends as a record's limit.
pub const MAX_RECORD_BYTES: usize = 640;
/// The same in words.
pub const MAX_RECORD_WORDS: usize = MAX_RECORD_BYTES / 8;

/// Map `u32 -> ThreadLocalVariable`: where the processes that publish contexts have the variable,
/// by thread group id. Exec removes an entry.
pub const THREAD_CONTEXT_VARIABLES: &str = "THREAD_CONTEXT_VARIABLES";
