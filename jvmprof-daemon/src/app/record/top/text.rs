//! The table as plain text.

use std::fmt::Write as _;

use super::samples::{MAX_PROCESSES, SampleSlice};
use crate::app::record::summary::hottest_functions::RowOrder;
use crate::own_process::one_line;

/// JVMs first, then the functions with the most samples of their own, as on the screen.
pub(super) fn table(slice: &SampleSlice, java: bool, limit: usize) -> String {
    let mut text = format!(
        "{} samples in {:.1} s, {:.2} cores\n",
        slice.samples,
        slice.duration.as_secs_f64(),
        slice.cores(slice.samples)
    );
    for jvm in slice.jvms() {
        let pid = jvm.pid.map_or_else(String::new, |pid| pid.to_string());
        let (name, cores) = (one_line(&jvm.name), slice.cores(jvm.samples));
        let _ = writeln!(text, "{pid:>8}  {cores:>5.2} cores  {name}: {}", jvm.shares());
    }
    if slice.other_jvms > 0 {
        let cores = slice.cores(slice.other_jvms);
        let _ = writeln!(text, "{:>8}  {cores:>5.2} cores  all JVMs beyond {MAX_PROCESSES}", "");
    }
    let (rows, samples) = slice.rows(None, java, RowOrder::Own, limit, |_| true);
    let percent = |part: u64| part as f64 * 100.0 / samples.max(1) as f64;
    let _ = writeln!(text, "{:>8}  {:>8}  FUNCTION", "SELF", "TOTAL");
    for row in &rows {
        let line = row.line_text().map_or_else(String::new, |line| format!("  {}", one_line(&line)));
        let (own, total) = (percent(row.own), percent(row.total));
        let _ = writeln!(text, "{own:>6.2} %  {total:>6.2} %  {}{line}", one_line(&row.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::{crowd, slice};
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_jvm_and_function() {
        let expected = "\
450 samples in 10.0 s, 0.45 cores
       7   0.40 cores  Shop: 75.0 % java, 25.0 % gc
    SELF     TOTAL  FUNCTION
 66.67 %   66.67 %  memcpy
 22.22 %   22.22 %  mark
";
        assert_eq!(table(&slice(300), false, 2), expected);
        assert!(table(&slice(300), true, 1).ends_with(" 66.67 %   66.67 %  com.acme.Order.copy\n"));
        assert!(table(&crowd(), true, 1).contains("\n           0.01 cores  all JVMs beyond 500\n"));
    }
}
