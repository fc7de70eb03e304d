//! `record --java` on JVMs whose time is mostly the kernel's.

use std::fs;

use crate::support::{compile_java, jdks, record_json, scratch};

/// Fills the heap with arrays: the kernel clears each page when it is touched first. Sleeps after
/// that, so that its methods are named while it runs.
const CLEARING: &str = r#"
import java.util.*;
public class Clearing {
    static final List<byte[]> kept = new ArrayList<>();
    static byte[] buffer() { return new byte[1 << 20]; }
    static void fill(int megabytes) { for (int i = 0; i < megabytes; i++) kept.add(buffer()); }
    public static void main(String[] args) throws Exception {
        Thread.sleep(5_000);
        fill(Integer.parseInt(args[0]));
        Thread.sleep(3_000);
    }
}
"#;

/// Samples of folded stacks whose leaf satisfies a condition.
fn leaves(folded: &str, condition: impl Fn(&str) -> bool) -> u64 {
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let ending = stacks.filter(|(stack, _)| condition(stack.rsplit(';').next().unwrap_or(stack)));
    ending.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
}

#[test]
fn of_pages_that_the_kernel_clears_for_a_heap_of_zgc_the_java_view_names_the_allocating_method() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Clearing", CLEARING);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let java = java.to_str().expect("a path in UTF-8");
        let record = |view: &[&str]| {
            let folded = dir.path().join("x.folded");
            let output = ["-F", "997", "-o", folded.to_str().expect("a path in UTF-8"), "--", java];
            let program = ["-XX:+UseZGC", "-Xms2g", "-Xmx2g", "-Xint", "-cp", classes, "Clearing", "1200"];
            let summary = record_json(&[view, &output, &program].concat());
            (summary, fs::read_to_string(&folded).expect("it is written"))
        };
        let (_, all) = record(&[]);
        let kernel = leaves(&all, |leaf| leaf.ends_with("_[k]"));
        let native = leaves(&all, |leaf| !leaf.ends_with("_[k]"));
        assert!(kernel > native, "JDK {feature}: {kernel} of the kernel, {native} others\n{all}");

        let (summary, java) = record(&["--java"]);
        assert_eq!(leaves(&java, |leaf| leaf.ends_with("_[k]")), 0, "JDK {feature}: {java}");
        assert_eq!(leaves(&java, |_| true), summary["samples"].as_u64().expect("a number"));
        let top = &summary["top"][0];
        assert_eq!(top["name"], "Clearing.buffer", "JDK {feature}: {summary}");
        let attributed = summary["java_frames"]["attributed"].as_u64().expect("a number");
        assert!(attributed >= top["self"].as_u64().expect("a number") * 9 / 10, "JDK {feature}: {summary}");
        let none = summary["java_frames"]["without_caller"].as_u64().expect("a number");
        assert_eq!(leaves(&java, |leaf| leaf == "[no Java caller]"), none, "JDK {feature}: {summary}");
    }
}
