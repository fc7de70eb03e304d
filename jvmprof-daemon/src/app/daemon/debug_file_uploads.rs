//! Uploads of debug files to a backend that names native frames.

use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use tokio::task::JoinHandle;

use super::backends::parca_options;
use crate::app::args::{RemoteStoreArgs, SymbolizeArg, UploadArgs};
use crate::app::errors::UsageError;
use crate::export::parca::debuginfo_upload::{UploadCounts, UploadOptions, Uploader};
use crate::native::debug_files_to_upload::queue::UploadQueue;
use crate::symbolize::{NativeOptions, SymbolizationPlace};

/// The uploader in the background, if there is one.
pub(super) struct DebugFileUploads(Option<RunningUploader>);

struct RunningUploader {
    uploader: Uploader,
    offers: Arc<UploadQueue>,
    task: JoinHandle<()>,
    address: String,
}

impl DebugFileUploads {
    /// Starts an uploader if the settings ask for one, and connects it with `native`.
    ///
    /// # Errors
    /// Flags that don't go together, or can't work.
    pub(super) fn start(
        args: &UploadArgs,
        remote: &RemoteStoreArgs,
        native: &mut NativeOptions,
    ) -> anyhow::Result<Self> {
        native.symbolize = match args.symbolize {
            SymbolizeArg::Local => return Ok(Self(None)),
            SymbolizeArg::Server => SymbolizationPlace::Server,
            SymbolizeArg::Auto => SymbolizationPlace::Auto,
        };
        check(args, remote)?;
        let Some(address) = remote.remote_store_address.first() else { return Ok(Self(None)) };
        let options = UploadOptions {
            exclude: globs(&args.upload_exclude)?,
            parallel: usize::from(args.upload_parallel),
            bytes_per_second: args.upload_bandwidth_mib << 20,
            exported_symbols: native.symbolize == SymbolizationPlace::Server,
            ..UploadOptions::default()
        };
        let uploader = Uploader::new(parca_options(remote, address), options)?;
        let (offers, queue) = UploadQueue::new();
        native.offers = Some(Arc::clone(&offers));
        let task = tokio::spawn(uploader.clone().run(queue));
        Ok(Self(Some(RunningUploader { uploader, offers, task, address: address.address.clone() })))
    }

    /// Applies new settings of the backend. Another server is offered every file again.
    pub(super) fn configure(&mut self, remote: &RemoteStoreArgs) {
        let Self(Some(running)) = self else { return };
        let Some(address) = remote.remote_store_address.first() else {
            tracing::warn!(
                address = running.address,
                "no backend is named any more: debug files go where they went"
            );
            return;
        };
        if let Err(error) = running.uploader.change_server(parca_options(remote, address)) {
            tracing::error!(address = running.address, %error, "debug files go where they went");
            return;
        }
        if running.address != address.address {
            running.address.clone_from(&address.address);
            running.offers.reset();
        }
    }

    /// Returns the counts so far, if anything is uploaded at all.
    pub(super) fn counts(&self) -> Option<UploadCounts> {
        self.0.as_ref().map(|running| running.uploader.counts())
    }

    /// Stops the uploads: the next daemon uploads the rest.
    pub(super) fn end(self) {
        if let Self(Some(RunningUploader { uploader, task, .. })) = self {
            task.abort();
            tracing::info!(counts = ?uploader.counts(), "uploads ended");
        }
    }
}

/// Checks that there is a backend if one is to name frames.
///
/// # Errors
/// There is none.
pub(super) fn check(args: &UploadArgs, remote: &RemoteStoreArgs) -> Result<(), UsageError> {
    let needs_backend = !matches!(args.symbolize, SymbolizeArg::Local);
    if needs_backend && remote.remote_store_address.is_empty() {
        let text = "--symbolize is server or auto, which needs a --remote-store-address to do it";
        return Err(UsageError(text.to_owned()));
    }
    Ok(())
}

fn globs(list: &[Glob]) -> anyhow::Result<GlobSet> {
    let mut builder = GlobSetBuilder::new();
    for glob in list {
        builder.add(glob.clone());
    }
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn globs_match_whole_paths_as_processes_see_them() {
        let set = globs(&["/opt/secret/**", "*.secret"].map(|glob| Glob::new(glob).expect("a glob")));
        let set = set.expect("a set");
        for (path, excluded) in [
            ("/opt/secret/bin/x", true),
            ("/opt/secret/x", true),
            ("/opt/x", false),
            ("/usr/opt/secret/x", false),
            ("/usr/bin/a.secret", true),
        ] {
            assert_eq!(set.is_match(Path::new(path)), excluded, "{path}");
        }
    }
}
