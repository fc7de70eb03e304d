//! Keys and certificates of servers and clients of TLS.

use std::fs;

use tempfile::TempDir;

use super::scratch;

/// PEM files of a certificate authority, a server and a client.
pub(crate) struct Keys(TempDir);

impl Keys {
    pub(crate) fn make() -> Self {
        let dir = scratch();
        let mut ca = rcgen::CertificateParams::new(vec![]).unwrap();
        // A name of its own: whose issuer has the same name is taken for self-signed.
        ca.distinguished_name.push(rcgen::DnType::CommonName, "the tests' authority");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_key = rcgen::KeyPair::generate().unwrap();
        fs::write(dir.path().join("ca.pem"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
        let issuer = rcgen::Issuer::new(ca, ca_key);
        for (name, host) in [("server", "localhost"), ("client", "host-7")] {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            fs::write(dir.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
            fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}
