//! Addresses of backends, each with the credentials and certificates of all of its kind, or with
//! its own.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::de::ValueDeserializer;

use crate::export::push::check_header;

/// The address of a backend. [`FromStr`] reads it from a text, or from an inline TOML table with
/// credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAddress {
    pub address: String,
    /// What it gets in place of the credentials and headers of all others.
    pub own: Option<BackendCredentials>,
    /// PEM file of certificate authorities in place of those for all.
    pub ca_file: Option<PathBuf>,
    /// PEM files of a certificate and its key in place of those for all.
    pub client_identity: Option<(PathBuf, PathBuf)>,
}

/// Credentials of a backend.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BackendCredentials {
    /// Names and values that go with every request.
    pub headers: Vec<(String, String)>,
    /// The tenant that profiles belong to (`X-Scope-OrgID`).
    pub tenant: Option<String>,
    /// File with a token.
    pub bearer_token_file: Option<PathBuf>,
    /// File with `user:password`.
    pub basic_auth_file: Option<PathBuf>,
}

impl fmt::Debug for BackendCredentials {
    /// Values of headers are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("BackendCredentials")
            .field("headers", &headers)
            .field("tenant", &self.tenant)
            .field("bearer_token_file", &self.bearer_token_file)
            .field("basic_auth_file", &self.basic_auth_file)
            .finish()
    }
}

/// A table that is no address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    #[error(
        "not an address: {reason}; one with credentials of its own looks like {{ address = \
         \"http://host:4040\", tenant = \"shop\" }}"
    )]
    Table { reason: String },
    #[error("basic-auth-file and bearer-token-file exclude each other")]
    TwoCredentials,
    #[error("client-cert and client-key need each other")]
    HalfIdentity,
    #[error("{reason}")]
    Header { reason: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AddressFields {
    address: String,
    #[serde(default, deserialize_with = "headers")]
    headers: BTreeMap<String, String>,
    #[serde(alias = "ca_file")]
    ca_file: Option<PathBuf>,
    #[serde(alias = "client_cert")]
    client_cert: Option<PathBuf>,
    #[serde(alias = "client_key")]
    client_key: Option<PathBuf>,
    tenant: Option<String>,
    #[serde(alias = "bearer_token_file")]
    bearer_token_file: Option<PathBuf>,
    #[serde(alias = "basic_auth_file")]
    basic_auth_file: Option<PathBuf>,
}

/// Reads headers. The error that serde has by itself shows the value, which may be a secret.
fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    BTreeMap::deserialize(from)
        .map_err(|_| D::Error::custom("headers isn't a table of texts, such as { x-team = \"shop\" }"))
}

impl BackendAddress {
    /// The files with its own certificates and key, which are read once.
    pub fn certificate_files(&self) -> impl Iterator<Item = &Path> {
        let identity = self.client_identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca_file.iter().chain(identity).map(PathBuf::as_path)
    }
}

impl FromStr for BackendAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let text = text.trim();
        if !text.starts_with('{') {
            return Ok(Self { address: text.to_owned(), own: None, ca_file: None, client_identity: None });
        }
        let fields = ValueDeserializer::parse(text).and_then(AddressFields::deserialize);
        let fields = fields.map_err(|error| InvalidAddress::Table {
            reason: error.message().lines().collect::<Vec<_>>().join(" "),
        })?;
        if fields.bearer_token_file.is_some() && fields.basic_auth_file.is_some() {
            return Err(InvalidAddress::TwoCredentials);
        }
        if fields.client_cert.is_some() != fields.client_key.is_some() {
            return Err(InvalidAddress::HalfIdentity);
        }
        for (name, value) in &fields.headers {
            let checked = check_header(name, value);
            checked.map_err(|error| InvalidAddress::Header { reason: error.to_string() })?;
        }
        let own = BackendCredentials {
            headers: fields.headers.into_iter().collect(),
            tenant: fields.tenant,
            bearer_token_file: fields.bearer_token_file,
            basic_auth_file: fields.basic_auth_file,
        };
        Ok(Self {
            address: fields.address,
            own: Some(own),
            ca_file: fields.ca_file,
            client_identity: fields.client_cert.zip(fields.client_key),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_text_or_a_table_with_credentials() {
        let plain = |address: &str| BackendAddress {
            address: address.to_owned(),
            own: None,
            ca_file: None,
            client_identity: None,
        };
        let parsed = |text: &str| text.parse::<BackendAddress>().expect(text);
        assert_eq!(parsed("[::1]:7070"), plain("[::1]:7070"));
        assert_eq!(parsed(" host:7070"), plain("host:7070"));
        let own = BackendCredentials { tenant: Some("shop".to_owned()), ..BackendCredentials::default() };
        let with = |own| BackendAddress { own: Some(own), ..plain("http://a:4040") };
        assert_eq!(parsed("{ address = 'http://a:4040', tenant = 'shop' }"), with(own.clone()));
        for key in ["bearer-token-file", "bearer_token_file"] {
            let own = BackendCredentials { bearer_token_file: Some("/token".into()), ..own.clone() };
            let text = format!("{{ address = 'http://a:4040', tenant = 'shop', {key} = '/token' }}");
            assert_eq!(parsed(&text), with(own), "{key}");
        }
        let own = BackendCredentials { basic_auth_file: Some("/users".into()), ..Default::default() };
        assert_eq!(parsed("{ address = 'http://a:4040', basic-auth-file = '/users' }"), with(own));
        let headers = vec![("a".to_owned(), "1".to_owned()), ("b-c".to_owned(), "2".to_owned())];
        let own = BackendCredentials { headers, ..Default::default() };
        let headed = "{ address = 'http://a:4040', headers = { b-c = '2', a = '1' } }";
        assert_eq!(parsed(headed), with(own));
        // None of the others' credentials, and none of its own.
        assert_eq!(parsed("{ address = 'http://a:4040' }"), with(BackendCredentials::default()));
    }

    #[test]
    fn a_table_may_have_certificates_of_its_own() {
        for [ca_file, certificate, key] in
            [["ca-file", "client-cert", "client-key"], ["ca_file", "client_cert", "client_key"]]
        {
            let text =
                format!("{{ address = 'a:1', {ca_file} = '/ca', {certificate} = '/c', {key} = '/k' }}");
            let parsed: BackendAddress = text.parse().expect("an address");
            assert_eq!(parsed.ca_file.as_deref(), Some(Path::new("/ca")));
            assert_eq!(parsed.client_identity, Some((PathBuf::from("/c"), PathBuf::from("/k"))));
            assert_eq!(parsed.own, Some(BackendCredentials::default()));
            assert!(parsed.certificate_files().eq(["/ca", "/c", "/k"].map(Path::new)));
        }
    }

    #[test]
    fn values_of_headers_are_in_no_message() {
        let text = "{ address = 'a:1', headers = { x-key = 'hidden' } }";
        let parsed: BackendAddress = text.parse().expect("an address");
        assert!(!format!("{parsed:?}").contains("hidden"), "{parsed:?}");
        for headers in ["'x-key=hidden'", "{ x-key = ['hidden'] }", "['hidden']"] {
            let text = format!("{{ address = 'a:1', headers = {headers} }}");
            let error = text.parse::<BackendAddress>().expect_err("it is no table of texts").to_string();
            assert!(!error.contains("hidden") && error.contains("a table of texts"), "{error}");
        }
        let text = "{ address = 'a:1', headers = { x-key = \"hidden\\u0001\" } }";
        let error = text.parse::<BackendAddress>().expect_err("no header").to_string();
        assert!(error.contains("x-key") && !error.contains("hidden"), "{error}");
    }

    #[test]
    fn a_table_that_is_no_address_is_refused_with_what_is_wrong() {
        for (text, expected) in [
            ("{ tenant = 'shop' }", "missing field `address`"),
            ("{ address = 'a:1', tennant = 'shop' }", "unknown field `tennant`"),
            ("{ address = 7 }", "expected a string"),
            ("{ address = 'a:1'", "looks like { address"),
            ("{ address = 'a:1', bearer-token-file = '/x', basic-auth-file = '/y' }", "exclude each other"),
            ("{ address = 'a:1', client-cert = '/x' }", "need each other"),
            ("{ address = 'a:1', client-key = '/x' }", "need each other"),
            ("{ address = 'a:1', headers = { 'a b' = 'x' } }", "can't be the name of a gRPC header"),
        ] {
            let error = text.parse::<BackendAddress>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
