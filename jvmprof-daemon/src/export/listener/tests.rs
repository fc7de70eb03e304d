//! The limits, met by clients over real sockets.

use std::net::SocketAddr;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const IDLE: Duration = Duration::from_millis(300);

struct Running {
    address: SocketAddr,
    refused: Arc<AtomicU64>,
}

async fn start(limits: ListenerLimits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let refused = Arc::new(AtomicU64::new(0));
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/echo", post(|body: axum::body::Bytes| async { body }));
    tokio::spawn(serve(listener, router, limits, Arc::clone(&refused), std::future::pending()));
    Running { address, refused }
}

fn small() -> ListenerLimits {
    ListenerLimits { connections: 4, idle_time: IDLE, ..ListenerLimits::default() }
}

/// Sends this, and waits until the server closes.
async fn until_closed(running: &Running, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(running.address).await.expect("it listens");
    stream.write_all(sent).await.expect("sent");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn who_says_nothing_or_stops_halfway_is_let_go() {
    let running = start(small()).await;
    let halves: [&[u8]; 6] = [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
        // HTTP/2: half of its preface, and a preface after which nothing comes.
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    for half in halves {
        until_closed(&running, half).await;
    }
    let answer = until_closed(&running, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(running.refused.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn headers_have_a_time_of_their_own() {
    // Bytes come all the time, so that only this limit ends it.
    let limits = ListenerLimits { header_time: IDLE, idle_time: Duration::from_secs(600), ..small() };
    let running = start(limits).await;
    let mut stream = TcpStream::connect(running.address).await.expect("it listens");
    stream.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
    while stream.write_all(b"X: y\r\n").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The preface of HTTP/2 byte by byte, and then one byte for ever: nothing ever times out by being
/// idle.
#[tokio::test]
async fn who_never_comes_to_a_request_is_let_go() {
    let limits = ListenerLimits { header_time: IDLE, idle_time: Duration::from_secs(600), ..small() };
    for http1_only in [false, true] {
        let running = start(ListenerLimits { http1_only, ..limits }).await;
        let mut stream = TcpStream::connect(running.address).await.expect("it listens");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for byte in preface.iter().cycle() {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn who_holds_all_connections_open_keeps_nobody_out() {
    let when_full = ConnectionOverflow::CloseLongestIdle;
    let idle_time = Duration::from_secs(600);
    let limits = ListenerLimits { when_full, idle_time, header_time: idle_time, ..small() };
    let running = start(limits).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(running.address).await.expect("room");
        stream.write_all(b"GET /").await.expect("sent");
        open.push(stream);
    }
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answer = until_closed(&running, request).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(running.refused.load(Ordering::Relaxed), 1);
    // The first one had been quiet for the longest time.
    let mut nothing = Vec::new();
    let _ = open[0].read_to_end(&mut nothing).await;
    assert_eq!(nothing, b"");
    for stream in &mut open[1..] {
        stream.write_all(b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("still open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("text");
        assert!(answer.ends_with("hello"), "{answer}");
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_counted() {
    let running = start(ListenerLimits { idle_time: Duration::from_secs(600), ..small() }).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(TcpStream::connect(running.address).await.expect("room"));
    }
    assert_eq!(until_closed(&running, b"").await, "");
    assert_eq!(running.refused.load(Ordering::Relaxed), 1);
    // Who goes makes room.
    drop(open);
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    while !until_closed(&running, request).await.ends_with("hello") {}
}

#[tokio::test]
async fn a_client_that_answers_pings_stays_connected() {
    // A third of it is how long the answer to a ping may take, also on a machine that pauses.
    let idle_time = IDLE * 10;
    let running = start(ListenerLimits { idle_time, ..small() }).await;
    let stream = TcpStream::connect(running.address).await.expect("it listens");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    tokio::time::sleep(idle_time * 3 / 2).await;
    let request = axum::http::Request::get("http://x/").body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("still connected");
    assert_eq!(response.await.expect("answered").status(), 200);
    assert!(!connection.is_finished());
}
