//! Online and possible CPUs.

use std::fs;

use super::error::SamplerError;

const ONLINE: &str = "/sys/devices/system/cpu/online";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Returns the online CPUs, ascending.
///
/// # Errors
/// Returns an error if the list can't be read or parsed.
pub(super) fn online() -> Result<Vec<u32>, SamplerError> {
    read(ONLINE)
}

/// Returns one more than the highest number that a CPU can have.
///
/// # Errors
/// Returns the errors of [`online`].
pub(super) fn possible() -> Result<u32, SamplerError> {
    Ok(read(POSSIBLE)?.last().map_or(1, |last| last + 1))
}

fn read(path: &'static str) -> Result<Vec<u32>, SamplerError> {
    let list = fs::read_to_string(path).map_err(|source| SamplerError::Cpus { path, source })?;
    parse(list.trim()).ok_or_else(|| SamplerError::Cpus {
        path,
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{list:?} is no list of CPUs")),
    })
}

/// Parses the kernel's list format: `0-3,5,8-9`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        // More CPUs than any kernel has would only cost memory.
        if last < first || last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_nonsense_is_refused() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5,8-9"), Some(vec![0, 1, 2, 5, 8, 9]));
        for nonsense in ["", "a", "3-1", "0-", "0-4294967295", "1,,2"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn this_machine_has_a_cpu_online() {
        assert!(!online().expect("sysfs tells the online CPUs").is_empty());
    }
}
