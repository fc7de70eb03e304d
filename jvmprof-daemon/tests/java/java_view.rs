//! The Java view of `record --java` and of the page, on JVMs whose time is mostly the kernel's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::browser::Browser;
use crate::support::recording::{WALKS_STACKS, compile_recorded, record_work};
use crate::support::{jdks, scratch};

/// Fills the heap with arrays: the kernel clears each page when it is touched first.
const CLEARING: &str = r#"
import java.util.*;
public class Clearing {
    static final List<byte[]> kept = new ArrayList<>();
    static byte[] buffer() { return new byte[1 << 20]; }
    static void fill(int megabytes) { for (int i = 0; i < megabytes; i++) kept.add(buffer()); }
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        fill(Integer.parseInt(args[0]));
        Recorder.done(args);
    }
}
"#;

/// Samples of folded stacks whose leaf satisfies a condition.
fn leaves(folded: &str, condition: impl Fn(&str) -> bool) -> u64 {
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let ending = stacks.filter(|(stack, _)| condition(stack.rsplit(';').next().unwrap_or(stack)));
    ending.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
}

/// The kernel's functions anywhere on folded stacks.
fn kernel_functions(folded: &str) -> BTreeSet<&str> {
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    stacks.flat_map(|(stack, _)| stack.split(';')).filter_map(|frame| frame.strip_suffix("_[k]")).collect()
}

/// The functions that a picture names. Frames of the kernel have no suffix there, but a colour.
fn functions_of(svg: &str) -> BTreeSet<&str> {
    let titles = svg.split("<title>").skip(1).filter_map(|rest| rest.split_once("</title>"));
    titles.filter_map(|(title, _)| title.rsplit_once(" (")).map(|(name, _)| name).collect()
}

/// The function of the first row in the table of Java's frames on a recorded page.
fn first_row(page: &Path) -> Value {
    let mut browser = Browser::start(1440, 900);
    browser.open(&format!("file://{}#frames=java&view=table", page.display()));
    browser.wait_for("document.querySelectorAll('.top tbody .function-name').length > 1");
    let name = browser.evaluate("document.querySelector('.top tbody .function-name').textContent");
    assert_eq!(browser.complaints, [""; 0]);
    name
}

#[test]
fn of_pages_that_the_kernel_clears_for_a_heap_of_zgc_the_java_view_names_the_allocating_method() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Clearing", CLEARING);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let java = java.to_str().expect("a path in UTF-8");
        let page = dir.path().join("x.html");
        let record = |view: &[&str], mode: &[&str]| {
            let (folded, svg) = (dir.path().join("x.folded"), dir.path().join("x.svg"));
            let [to_folded, to_svg, to_page] =
                [&folded, &svg, &page].map(|path| path.to_str().expect("a path in UTF-8"));
            let output = ["-F", "997", "-o", to_folded, "-o", to_svg, "-o", to_page, "--", java];
            let heap = ["-XX:+UseZGC", "-Xms2g", "-Xmx2g"];
            let program = ["-cp", classes, "Clearing", "1200"];
            let summary = record_work(&[view, &output, &heap, mode, &program].concat(), &[WALKS_STACKS]);
            let [folded, svg] = [folded, svg].map(|path| fs::read_to_string(path).expect("it is written"));
            (summary, folded, svg)
        };
        let (_, all, all_svg) = record(&[], &["-Xint"]);
        let kernel = leaves(&all, |leaf| leaf.ends_with("_[k]"));
        let native = leaves(&all, |leaf| !leaf.ends_with("_[k]"));
        eprintln!("JDK {feature}: {kernel} samples of the kernel, {native} others");
        assert!(
            kernel * 10 > (kernel + native) * 7,
            "JDK {feature}: {kernel} of the kernel, {native} others\n{all}"
        );
        let mut of_kernel = kernel_functions(&all);
        assert!(!functions_of(&all_svg).is_disjoint(&of_kernel), "JDK {feature}: without --java it has some");

        assert_eq!(first_row(&page), "Clearing.buffer", "JDK {feature}: on the page");

        let (summary, java, java_svg) = record(&["--java"], &["-Xint"]);
        of_kernel.extend(kernel_functions(&java));
        let drawn = functions_of(&java_svg);
        let left: Vec<_> = drawn.intersection(&of_kernel).collect();
        assert!(left.is_empty(), "JDK {feature}: the picture names the kernel's {left:?}");
        assert!(drawn.contains("Clearing.buffer"), "JDK {feature}: {drawn:?}");
        assert_eq!(leaves(&java, |leaf| leaf.ends_with("_[k]")), 0, "JDK {feature}: {java}");
        assert_eq!(leaves(&java, |_| true), summary["samples"].as_u64().expect("a number"));
        let top = &summary["top"][0];
        assert_eq!(top["name"], "Clearing.buffer", "JDK {feature}: {summary}");
        let attributed = summary["java_frames"]["attributed"].as_u64().expect("a number");
        assert!(attributed >= top["self"].as_u64().expect("a number") * 9 / 10, "JDK {feature}: {summary}");
        let none = summary["java_frames"]["without_caller"].as_u64().expect("a number");
        assert_eq!(leaves(&java, |leaf| leaf == "[no Java caller]"), none, "JDK {feature}: {summary}");

        // As JVMs run otherwise: compiled, too.
        let (summary, ..) = record(&["--java"], &[]);
        assert_eq!(summary["top"][0]["name"], "Clearing.buffer", "JDK {feature}: {summary}");
        assert_eq!(first_row(&page), "Clearing.buffer", "JDK {feature}: on the page");
    }
}
