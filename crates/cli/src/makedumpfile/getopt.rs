//! Splits a command line into options and positionals the way GNU `getopt_long` does, which makedumpfile uses: options may
//! follow positionals, `--` ends them, letters cluster (`-lD`), values attach (`-d31`, `--vtop=0x1`) or follow, and long names
//! may be cut short as long as one name fits.

use super::options::{Opt, ROWS, Row};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A piece of the command line.
#[derive(Debug)]
pub enum Token {
    /// An option with its value, where it takes one.
    Option(&'static Row, Option<OsString>),
    /// A file name.
    Positional(OsString),
    /// What is no option, in the words of `getopt_long`.
    Bad(String),
}

impl Token {
    /// Whether this is the option `opt`.
    pub fn is(&self, opt: Opt) -> bool {
        matches!(self, Self::Option(row, _) if row.opt == opt)
    }
}

/// The tokens of `args`, which do not hold the program's name.
pub fn split(args: &[OsString]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_bytes() {
            b"--" => tokens.extend(rest.by_ref().cloned().map(Token::Positional)),
            [b'-', b'-', name @ ..] => tokens.push(long(name, &mut rest)),
            [b'-', letters @ ..] if !letters.is_empty() => cluster(letters, &mut rest, &mut tokens),
            _ => tokens.push(Token::Positional(arg.clone())),
        }
    }
    tokens
}

/// `--name`, `--name=value` or `--name value`, without the dashes.
fn long<'a>(text: &[u8], rest: &mut impl Iterator<Item = &'a OsString>) -> Token {
    let mut halves = text.splitn(2, |b| *b == b'=');
    let name = halves.next().unwrap_or_default();
    let attached = halves.next().map(|value| OsStr::from_bytes(value).to_owned());
    let shown = String::from_utf8_lossy(name);

    let row = match candidates(name).as_slice() {
        [row] => *row,
        [] => return Token::Bad(format!("unrecognized option '--{}'", String::from_utf8_lossy(text))),
        several => {
            let names: String = several.iter().filter_map(|r| r.long).map(|name| format!(" '--{name}'")).collect();
            return Token::Bad(format!(
                "option '--{}' is ambiguous; possibilities:{names}",
                String::from_utf8_lossy(text)
            ));
        }
    };
    let name = row.long.unwrap_or(&shown);
    match (row.value, attached) {
        (None, Some(_)) => Token::Bad(format!("option '--{name}' doesn't allow an argument")),
        (None, None) => Token::Option(row, None),
        (Some(_), Some(value)) => Token::Option(row, Some(value)),
        (Some(_), None) => match rest.next() {
            Some(value) => Token::Option(row, Some(value.clone())),
            None => Token::Bad(format!("option '--{name}' requires an argument")),
        },
    }
}

/// The row with exactly this name, or all rows whose name starts with it.
fn candidates(name: &[u8]) -> Vec<&'static Row> {
    let mut starting: Vec<_> =
        ROWS.iter().filter(|r| r.long.is_some_and(|long| long.as_bytes().starts_with(name))).collect();
    starting.sort_unstable_by_key(|r| r.long);
    match starting.iter().find(|r| r.long.is_some_and(|long| long.as_bytes() == name)) {
        Some(exact) => vec![*exact],
        None => starting,
    }
}

/// The letters after one dash.
fn cluster<'a>(letters: &[u8], rest: &mut impl Iterator<Item = &'a OsString>, tokens: &mut Vec<Token>) {
    let mut left = letters;
    while let [letter, tail @ ..] = left {
        left = tail;
        let Some(row) = ROWS.iter().find(|r| r.short == Some(char::from(*letter))) else {
            let shown = String::from_utf8_lossy(std::slice::from_ref(letter)).into_owned();
            tokens.push(Token::Bad(format!("invalid option -- '{shown}'")));
            continue;
        };
        let value = match row.value {
            None => None,
            Some(_) if !tail.is_empty() => Some(OsString::from_vec(tail.to_vec())),
            Some(_) => match rest.next() {
                Some(value) => Some(value.clone()),
                None => {
                    return tokens
                        .push(Token::Bad(format!("option requires an argument -- '{}'", char::from(*letter))));
                }
            },
        };
        let ended = value.is_some();
        tokens.push(Token::Option(row, value));
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> Vec<String> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        split(&args)
            .into_iter()
            .map(|token| match token {
                Token::Option(row, None) => row.name(),
                Token::Option(row, Some(value)) => format!("{}={}", row.name(), value.to_string_lossy()),
                Token::Positional(name) => name.to_string_lossy().into_owned(),
                Token::Bad(text) => format!("? {text}"),
            })
            .collect()
    }

    #[test]
    fn spellings_of_one_line_mean_the_same() {
        let wanted = ["-l", "-D", "-d=31", "--message-level=7", "a", "b"].map(str::to_owned).to_vec();
        for line in [
            "-l -D -d 31 --message-level 7 a b",
            "-lDd31 --message-level=7 a b",
            "-lD -d31 --message 7 a b",
            "-lDd 31 --m=7 a b",
        ] {
            if line.contains("--m=7") {
                // `--m` fits message-level and mem-usage.
                assert!(shown(line).iter().any(|t| t.contains("ambiguous")), "{line}");
                continue;
            }
            assert_eq!(shown(line), wanted, "{line}");
        }
    }

    #[test]
    fn options_may_follow_names_and_two_dashes_end_them() {
        assert_eq!(shown("a -f b -- -c"), ["a", "-f", "b", "-c"]);
        assert_eq!(shown("- -- --"), ["-", "--"]);
    }

    #[test]
    fn a_value_is_taken_whatever_it_looks_like() {
        assert_eq!(shown("--num-threads -4 -x -c"), ["--num-threads=-4", "-x=-c"]);
        assert_eq!(shown("--vtop="), ["--vtop="]);
        assert_eq!(shown("-d -- a"), ["-d=--", "a"]);
    }

    #[test]
    fn an_exact_long_name_wins_over_longer_ones() {
        assert_eq!(shown("--split --splitb 3"), ["--split", "--splitblock-size=3"]);
        let ambiguous = "? option '--spl' is ambiguous; possibilities: '--split' '--splitblock-size'";
        assert_eq!(shown("--spl"), [ambiguous]);
    }

    #[test]
    fn what_is_no_option_is_said_in_the_words_of_getopt() {
        assert_eq!(shown("-q"), ["? invalid option -- 'q'"]);
        assert_eq!(shown("-cqf"), ["-c", "? invalid option -- 'q'", "-f"]);
        assert_eq!(shown("--foo=1"), ["? unrecognized option '--foo=1'"]);
        assert_eq!(shown("-d"), ["? option requires an argument -- 'd'"]);
        assert_eq!(shown("--vto"), ["? option '--vtop' requires an argument"]);
        assert_eq!(shown("--split=3"), ["? option '--split' doesn't allow an argument"]);
        assert_eq!(shown("--version"), ["? unrecognized option '--version'"]);
    }
}
