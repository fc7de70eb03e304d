//! Demands of the collector on its clients: that they trust the authority of its certificate, and
//! bring its token.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::files;
use crate::run::output;

pub(super) const TOKEN: &str = "correct-horse-battery";

/// PEM files of an authority and of a server named `localhost`, and the file with the token.
#[derive(Debug)]
pub(super) struct AccessFiles {
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) token: PathBuf,
}

impl AccessFiles {
    /// Writes the files to this folder, by openssl.
    pub(super) fn make(folder: &Path) -> anyhow::Result<Self> {
        let [authority, certificate, key, token] =
            ["ca.pem", "server.pem", "server.key", "token"].map(|name| folder.join(name));
        let [authority_key, request, extensions] =
            ["ca.key", "server.csr", "extensions"].map(|name| folder.join(name));
        let mut own = new_key("/CN=the bench's authority", &authority_key);
        openssl(own.args(["-x509", "-days", "30", "-out"]).arg(&authority))?;
        openssl(new_key("/CN=localhost", &key).arg("-out").arg(&request))?;
        files::write(&extensions, "subjectAltName=DNS:localhost\n")?;
        let mut sign = Command::new("openssl");
        sign.args(["x509", "-req", "-days", "30", "-CAcreateserial", "-in"]).arg(&request);
        sign.arg("-CA").arg(&authority).arg("-CAkey").arg(&authority_key);
        openssl(sign.arg("-extfile").arg(&extensions).arg("-out").arg(&certificate))?;
        files::write(&token, TOKEN)?;
        Ok(Self { authority, certificate, key, token })
    }
}

/// Returns `openssl req` with a new key for this subject.
fn new_key(subject: &str, key: &Path) -> Command {
    let mut command = Command::new("openssl");
    command.args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-subj", subject, "-keyout"]).arg(key);
    command
}

fn openssl(command: &mut Command) -> anyhow::Result<()> {
    output(command).context("making a certificate (Debian: openssl)")?;
    Ok(())
}
