//! `jvmprof collector`: receives profiles as Parca does, keeps them in a folder, and shows them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sd_notify::NotifyState;
use tokio::net::TcpListener;

use super::args::CollectorArgs;
use super::shutdown_signals::ShutdownSignals;
use super::stdout::print_report;
use crate::export::collector::access_token::AccessToken;
use crate::export::collector::page_server::{self, PageOptions};
use crate::export::collector::sums::BackgroundSums;
use crate::export::collector::{CollectorService, ReadLimits, require_token, routes, serve};
use crate::export::listener::tls::{ServerCertificate, TlsListener};
use crate::export::store::{Store, StoreOptions};
use crate::telemetry::metrics::{CONTENT_TYPE, CollectorSnapshot, collector_exposition};

/// Interval at which the files of certificate, key and token are read again, and at which refused
/// clients are logged.
const RELOAD_INTERVAL: Duration = Duration::from_mins(1);

/// Runs the subcommand.
pub(super) fn run(args: &CollectorArgs) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .context("cannot start the event loop")?
        .block_on(run_collector(args))
}

/// The certificate and the token of the port, as far as they are configured.
struct PortAccess {
    certificate: Option<Arc<ServerCertificate>>,
    token: Option<Arc<AccessToken>>,
}

impl PortAccess {
    fn read(args: &CollectorArgs) -> anyhow::Result<Self> {
        let certificate = match (&args.tls_cert, &args.tls_key) {
            (Some(certificate), Some(key)) => Some(Arc::new(ServerCertificate::read(certificate, key)?)),
            _ => None,
        };
        let token = args.token_file.as_deref().map(AccessToken::read).transpose()?.map(Arc::new);
        Ok(Self { certificate, token })
    }

    fn warn_if_exposed(&self, listen: SocketAddr) {
        if listen.ip().is_loopback() {
            return;
        }
        match (&self.token, &self.certificate) {
            (None, _) => tracing::warn!(
                %listen,
                "the collector is open to the network: nobody is asked for a token (--token-file)"
            ),
            (Some(_), None) => tracing::warn!(
                %listen,
                "tokens and profiles cross the network without TLS (--tls-cert and --tls-key)"
            ),
            (Some(_), Some(_)) => {}
        }
    }

    /// Reads the files again, and logs the clients that were refused, at each interval; never ends.
    async fn maintain(&self) {
        let mut interval = tokio::time::interval(RELOAD_INTERVAL);
        loop {
            interval.tick().await;
            if let Some(Err(error)) = self.certificate.as_ref().map(|it| it.reload()) {
                tracing::warn!(%error, "the certificate from before is served on");
            }
            if let Some(Err(error)) = self.token.as_ref().map(|it| it.reload()) {
                tracing::warn!(%error, "the token from before holds on");
            }
            self.log_refused();
        }
    }

    /// Logs the requests and handshakes that were refused since the last call.
    fn log_refused(&self) {
        let requests = self.token.as_ref().map_or(0, |token| token.take_refused());
        if requests > 0 {
            tracing::warn!(requests, "requests were refused: their token is missing or wrong");
        }
        let handshakes = self.certificate.as_ref().map_or(0, |it| it.take_failed_handshakes());
        if handshakes > 0 {
            tracing::warn!(
                handshakes,
                "TLS handshakes failed: clients don't trust the certificate or don't speak TLS"
            );
        }
    }
}

async fn run_collector(args: &CollectorArgs) -> anyhow::Result<()> {
    let access = PortAccess::read(args)?;
    let options = StoreOptions { limit_bytes: args.limit_mib << 20, ..StoreOptions::default() };
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
    let sums = BackgroundSums::start(Arc::clone(&store)).context("cannot start a thread for sums")?;
    let collector = Arc::new(CollectorService::new(Arc::clone(&store)));
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    // For people and for scripts that asked for any free port.
    let scheme = if access.certificate.is_some() { "https" } else { "http" };
    print_report(&format!("{scheme}://{listen}/\n"))?;
    access.warn_if_exposed(listen);
    tracing::info!(%listen, dir = %args.dir.display(), "collecting");
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::debug!(%error, "the service manager can't be notified");
    }
    let state = Arc::new(MetricsState { collector: Arc::clone(&collector), store, sums });
    let metrics = Router::new().route("/metrics", get(scrape)).with_state(state);
    let mut router = routes(Arc::clone(&collector)).merge(page).merge(page_server::protect(metrics, listen));
    if let Some(token) = &access.token {
        router = require_token(router, Arc::clone(token));
    }
    let stop = async move {
        let signal = shutdown.requested().await;
        tracing::info!(signal, "ending");
    };
    tokio::select! {
        served = serve_port(listener, access.certificate.clone(), router, stop) => served?,
        () = access.maintain() => {}
    }
    access.log_refused();
    tracing::info!(counters = ?collector.counters(), "ended");
    Ok(())
}

/// State of the metrics endpoint: what has counters, and the thread that makes sums as long as this
/// lives.
struct MetricsState {
    collector: Arc<CollectorService>,
    store: Arc<Store>,
    sums: BackgroundSums,
}

async fn scrape(State(state): State<Arc<MetricsState>>) -> Response {
    let MetricsState { collector, store, sums } = &*state;
    let snapshot = CollectorSnapshot {
        requests: collector.counters(),
        store: store.counters(),
        sums: sums.counts(),
        used_bytes: store.used_bytes(),
    };
    match collector_exposition(snapshot) {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("encoding metrics: {error}\n")).into_response()
        }
    }
}

async fn serve_port(
    listener: TcpListener,
    certificate: Option<Arc<ServerCertificate>>,
    router: Router,
    stop: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    match certificate {
        Some(certificate) => serve(TlsListener::new(listener, certificate)?, router, stop).await,
        None => serve(listener, router, stop).await,
    }
    Ok(())
}
