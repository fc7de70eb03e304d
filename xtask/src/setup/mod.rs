//! Installation of what tasks need: JDKs, packages, tools, the sources of core; builds of jvmprof;
//! what tools of JDKs do.

pub(crate) mod async_profiler;
pub(crate) mod build;
pub(crate) mod datadog_agent;
pub(crate) mod flight_recording;
pub(crate) mod go_tools;
pub(crate) mod installed_jdks;
pub(crate) mod maven;
pub(crate) mod packages;
pub(crate) mod python;
pub(crate) mod servers;
pub(crate) mod test_packages;
pub(crate) mod toolchain;
pub(crate) mod tools;
