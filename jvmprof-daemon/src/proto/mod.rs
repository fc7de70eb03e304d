//! The wire formats, generated from `proto/` by `cargo xtask proto` and committed, so that a build
//! needs no protoc.
//!
//! The generated files are included rather than declared as modules, because rustfmt would else
//! rewrite them and they would no longer be what the generator wrote.

/// pprof's profile: `proto/perftools/profiles/profile.proto`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub)]
pub mod pprof {
    include!("generated/perftools.profiles.rs");
}

/// Parca's `ProfileStoreService`: `proto/parca/profilestore/v1alpha1/profilestore.proto`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub)]
pub mod profilestore {
    include!("generated/parca.profilestore.v1alpha1.rs");
}

/// Parca's `DebuginfoService`: `proto/parca/debuginfo/v1alpha1/debuginfo.proto`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub)]
pub mod debuginfo {
    include!("generated/parca.debuginfo.v1alpha1.rs");
}

/// A container runtime's CRI: `proto/kubernetes/cri/runtime.proto`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub)]
pub mod cri {
    include!("generated/runtime.v1.rs");
}

/// Pyroscope's push: `proto/pyroscope/push/push.proto`.
#[allow(clippy::all, clippy::pedantic, missing_debug_implementations, unreachable_pub)]
pub mod pyroscope {
    include!("generated/push.v1.rs");
}
