//! Arguments of `jvmprof completions` and `jvmprof man-pages`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Arguments of `jvmprof completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  jvmprof completions bash > /etc/bash_completion.d/jvmprof
  jvmprof completions zsh > \"${fpath[1]}/_jvmprof\"
  jvmprof completions fish > ~/.config/fish/completions/jvmprof.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `jvmprof man-pages`.
#[derive(Debug, Args)]
pub struct ManPagesArgs {
    /// Where to write them
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
