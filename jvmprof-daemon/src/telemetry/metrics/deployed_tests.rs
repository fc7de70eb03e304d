//! The alert rules and the dashboard that are shipped, against the metrics that are there.

use std::collections::BTreeSet;
use std::convert::Infallible;

use promql_parser::label::MatchOp;
use promql_parser::parser::{Expr, LabelModifier, VectorSelector, parse};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use super::tests::full;
use super::*;

const RULES: &str = include_str!("../../../../deploy/prometheus/rules.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/jvmprof.json");
/// Labels that Prometheus puts on each series of a target.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

/// The alerts: name and expression.
fn rules() -> Vec<(String, String)> {
    let documents = YamlLoader::load_from_str(RULES).expect("rules.yml is YAML");
    let groups = documents[0]["groups"].as_vec().expect("groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_vec().expect("rules"));
    let text = |rule: &Yaml, key: &str| {
        rule[key].as_str().unwrap_or_else(|| panic!("{rule:?} has no {key}")).to_owned()
    };
    rules
        .map(|rule| {
            assert!(rule["annotations"]["summary"].as_str().is_some(), "{rule:?} has no summary");
            assert!(rule["labels"]["severity"].as_str().is_some(), "{rule:?} has no severity");
            (text(rule, "alert"), text(rule, "expr"))
        })
        .collect()
}

/// Each string under one of these keys, with what Grafana fills in.
fn collect(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text.replace("$__rate_interval", "5m")),
                    _ => collect(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, key, found)),
        _ => {}
    }
}

/// A check of an expression's names.
#[derive(Default)]
struct RuleCheck {
    wrong: Vec<String>,
    known: BTreeSet<String>,
}

impl RuleCheck {
    fn selector(&mut self, selector: &VectorSelector) {
        let name = selector.name.clone().unwrap_or_default();
        if name == "up" {
            return;
        }
        let Some(metric) = all().find(|metric| metric.series_name() == name) else {
            self.wrong.push(format!("there is no metric {name:?}"));
            return;
        };
        self.known.extend(metric.labels().iter().map(|&label| label.to_owned()));
        for matcher in &selector.matchers.matchers {
            if TARGET_LABELS.contains(&matcher.name.as_str()) {
                continue;
            }
            let Some(at) = metric.labels().iter().position(|label| *label == matcher.name) else {
                self.wrong.push(format!("{name} has no label {}", matcher.name));
                continue;
            };
            if matches!(matcher.op, MatchOp::Equal | MatchOp::NotEqual)
                && !metric.values(&full()).0.iter().any(|(labels, _)| labels[at] == matcher.value)
            {
                self.wrong.push(format!("{name} never has {}={:?}", matcher.name, matcher.value));
            }
        }
    }
}

impl ExprVisitor for RuleCheck {
    type Error = Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        match expr {
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(matrix) => self.selector(&matrix.vs),
            _ => {}
        }
        Ok(true)
    }

    /// Checks an expression whose selectors have been seen by now.
    fn post_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        if let Expr::Aggregate(aggregate) = expr
            && let Some(LabelModifier::Include(labels)) = &aggregate.modifier
        {
            for label in &labels.labels {
                if !TARGET_LABELS.contains(&label.as_str()) && !self.known.contains(label) {
                    self.wrong.push(format!("nothing in {expr} has the label {label}"));
                }
            }
        }
        Ok(true)
    }
}

fn wrong(expression: &str) -> Vec<String> {
    let parsed = match parse(expression) {
        Ok(parsed) => parsed,
        Err(error) => return vec![format!("{expression} is no PromQL: {error}")],
    };
    let mut check = RuleCheck::default();
    match walk_expr(&mut check, &parsed) {
        Ok(_) => check.wrong,
    }
}

#[test]
fn alerts_name_what_is_there() {
    let rules = rules();
    assert!(rules.len() >= 8, "{rules:?}");
    let names: BTreeSet<&String> = rules.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), rules.len(), "an alert is there twice");
    for (name, expression) in &rules {
        assert_eq!(wrong(expression), [""; 0], "{name}");
    }
}

#[test]
fn the_dashboard_shows_what_is_there() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut expressions = Vec::new();
    collect(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() >= 20, "{}", expressions.len());
    for expression in &expressions {
        assert_eq!(wrong(expression), [""; 0]);
    }
    let mut definitions = Vec::new();
    collect(&dashboard, "definition", &mut definitions);
    for definition in definitions {
        let inner =
            definition.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(',')).map(|it| it.0);
        assert_eq!(wrong(inner.unwrap_or_else(|| panic!("{definition}"))), [""; 0]);
    }
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}

#[test]
fn the_check_finds_what_is_wrong() {
    for (expression, what) in [
        ("rate(jvmprof_samples_taken[5m])", "no metric"),
        ("sum by (reason) (rate(jvmprof_samples_taken_total[5m]))", "label reason"),
        ("jvmprof_samples_lost_total{cause=\"shed\"}", "no label cause"),
        ("jvmprof_samples_lost_total{reason=\"sched\"}", "never has"),
        ("rate(", "no PromQL"),
    ] {
        let found = wrong(expression);
        assert!(found.len() == 1 && found[0].contains(what), "{expression}: {found:?}");
    }
}
