//! The causes of waits, and the code that proves them.

/// The cause of a wait: the values of the label `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A monitor that another thread has: `synchronized`.
    Monitor,
    /// `Object.wait`.
    ObjectWait,
    /// `LockSupport.park`: locks, queues and pools of `java.util.concurrent`.
    Park,
    Sleep,
    /// The end of a safepoint, or of a handshake.
    Safepoint,
    /// A collection, or memory that one frees.
    Gc,
    Socket,
    /// A call on a file or pipe.
    File,
    Poll,
    /// A futex of code that isn't known.
    Futex,
    /// A page that had to be read, or memory that had to be freed.
    PageFault,
    /// A block device.
    Io,
    /// A CPU: the thread was preempted, or woken and not yet run.
    Runnable,
    /// A CPU, while the thread's control group had used up its quota.
    CpuQuota,
    /// Nothing proves a cause.
    Other,
}

/// Classes of the objects by which threads park that wait for a lock of these: others, such as
/// conditions and latches, are no locks.
const LOCKS: [&str; 4] = [
    "java.util.concurrent.locks.ReentrantLock$",
    "java.util.concurrent.locks.ReentrantReadWriteLock$",
    "java.util.concurrent.locks.StampedLock",
    "java.util.concurrent.Semaphore$",
];

impl Cause {
    pub const ALL: [Self; 15] = [
        Self::Monitor,
        Self::ObjectWait,
        Self::Park,
        Self::Sleep,
        Self::Safepoint,
        Self::Gc,
        Self::Socket,
        Self::File,
        Self::Poll,
        Self::Futex,
        Self::PageFault,
        Self::Io,
        Self::Runnable,
        Self::CpuQuota,
        Self::Other,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::ObjectWait => "object_wait",
            Self::Park => "park",
            Self::Sleep => "sleep",
            Self::Safepoint => "safepoint",
            Self::Gc => "gc",
            Self::Socket => "socket",
            Self::File => "file",
            Self::Poll => "poll",
            Self::Futex => "futex",
            Self::PageFault => "page_fault",
            Self::Io => "io",
            Self::Runnable => "runnable",
            Self::CpuQuota => "cpu_quota",
            Self::Other => "other",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }

    /// Returns true if a wait is for a lock that others have. `class`: of the monitor or blocker.
    pub(super) fn is_contention(self, class: Option<&str>) -> bool {
        let is_lock = |class: &str| LOCKS.iter().any(|lock| class.starts_with(lock));
        match self {
            Self::Monitor => true,
            Self::Park => class.is_some_and(is_lock),
            _ => false,
        }
    }
}

/// The code that a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleTarget {
    Kernel,
    /// libjvm.
    Jvm,
    /// The JVM's generated code, by the name that the JVM gives it.
    Stub,
    /// A Java method, whose name doesn't come from a file that anybody can write.
    Java,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_causes_are_different() {
        let names: std::collections::BTreeSet<_> = Cause::ALL.iter().map(|it| it.as_str()).collect();
        assert_eq!(names.len(), Cause::ALL.len());
        assert!(Cause::ALL.into_iter().all(|cause| Cause::named(cause.as_str()) == Some(cause)));
    }

    #[test]
    fn waits_for_monitors_and_locks_are_contentions() {
        let lock = Some("java.util.concurrent.locks.ReentrantLock$NonfairSync");
        let condition = Some("java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject");
        assert!(Cause::Monitor.is_contention(None) && Cause::Park.is_contention(lock));
        assert!(!Cause::Park.is_contention(condition) && !Cause::Park.is_contention(None));
        assert!(!Cause::ObjectWait.is_contention(lock));
    }
}
