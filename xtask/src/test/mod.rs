//! `cargo xtask test`: all checks and tests of a commit, setup included.

mod background_build;
mod cargo_tests;
mod failures;
mod large_servers;
mod node;
mod programs;
mod suites;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};

use self::background_build::{Servers, build_in_background};
use self::cargo_tests::{
    Profile, build_unit_tests, cargo, cargo_tests, integration_tests, test_arguments, test_binaries,
    tests_of_a_running_system, unit_tests,
};
use self::programs::Programs;
use self::suites::Suites;
use crate::ebpf;
use crate::kernels;
use crate::package::{self, kubernetes_manifests};
use crate::paths;
use crate::run::{require_root, run, stdout_text};
use crate::setup::installed_jdks::{self, InstalledJdk};
use crate::setup::{datadog_agent, tools};
use crate::soak;
use crate::{allocation, zoo};

#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Skip the installation of what the tests need
    #[arg(long)]
    no_setup: bool,
    /// Run only rustfmt, clippy, unit tests and the unwinder's snapshots: needs neither root nor
    /// setup
    #[arg(long)]
    quick: bool,
    /// Build Parca and Pyroscope from their Go modules, and push to them too: some eight minutes
    /// more on two CPUs, once
    #[arg(long, env = "JVMPROF_TEST_SERVERS")]
    servers: bool,
    /// Get Datadog's Java agent from Maven Central, and test what it publishes (needs mvn)
    #[arg(long, env = "JVMPROF_TEST_WITH_DATADOG_AGENT")]
    datadog_agent: bool,
    /// Build cargo-deb and cargo-generate-rpm, and make both packages of the program that is tested
    #[arg(long, env = "JVMPROF_TEST_DISTRIBUTION_PACKAGES")]
    distribution_packages: bool,
    /// After so many minutes leave out, and name, the soak, what is shipped, and the kernel that
    /// boots: for machines that end a run
    #[arg(long, env = "JVMPROF_TEST_TIME_LIMIT", value_name = "MINUTES")]
    time_limit: Option<u64>,
}

/// Suites of the daemon that run no daemon, and measure nothing that a build beside them disturbs.
const BESIDE_BUILDS: [&str; 3] = ["hotspot", "native_stepper", "stub_stepper"];

pub(crate) fn main(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let time_limit = args.time_limit.map(|minutes| Duration::from_secs(minutes * 60));
    let mut suites = Suites::new(time_limit);
    if args.quick {
        let programs = Programs::found();
        suites.check("rustfmt", rustfmt);
        suites.check("clippy", clippy);
        quick_tests(&mut suites, &programs);
        return suites.close();
    }
    require_root("the tests load kernel programs and read other processes")?;
    thread::scope(|scope| {
        // The one waits for the network, the other for the processors.
        let installed =
            scope.spawn(|| if args.no_setup { Ok(Programs::found()) } else { Programs::ensure() });
        suites.check("rustfmt", rustfmt);
        suites.check("building the unit tests", build_unit_tests);
        let programs = joined(installed)?;
        if args.datadog_agent && !args.no_setup {
            suites.check("getting Datadog's Java agent", datadog_agent::ensure);
        }
        let servers = match (args.no_setup, args.servers) {
            (true, _) => Servers::Found,
            (false, true) => Servers::All,
            (false, false) => Servers::Small,
        };
        let (sender, tests_built) = mpsc::channel();
        let package_builders = args.distribution_packages && !args.no_setup;
        let built = scope.spawn(move || build_in_background(servers, package_builders, &sender));
        suites.check("clippy", clippy);
        suites.check("cargo deny", deny);
        suites.check("kernel programs are current", ebpf::check);
        suites.run("node --test", node::tests);
        quick_tests(&mut suites, &programs);
        let mut binary = None;
        suites.check("building the integration tests", || {
            binary = Some(tests_built.recv().context("the thread that builds them has ended")??);
            Ok(())
        });
        let Some(binary) = binary else { return suites.close() };
        suites
            .run("documentation tests", |tests| cargo_tests(tests, &programs, Profile::Checked, &["--doc"]));
        let (beside, alone): (Vec<String>, Vec<String>) =
            integration_tests()?.into_iter().partition(|name| BESIDE_BUILDS.contains(&&**name));
        for name in &beside {
            suites.run(name, |tests| tests_of_a_running_system(tests, &programs, name, &[]));
        }
        suites.check("building servers", || joined(built));
        for (name, value) in programs.environment() {
            eprintln!("{name}={value}");
        }
        // One after another: what they measure mustn't be disturbed.
        for name in &alone {
            test_alone(&mut suites, &programs, name, args.servers);
        }
        let jdks = needed_jdks(&programs.jdks);
        suites.check("stacks of the zoo's programs", || zoo::smoke(&jdks, &binary));
        suites.check("profiles of allocation", || allocation::smoke(&jdks, &binary));
        suites.check_in_time("a short soak", || soak::short(&binary));
        check_shipped(&mut suites, args, &binary);
        suites.check_in_time("kernel 6.12", || kernels::short(&binary));
        suites.close()
    })
}

/// Runs a suite of the daemon; tests whose servers or agent aren't there are named as left out.
fn test_alone(suites: &mut Suites, programs: &Programs, name: &str, with_servers: bool) {
    let left_out = large_servers::tests_without_server(name);
    let (binary, tests) = datadog_agent::TESTS;
    let without_agent = (binary == name && datadog_agent::found().is_none()).then_some(tests);
    let names: Vec<&str> = left_out.iter().map(|(_, test)| *test).chain(without_agent).collect();
    suites.run(name, |tests| tests_of_a_running_system(tests, programs, name, &names));
    let why = if with_servers { "couldn't be built" } else { "isn't there: `--servers` builds it" };
    let line = |(server, test)| format!("`--test {name} {test}`: {server} {why}");
    suites.leave_out(left_out.into_iter().map(line));
    suites.leave_out(without_agent.map(|tests| {
        format!("`--test {name} {tests}`: Datadog's agent isn't there: `--datadog-agent` gets it")
    }));
}

/// Checks charts and manifests as their tools render them, and what is packed of the program.
fn check_shipped(suites: &mut Suites, args: &TestArgs, binary: &Path) {
    const CHARTS: &str = "charts and manifests";
    if args.no_setup && !kubernetes_manifests::has_tools() {
        suites.leave_out([format!("{CHARTS}: `cargo xtask manifests` installs their tools")]);
    } else {
        suites.check_in_time(CHARTS, kubernetes_manifests::main);
    }
    let with_packages = args.distribution_packages;
    if !with_packages {
        suites.leave_out(["packages of distributions: `--distribution-packages` makes them".to_owned()]);
    }
    suites.check_in_time("what is shipped", || package::smoke(binary, with_packages));
}

/// Tests that need neither root nor setup.
fn quick_tests(suites: &mut Suites, programs: &Programs) {
    suites.run("unit tests", |tests| unit_tests(tests, programs));
    suites.run("unwinder", |tests| {
        cargo_tests(tests, programs, Profile::Dev, &test_arguments(&test_binaries("jvmprof-common")?))
    });
}

fn joined<T>(thread: ScopedJoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().unwrap_or_else(|_| bail!("a thread of the setup panicked"))
}

fn rustfmt() -> anyhow::Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&["fmt", "--check"]).current_dir(paths::ebpf_crate()))
}

fn clippy() -> anyhow::Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    ebpf::clippy()
}

/// Checks licences, bans and sources always; advisories where their database can be fetched.
fn deny() -> anyhow::Result<()> {
    let deny = tools::CARGO_DENY.ensure()?;
    let command = |manifest: &Path, args: &[&str]| {
        let mut command = Command::new(&deny);
        command.arg("--manifest-path").arg(manifest);
        command.arg("--config").arg(paths::workspace().join("deny.toml"));
        command.args(args).stdin(Stdio::null());
        command
    };
    let manifests = [paths::workspace(), paths::ebpf_crate()].map(|folder| folder.join("Cargo.toml"));
    for manifest in &manifests {
        let what = ["check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        run(&mut command(manifest, &what))?;
    }
    if let Err(error) = stdout_text(&mut command(&manifests[0], &["fetch", "db"])) {
        let why = format!("{error:#}");
        let why = why.lines().last().unwrap_or_default();
        eprintln!("advisories NOT checked, their database isn't reached from here: {why}");
        return Ok(());
    }
    for manifest in &manifests {
        run(&mut command(manifest, &["check", "--disable-fetch", "--hide-inclusion-graph", "advisories"]))?;
    }
    Ok(())
}

fn needed_jdks(jdks: &[InstalledJdk]) -> Vec<InstalledJdk> {
    jdks.iter().filter(|jdk| installed_jdks::NEEDED.contains(&jdk.feature)).cloned().collect()
}
