//! The summary as metrics, in Prometheus' text format 0.0.4, as node_exporter's textfile collector reads it.

use super::super::{columns, name};
use super::Summary;
use coresift_census::Value;
use std::fmt::Write;

pub fn text(summary: &Summary<'_>) -> String {
    let columns = columns(summary.by);
    let mut out = String::new();
    head(&mut out, "coresift_memory_bytes", "System RAM by what it is used for.");
    for (values, pages) in &summary.rows {
        let labels: Vec<String> =
            columns.iter().zip(values).map(|(id, value)| format!("{}=\"{}\"", name(*id), escaped(value))).collect();
        let _infallible = writeln!(out, "coresift_memory_bytes{{{}}} {}", labels.join(","), summary.bytes(*pages));
    }
    head(&mut out, "coresift_memory_missing_bytes", "System RAM whose pages could not be looked at.");
    let missing = summary.missing;
    for (why, pages) in [("no_page", missing.no_page), ("short", missing.short), ("failed", missing.failed)] {
        let _infallible = writeln!(out, "coresift_memory_missing_bytes{{reason=\"{why}\"}} {}", summary.bytes(pages));
    }
    head(&mut out, "coresift_memory_timestamp_seconds", "When the pages were looked at, in seconds since 1970.");
    let time = summary.input.provenance().time;
    let (seconds, micros) = (time.div_euclid(1_000_000), time.rem_euclid(1_000_000));
    let _infallible = writeln!(out, "coresift_memory_timestamp_seconds {seconds}.{micros:06}");
    out
}

fn head(out: &mut String, metric: &str, help: &str) {
    let _infallible = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} gauge");
}

/// The value of a label. An empty one is as good as none, which is what a value is that is not there.
fn escaped(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_as_the_format_wants() {
        assert_eq!(escaped(&Value::Text("a\"b\\c\nd".into())), r#"a\"b\\c\nd"#);
        assert_eq!(escaped(&Value::Null), "");
    }
}
