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

use super::text;
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::{KEEP_ALL, Measured, TOLERANCE, waited};
use crate::support::{jdks, scratch};

/// Reads places of files that it hasn't read before, one kind a method, and writes for how long,
/// for how long the thread ran meanwhile, and for how long it waited for a CPU.
const ORACLE: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.util.*;

public class Oracle {
    interface Wait { void once(int at) throws Exception; }
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static final Map<String, long[]> sums = new TreeMap<>();
    static RandomAccessFile uncached, cached;
    static MappedByteBuffer mapped;
    static final byte[] bytes = new byte[4096];
    static volatile long sink;

    static void reads(int at) throws Exception { uncached.read(bytes); }
    static void readsCached(int at) throws Exception { cached.seek(at); sink += cached.read(); }
    static void touches(int at) { sink += mapped.get(at); }

    static Thread run(String name, Wait wait) {
        Thread thread = new Thread(() -> {
            long[] sum = {0, 0, 0};
            try (RandomAccessFile schedstat = Recorder.schedstat()) {
                // Far enough from one another that none is read ahead.
                for (int i = 1; i <= 80; i++) {
                    long delayed = Recorder.delayOf(schedstat), ran = clocks.getCurrentThreadCpuTime(), began = System.nanoTime();
                    wait.once(i * (8 << 20));
                    sum[0] += System.nanoTime() - began;
                    sum[1] += clocks.getCurrentThreadCpuTime() - ran;
                    sum[2] += Recorder.delayOf(schedstat) - delayed;
                }
            } catch (Exception e) { throw new Error(e); }
            synchronized (sums) { sums.put(name, sum); }
        });
        thread.start();
        return thread;
    }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        uncached = new RandomAccessFile(args[0] + "/uncached", "r");
        cached = new RandomAccessFile(args[0] + "/cached", "r");
        RandomAccessFile file = new RandomAccessFile(args[0] + "/mapped", "r");
        mapped = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, 1 << 30);
        long stolen = Recorder.stolen();
        Thread[] threads = { run("reads", Oracle::reads), run("readsCached", Oracle::readsCached), run("touches", Oracle::touches) };
        for (Thread thread : threads) thread.join();
        sums.put("stolen", new long[] {Recorder.stolen() - stolen, 0, 0});
        try (PrintWriter out = new PrintWriter(args[1])) {
            sums.forEach((name, sum) -> out.println(name + " " + sum[0] + " " + sum[1] + " " + sum[2]));
        }
        Recorder.done(args);
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
    let classes = compile_recorded(dir.path(), "Oracle", ORACLE);
    for (feature, home) in jdks() {
        let disk = scratch();
        let _mounted = mount(disk.path());
        let (folded, sums) = (dir.path().join("x.folded"), dir.path().join("sums"));
        let java = home.join("bin/java");
        let options = ["-e", "offcpu", "-o", text(&folded)];
        let program = ["--", text(&java), "-cp", text(&classes), "Oracle", text(disk.path()), text(&sums)];
        let program = [&KEEP_ALL[..], &options, &program].concat();
        let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
        let folded = fs::read_to_string(&folded).expect("written");
        let measured = fs::read_to_string(&sums).expect("the program has ended well");
        let measured = Measured::read(&measured);
        let stolen = measured["stolen"].wall;
        for (method, cause) in CAUSES {
            let of_causes = waited(&folded, &format!("Oracle.{method}"));
            let of = |cause: &str| of_causes.get(cause).copied().unwrap_or_default();
            let (own, queued, measured) = (of(cause), of("runnable"), measured[method]);
            let expected = measured.blocked();
            let seen = format!("JDK {feature} {method}: {of_causes:?}, {measured:?}, {stolen} stolen");
            println!("{seen}: {:.4}", own / expected);
            assert!(measured.wall > 80.0 * DELAY.as_nanos() as f64, "nothing was slow: {seen}");
            let least = 0.97 * expected - stolen;
            assert!((least..(1.0 + TOLERANCE) * expected).contains(&own), "{seen}, {}", summary["losses"]);
            // The rest is waiting for a CPU once the disk has answered.
            let others = of_causes.values().sum::<f64>() - own - queued;
            assert!(others < 0.1 * own, "{seen}, {}", summary["losses"]);
            assert!(
                (queued - measured.delay).abs() < TOLERANCE * measured.wall,
                "{seen}, {}",
                summary["losses"]
            );
        }
    }
}
