//! The sinks of the daemon: opens those that the settings name, and logs their counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::backends;
use crate::app::args::{DaemonArgs, DeliveryArg, DeliveryArgs};
use crate::app::pipeline_options::daemon_memory;
use crate::event_type::{EventType, SamplesByEvent};
use crate::export::delivery::{Delivery, DeliveryCounts, DeliveryOptions, SampleTotals, SpoolPlan};
use crate::export::store::{Store, StoreError, StoreOptions};

/// The value of `--spool-directory` for none.
const NO_SPOOL: &str = "none";

/// Opens every sink that the settings name. `before`: counts of the daemon so far.
///
/// # Errors
/// Flags that don't go together, or can't work; a spool or a store that can't be used.
pub(super) fn open(args: &DaemonArgs, before: SampleTotals) -> anyhow::Result<Delivery> {
    let mut delivery = Delivery::after(before);
    let clients = backends::clients(args)?;
    let max_waiting_bytes = daemon_memory(args).outbox / clients.len().max(1);
    for client in clients {
        let spool = spool_plan(&args.delivery, client.address());
        let send_again = args.delivery.delivery == DeliveryArg::AtLeastOnce;
        let options = DeliveryOptions { send_again, spool, max_waiting_bytes, ..DeliveryOptions::default() };
        delivery.add_remote(client, options).map_err(|error| {
            let advice = "--spool-directory names another folder, or `none` to do without";
            anyhow::anyhow!("cannot use the spool: {error} ({advice})")
        })?;
    }
    if args.local_store.local_store || delivery.is_empty() {
        let limits = StoreOptions {
            limit_bytes: args.local_store.local_store_limit_mib << 20,
            ..StoreOptions::default()
        };
        let store = Store::open(&args.local_store.local_store_directory, limits).map_err(|error| {
            let advice = match error {
                StoreError::Locked { .. } => {
                    "--local-store-directory names another folder; a `jvmprof collector` that takes profiles \
                     there gets these too with --collector-address"
                }
                _ => "--local-store-directory names another folder",
            };
            anyhow::anyhow!("cannot use the local store: {error} ({advice})")
        })?;
        delivery.add_local(Arc::new(store));
    }
    Ok(delivery)
}

fn spool_plan(args: &DeliveryArgs, address: &str) -> Option<SpoolPlan> {
    (args.spool_directory != Path::new(NO_SPOOL)).then(|| SpoolPlan {
        dir: args.spool_directory.join(folder_name(address)),
        max_bytes: args.spool_limit_mib << 20,
        max_age: args.spool_max_age,
        bytes_per_second: args.spool_rate_kib << 10,
    })
}

/// Returns a backend's folder: for people the address as far as it can be part of a file's name,
/// for certainty its checksum.
fn folder_name(address: &str) -> String {
    let address = address.trim();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let readable: String = address.chars().take(100).map(plain).collect();
    format!("{readable}-{:08x}", crc32fast::hash(address.as_bytes()))
}

/// Logs the counts of a sink so far, of each event that it was handed.
pub(super) fn log(sink: &str, counts: &DeliveryCounts, message: &'static str) {
    for event in events_of(counts.found + counts.handed_over) {
        let counts = counts.of_event(event);
        let losses: Vec<_> = counts.losses.iter().filter(|(_, samples)| *samples > 0).collect();
        tracing::info!(
            sink,
            event = event.as_str(),
            found = counts.found,
            handed_over = counts.handed_over,
            delivered = counts.delivered,
            delivered_late = counts.delivered_late,
            ?losses,
            spooled = counts.spooled,
            left_behind = counts.orphaned,
            waiting = counts.waiting,
            "{message}"
        );
    }
}

/// Returns CPU time, and those other events of which there are samples.
fn events_of(samples: SamplesByEvent) -> impl Iterator<Item = EventType> {
    let has_some = |(event, samples): &(EventType, u64)| *event == EventType::Cpu || *samples > 0;
    samples.iter().filter(has_some).map(|(event, _)| event)
}

/// Logs the account of a daemon that ends, of each event by itself, and what is missing in it.
pub(super) fn log_account(so_far: SampleTotals, sinks: &BTreeMap<String, DeliveryCounts>) {
    let sum = |of: fn(&DeliveryCounts) -> SamplesByEvent| sinks.values().map(of).sum::<SamplesByEvent>();
    let delivered = sum(|counts| counts.delivered);
    let possibly_lost = sum(|counts| counts.losses.possibly_lost);
    let lost = sum(|counts| counts.losses.total()) - possibly_lost;
    let spooled = sum(|counts| counts.spooled + counts.orphaned);
    for event in events_of(so_far.taken + delivered + possibly_lost + lost + spooled) {
        let [taken, lost_before, handed_over] =
            [so_far.taken, so_far.lost_before, so_far.handed_over].map(|samples| samples.get(event));
        let name = event.as_str();
        if taken != handed_over + lost_before {
            tracing::error!(
                event = name,
                taken,
                handed_over,
                lost_before,
                "samples are missing that nothing counts: report it"
            );
        }
        tracing::info!(
            event = name,
            taken,
            lost_before,
            handed_over,
            delivered = delivered.get(event),
            lost = lost.get(event),
            possibly_lost = possibly_lost.get(event),
            spooled = spooled.get(event),
            "account"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_has_a_folder_of_its_own() {
        assert!(folder_name("https://parca.example:443").starts_with("https___parca.example_443-"));
        let names = ["[::1]:7070", "[::_1]:7070", "../x", "host:7070"].map(folder_name);
        for (at, name) in names.iter().enumerate() {
            assert!(!name.contains('/') && !names[..at].contains(name), "{name}");
        }
        assert_eq!(folder_name(" host:7070"), folder_name("host:7070"));
    }
}
