//! Arguments of `jvmprof inspect`.

use clap::Args;

use super::values::ProcessArg;

/// Arguments of `jvmprof inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  jvmprof inspect 4711                        mappings, labels, the JVM and its flags
  jvmprof inspect 4711 --pc 0x7f1234abcd      the code at an address: method, line, unwind rule
  jvmprof inspect MyService --json            a JVM by its main class, for programs")]
pub struct InspectArgs {
    /// Its pid, or the name of a program or of a JVM's main class
    #[arg(value_name = "PID|NAME")]
    pub process: ProcessArg,

    /// Also describe the code at this address: 0x7f1234abcd, or decimal
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub pc: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reads `0x` and hexadecimal digits, or a decimal number.
fn parse_address(text: &str) -> Result<u64, String> {
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.map_err(|_| "must be an address such as 0x7f1234abcd".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_with_a_prefix() {
        assert_eq!(parse_address("0x7f00"), Ok(0x7f00));
        assert_eq!(parse_address("4096"), Ok(4096));
    }
}
