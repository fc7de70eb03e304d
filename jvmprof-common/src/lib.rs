//! What the kernel program and the daemon share: the ABI of their maps and records, and the
//! unwinder itself.
//!
//! Design constraints: `no_std`, no allocation, no panicking paths, and code that the eBPF verifier
//! accepts: indices are masked, loops are bounded by the caller, and state lives behind one pointer
//! so that the verifier's states converge.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod abi;
pub mod address;
pub mod frame;
pub mod jvm;
pub mod rows;
pub mod tables;
pub mod unwind;
