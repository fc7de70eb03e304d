//! What tests of several parts need.

/// A target that has memory, and no code.
macro_rules! only_memory {
    ($memory:ty) => {
        impl jvmprof_common::unwind::hotspot::Target for $memory {
            type Row = jvmprof_common::rows::Row;

            fn read_u8(&mut self, _: u64) -> Option<u8> {
                None
            }

            fn load_header(&mut self, _: u64) -> bool {
                false
            }

            fn header_word(&self, _: usize) -> u64 {
                0
            }

            fn load_code(&mut self, _: u64) -> bool {
                false
            }

            fn code(&self) -> &[u64; jvmprof_common::unwind::hotspot::CODE_WORDS] {
                &[0; jvmprof_common::unwind::hotspot::CODE_WORDS]
            }

            fn stub_row(&mut self, _: u32, _: u64) -> Option<jvmprof_common::rows::Row> {
                None
            }
        }
    };
}
