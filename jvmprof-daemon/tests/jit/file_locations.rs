//! Perf maps where they shouldn't be found easily: in namespaces, of dead processes, and put there
//! by somebody hostile.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::recording::{Seen, program, read_folded, record};
use crate::support::left::Left;
use crate::support::processes::{children, let_it_run};
use crate::support::record_json;
use crate::support::recording::Recording;
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use tempfile::TempDir;

/// A folder that is there also where `/tmp` is another one.
fn outside_tmp() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in target")
}

/// Runs a script that prepares `$map` and becomes the silent program, whose code is at 0x200000000.
fn prepared(what: &str, script: &str) -> Seen {
    let directory = outside_tmp();
    let program = program(directory.path());
    let script = format!(
        "map=/tmp/perf-$$.map; rm -f $map; {script}\nexec {} silent 30 10 ${{turns:-25}}",
        program.display()
    );
    record(what, &["sh", "-c", &script])
}

fn assert_right(seen: &Seen) {
    let (right, wrong, unknown) = seen.judged();
    assert!(right > 500, "{:?}", seen.stacks);
    assert_eq!(unknown, 0);
    assert!(wrong <= seen.loss("ambiguous_jit_frames"));
}

#[test]
fn a_map_in_a_pid_and_mount_namespace_of_its_own_is_found() {
    let directory = outside_tmp();
    let program = program(directory.path());
    let script = format!("mount -t tmpfs none /tmp && {} perfmap 150 50 10; ls /tmp >&2", program.display());
    let unshare = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", &script];
    assert_right(&record("unshare", &unshare));
}

#[test]
fn a_map_in_a_container_is_found() {
    let bundle = outside_tmp();
    let root = bundle.path().join("rootfs");
    for folder in ["bin", "tmp", "proc", "dev", "sys"] {
        fs::create_dir_all(root.join(folder)).expect("a root folder");
    }
    let program = program(bundle.path());
    fs::copy(&program, root.join("bin/alternate")).expect("the program in its root");
    let spec = Command::new("runc").arg("spec").current_dir(bundle.path()).status();
    assert!(spec.expect("the tests need runc").success());
    let config: PathBuf = bundle.path().join("config.json");
    let mut spec: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&config).expect("a configuration")).expect("JSON");
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["/bin/alternate", "perfmap", "150", "50", "10"]);
    spec["root"]["readonly"] = true.into();
    let private = serde_json::json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" });
    spec["mounts"].as_array_mut().expect("mounts").push(private);
    // Hosts without a writable cgroup file system run containers, too.
    spec["mounts"].as_array_mut().expect("mounts").retain(|mount| mount["type"] != "cgroup");
    let namespaces = spec["linux"]["namespaces"].as_array_mut().expect("namespaces");
    namespaces.retain(|namespace| namespace["type"] != "cgroup");
    fs::write(&config, spec.to_string()).expect("the configuration");
    let name = format!("jvmprof-test-{}", std::process::id());
    let bundle = bundle.path().display().to_string();
    assert_right(&record("runc", &["runc", "run", "--bundle", &bundle, &name]));
}

/// As of a program in a container whose map somebody else writes for the host's tools.
#[test]
fn a_map_by_the_hosts_pid_in_the_hosts_tmp_is_found() {
    let directory = outside_tmp();
    let program = program(directory.path()).display().to_string();
    let inside = format!("mount -t tmpfs none /tmp; exec {program} silent 30 10 75");
    let script = format!(
        "unshare --pid --mount --fork sh -c '{inside}' &
        until [ \"$(readlink /proc/$pid/exe)\" = {program} ]; do sleep 0.02; pid=$(pgrep -P $!); done
        echo 200000000 1000 told_outside > /tmp/perf-$pid.map; wait; rm /tmp/perf-$pid.map"
    );
    let seen = record("the host's", &["sh", "-c", &script]);
    assert!(seen.count("run_a", ";told_outside") > 50, "{:?}", seen.stacks);
}

#[test]
fn names_lose_their_writers_markup_which_profiles_have_beside() {
    const RAW: &str = "JS:*handle /srv/app.js:12:3";
    let directory = outside_tmp();
    let program = program(directory.path());
    let told = format!("(sleep 0.3; echo '200000000 1000 {RAW}' > /tmp/perf-$$.map) &");
    let script = format!("{told} exec {} silent 30 10 50", program.display());
    let (_left, command) = Left::by(directory.path(), &["sh", "-c", &script]);
    let output = directory.path().join("out.pb.gz").display().to_string();
    let options = ["-F", "499", "-o", &output, "--"];
    let arguments: Vec<&str> = options.into_iter().chain(command.iter().map(String::as_str)).collect();
    record_json(&arguments);
    let pprof = decode(&fs::read(&output).expect("a profile"), DecodeLimits::default()).expect("a profile");
    let text = |index: i64| pprof.string_table[usize::try_from(index).expect("an index")].as_str();
    let function = pprof.function.iter().find(|function| text(function.system_name) == RAW);
    let function = function.unwrap_or_else(|| panic!("{:?}", pprof.string_table));
    assert_eq!((text(function.name), text(function.filename)), ("handle", "/srv/app.js"));
    let lines = pprof.location.iter().flat_map(|location| &location.line);
    let lines: Vec<i64> =
        lines.filter(|line| line.function_id == function.id).map(|line| line.line).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| *line == 12), "{lines:?}");
}

#[test]
fn a_map_of_an_earlier_process_with_the_same_pid_is_not_believed() {
    let stale = prepared("stale", "echo 200000000 1000 stale > $map; touch -d '1 hour ago' $map");
    assert_eq!(stale.count("run_a", "stale") + stale.count("run_b", "stale"), 0);
    assert!(stale.count("run_a", "[jit: unknown]") > 100);
    assert_eq!(stale.loss("stale_perf_maps"), 1);

    let foreign = prepared("foreign", "echo 200000000 1000 foreign > $map; chown 1234 $map");
    assert_eq!(foreign.count("run_a", "foreign"), 0);
    assert_eq!(foreign.loss("unusable_perf_maps"), 1);

    // What the program before it in the same process wrote, before it replaced itself.
    let replaced = prepared("replaced", "echo 200000000 1000 shell > $map; sleep 0.3");
    assert_eq!(replaced.count("run_a", "shell") + replaced.count("run_b", "shell"), 0);
    assert_eq!(replaced.loss("stale_perf_maps"), 1);
}

/// Records a program whose map is an earlier process's, until something was added to that: once it
/// has been seen what it is.
fn appended() -> Seen {
    let directory = outside_tmp();
    let (program, fresh) = (program(directory.path()), directory.path().join("fresh"));
    let output = directory.path().join("out.folded");
    let script = format!(
        "map=/tmp/perf-$$.map; echo 200000000 1000 stale > $map; touch -d '1 hour ago' $map
        (for i in $(seq 3000); do [ -e {fresh} ] && break; sleep 0.02; done
        echo 200000000 1000 fresh >> $map) &
        exec {program} silent 30 10 2000",
        fresh = fresh.display(),
        program = program.display()
    );
    let (_left, command) = Left::by(directory.path(), &["sh", "-c", &script]);
    let options = ["-F", "997", "-o", output.to_str().expect("a path in UTF-8"), "--"];
    let args: Vec<&str> = options.into_iter().chain(command.iter().map(String::as_str)).collect();
    let mut recording = Recording::start(&args);
    recording.wait_for(&["a perf map was there before its process"]);
    fs::write(fresh, "").expect("the folder is writable");
    let [pid] = children(recording.pid())[..] else { panic!("it has one child: {}", recording.log()) };
    let_it_run(pid, Duration::from_secs(2));
    let summary = recording.end();
    Seen { summary, stacks: read_folded(&output) }
}

#[test]
fn what_is_added_to_a_map_of_an_earlier_process_is_believed() {
    let appended = appended();
    assert_eq!(appended.count("run_a", "stale"), 0);
    assert!(appended.count("run_a", "fresh") > 50, "{:?}, {}", appended.stacks, appended.summary);
}

#[test]
fn names_of_a_map_that_was_not_read_to_its_end_are_counted_as_ambiguous() {
    // Of the last line alone it would be known when it came.
    let filler = r#"for (i = 0; i < 600000; i++) printf "7f%08x00 20 filler_%d some/where.js:1:1\n", i, i"#;
    let script = format!(
        "awk 'BEGIN {{ print \"200000000 1000 old\"; {filler}; print \"200000000 1000 new\"; \
         print \"300000000 10 last\" }}' > $map.new; \
         mv $map.new $map"
    );
    let seen = prepared("large", &format!("turns=100; (sleep 0.3; {script}) &"));
    let (old, new) = (seen.count("run_a", ";old"), seen.count("run_a", ";new"));
    println!("{old} old, {new} new");
    assert!(old + new > 100, "{:?}", seen.stacks);
    assert!(seen.count("run_a", ";old") + seen.count("run_b", ";old") <= seen.loss("ambiguous_jit_frames"));
}

#[test]
fn hostile_maps_harm_nobody() {
    for (what, script) in [
        ("fifo", "mkfifo $map"),
        ("link", "ln -s /etc/passwd $map"),
        ("device", "ln -s /dev/zero $map"),
        ("folder", "mkdir -p $map"),
    ] {
        let seen = prepared(what, script);
        assert!(seen.count("run_a", "[jit: unknown]") > 100, "{what}");
        assert_eq!(seen.loss("unusable_perf_maps"), 1, "{what}");
    }
    let large = prepared("10 GB", "truncate -s 10G $map");
    assert!(large.count("run_a", "[jit: unknown]") > 100);
    let peak = large.summary["daemon"]["peak_rss_bytes"].as_u64().expect("bytes");
    assert!(peak < 150 << 20, "{peak} bytes");
}
