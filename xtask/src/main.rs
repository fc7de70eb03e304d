//! `cargo xtask TASK`: every development task of jvmprof, one file each.

mod allocation;
mod bench;
#[cfg(test)]
mod checks;
mod demo;
mod ebpf;
mod files;
mod kernels;
mod package;
mod paths;
mod proto;
mod run;
mod setup;
mod soak;
mod test;
mod zoo;

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
    Ebpf(ebpf::EbpfArgs),
    /// Set up what the tests need and run every check and every test (as root)
    Test(test::TestArgs),
    /// Run collector, a demo JVM and the daemon on this machine (as root)
    Demo(demo::DemoArgs),
    /// Measure what profiling costs, and compare with perf (as root)
    Bench(bench::BenchArgs),
    /// Boot Debian's kernels under qemu: load every kernel program and unwind a JVM there
    Kernels(kernels::KernelsArgs),
    /// Check the stacks of oracle programs on many JDKs against their class files (as root)
    Zoo(zoo::ZooArgs),
    /// Compare profiles of allocation with what a program says that it allocates (as root)
    Allocation(allocation::AllocationArgs),
    /// Build what is shipped: the static program, its Debian and RPM packages, an archive, the
    /// image's root; try the Debian package on a booted Debian
    Package(package::PackageArgs),
    /// Render the Helm charts and check them and the other manifests against Kubernetes's schemas
    Manifests,
    /// Kill the backend and the daemon, fill the disk, and account for every sample (as root)
    Soak(soak::SoakArgs),
    /// Regenerate the code of `proto/`
    Proto,
}

fn main() -> ExitCode {
    // cargo calls this same binary as its rustc wrapper while it builds the kernel programs.
    if ebpf::rustc_wrapper::is_called() {
        return ebpf::rustc_wrapper::main();
    }
    // And it is the first process of the machines that `kernels` boots.
    if kernels::guest::is_called() {
        kernels::guest::main();
    }
    let ok = |()| ExitCode::SUCCESS;
    let done = match Cli::parse().task {
        Task::Ebpf(args) => ebpf::main(&args).map(ok),
        Task::Test(args) => test::main(&args),
        Task::Demo(args) => demo::main(&args).map(ok),
        Task::Bench(args) => bench::main(&args).map(ok),
        Task::Kernels(args) => kernels::main(&args).map(ok),
        Task::Zoo(args) => zoo::main(&args),
        Task::Allocation(args) => allocation::main(&args),
        Task::Package(args) => package::main(&args).map(ok),
        Task::Manifests => package::kubernetes_manifests::main().map(ok),
        Task::Soak(args) => soak::main(&args).map(ok),
        Task::Proto => proto::generate(&proto::committed()).map(ok),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
