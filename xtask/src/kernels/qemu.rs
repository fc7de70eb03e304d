//! One boot: qemu with two serial ports, console and report, and a loop that watches both.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::debian::DebianKernel;
use super::report::{Step, parse, tail};
use crate::run::{KillOnDrop, command_line};

/// Time limit of a boot with the whole suite; it takes an eighth of that on an idle machine.
const LIMIT: Duration = Duration::from_secs(480);

/// Interval at which console and report are read.
const TICK: Duration = Duration::from_millis(200);

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
) -> anyhow::Result<(Vec<Step>, Option<String>)> {
    let (report, trouble) = run(kernel, initramfs, folder)?;
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
) -> anyhow::Result<(String, Option<String>)> {
    let (console, report) = (folder.join("console.log"), folder.join("report.jsonl"));
    for file in [&console, &report] {
        fs::write(file, "").with_context(|| format!("creating {}", file.display()))?;
    }
    let mut command = command(kernel, initramfs, &console, &report);
    eprintln!("$ {}", command_line(&command));
    let qemu = command.spawn().context("starting qemu-system-x86_64")?;
    let mut machine = Machine(KillOnDrop(qemu));
    let trouble = machine.watch(&console)?;
    drop(machine);
    let trouble = match trouble {
        Some(trouble) => Some(format!("{trouble}\n{}", tail(&read(&console)?, TAIL))),
        None => None,
    };
    Ok((read(&report)?, trouble))
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

/// A running qemu.
struct Machine(KillOnDrop);

impl Machine {
    /// Waits until the machine is off; returns an error text if it panics or takes too long.
    fn watch(&mut self, console: &Path) -> anyhow::Result<Option<String>> {
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
                None if started.elapsed() > LIMIT => {
                    return Ok(Some(format!("the suite isn't over after {LIMIT:?}")));
                }
                None => sleep(TICK),
            }
        }
    }
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
    fn panics_are_recognized_among_usual_messages() {
        let usual = "[    0.000000] Command line: console=ttyS0 loglevel=5 no_timer_check panic=-1 oops=panic rdinit=/init\n";
        assert_eq!(panic_in(usual), None);
        let panic = "[    2.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100";
        assert_eq!(panic_in(&format!("{usual}{panic}\n")), Some(panic));
    }
}
