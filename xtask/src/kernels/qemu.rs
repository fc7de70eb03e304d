//! One boot: qemu with two serial ports, console and report, and a loop that watches both.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::time::ClockId;
use nix::unistd::Pid;

use super::debian::DebianKernel;
use super::report::{GuestStep, parse, tail};
use crate::run::{KillOnDrop, command_line};

/// The time that a boot with the whole suite may take on the clock, which is the machine's, too; it
/// takes an eighth of that on an idle host.
const SUITE: MachineLimit = MachineLimit::Elapsed(Duration::from_secs(480));

/// The limit at which a machine is given up that doesn't go off by itself. It says by what clock
/// the machine runs as well.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MachineLimit {
    /// By the host's clock, for machines whose samples are counted over real time.
    Elapsed(Duration),
    /// By the processor time of qemu, for machines whose own clock counts their instructions. A
    /// host that is busy with other things is a slow one for them, and no time limit inside of
    /// them ends early for that.
    Processor(Duration),
}

/// The factor of its limit of processor time that a machine may take by the host's clock: a qemu
/// that hangs uses none.
const BUSY: u32 = 10;

/// The machine's clock goes on by 2 ns an instruction, and skips times in which it has nothing to
/// do.
const COUNTED: [&str; 2] = ["-icount", "shift=1,sleep=off"];

/// Interval at which console and report are read.
const TICK: Duration = Duration::from_millis(200);

/// The file of the machine's first serial port.
const CONSOLE: &str = "console.log";

/// Number of lines of the console that are shown after an error.
const TAIL: usize = 60;

/// Console messages of a kernel that can't go on, or in which a program hangs.
const PANICS: &[&str] = &[
    "Kernel panic - not syncing",
    "rcu: INFO: rcu_preempt detected stalls",
    "watchdog: BUG: soft lockup",
    "BUG: kernel NULL pointer dereference",
    "BUG: unable to handle page fault",
    "general protection fault",
    "Oops: ",
];

/// Boots the kernel with this initramfs. Returns the suite's steps, as far as they came, and an
/// error text if they aren't all there. Console and report stay in the folder.
pub(super) fn boot(
    kernel: &DebianKernel,
    initramfs: &Path,
    folder: &Path,
) -> anyhow::Result<(Vec<GuestStep>, Option<String>)> {
    let (report, trouble) = run(kernel, initramfs, folder, SUITE)?;
    let (steps, is_whole) = parse(&report);
    let trouble =
        trouble.or_else(|| (!is_whole).then(|| "the machine went off before the suite's end".to_owned()));
    Ok((steps, trouble))
}

/// Boots the kernel and waits until the machine is off. Returns the contents of its second serial
/// port, and an error text with the console's end if the boot failed. Both files stay in the
/// folder.
///
/// # Errors
/// qemu can't be run.
pub(crate) fn run(
    kernel: &DebianKernel,
    initramfs: &Path,
    folder: &Path,
    limit: MachineLimit,
) -> anyhow::Result<(String, Option<String>)> {
    let (console, report) = (folder.join(CONSOLE), folder.join("report.jsonl"));
    for file in [&console, &report] {
        fs::write(file, "").with_context(|| format!("creating {}", file.display()))?;
    }
    let mut command = command(kernel, initramfs, &console, &report);
    if let MachineLimit::Processor(_) = limit {
        command.args(COUNTED);
    }
    eprintln!("$ {}", command_line(&command));
    let qemu = command.spawn().context("starting qemu-system-x86_64")?;
    let mut machine = Machine(KillOnDrop(qemu));
    let trouble = machine.watch(&console, limit)?;
    drop(machine);
    let trouble = match trouble {
        Some(trouble) => Some(format!("{trouble}; {}", console_end(folder)?)),
        None => None,
    };
    Ok((read(&report)?, trouble))
}

/// Returns the end of the console of the last boot in this folder, as a part of an error text.
///
/// # Errors
/// Nothing was booted there.
pub(crate) fn console_end(folder: &Path) -> anyhow::Result<String> {
    Ok(format!("the console's end:\n{}", tail(&read(&folder.join(CONSOLE))?, TAIL)))
}

fn command(kernel: &DebianKernel, initramfs: &Path, console: &Path, report: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // Emulated on every machine alike: CI's machines are virtual, and KVM inside of KVM hangs some
    // kernels. On one thread: with one for each CPU, a JVM in twenty dies in code that another CPU
    // wrote a moment before (qemu 7.2). Without cmpxchg16b, which qemu 7.2 emulates badly: an
    // interrupt behind it may see flags that are none, and the kernel dies of a double fault in its
    // allocator.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "2", "-m", "2048"]);
    qemu.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    qemu.arg("-serial").arg(format!("file:{}", report.display()));
    qemu.arg("-kernel").arg(&kernel.vmlinuz).arg("-initrd").arg(initramfs);
    // A machine that panics ends by `panic=-1` and `-no-reboot`. On a busy host an emulated timer
    // is late for the kernel's test of it.
    qemu.args(["-append", "console=ttyS0 loglevel=5 no_timer_check panic=-1 oops=panic rdinit=/init"]);
    qemu.stdin(Stdio::null());
    qemu
}

impl MachineLimit {
    fn is_over(self, elapsed: Duration, worked: Duration) -> bool {
        match self {
            Self::Elapsed(limit) => elapsed > limit,
            Self::Processor(limit) => worked > limit || elapsed > limit * BUSY,
        }
    }
}

/// A running qemu.
struct Machine(KillOnDrop);

impl Machine {
    /// Waits until the machine is off; returns an error text if it panics or takes too long.
    fn watch(&mut self, console: &Path, limit: MachineLimit) -> anyhow::Result<Option<String>> {
        let started = Instant::now();
        loop {
            let ended = self.0.0.try_wait().context("waiting for qemu")?;
            if let Some(panic) = panic_in(&read(console)?) {
                // The stack trace below the first line shows the reason.
                sleep(Duration::from_secs(2));
                return Ok(Some(format!("the kernel panicked or hung: {panic}")));
            }
            match ended {
                Some(status) if status.success() => return Ok(None),
                Some(status) => bail!("qemu failed: {status}"),
                None => {}
            }
            let (elapsed, worked) = (started.elapsed(), self.processor_time()?);
            if limit.is_over(elapsed, worked) {
                return Ok(Some(timeout_message(elapsed, worked)));
            }
            sleep(TICK);
        }
    }

    fn processor_time(&self) -> anyhow::Result<Duration> {
        let pid = i32::try_from(self.0.0.id()).context("the number of qemu's process")?;
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).context("finding qemu's clock")?;
        Ok(clock.now().context("reading qemu's clock")?.into())
    }
}

/// Names both times: with a small part of one processor, the host is what is slow.
fn timeout_message(elapsed: Duration, worked: Duration) -> String {
    let (elapsed, worked) = (elapsed.as_secs(), worked.as_secs());
    format!("the machine is still up after {elapsed} s, in which the host let it run for {worked} s")
}

fn panic_in(console: &str) -> Option<&str> {
    console.lines().find(|line| PANICS.iter().any(|panic| line.contains(panic)))
}

fn read(file: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_host_costs_no_machine_its_time_that_counts_its_own_work() {
        let (limit, worked) = (Duration::from_secs(60), Duration::from_secs(9));
        let elapsed = Duration::from_secs(90);
        assert!(MachineLimit::Elapsed(limit).is_over(elapsed, worked));
        assert!(!MachineLimit::Processor(limit).is_over(elapsed, worked));
        assert!(MachineLimit::Processor(limit).is_over(elapsed, Duration::from_secs(61)));
        assert!(MachineLimit::Processor(limit).is_over(limit * (BUSY + 1), worked), "it hangs");
        let text = "the machine is still up after 90 s, in which the host let it run for 9 s";
        assert_eq!(timeout_message(elapsed, worked), text);
    }

    #[test]
    fn panics_are_recognized_among_usual_messages() {
        let usual = "[    0.000000] Command line: console=ttyS0 loglevel=5 no_timer_check panic=-1 oops=panic rdinit=/init\n";
        assert_eq!(panic_in(usual), None);
        let panic = "[    2.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100";
        assert_eq!(panic_in(&format!("{usual}{panic}\n")), Some(panic));
    }
}
