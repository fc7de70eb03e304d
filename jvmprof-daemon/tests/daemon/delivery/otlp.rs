//! A collector that gets OTLP through a tunnel that the environment names, and through nginx with
//! TLS, clients' certificates, a token and a header: by gRPC and by HTTP.

use super::proxy::{Daemon, busy, tunnel};
use super::{collector, field, stored};
use crate::support::keys::Keys;
use crate::support::nginx::{Nginx, TOKEN};
use crate::support::{scratch, signal};

#[test]
fn nginx_with_tls_a_clients_certificate_a_header_and_a_token_lets_both_protocols_of_otlp_through() {
    let (programs, keys) = (scratch(), Keys::make());
    let _load = busy(programs.path(), "busy");
    for (protocol, pass) in [("grpc", "grpc_pass grpc"), ("http", "proxy_pass http")] {
        let dir = scratch();
        let (store, token) = (dir.path().join("store"), dir.path().join("token"));
        let (mut collector, address) = collector(&store);
        let backend = address.strip_prefix("http://").unwrap();
        let team = r#"if ($http_x_team != "shop") { return 403; }"#;
        let nginx = Nginx::start(&keys, &format!("{team} {pass}://{backend};"));
        std::fs::write(&token, "expired\n").unwrap();
        let args = [
            ("--otlp-address", format!("https://localhost:{}", nginx.port)),
            ("--otlp-protocol", protocol.to_owned()),
            ("--otlp-headers", "x-team=shop".to_owned()),
            ("--otlp-bearer-token-file", token.display().to_string()),
            ("--otlp-ca-file", keys.path("ca.pem")),
            ("--otlp-client-cert", keys.path("client.pem")),
            ("--otlp-client-key", keys.path("client.key")),
        ];
        let args: Vec<_> = args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        let (port, asked) = tunnel();
        let environment = [
            ("HTTPS_PROXY", format!("http://user:pass@127.0.0.1:{port}")),
            ("NO_PROXY", "elsewhere.example".to_owned()),
        ];
        let daemon = Daemon::start(&args, &environment);
        // Nothing is lost while we aren't let in.
        daemon.until("401 Unauthorized");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        daemon.until("the server answers again");
        daemon.until_delivered(50);
        let log = daemon.end();
        signal(collector.id(), "TERM");
        assert!(collector.wait().unwrap().success());
        let [samples, delivered, spooled] = ["samples", "delivered", "spooled"].map(|name| field(&log, name));
        assert_eq!((field(&log, "lost"), field(&log, "possibly_lost")), (0, 0), "{protocol}: {log}");
        assert_eq!((delivered + spooled, stored(&store)), (samples, delivered), "{protocol}: {log}");
        let asked = asked.lock().unwrap();
        let head = format!("CONNECT localhost:{} HTTP/1.1\r\n", nginx.port);
        let is_asked = !asked.is_empty() && asked.iter().all(|asked| asked.starts_with(&head));
        assert!(is_asked, "{protocol}: {asked:?}");
        let has_secret = [TOKEN, "expired", "pass@"].iter().any(|secret| log.contains(secret));
        assert!(!has_secret, "tokens and passwords aren't logged: {log}");
    }
}
