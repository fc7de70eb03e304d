//! Cases that Prometheus documents by its own tests (`model/relabel/relabel_test.go`), and those of
//! regular expressions in Go's syntax.

use std::str::FromStr;

use super::rule::is_name_template;
use super::*;

/// Parses `a=1 b=2`; `_` stands for a space in a value, `⏎` for a line break.
fn labels(text: &str) -> LabelSet {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').expect("name=value");
        (name.to_owned(), value.replace('⏎', "\n"))
    };
    text.split_whitespace().map(pair).collect()
}

fn rules(texts: &[&str]) -> Vec<RelabelRule> {
    texts
        .iter()
        .map(|text| RelabelRule::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")))
        .collect()
}

/// A case: input, rules, and the labels that are there afterwards beside the input's; `None`:
/// dropped.
type Case = (&'static str, &'static [&'static str], Option<&'static str>);

const ADDING: &[Case] = &[
    // replace
    (
        "a=foo b=bar c=baz",
        &["{ source_labels = ['a'], regex = 'f(.*)', target_label = 'd', replacement = 'ch${1}-ch${1}' }"],
        Some("d=choo-choo"),
    ),
    (
        "a=foo b=bar c=baz",
        &[
            "{ source_labels = ['a', 'b'], regex = 'f(.*);(.*)r', target_label = 'a', replacement = 'b${1}${2}m' }",
            "{ source_labels = ['c', 'a'], regex = '(b).*b(.*)ba(.*)', target_label = 'd', replacement = '$1$2$2$3' }",
        ],
        Some("a=boobam d=boooom"),
    ),
    ("a=abc", &["{ source_labels = ['a'], regex = '.*(b).*', target_label = 'd' }"], Some("d=b")),
    // without a match nothing is replaced
    ("a=boo", &["{ source_labels = ['a'], regex = 'f', target_label = 'b', replacement = 'bar' }"], Some("")),
    // a constant, the source empty
    ("a=boo", &["{ target_label = 'b', replacement = 'bar' }"], Some("b=bar")),
    // the target is a template
    (
        "a=some-name-value",
        &[
            "{ source_labels = ['a'], regex = 'some-([^-]+)-([^,]+)', replacement = '${2}', target_label = '${1}' }",
        ],
        Some("name=value"),
    ),
    // a group that isn't there is empty: no value, no target
    (
        "a=some-name-value",
        &[
            "{ source_labels = ['a'], regex = 'some-([^-]+)-([^,]+)', replacement = '${3}', target_label = '${1}' }",
        ],
        Some(""),
    ),
    (
        "a=some-name-0",
        &[
            "{ source_labels = ['a'], regex = 'some-([^-]+)-([^,]+)', replacement = '${1}', target_label = '${3}' }",
            "{ source_labels = ['a'], regex = 'some-([^-]+)-([^,]+)', replacement = '${1}', target_label = '${2}' }",
            "{ source_labels = ['a'], regex = 'some-([^-]+)(-[^,]+)', replacement = '${1}', target_label = '${2}' }",
        ],
        Some(""),
    ),
    (
        "__meta_sd_tags=path:/secret,job:some-job,label:foo=bar",
        &[
            "{ source_labels = ['__meta_sd_tags'], regex = '(?:.+,|^)path:(/[^,]+).*', target_label = '__metrics_path__' }",
            "{ source_labels = ['__meta_sd_tags'], regex = '(?:.+,|^)job:([^,]+).*', target_label = 'job' }",
            "{ source_labels = ['__meta_sd_tags'], regex = '(?:.+,|^)label:([^=]+)=([^,]+).*', target_label = '${1}', replacement = '${2}' }",
        ],
        Some("__metrics_path__=/secret job=some-job foo=bar"),
    ),
    // drop and keep: whole values
    ("a=foo", &["{ source_labels = ['a'], regex = '.*o.*', action = 'drop' }"], None),
    (
        "a=foo",
        &[
            "{ source_labels = ['a'], regex = '.*o.*', action = 'drop' }",
            "{ source_labels = ['a'], regex = 'f(.*)', target_label = 'd', replacement = 'ch$1-ch$1' }",
        ],
        None,
    ),
    ("a=foo", &["{ source_labels = ['a'], regex = 'no-match', action = 'drop' }"], Some("")),
    ("a=foo", &["{ source_labels = ['a'], regex = 'f|o', action = 'drop' }"], Some("")),
    ("a=foo", &["{ source_labels = ['a'], regex = 'no-match', action = 'keep' }"], None),
    ("a=foo", &["{ source_labels = ['a'], regex = 'f.*', action = 'keep' }"], Some("")),
    ("a=foo", &["{ source_labels = ['absent'], regex = '', action = 'keep' }"], Some("")),
    // hashmod
    (
        "a=foo b=bar c=baz",
        &["{ source_labels = ['c'], target_label = 'd', action = 'hashmod', modulus = 1000 }"],
        Some("d=976"),
    ),
    (
        "a=foo⏎bar",
        &["{ source_labels = ['a'], target_label = 'b', action = 'hashmod', modulus = 1000 }"],
        Some("b=734"),
    ),
    // labelmap
    (
        "a=foo b1=bar b2=baz",
        &["{ regex = '(b.*)', replacement = 'bar_${1}', action = 'labelmap' }"],
        Some("bar_b1=bar bar_b2=baz"),
    ),
    (
        "a=foo __meta_my_bar=aaa __meta_my_baz=bbb __meta_other=ccc",
        &["{ regex = '__meta_(my.*)', replacement = '${1}', action = 'labelmap' }"],
        Some("my_bar=aaa my_baz=bbb"),
    ),
    // lowercase, uppercase
    (
        "foo=bAr123Foo",
        &[
            "{ source_labels = ['foo'], action = 'uppercase', target_label = 'foo_uppercase' }",
            "{ source_labels = ['foo'], action = 'Lowercase', target_label = 'foo_lowercase' }",
        ],
        Some("foo_lowercase=bar123foo foo_uppercase=BAR123FOO"),
    ),
    // keepequal, dropequal
    (
        "__tmp=1234 __p1=1234",
        &["{ source_labels = ['__tmp'], action = 'keepequal', target_label = '__p1' }"],
        Some(""),
    ),
    (
        "__tmp=1234 __p1=1234",
        &["{ source_labels = ['__tmp'], action = 'dropequal', target_label = '__p1' }"],
        None,
    ),
    (
        "__tmp=1234 __p2=5678",
        &["{ source_labels = ['__tmp'], action = 'dropequal', target_label = '__p2' }"],
        Some(""),
    ),
    (
        "__tmp=1234 __p2=5678",
        &["{ source_labels = ['__tmp'], action = 'keepequal', target_label = '__p2' }"],
        None,
    ),
];

#[test]
fn rules_do_what_prometheus_does() {
    for (input, texts, expected) in ADDING {
        let mut set = labels(input);
        let kept = relabel(&rules(texts), &mut set);
        let expected = expected.map(|added| {
            let mut all = labels(input);
            all.extend(labels(added));
            all
        });
        assert_eq!(kept.then_some(set), expected, "{input} by {texts:?}");
    }
}

#[test]
fn labels_are_removed_by_name_and_by_an_empty_value() {
    for (input, texts, expected) in [
        ("a=foo b1=bar b2=baz", vec!["{ regex = '(b.*)', action = 'labelkeep' }"], "b1=bar b2=baz"),
        ("a=foo b1=bar b2=baz", vec!["{ regex = '(b.*)', action = 'labeldrop' }"], "a=foo"),
        ("a=foo b=bar", vec!["{ source_labels = ['a'], target_label = 'b', replacement = '' }"], "a=foo"),
        ("a=foo b=bar", vec!["{ source_labels = ['c'], target_label = 'b', action = 'lowercase' }"], "a=foo"),
        // A label that was dropped can be made anew (prometheus/prometheus issue 12283).
        (
            "port_name=foo annotation_port=9091",
            vec![
                "{ regex = '^port_name$', action = 'labeldrop' }",
                "{ source_labels = ['annotation_port'], regex = '(.+)', replacement = 'metrics', target_label = 'port_name' }",
                "{ source_labels = ['port_name'], regex = '^metrics$', action = 'keep' }",
            ],
            "annotation_port=9091 port_name=metrics",
        ),
    ] {
        let mut set = labels(input);
        assert!(relabel(&rules(&texts), &mut set), "{texts:?}");
        assert_eq!(set, labels(expected), "{texts:?}");
    }
}

#[test]
fn rules_that_prometheus_refuses_are_refused() {
    for (text, part) in [
        ("{ action = 'replace' }", "replace needs target_label"),
        ("{ action = 'lowercase' }", "lowercase needs target_label"),
        ("{ action = 'lowercase', target_label = '${3}' }", "\"${3}\" is no label name"),
        ("{ source_labels = ['a'], target_label = '0${3}' }", "\"0${3}\" is no label name"),
        ("{ source_labels = ['a'], target_label = '-${3}' }", "\"-${3}\" is no label name"),
        ("{ source_labels = ['a'], target_label = 'a-b' }", "\"a-b\" is no label name"),
        ("{ source_labels = ['a-b'], target_label = 'a' }", "source label \"a-b\" is no label name"),
        ("{ source_labels = ['a'], target_label = 'b', action = 'hashmod' }", "a modulus that isn't 0"),
        ("{ target_label = 'b', action = 'uppercase', replacement = 'x' }", "takes no replacement"),
        ("{ target_label = 'b', action = 'keepequal', regex = 'x' }", "takes no regex"),
        ("{ target_label = 'b', action = 'dropequal', separator = ',' }", "takes no separator"),
        ("{ source_labels = ['a'], action = 'labeldrop' }", "takes no source_labels"),
        ("{ target_label = 'a', action = 'labelkeep' }", "takes no target_label"),
        ("{ regex = 'x', action = 'labelmap', replacement = '-$1' }", "replacement \"-$1\" is no label name"),
        ("{ action = 'kep' }", "did you mean \"keep\"?"),
        ("{ action = 'keep', regex = 'a(b' }", "unclosed group"),
        ("{ action = 'keep', regex = 'a)(b' }", "unopened group"),
        ("{ action = 'keep', regexp = 'a' }", "unknown field `regexp`"),
        ("{ action = 'keep', regexp = 'a' }", "did you mean \"regex\"?"),
        ("keep", "not a rule"),
        ("{", "not a rule"),
    ] {
        let error = RelabelRule::from_str(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    RelabelRule::from_str("{ target_label = 'b', action = 'keepequal', regex = '(.*)', separator = ';' }")
        .expect("defaults may be said");
}

#[test]
fn templates_of_names_are_recognized() {
    for (text, is_one) in [
        ("-label", false),
        ("label", true),
        ("label${1}", true),
        ("${1}label", true),
        ("${1}", true),
        ("${", false),
        ("$", false),
        ("${}", false),
        ("foo${", false),
        ("$1", true),
        ("asd$2asd", true),
        ("-foo${1}bar-", false),
        ("_${1}_", true),
        ("foo${bar}foo", true),
    ] {
        assert_eq!(is_name_template(text), is_one, "{text}");
    }
}

#[test]
fn regular_expressions_are_read_as_go_reads_them() {
    for (regex, text, matches) in [
        // Whole texts, each alternative.
        ("a|b", "ab", false),
        ("a|b", "b", true),
        ("a.b", "a\nb", true),
        ("", "", true),
        ("^a$", "a", true),
        // ASCII
        (r"\d", "٣", false),
        (r"\w+", "é", false),
        (r"\W", "é", true),
        (r"[\d_]+", "1_2", true),
        (r"[^\d]", "٣", true),
        (r"\s", "\u{a0}", false),
        (r"\ba\b", "a", true),
        (r"é", "é", true),
        (r"(?i)É", "é", true),
        (r"\p{Greek}", "α", true),
        (r"\pL", "ж", true),
        (r"\x{3b1}", "α", true),
        // Literal there, operators here.
        ("[a[b]", "[", true),
        ("[[]", "[", true),
        ("[]a]", "]", true),
        ("[^]a]", "b", true),
        ("[a&&b]", "&", true),
        ("[a~~b]", "~", true),
        ("[a--]", "-", true),
        ("[[:alpha:]_]+", "a_", true),
        ("[[:^alpha:]]", "1", true),
        ("[:a]", ":", true),
        ("[a:]b", "ab", true),
        ("a{", "a{", true),
        ("{x}", "{x}", true),
        ("a{,2}", "a{,2}", true),
        ("a{2,3}", "aaa", true),
        ("a{2}", "aaa", false),
        (r"\Qa.b\E+", "a.bbb", true),
        (r"\Qa.b", "a.b", true),
        (r"\<a\>", "<a>", true),
        (r"a\/b", "a/b", true),
        (r"\101\60", "A0", true),
        (r"[\101-\103]", "B", true),
        (r"\0", "\0", true),
        (r"\1018", "A8", true),
        ("a{1000}", "a", false),
        (r"(?P<n>a)(?:b)", "ab", true),
    ] {
        let compiled = go_regex::anchored(regex).unwrap_or_else(|error| panic!("{regex}: {error}"));
        assert_eq!(compiled.is_match(text), matches, "{regex} on {text:?}");
    }
    for regex in ["(", "[a", r"\", "(?<=a)b", r"(a)\1", r"(a)\18", "a{1001}", "a{1,9999999}", "a{1,1001}"] {
        assert!(go_regex::anchored(regex).is_err(), "{regex}");
    }
}

#[test]
fn case_is_mapped_by_single_characters() {
    let rule = RelabelRule::from_str("{ source_labels = ['a'], target_label = 'b', action = 'uppercase' }")
        .expect("valid");
    let mut set = labels("a=straße-é");
    assert!(rule.apply(&mut set));
    assert_eq!(set["b"], "STRAßE-É");
}
