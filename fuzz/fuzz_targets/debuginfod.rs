//! Any bytes as the answer of a debuginfod server, or as the body of a good one: a debug file is
//! kept if it is an ELF file with the build id that was asked for, and within the limit.
#![no_main]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use std::{fs, thread};

use jvmprof_daemon::native::debuginfod::{Debuginfod, DebuginfodOptions, FetchState};
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::types::BuildId;
use libfuzzer_sys::fuzz_target;

/// One file may take half of the space.
const LIMIT: u64 = 32 << 10;

struct Client {
    debuginfod: Debuginfod,
    directory: PathBuf,
    answer: Arc<Mutex<Vec<u8>>>,
}

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("its port"));
    let answer = Arc::new(Mutex::new(Vec::<u8>::new()));
    let served = Arc::clone(&answer);
    thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { continue };
            let mut request = Vec::new();
            let mut part = [0; 4096];
            while !request.ends_with(b"\r\n\r\n") {
                match connection.read(&mut part) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => request.extend_from_slice(&part[..read]),
                }
            }
            // The client may have seen enough, and closes.
            let _ = connection.write_all(&served.lock().expect("not poisoned"));
        }
    });
    let directory = tempfile::tempdir_in("/dev/shm").expect("a folder in memory").keep();
    let options = DebuginfodOptions {
        limit_bytes: LIMIT * 2,
        timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(5),
        retry_after: Duration::ZERO,
        ..DebuginfodOptions::new(vec![url.parse().expect("a URL")], directory.clone())
    };
    Client { debuginfod: Debuginfod::start(options).expect("it starts"), directory, answer }
});

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    let client = &*CLIENT;
    let own = ElfFile::parse(body).ok().and_then(|elf| elf.build_id());
    let id = own.or_else(|| BuildId::new(&[7; 20])).expect("a build id");
    let head: &[u8] = if kind & 1 == 0 { b"" } else { b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" };
    *client.answer.lock().expect("not poisoned") = [head, body].concat();
    assert_eq!(client.debuginfod.request(id), FetchState::Pending);
    while !client.debuginfod.is_idle() {
        thread::yield_now();
    }
    let fetched = client.debuginfod.take_fetched();
    let kept: Vec<PathBuf> =
        fs::read_dir(&client.directory).expect("it is there").flatten().map(|entry| entry.path()).collect();
    assert_eq!(kept.len(), fetched.len(), "nothing else is left behind");
    for path in kept {
        let bytes = fs::read(&path).expect("just seen");
        assert!(bytes.len() as u64 <= LIMIT);
        assert_eq!(ElfFile::parse(&*bytes).expect("it was checked").build_id(), Some(id));
        fs::remove_file(path).expect("just seen");
    }
});
