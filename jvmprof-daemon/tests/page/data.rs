//! Profiles shaped like those of a busy JVM: deep Spring stacks, kernel and native leaves, a
//! recursion of 1,000 frames.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::{EventType, PAUSE_BEGIN};
use jvmprof_daemon::profile::model::{
    Batch, ExecutionMode, Frame, FrameKind, Line, Mapping, Sample, SampleLabel, SampleLabels, Series,
};
use jvmprof_daemon::profile::pprof::jvm_pauses::{PauseTime, frames};
use jvmprof_daemon::types::{Avma, BuildId, FileOffset};

const START: [(&str, FrameKind); 7] = [
    ("__clone3", FrameKind::Native),
    ("start_thread", FrameKind::Native),
    ("thread_native_entry", FrameKind::Native),
    ("JavaThread::thread_main_inner", FrameKind::Native),
    ("JavaCalls::call_helper", FrameKind::Native),
    ("[call_stub]", FrameKind::Stub),
    ("java.lang.Thread.run", FrameKind::Java),
];

const REQUEST: [&str; 24] = [
    "org.apache.tomcat.util.threads.ThreadPoolExecutor.runWorker",
    "org.apache.tomcat.util.net.NioEndpoint$SocketProcessor.doRun",
    "org.apache.coyote.AbstractProtocol$ConnectionHandler.process",
    "org.apache.coyote.http11.Http11Processor.service",
    "org.apache.catalina.connector.CoyoteAdapter.service",
    "org.apache.catalina.core.StandardEngineValve.invoke",
    "org.apache.catalina.valves.ErrorReportValve.invoke",
    "org.apache.catalina.core.StandardHostValve.invoke",
    "org.apache.catalina.core.StandardWrapperValve.invoke",
    "org.apache.catalina.core.ApplicationFilterChain.doFilter",
    "org.apache.catalina.core.ApplicationFilterChain.internalDoFilter",
    "org.springframework.web.filter.OncePerRequestFilter.doFilter",
    "org.springframework.web.filter.CharacterEncodingFilter.doFilterInternal",
    "org.apache.catalina.core.ApplicationFilterChain.doFilter",
    "org.apache.catalina.core.ApplicationFilterChain.internalDoFilter",
    "org.springframework.security.web.FilterChainProxy.doFilterInternal",
    "org.springframework.web.servlet.FrameworkServlet.service",
    "jakarta.servlet.http.HttpServlet.service",
    "org.springframework.web.servlet.DispatcherServlet.doDispatch",
    "org.springframework.web.servlet.mvc.method.AbstractHandlerMethodAdapter.handle",
    "org.springframework.web.method.support.InvocableHandlerMethod.doInvoke",
    "jdk.internal.reflect.DirectMethodHandleAccessor.invoke",
    "java.lang.invoke.LambdaForm$MH.0x00007f3a1c0d4400.invokeExact_MT",
    "org.springframework.aop.framework.CglibAopProxy$DynamicAdvisedInterceptor.intercept",
];

const SERVICES: [&str; 14] = [
    "com.acme.shop.order.OrderController.place",
    "com.acme.shop.order.OrderService.total",
    "com.acme.shop.cart.CartService.merge",
    "com.acme.shop.price.PriceCalculator.discounts",
    "com.acme.shop.stock.StockRepository.reserve",
    "com.acme.shop.search.ProductIndex.lookup",
    "com.fasterxml.jackson.databind.ObjectMapper.writeValueAsBytes",
    "com.fasterxml.jackson.databind.ser.BeanSerializer.serialize",
    "org.hibernate.internal.SessionImpl.fireLoad",
    "org.hibernate.engine.query.spi.NativeQueryInterpreter.createParameterMetadata",
    "com.zaxxer.hikari.pool.HikariPool.getConnection",
    "org.postgresql.core.v3.QueryExecutorImpl.execute",
    "java.util.concurrent.ConcurrentHashMap.computeIfAbsent",
    "java.util.stream.ReferencePipeline$3$1.accept",
];

const LEAVES: [(&str, FrameKind); 12] = [
    ("java.util.HashMap.getNode", FrameKind::Java),
    ("java.lang.String.hashCode", FrameKind::Java),
    ("java.util.ArrayList.sort", FrameKind::Java),
    ("java.lang.StringLatin1.inflate", FrameKind::Java),
    ("jdk.internal.util.ArraysSupport.mismatch", FrameKind::Java),
    ("[jlong_disjoint_arraycopy]", FrameKind::Stub),
    ("__memmove_avx_unaligned_erms", FrameKind::Native),
    ("G1ParScanThreadState::trim_queue_to_threshold", FrameKind::Native),
    ("tcp_sendmsg_locked", FrameKind::Kernel),
    ("clear_page_erms", FrameKind::Kernel),
    ("futex_wake", FrameKind::Kernel),
    ("copy_user_enhanced_fast_string", FrameKind::Kernel),
];

const SYSCALL: [&str; 3] = ["entry_SYSCALL_64_after_hwframe", "do_syscall_64", "__x64_sys_sendto"];

/// How a method ran, by its line.
const MODES: [ExecutionMode; 3] = [ExecutionMode::C2, ExecutionMode::C1, ExecutionMode::Interpreted];

/// A small generator of numbers, the same in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, small ones more often.
    pub(crate) fn skewed(&mut self, limit: usize) -> usize {
        let (one, two) = (self.below(limit), self.below(limit));
        one.min(two)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Makes frames, each once.
struct Frames {
    mappings: HashMap<FrameKind, Option<Arc<Mapping>>>,
    frames: HashMap<(String, u32), Arc<Frame>>,
}

impl Frames {
    fn new() -> Self {
        let mapping = |path: &str| {
            Some(Arc::new(Mapping {
                start: Avma(0x7f00_0000_0000),
                limit: Avma(0x7f00_0100_0000),
                offset: FileOffset(0),
                path: path.into(),
                build_id: BuildId::new(&[7; 20]),
            }))
        };
        let mappings = HashMap::from([
            (FrameKind::Kernel, mapping("[kernel.kallsyms]")),
            (FrameKind::Native, mapping("/usr/lib/jvm/java-25-openjdk-amd64/lib/server/libjvm.so")),
            (FrameKind::Stub, mapping("jvm")),
            (FrameKind::Java, mapping("jvm")),
            (FrameKind::Marker, None),
        ]);
        Self { mappings, frames: HashMap::new() }
    }

    fn get(&mut self, name: &str, kind: FrameKind, line: u32) -> Arc<Frame> {
        let line = if kind == FrameKind::Java { line } else { 0 };
        let mapping = &self.mappings[&kind];
        let next = self.frames.len() as u64;
        let frame = self.frames.entry((name.to_owned(), line)).or_insert_with(|| {
            Arc::new(Frame {
                kind,
                address: (kind != FrameKind::Marker).then_some(Avma(0x7f00_0000_0010 + 16 * next)),
                mapping: mapping.clone(),
                lines: vec![Line {
                    file: (kind == FrameKind::Java).then(|| source(name).into()),
                    line,
                    mode: (kind == FrameKind::Java).then(|| MODES[line as usize % MODES.len()]),
                    ..Line::named(name)
                }],
            })
        });
        Arc::clone(frame)
    }
}

fn source(name: &str) -> String {
    let class = name.rsplit('.').nth(1).unwrap_or(name);
    format!("{}.java", class.split('$').next().unwrap_or(class))
}

/// The way in which calls go on from a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// To a few others, as in programs that people write.
    Program,
    /// To any other: more nodes than a page draws.
    Wide,
}

/// A window of `duration` from `start` with about `samples` samples.
pub(crate) fn window(
    start: SystemTime,
    duration: Duration,
    samples: usize,
    shape: Shape,
    numbers: &mut Numbers,
) -> Batch {
    let mut frames = Frames::new();
    let mut shop = Vec::new();
    for _ in 0..samples {
        let sample = Sample::of_events(stack(&mut frames, numbers, shape).into(), 1, 10_101_010);
        // More of it in the first half.
        let time = numbers.skewed(duration.as_millis() as usize) as i32;
        shop.push(Sample { times: vec![time], ..of_kind(sample, "java") });
    }
    let recursion: Vec<_> =
        (0..1_000).map(|_| frames.get("com.acme.shop.tax.Rules.evaluate", FrameKind::Java, 42)).collect();
    let count = (samples / 25).max(1) as u64;
    shop.push(Sample::of_events(rooted(&mut frames, recursion).into(), count, count * 10_101_010));
    let cut = vec![
        frames.get("java.lang.String.hashCode", FrameKind::Java, 12),
        frames.get("[truncated: stack unreadable]", FrameKind::Marker, 0),
    ];
    let count = (samples / 400).max(1) as u64;
    shop.push(Sample::of_events(cut.into(), count, count * 10_101_010));
    let postgres =
        ["index_getnext_tid", "ExecScan", "PortalRun", "PostgresMain", "main", "__libc_start_main"];
    let postgres: Vec<_> = postgres.iter().map(|name| frames.get(name, FrameKind::Native, 0)).collect();
    let count = (samples / 20).max(1) as u64;
    let postgres = vec![Sample::of_events(postgres.into(), count, count * 10_101_010)];
    let series = |comm: &str, pid: &str, runtime: &str, samples| Series {
        labels: [("node", "worker-1"), ("comm", comm), ("pid", pid), ("runtime", runtime)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        samples,
    };
    Batch {
        event: EventType::Cpu,
        start,
        duration,
        period: 10_101_010,
        series: vec![series("java", "4242", "jvm", shop), series("postgres", "977", "native", postgres)],
    }
}

/// Samples of the kernel's work for one line of the application.
pub(crate) fn kernel_for_line(name: &str, line: u32, count: u64) -> Sample {
    let mut frames = Frames::new();
    let inner =
        vec![frames.get("clear_page_erms", FrameKind::Kernel, 0), frames.get(name, FrameKind::Java, line)];
    let stack = rooted(&mut frames, inner);
    of_kind(Sample::of_events(stack.into(), count, count * 10_101_010), "java")
}

/// Samples of one line of the application itself.
pub(crate) fn own_of_line(name: &str, line: u32, count: u64) -> Sample {
    let mut frames = Frames::new();
    let inner = vec![frames.get(name, FrameKind::Java, line)];
    let stack = rooted(&mut frames, inner);
    of_kind(Sample::of_events(stack.into(), count, count * 10_101_010), "java")
}

/// Samples of a method's callees, one of each.
pub(crate) fn callees_of(name: &str, count: usize) -> Vec<Sample> {
    let mut frames = Frames::new();
    let sample = |number: usize| {
        let callee = frames.get(&format!("com.acme.shop.parts.Part{number}.run"), FrameKind::Java, 7);
        let inner = vec![callee, frames.get(name, FrameKind::Java, 57)];
        let stack = rooted(&mut frames, inner);
        of_kind(Sample::of_events(stack.into(), 1, 10_101_010), "java")
    };
    (0..count).map(sample).collect()
}

/// Frames from the leaf on, the kind of the thread, and how many there are beside 100 samples of
/// the application.
type ThreadStack = (&'static [(&'static str, FrameKind)], &'static str, usize);

/// What the JVM's own threads do, and its class loading.
const JVM_STACKS: [ThreadStack; 6] = [
    (
        &[
            ("G1ParScanThreadState::copy_to_survivor_space", FrameKind::Native),
            ("WorkerThread::run", FrameKind::Native),
        ],
        "gc",
        14,
    ),
    (
        &[("clear_page_erms", FrameKind::Kernel), ("G1ConcurrentMarkThread::run_service", FrameKind::Native)],
        "gc",
        4,
    ),
    (
        &[
            ("PhaseIdealLoop::build_loop_late", FrameKind::Native),
            ("CompileBroker::compiler_thread_loop", FrameKind::Native),
        ],
        "compiler",
        9,
    ),
    (&[("SafepointSynchronize::begin", FrameKind::Native), ("VMThread::run", FrameKind::Native)], "vm", 3),
    (
        &[
            ("ClassFileParser::parse_stream", FrameKind::Native),
            ("java.lang.ClassLoader.loadClass", FrameKind::Java),
        ],
        "java",
        5,
    ),
    (&[("zlib_worker", FrameKind::Native), ("start_thread", FrameKind::Native)], "native", 3),
];

/// The same window with the JVM's own work beside the application's.
pub(crate) fn busy_jvm(
    start: SystemTime,
    duration: Duration,
    samples: usize,
    numbers: &mut Numbers,
) -> Batch {
    let mut batch = window(start, duration, samples, Shape::Program, numbers);
    let mut frames = Frames::new();
    for (stack, kind, share) in JVM_STACKS {
        let stack: Vec<_> = stack.iter().map(|(name, kind)| frames.get(name, *kind, 7)).collect();
        let count = (samples * share / 100).max(1);
        // Most of it in the second half.
        let millis = duration.as_millis() as usize;
        let times = (0..count).map(|_| (millis - 1 - numbers.skewed(millis)) as i32).collect();
        let sample = Sample::of_events(stack.into(), count as u64, count as u64 * 10_101_010);
        batch.series[0].samples.push(Sample { times, ..of_kind(sample, kind) });
    }
    batch
}

/// A window with pauses of that JVM, `(begin, to the safepoint, stopped, what for, cause)` in
/// milliseconds since its start, and 40 more that are summed.
pub(crate) fn pauses(
    start: SystemTime,
    duration: Duration,
    pauses: &[(u64, u64, u64, &str, Option<&str>)],
) -> Batch {
    let since_epoch = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    let sample = |of: (&str, Option<&str>), time, begin_ms: Option<u64>, count, ms: u64| {
        let (operation, cause) = (of.0.into(), of.1.map(Into::into));
        let begin = begin_ms.map(|ms| SampleLabel {
            name: PAUSE_BEGIN.name.into(),
            value: (since_epoch + u128::from(ms) * 1_000_000).to_string().into(),
        });
        let labels = SampleLabels::new(begin.into_iter().collect::<Vec<_>>());
        let of_events = Sample::of_events(frames(&operation, cause.as_ref(), time), count, ms * 1_000_000);
        Sample { labels, ..of_events }
    };
    let mut samples = vec![sample(("Cleanup", None), PauseTime::Stopped, None, 40, 20)];
    for &(begin, to_safepoint, stopped, operation, cause) in pauses {
        samples.push(sample((operation, cause), PauseTime::Stopped, Some(begin), 1, stopped));
        samples.push(sample((operation, cause), PauseTime::ToSafepoint, Some(begin), 0, to_safepoint));
    }
    let labels = [("node", "worker-1"), ("comm", "java"), ("pid", "4242"), ("runtime", "jvm")];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Batch { event: EventType::Pause, start, duration, period: 1, series: vec![Series { labels, samples }] }
}

fn of_kind(sample: Sample, kind: &str) -> Sample {
    let label = SampleLabel { name: "thread_kind".into(), value: kind.into() };
    Sample { labels: SampleLabels::new([label]), ..sample }
}

/// Leaf first, as the model has it.
fn rooted(frames: &mut Frames, inner: Vec<Arc<Frame>>) -> Vec<Arc<Frame>> {
    let mut stack = inner;
    stack.extend(START.iter().rev().map(|(name, kind)| frames.get(name, *kind, 1583)));
    stack
}

fn stack(frames: &mut Frames, numbers: &mut Numbers, shape: Shape) -> Vec<Arc<Frame>> {
    let mut root_first: Vec<_> =
        REQUEST.iter().map(|name| frames.get(name, FrameKind::Java, 100 + name.len() as u32)).collect();
    let mut at = numbers.skewed(3);
    for depth in 0..4 + numbers.below(22) {
        root_first.push(frames.get(SERVICES[at], FrameKind::Java, 40 + numbers.below(6) as u32));
        at = match shape {
            Shape::Wide => numbers.skewed(SERVICES.len()),
            Shape::Program => (at * 5 + depth * 3 + numbers.skewed(callees(at))) % SERVICES.len(),
        };
    }
    let leaf = match shape {
        Shape::Wide => numbers.skewed(LEAVES.len()),
        Shape::Program => (at + numbers.skewed(4)) % LEAVES.len(),
    };
    let (leaf, kind) = LEAVES[leaf];
    if kind == FrameKind::Kernel {
        root_first.push(frames.get("__libc_send", FrameKind::Native, 0));
        root_first.extend(SYSCALL.iter().map(|name| frames.get(name, FrameKind::Kernel, 0)));
    }
    root_first.push(frames.get(leaf, kind, 300 + numbers.below(4) as u32));
    root_first.reverse();
    rooted(frames, root_first)
}

fn callees(function: usize) -> usize {
    1 + function % 3
}
