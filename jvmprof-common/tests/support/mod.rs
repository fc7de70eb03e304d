//! Targets for tests of several parts.

/// Implements [`HotspotTarget`](jvmprof_common::unwind::hotspot::HotspotTarget) for a type that has
/// memory, and no code but what `$code` returns.
macro_rules! target_over_memory {
    ($memory:ty) => {
        target_over_memory!($memory, |_| &[0;
            jvmprof_common::unwind::hotspot::compiled::instructions::CODE_WORDS]);
    };
    ($memory:ty, $code:expr) => {
        impl jvmprof_common::unwind::hotspot::HotspotTarget for $memory {
            type Row = jvmprof_common::rows::Row;

            fn read_u8(&mut self, _: jvmprof_common::address::Avma) -> Option<u8> {
                None
            }

            fn load_header(&mut self, _: jvmprof_common::address::Avma) -> bool {
                false
            }

            fn header_word(&self, _: usize) -> u64 {
                0
            }

            fn load_code(&mut self, _: jvmprof_common::address::Avma) -> bool {
                false
            }

            fn code(&self) -> &jvmprof_common::unwind::hotspot::compiled::instructions::LoadedCode {
                let code: fn(&Self) -> &jvmprof_common::unwind::hotspot::compiled::instructions::LoadedCode =
                    $code;
                code(self)
            }

            fn stub_row(
                &mut self,
                _: u32,
                _: jvmprof_common::address::Avma,
            ) -> Option<jvmprof_common::rows::Row> {
                None
            }
        }
    };
}
