//! `cargo xtask TASK`: every development task of jvmprof, one file each.

mod bench;
mod children;
mod demo;
mod ebpf;
mod elf;
mod jdk;
mod packages;
mod paths;
mod perf;
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
    /// Run collector, a demo JVM and the daemon on this machine (as root)
    Demo(demo::Args),
    /// Measure what profiling costs, and compare with perf (as root)
    Bench(bench::Args),
    /// Regenerate the code of `proto/`
    Proto,
}

fn main() -> ExitCode {
    // cargo calls this same binary as its rustc wrapper while it builds the kernel programs.
    if rustc_wrapper::is_called() {
        return rustc_wrapper::main();
    }
    let ok = |()| ExitCode::SUCCESS;
    let done = match Cli::parse().task {
        Task::Ebpf(args) => ebpf::main(&args).map(ok),
        Task::Test(args) => test::main(&args),
        Task::Demo(args) => demo::main(&args).map(ok),
        Task::Bench(args) => bench::main(&args).map(ok),
        Task::Proto => proto::generate(&proto::committed()).map(ok),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
