//! Summary printed at the end of a run of the zoo.

use super::matrix_cell::MatrixCell;

/// Prints a line for each cell, then the errors.
pub(super) fn print(cells: &[MatrixCell]) {
    println!("{}", header());
    for cell in cells {
        println!("{}", row(cell));
    }
    for cell in cells {
        let place = cell.name();
        if let Some(error) = &cell.error {
            println!("{place}: failed: {error}");
        } else {
            for error in cell.too_few_java_samples().into_iter().chain(cell.too_few_whole_stacks()) {
                println!("{place}: {error}");
            }
        }
        for (what, counts) in
            [("truncated", &cell.truncated), ("unnamed", &cell.unnamed), ("lost", &cell.losses)]
        {
            for (reason, count) in counts {
                println!("{place}: {what}: {count} {reason}");
            }
        }
        if cell.guessed_inlining > 0 {
            println!("{place}: inlining of the next safepoint: {} of {}", cell.guessed_inlining, cell.chains);
        }
        for share in &cell.shares {
            println!("{place}: share: {share}");
        }
        for (kind, examples) in &cell.examples {
            for example in examples {
                println!("{place}: {kind}\n  {}", example.replace('\n', "\n  "));
            }
        }
    }
}

/// Returns the names of the columns of [`row`].
pub(super) fn header() -> String {
    format!(
        "{:>3} {:<10} {:<10} {:>7} {:>7} {:>8} {:>6} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9}",
        "jdk",
        "mode",
        "program",
        "samples",
        "java",
        "whole %",
        "cut",
        "edges",
        "named %",
        "no line",
        "nofile",
        "name",
        "file",
        "line",
        "edge",
        "root",
        "chain",
        "wrong %"
    )
}

/// Formats a cell as a line of the table.
pub(super) fn row(cell: &MatrixCell) -> String {
    let percent = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 };
    format!(
        "{:>3} {:<10} {:<10} {:>7} {:>7} {:>8.3} {:>6} {:>8} {:>8.3} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9.3}",
        cell.jdk,
        cell.mode,
        cell.program,
        cell.samples,
        cell.java,
        percent(cell.java_whole, cell.java),
        cell.cut_outside_java,
        cell.edges,
        percent(cell.frames, cell.frames + cell.nameless),
        cell.lines_missing,
        cell.unchecked,
        cell.wrong_names,
        cell.wrong_files,
        cell.wrong_lines,
        cell.wrong_edges,
        cell.wrong_roots,
        cell.wrong_chains,
        percent(cell.wrong_stacks, cell.java),
    )
}
