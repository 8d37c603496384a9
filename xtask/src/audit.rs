//! `cargo xtask audit`: every dependency's licence is one that deny.toml allows. Works offline, from `cargo metadata`.

use crate::shell;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

/// Runs the check, and cargo-deny after it where that is installed; `--install` installs it first.
///
/// # Errors
/// `cargo metadata` fails, or deny.toml cannot be read.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {}
        ["--install"] => shell::run(cargo().args(["install", "--locked", "cargo-deny"]))?,
        _ => bail!("cargo xtask audit [--install]"),
    }
    let refused = refused_licences()?;
    for line in &refused {
        println!("{line}");
    }
    let mut good = refused.is_empty();
    if shell::find_program("cargo-deny").is_some() {
        // The advisories are left out: they need a database from the network.
        good &= cargo().args(["deny", "check", "licenses", "bans", "sources"]).status()?.success();
    } else {
        println!(
            "cargo-deny is not installed (`cargo xtask audit --install` gets it); licences checked from cargo metadata"
        );
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(shell::workspace());
    command
}

/// A line for each dependency whose licence deny.toml does not allow, and a count of those it does.
///
/// # Errors
/// `cargo metadata` fails, or deny.toml cannot be read.
pub fn refused_licences() -> Result<Vec<String>> {
    let path = shell::workspace().join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let allowed = allow_list(&text).context("deny.toml has no allow list")?;
    let json = shell::capture(cargo().args(["metadata", "--format-version", "1", "--locked", "--all-features"]))?;
    let metadata: Value = serde_json::from_str(&json)?;
    let mut refused = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let licence = package["license"].as_str().unwrap_or("none given");
        *counts.entry(licence.to_owned()).or_default() += 1;
        if !permitted(licence, &allowed) {
            let (name, version) = (package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"));
            refused.push(format!("{name} {version}: licence {licence:?} is not among those that deny.toml allows"));
        }
    }
    println!(
        "{} packages, {} licence expressions, {} refused",
        counts.values().sum::<usize>(),
        counts.len(),
        refused.len()
    );
    Ok(refused)
}

/// The strings of `allow = [...]` in the `[licenses]` table.
fn allow_list(deny: &str) -> Option<Vec<String>> {
    let table = deny.split_once("[licenses]")?.1;
    let list = table.split_once("allow = [")?.1.split_once(']')?.0;
    Some(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Whether an SPDX expression can be met with the licences of `allowed`. `/` is cargo's old way to write OR.
fn permitted(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let good = any_of(&words, &mut at, allowed);
    good && at == words.len()
}

/// `all_of OR all_of ...`
fn any_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all_of(words, at, allowed);
    }
    good
}

/// `term AND term ...`, a term being a licence, a licence WITH an exception, or an expression in parentheses.
fn all_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = true;
    loop {
        if words.get(*at) == Some(&"(") {
            *at += 1;
            good &= any_of(words, at, allowed);
            *at += 1;
        } else {
            let mut licence = words.get(*at).copied().unwrap_or_default().to_owned();
            *at += 1;
            if words.get(*at) == Some(&"WITH") {
                licence = format!("{licence} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
                *at += 2;
            }
            good &= allowed.contains(&licence);
        }
        if words.get(*at) != Some(&"AND") {
            return good;
        }
        *at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_permitted_when_one_choice_of_it_is() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"].map(str::to_owned);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-2.0", false),
            ("GPL-2.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-2.0", false),
            ("(MIT OR GPL-2.0) AND Unicode-3.0", true),
            ("(MIT AND GPL-2.0) OR Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("MIT OR", false),
            ("none given", false),
            ("", false),
        ] {
            assert_eq!(permitted(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn the_allow_list_is_read_from_the_licenses_table() {
        let text = "[graph]\nallow = [\"x\"]\n[licenses]\n# why\nallow = [\n \"MIT\",\n \"ISC\",\n]\n";
        assert_eq!(allow_list(text).unwrap(), ["MIT", "ISC"]);
    }
}
