//! `jvmprof collector`: receives profiles as Parca does, keeps them in a folder, and shows them.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;

use super::args::CollectorArgs;
use super::shutdown_signals::ShutdownSignals;
use crate::export::collector::page_server::{self, PageOptions};
use crate::export::collector::{CollectorService, ReadLimits, routes, serve};
use crate::export::store::{Store, StoreOptions};

/// Runs the subcommand.
pub(super) fn run(args: &CollectorArgs) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .context("cannot start the event loop")?
        .block_on(collect(args))
}

async fn collect(args: &CollectorArgs) -> anyhow::Result<()> {
    let options = StoreOptions { limit_bytes: args.limit_mib << 20 };
    let store = Arc::new(Store::open_shared(&args.dir, options).with_context(|| {
        let dir = args.dir.display();
        format!(
            "cannot keep profiles in {dir} (--dir names another folder; `jvmprof ui {dir}` only shows them)"
        )
    })?);
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let listen = listener.local_addr().context("cannot read the address of the listening socket")?;
    let options = PageOptions { listen, limits: ReadLimits::default() };
    let page = page_server::router(Arc::clone(&store), options);
    let collector = Arc::new(CollectorService::new(store));
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    // For people and for scripts that asked for any free port.
    println!("http://{listen}/");
    if !listen.ip().is_loopback() {
        tracing::warn!(%listen, "the collector is open to the network: nobody is asked for a password");
    }
    tracing::info!(%listen, dir = %args.dir.display(), "collecting");
    let router = routes(Arc::clone(&collector)).merge(page);
    let stop = async move {
        let signal = shutdown.requested().await;
        tracing::info!(signal, "ending");
    };
    serve(listener, router, stop).await;
    tracing::info!(counters = ?collector.counters(), "ended");
    Ok(())
}
