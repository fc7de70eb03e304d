//! Addresses of backends, each with the credentials of all of its kind, or with its own.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use toml::de::ValueDeserializer;

/// The address of a backend. [`FromStr`] reads it from a text, or from an inline TOML table with
/// credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAddress {
    pub address: String,
    /// What it gets in place of the credentials and headers of all others.
    pub own: Option<BackendCredentials>,
}

/// Credentials of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendCredentials {
    /// The tenant that profiles belong to (`X-Scope-OrgID`).
    pub tenant: Option<String>,
    /// File with a token.
    pub bearer_token_file: Option<PathBuf>,
    /// File with `user:password`.
    pub basic_auth_file: Option<PathBuf>,
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
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AddressFields {
    address: String,
    tenant: Option<String>,
    #[serde(alias = "bearer_token_file")]
    bearer_token_file: Option<PathBuf>,
    #[serde(alias = "basic_auth_file")]
    basic_auth_file: Option<PathBuf>,
}

impl FromStr for BackendAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let text = text.trim();
        if !text.starts_with('{') {
            return Ok(Self { address: text.to_owned(), own: None });
        }
        let fields = ValueDeserializer::parse(text).and_then(AddressFields::deserialize);
        let AddressFields { address, tenant, bearer_token_file, basic_auth_file } =
            fields.map_err(|error| InvalidAddress::Table {
                reason: error.message().lines().collect::<Vec<_>>().join(" "),
            })?;
        if bearer_token_file.is_some() && basic_auth_file.is_some() {
            return Err(InvalidAddress::TwoCredentials);
        }
        Ok(Self { address, own: Some(BackendCredentials { tenant, bearer_token_file, basic_auth_file }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_text_or_a_table_with_credentials() {
        let plain = |address: &str| BackendAddress { address: address.to_owned(), own: None };
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
        // None of the others' credentials, and none of its own.
        assert_eq!(parsed("{ address = 'http://a:4040' }"), with(BackendCredentials::default()));
    }

    #[test]
    fn a_table_that_is_no_address_is_refused_with_what_is_wrong() {
        for (text, expected) in [
            ("{ tenant = 'shop' }", "missing field `address`"),
            ("{ address = 'a:1', tennant = 'shop' }", "unknown field `tennant`"),
            ("{ address = 7 }", "expected a string"),
            ("{ address = 'a:1'", "looks like { address"),
            ("{ address = 'a:1', bearer-token-file = '/x', basic-auth-file = '/y' }", "exclude each other"),
        ] {
            let error = text.parse::<BackendAddress>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
