//! Arguments of `jvmprof inspect`.

use clap::Args;

/// Arguments of `jvmprof inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The process
    pub pid: u32,

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
    parsed.map_err(|error| error.to_string())
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
