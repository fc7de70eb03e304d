//! Builds that run beside the first tests: integration tests, servers that they push to, and tools
//! that render charts and make packages.

use std::path::PathBuf;
use std::sync::mpsc::Sender;

use super::cargo_tests::build_integration_tests;
use crate::setup::go_tools::{HELM, KUSTOMIZE};
use crate::setup::servers;
use crate::setup::tools::{CARGO_DEB, CARGO_GENERATE_RPM};

/// Servers that are to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    /// Uses what is there.
    Found,
    /// Those that take a minute.
    Small,
    All,
}

/// Builds the daemon's integration tests, with the program that they test, whose path it sends as
/// soon as they are there; then servers, and tools. That runs beside tests, which come first where
/// both want a processor.
pub(super) fn build_in_background(
    wanted: Servers,
    package_builders: bool,
    tests_built: &Sender<anyhow::Result<PathBuf>>,
) -> anyhow::Result<()> {
    // This thread's alone, and that of all that it starts.
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        eprintln!("what is built runs at the priority of tests: {error}");
    }
    // Nobody waits for it any more if the run has failed.
    let _ = tests_built.send(build_integration_tests());
    if wanted != Servers::Found {
        servers::OTEL_COLLECTOR.ensure()?;
        for tool in [HELM, KUSTOMIZE] {
            tool.ensure()?;
        }
    }
    for server in servers::LARGE.iter().filter(|_| wanted == Servers::All) {
        // Not all that they consist of is served everywhere. The run says what it left out.
        if let Err(error) = server.ensure() {
            eprintln!("error: {error:#}");
        }
    }
    if package_builders {
        for tool in [CARGO_DEB, CARGO_GENERATE_RPM] {
            tool.ensure()?;
        }
    }
    Ok(())
}
