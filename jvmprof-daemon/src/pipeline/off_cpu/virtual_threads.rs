//! Causes of waits of virtual threads that aren't mounted: no switch of the kernel's shows them,
//! the heap does.

use std::sync::Arc;

use super::cause::Cause;
use crate::event_type::EventType;
use crate::hotspot::{CensusTimes, VirtualThreadsError};
use crate::pipeline::Pipeline;
use crate::process::Process;
use crate::symbolize::NamedVirtualThreads;

/// The virtual threads of a JVM, or why they could not be counted.
pub type VirtualThreadCensus = Result<NamedVirtualThreads, VirtualThreadsError>;

impl Pipeline {
    /// Counts the virtual threads of each sampled JVM that has some, by its pid.
    pub fn virtual_threads(&mut self, times: CensusTimes) -> Vec<(u32, VirtualThreadCensus)> {
        let state = &mut self.state;
        let targets = &mut state.targets;
        let is_counted = |process: &&Process| {
            process.is_jvm() && !process.has_exited() && targets.is_wanted(process.key, EventType::OffCpu)
        };
        let jvms: Vec<&Process> = state.table.iter().filter(is_counted).collect();
        let symbolizer = &mut state.symbolizer;
        let census = |process: &Process| Some((process.pid, symbolizer.virtual_threads(process, times)?));
        jvms.into_iter().filter_map(census).collect()
    }
}

/// Methods of the JDK that prove what a virtual thread that was parked waits for: the first rule
/// that holds decides (openjdk src/java.base/share/classes/java/lang/VirtualThread.java,
/// sun/nio/ch/Poller.java). Names that end in `*` begin so.
const PARKED: &[(&str, Cause)] = &[
    ("java.lang.VirtualThread.sleepNanos", Cause::Sleep),
    ("java.lang.Thread.sleep*", Cause::Sleep),
    ("sun.nio.ch.SourceChannelImpl.*", Cause::File),
    ("sun.nio.ch.SinkChannelImpl.*", Cause::File),
    ("sun.nio.ch.Poller.*", Cause::Socket),
    ("java.util.concurrent.locks.LockSupport.park*", Cause::Park),
];
/// The packages of code that waits by these methods: callers beyond prove nothing.
const JDK: [&str; 4] = ["java.lang.", "java.util.concurrent.", "jdk.internal.", "sun.nio.ch."];

/// Returns what a virtual thread waits for: by its state, as `java.lang.VirtualThread` calls it,
/// and its methods, innermost first.
pub fn virtual_wait(state: &str, methods: &[Option<Arc<str>>]) -> Cause {
    let is = |name: &str, pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    match state {
        "BLOCKED" => return Cause::Monitor,
        "WAIT" | "TIMED_WAIT" => return Cause::ObjectWait,
        "PARKED" | "TIMED_PARKED" => {}
        _ => return Cause::Other,
    }
    let is_of_jdk = |name: &&str| JDK.iter().any(|package| name.starts_with(package));
    let names: Vec<&str> = methods.iter().map_while(Option::as_deref).take_while(is_of_jdk).collect();
    let rule = PARKED.iter().find(|(pattern, _)| names.iter().any(|name| is(name, pattern)));
    rule.map_or(Cause::Other, |(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_virtual_thread_waits_for_is_told_by_its_state_and_the_methods_of_the_jdk() {
        let cause = |state: &str, names: &[&str]| {
            let methods: Vec<_> = names.iter().map(|name| Some(Arc::from(*name))).collect();
            virtual_wait(state, &methods)
        };
        let park = "java.lang.VirtualThread.park";
        let of_lock = "java.util.concurrent.locks.LockSupport.park";
        assert_eq!(cause("PARKED", &[park, of_lock, "Shop.buy"]), Cause::Park);
        let poll = "sun.nio.ch.Poller.pollIndirect";
        assert_eq!(cause("PARKED", &[park, of_lock, "Shop.buy", poll]), Cause::Park);
        assert_eq!(cause("PARKED", &[park, of_lock, poll, "sun.nio.ch.NioSocketImpl.park"]), Cause::Socket);
        assert_eq!(cause("PARKED", &[park, poll, "sun.nio.ch.SourceChannelImpl.read"]), Cause::File);
        let sleep = "java.lang.VirtualThread.sleepNanos";
        assert_eq!(cause("TIMED_PARKED", &["java.lang.VirtualThread.parkNanos", sleep]), Cause::Sleep);
        assert_eq!(cause("BLOCKED", &["Shop.buy"]), Cause::Monitor);
        assert_eq!(cause("TIMED_WAIT", &["java.lang.Object.wait0"]), Cause::ObjectWait);
        assert_eq!(cause("PARKED", &["Shop.buy"]), Cause::Other);
        assert_eq!(cause("RUNNING", &[of_lock]), Cause::Other);
    }
}
