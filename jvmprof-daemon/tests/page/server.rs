//! The collector's page on a port of its own, over a store that a test fills.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::export::collector::page_server::{PageOptions, router};
use jvmprof_daemon::export::store::{NewProfile, Store, StoreOptions, UnixNanos, with_name};
use jvmprof_daemon::profile::model::Batch;
use jvmprof_daemon::profile::pprof;

use crate::data::{Numbers, Shape, busy_jvm, window};

const WINDOW: Duration = Duration::from_secs(10);

/// A served page; ended when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    pub(crate) fn start(store: Arc<Store>, limits: ReadLimits) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(listen)).unwrap();
        let listen = listener.local_addr().unwrap();
        let page = router(store, PageOptions { listen, limits });
        runtime.spawn(async { axum::serve(listener, page).await });
        Self { url: format!("http://{listen}"), _runtime: runtime }
    }
}

pub(crate) fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(dir, StoreOptions::default()).unwrap())
}

/// Stores a batch as the daemon would have pushed it, with the times of samples.
pub(crate) fn push(store: &Store, batch: &Batch) {
    let profiles: Vec<_> = batch
        .series
        .iter()
        .map(|series| {
            let profile = pprof::PushEncoder::new(batch).with_times(true).encode(series);
            NewProfile {
                labels: with_name(&series.labels, batch.event.descriptor().series).into(),
                start: batch.start.into(),
                duration: batch.duration,
                samples: pprof::total(&profile),
                pprof: pprof::to_bytes(&profile).unwrap().into(),
            }
        })
        .collect();
    store.append(&profiles).unwrap();
}

/// Fills the store with the `time` before now: load that comes and goes. Says how many samples
/// there are.
pub(crate) fn fill(store: &Store, time: Duration, shape: Shape, samples: usize) -> u64 {
    let mut numbers = Numbers::new(7);
    let windows = time.as_secs() / WINDOW.as_secs();
    let mut total = 0;
    for index in 0..windows {
        let ago = WINDOW * u32::try_from(windows - index).unwrap();
        let wave = 1.2 + (index as f64 / 9.0).sin() + if index % 40 == 17 { 2.0 } else { 0.0 };
        let count = (samples as f64 * wave) as usize;
        let batch = window(SystemTime::now() - ago, WINDOW, count, shape, &mut numbers);
        total += batch.samples();
        push(store, &batch);
    }
    total
}

/// Fills the store with windows of a JVM whose collector and compilers are busy, too.
pub(crate) fn fill_busy(store: &Store, time: Duration, samples: usize) {
    let mut numbers = Numbers::new(7);
    let windows = (time.as_secs() / WINDOW.as_secs()) as u32;
    for index in 0..windows {
        let count = (samples as f64 * (1.3 + (f64::from(index) / 9.0).sin())) as usize;
        let start = SystemTime::now() - WINDOW * (windows - index);
        push(store, &busy_jvm(start, WINDOW, count, &mut numbers));
    }
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> i64 {
    UnixNanos::from(time).0 / 1_000_000
}
