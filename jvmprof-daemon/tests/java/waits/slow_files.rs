//! Waits for a disk that is slow, of reads and of page faults, beside what the program measures.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request, spawn_mount,
};

use super::{sums_of, text, waited};
use crate::support::{compile_java, jdks, record_json, scratch};

/// Reads places of files that it hasn't read before, one kind a method, and measures how long.
const ORACLE: &str = r#"
import java.io.*;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.util.*;

public class Oracle {
    interface Wait { void once(int at) throws Exception; }
    static final Map<String, Long> sums = new TreeMap<>();
    static RandomAccessFile uncached, cached;
    static MappedByteBuffer mapped;
    static final byte[] bytes = new byte[4096];
    static volatile long sink;

    static void reads(int at) throws Exception { uncached.read(bytes); }
    static void readsCached(int at) throws Exception { cached.seek(at); sink += cached.read(); }
    static void touches(int at) { sink += mapped.get(at); }

    static Thread run(String name, Wait wait) {
        Thread thread = new Thread(() -> {
            long sum = 0;
            try {
                // Far enough from one another that none is read ahead.
                for (int i = 1; i <= 80; i++) { long t = System.nanoTime(); wait.once(i * (8 << 20)); sum += System.nanoTime() - t; }
            } catch (Exception e) { throw new Error(e); }
            synchronized (sums) { sums.put(name, sum); }
        });
        thread.start();
        return thread;
    }

    public static void main(String[] args) throws Exception {
        for (long end = System.nanoTime() + 5_000_000_000L; System.nanoTime() < end; ) Thread.sleep(1);
        uncached = new RandomAccessFile(args[0] + "/uncached", "r");
        cached = new RandomAccessFile(args[0] + "/cached", "r");
        RandomAccessFile file = new RandomAccessFile(args[0] + "/mapped", "r");
        mapped = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, 1 << 30);
        Thread[] threads = { run("reads", Oracle::reads), run("readsCached", Oracle::readsCached), run("touches", Oracle::touches) };
        for (Thread thread : threads) thread.join();
        try (PrintWriter out = new PrintWriter(args[1])) {
            for (Map.Entry<String, Long> sum : sums.entrySet()) out.println(sum.getKey() + " " + sum.getValue());
        }
        Thread.sleep(3_000);
    }
}
"#;

const CAUSES: [(&str, &str); 3] = [("reads", "file"), ("readsCached", "file"), ("touches", "page_fault")];

/// Files of zeros, by their inodes from 2 on; the first one isn't cached by the kernel.
const FILES: [&str; 3] = ["uncached", "cached", "mapped"];
const FILE_BYTES: u64 = 1 << 30;
/// How long the disk takes for each request.
const DELAY: Duration = Duration::from_millis(30);
/// How long the kernel may rely on what it was told.
const TTL: Duration = Duration::from_secs(60);

struct SlowDisk;

fn attributes(inode: INodeNo) -> FileAttr {
    let is_root = inode == INodeNo::ROOT;
    FileAttr {
        ino: inode,
        size: if is_root { 0 } else { FILE_BYTES },
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_root { FileType::Directory } else { FileType::RegularFile },
        perm: if is_root { 0o755 } else { 0o444 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Filesystem for SlowDisk {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match FILES.iter().position(|file| name == *file) {
            Some(file) => reply.entry(&TTL, &attributes(INodeNo(file as u64 + 2)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(inode));
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let is_cached = inode != INodeNo(2);
        let flags = if is_cached { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread::spawn(move || {
            thread::sleep(DELAY);
            reply.data(&vec![0; size as usize]);
        });
    }
}

fn mount(at: &Path) -> BackgroundSession {
    spawn_mount(SlowDisk, at, &Config::default())
        .unwrap_or_else(|error| panic!("mounting a FUSE file system: {error}"))
}

#[test]
fn waits_for_a_slow_disk_are_of_files_and_of_page_faults() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Oracle", ORACLE);
    for (feature, home) in jdks() {
        let disk = scratch();
        let _mounted = mount(disk.path());
        let (folded, sums) = (dir.path().join("x.folded"), dir.path().join("sums"));
        let java = home.join("bin/java");
        let options = ["-e", "offcpu", "--offcpu-min", "0s", "--offcpu-interval", "1us", "-o", text(&folded)];
        let program = ["--", text(&java), "-cp", text(&classes), "Oracle", text(disk.path()), text(&sums)];
        record_json(&[&options[..], &program].concat());
        let folded = fs::read_to_string(&folded).expect("written");
        let measured = fs::read_to_string(&sums).expect("the program has ended well");
        let measured = sums_of(&measured);
        for (method, cause) in CAUSES {
            let of_causes = waited(&folded, &format!("Oracle.{method}"));
            let sum: f64 = of_causes.values().sum();
            let own = of_causes.get(cause).copied().unwrap_or_default();
            println!("JDK {feature} {method}: {:.4} of {of_causes:?}", sum / measured[method]);
            assert!(measured[method] > 80.0 * DELAY.as_nanos() as f64, "{method}: nothing was slow");
            // The rest is waiting for a CPU once the disk has answered.
            assert!(
                sum > 0.97 * measured[method] && sum < 1.02 * measured[method] && own > 0.9 * sum,
                "JDK {feature} {method}: {sum} of {}, {of_causes:?}",
                measured[method]
            );
        }
    }
}
