//! `cargo xtask TASK`: every development task of jvmprof, one file each.

mod ebpf;
mod elf;
mod jdk;
mod packages;
mod paths;
mod proto;
mod run;
mod rustc_wrapper;
mod test;
mod toolchain;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development tasks of jvmprof", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Rebuild the kernel programs and replace the committed object
    Ebpf(ebpf::Args),
    /// Set up what the tests need and run every check and every test (as root)
    Test(test::Args),
    /// Regenerate the code of `proto/`
    Proto,
}

fn main() -> ExitCode {
    // cargo calls this same binary as its rustc wrapper while it builds the kernel programs.
    if rustc_wrapper::is_called() {
        return rustc_wrapper::main();
    }
    let done = match Cli::parse().task {
        Task::Ebpf(args) => ebpf::main(&args),
        Task::Test(args) => test::main(&args),
        Task::Proto => proto::generate(&proto::committed()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
