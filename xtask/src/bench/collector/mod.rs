//! Daemons of several hosts that push to one collector over TLS with a token, while its page is
//! looked at: what is refused, spooled or lost, what the collector takes, how its folder grows.
//!
//! All daemons run on this machine. Each is named as another node, profiles the whole machine, and
//! leaves out the other daemons and the collector by a rule, so that its pushes are those of a host
//! with the JVMs and one daemon.

mod access;
mod requests;
pub(super) mod traffic;
mod usage;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;

use self::access::AccessFiles;
use self::requests::{Metrics, Page};
use self::usage::ProcessUsage;
use super::{BenchArgs, LoadProcess, jvm};
use crate::files;
use crate::run::LoggedProcess;

/// Interval at which the page's requests are sent and the size of the folder is read.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time after which the growth of the folder is measured: every daemon has pushed then.
const STEADY: Duration = Duration::from_mins(1);

/// Runs all of it for `--minutes`, and prints what was measured.
///
/// # Errors
/// A process ends by itself, or the collector doesn't have the samples that daemons have delivered.
pub(super) fn measure(args: &BenchArgs, jvmprof: &Path, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.join("collector");
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    let access = AccessFiles::make(&folder)?;
    let length = Duration::from_secs(u64::from(args.minutes) * 60);
    let loads = start_jvms(args.jvms, length, &folder)?;
    let mut collector = Collector::start(jvmprof, &access, &folder)?;
    let hosts = (1..=args.hosts)
        .map(|number| Host::start(jvmprof, number, args.hosts, &collector.address, &access, &folder));
    let mut hosts = hosts.collect::<anyhow::Result<Vec<Host>>>()?;
    let (began, mut page, mut growth) = (Instant::now(), Page::default(), Growth::default());
    while began.elapsed() < length {
        sleep(INTERVAL);
        collector.process.check()?;
        for host in &mut hosts {
            host.process.check()?;
        }
        page.request_all(&access, &collector.address)?;
        growth.add(began.elapsed(), &Metrics::of_collector(&access, &collector.address)?);
    }
    drop(loads);
    let accounts = hosts.iter_mut().map(Host::end).collect::<anyhow::Result<Vec<Account>>>()?;
    let metrics = Metrics::of_collector(&access, &collector.address)?;
    let (ran, usage) = (began.elapsed(), ProcessUsage::of(collector.process.pid())?);
    collector.process.end(Signal::SIGTERM)?;
    println!("\n{} hosts, {} JVMs, {} minutes", args.hosts, args.jvms, args.minutes);
    let total = print_accounts(&accounts);
    print_collector(&metrics, usage, ran, &growth);
    page.print();
    total.check(metrics.sum("jvmprof_collector_samples_total", ""))
}

/// Starts JVMs that outlive the measurement.
fn start_jvms(count: u32, length: Duration, folder: &Path) -> anyhow::Result<Vec<LoadProcess>> {
    let jdk = jvm::prepare(folder)?;
    let lasts = (length + Duration::from_mins(10)).as_secs().to_string();
    let start = |_| {
        let mut java = Command::new(jdk.home.join("bin/java"));
        java.args(["-Xmx64m", "-XX:+UseSerialGC", "-cp"]).arg(folder);
        LoadProcess::start(java.args(["JvmLoad", "paced", &lasts]))
    };
    (0..count).map(start).collect()
}

struct Collector {
    process: LoggedProcess,
    /// The page's address, by the name in the certificate.
    address: String,
}

impl Collector {
    /// Starts it, and waits until it says where it listens.
    fn start(jvmprof: &Path, access: &AccessFiles, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(jvmprof);
        command.args(["collector", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.join("store"));
        command.arg("--tls-cert").arg(&access.certificate).arg("--tls-key").arg(&access.key);
        command.arg("--token-file").arg(&access.token);
        let mut process = LoggedProcess::start(&mut command, &folder.join("collector.log"))?;
        let address = format!("https://localhost:{}", port_of(&mut process, "https")?);
        Ok(Self { process, address })
    }
}

/// Waits until a collector says where it listens, and returns the port.
fn port_of(collector: &mut LoggedProcess, scheme: &str) -> anyhow::Result<String> {
    let address = format!("{scheme}://127.0.0.1:");
    loop {
        let written = collector.written()?;
        let complete = written.lines().filter(|_| written.ends_with('\n'));
        let mut ports = complete.filter_map(|line| line.strip_prefix(&*address));
        if let Some(port) = ports.next() {
            return Ok(port.trim_end_matches('/').to_owned());
        }
        collector.check()?;
        sleep(Duration::from_millis(100));
    }
}

/// A daemon of one of the hosts.
struct Host {
    name: String,
    process: LoggedProcess,
    /// Where it answers for its metrics.
    socket: PathBuf,
}

/// A daemon's account of its samples and requests.
#[derive(Clone, Debug, Default)]
struct Account {
    name: String,
    requests: f64,
    failed: f64,
    megabytes: f64,
    /// Samples that were lost before they were handed over to be delivered.
    lost_before: u64,
    handed_over: u64,
    delivered: u64,
    spooled: u64,
    lost: u64,
    possibly_lost: u64,
}

impl Host {
    fn start(
        jvmprof: &Path,
        number: u32,
        hosts: u32,
        collector: &str,
        access: &AccessFiles,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let name = node(number);
        let folder = folder.join(&name);
        files::create_folder(&folder)?;
        let (settings, socket) = (folder.join("jvmprof.toml"), folder.join("http"));
        files::write(&settings, settings_without_others(number, hosts))?;
        let mut command = Command::new(jvmprof);
        command.args(["daemon", "--node", &name, "--remote-store-address", collector]);
        command.arg("--remote-store-ca-file").arg(&access.authority);
        command.arg("--remote-store-bearer-token-file").arg(&access.token);
        command.arg("--spool-directory").arg(folder.join("spool")).arg("--config").arg(&settings);
        command.arg("--http-address").arg(format!("unix:{}", socket.display()));
        let process = LoggedProcess::start(&mut command, &folder.join("log"))?;
        Ok(Self { name, process, socket })
    }

    /// Lets the daemon deliver what it has, and returns its account.
    fn end(&mut self) -> anyhow::Result<Account> {
        let metrics = Metrics::of_daemon(&self.socket)?;
        self.process.end(Signal::SIGTERM)?;
        let log = self.process.written()?;
        let account = account_of(&log).with_context(|| format!("{}'s log has no account", self.name))?;
        Ok(Account {
            name: self.name.clone(),
            requests: metrics.sum("jvmprof_delivery_requests_total", ""),
            failed: metrics.sum("jvmprof_delivery_requests_failed_total", ""),
            megabytes: metrics.sum("jvmprof_delivery_sent_bytes_total", "") / 1e6,
            ..account
        })
    }
}

fn node(number: u32) -> String {
    format!("n{number}")
}

/// Returns the settings by which the daemon of one host leaves the others and the collector out.
fn settings_without_others(number: u32, hosts: u32) -> String {
    let others: Vec<String> = (1..=hosts).filter(|other| *other != number).map(node).collect();
    let others = others.join("|");
    format!(
        "[[relabel-configs]]\nsource_labels = [\"__meta_process_cmdline\"]\n\
         regex = '.* (collector --listen|daemon --node ({others})) .*'\naction = \"drop\"\n"
    )
}

/// Parses the account in the last lines of a daemon's log.
fn account_of(log: &str) -> Option<Account> {
    let last = log.lines().rfind(|line| line.contains(" ended ") && line.contains(" delivered="))?;
    let field = |name: &str| {
        let mut fields = last.split(' ').filter_map(|word| word.split_once('='));
        fields.find(|(of, _)| *of == name)?.1.parse::<u64>().ok()
    };
    Some(Account {
        lost_before: field("lost_before")?,
        handed_over: field("handed_over")?,
        delivered: field("delivered")?,
        spooled: field("spooled")?,
        lost: field("lost")?,
        possibly_lost: field("possibly_lost")?,
        ..Account::default()
    })
}

impl Account {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.megabytes += other.megabytes;
        self.lost_before += other.lost_before;
        self.handed_over += other.handed_over;
        self.delivered += other.delivered;
        self.spooled += other.spooled;
        self.lost += other.lost;
        self.possibly_lost += other.possibly_lost;
    }

    fn print(&self) {
        println!(
            "{:<5} {:>8.0} {:>6.0} {:>8.2} {:>11} {:>11} {:>9} {:>7} {:>6} {:>8}",
            self.name,
            self.requests,
            self.failed,
            self.megabytes,
            self.lost_before,
            self.handed_over,
            self.delivered,
            self.spooled,
            self.lost,
            self.possibly_lost,
        );
    }

    /// Compares the sum of all daemons with what the collector says that it has stored.
    fn check(&self, stored: f64) -> anyhow::Result<()> {
        let accounted = self.delivered + self.spooled + self.lost + self.possibly_lost;
        let handed_over = self.handed_over;
        ensure!(accounted == handed_over, "{accounted} of {handed_over} samples are accounted for");
        let possible = self.delivered as f64..=(self.delivered + self.possibly_lost) as f64;
        if !possible.contains(&stored) {
            bail!("the collector has stored {stored} samples of {} that were delivered", self.delivered);
        }
        Ok(())
    }
}

fn print_accounts(accounts: &[Account]) -> Account {
    println!("host  requests failed       MB lost before handed over delivered spooled   lost possibly");
    let mut total = Account { name: "all".to_owned(), ..Account::default() };
    for account in accounts {
        account.print();
        total.add(account);
    }
    total.print();
    total
}

/// Sizes of the folder, with what had to leave it, by the time since the start.
#[derive(Debug, Default)]
struct Growth(Vec<(Duration, f64)>);

impl Growth {
    fn add(&mut self, after: Duration, metrics: &Metrics) {
        let bytes = ["jvmprof_store_used_bytes", "jvmprof_store_bytes_removed_total"];
        self.0.push((after, bytes.iter().map(|name| metrics.sum(name, "")).sum()));
    }

    /// Returns the bytes an hour, from the first minute's end on.
    fn bytes_per_hour(&self) -> Option<f64> {
        let (from, before) = self.0.iter().find(|(after, _)| *after >= STEADY)?;
        let (to, bytes) = self.0.last()?;
        let hours = to.checked_sub(*from)?.as_secs_f64() / 3600.0;
        (hours > 0.0).then(|| (bytes - before) / hours)
    }
}

fn print_collector(metrics: &Metrics, usage: ProcessUsage, ran: Duration, growth: &Growth) {
    let requests = |result: &str| metrics.sum("jvmprof_collector_requests_total", &format!("\"{result}\""));
    println!(
        "\ncollector: {} requests stored, {} refused, {} failed; {} samples stored",
        requests("stored"),
        requests("refused"),
        requests("failed"),
        metrics.sum("jvmprof_collector_samples_total", ""),
    );
    println!(
        "its CPU time: {:.1} s, {:.2} % of one CPU, the page's answers included; its memory: at most {:.1} MiB",
        usage.cpu_seconds,
        usage.cpu_seconds * 100.0 / ran.as_secs_f64(),
        usage.peak_mib,
    );
    let used = metrics.sum("jvmprof_store_used_bytes", "") / 1e6;
    match growth.bytes_per_hour() {
        Some(bytes) => println!("its folder: {used:.1} MB, which grows by {:.1} MB an hour", bytes / 1e6),
        None => println!("its folder: {used:.1} MB; how it grows takes more than a minute to measure"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_leaves_the_others_out_but_not_itself() {
        let rule = settings_without_others(2, 3);
        assert!(rule.contains("regex = '.* (collector --listen|daemon --node (n1|n3)) .*'\n"), "{rule}");
    }

    #[test]
    fn an_account_is_that_of_the_last_line() {
        let log = "x: sink delivered=1\nx: ended taken=11 lost_before=3 handed_over=8 samples=11 delivered=5 \
                   lost=1 possibly_lost=0 spooled=2\n";
        let account = account_of(log).unwrap();
        let sent = (account.handed_over, account.delivered, account.spooled, account.lost);
        assert_eq!((account.lost_before, sent), (3, (8, 5, 2, 1)));
        assert!(account.check(5.0).is_ok());
        assert!(account.check(4.0).is_err());
        assert!(Account { handed_over: 9, ..account }.check(5.0).is_err());
        assert!(account_of("x: ended\n").is_none());
    }

    #[test]
    fn growth_is_measured_from_the_first_minutes_end_on() {
        let at = |seconds, bytes| (Duration::from_secs(seconds), bytes);
        let growth = Growth(vec![at(10, 0.0), at(60, 100.0), at(90, 125.0), at(120, 150.0)]);
        assert!(growth.bytes_per_hour().is_some_and(|bytes| (bytes - 3000.0).abs() < 1e-6));
        assert_eq!(Growth(vec![at(10, 0.0), at(50, 100.0)]).bytes_per_hour(), None);
        assert_eq!(Growth(vec![at(60, 100.0)]).bytes_per_hour(), None);
    }
}
