//! `man 1 rlock` says what `rlock --help` says.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rlock_cli::args::parse;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rlock.1");
    std::fs::read_to_string(path).unwrap()
}

fn help() -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_rlock")).arg("--help").output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

/// `-n`, `--count`, …
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| c.is_whitespace() || "(),;'|".contains(c));
    let is_option = |word: &&str| {
        let name = word.trim_start_matches('-');
        let dashes = word.len() - name.len();
        let is_name = name.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
        is_name && (dashes == 1 && name.len() == 1 || dashes == 2 && name.len() > 1)
    };
    words.filter(is_option).map(str::to_owned).collect()
}

/// The options that the page's macros name, below each heading.
fn documented(page: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut sections = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(".Ss ") {
            sections.push((title.to_owned(), BTreeSet::new()));
        } else if line.starts_with(".Sh ") {
            sections.push((String::new(), BTreeSet::new()));
        } else if let (Some(line), Some((_, found))) = (line.strip_prefix('.'), sections.last_mut())
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            // A word that follows an argument is not an option.
            let mut is_flag = false;
            for word in words {
                match word {
                    "Fl" => is_flag = true,
                    "Ar" | "Cm" => is_flag = false,
                    "," | "|" => {}
                    name if is_flag && name != "-" => {
                        found.insert(format!("-{name}"));
                    }
                    _ => {}
                }
            }
        }
    }
    sections
}

#[test]
fn each_option_in_the_help_is_in_the_man_page() {
    let known: BTreeSet<String> =
        documented(&page()).into_iter().flat_map(|(_, names)| names).collect();
    let wanted = options(&help());
    assert!(wanted.len() > 25, "{wanted:?}");
    let missing: Vec<_> = wanted.difference(&known).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
}

#[test]
fn each_option_in_the_man_page_exists() {
    let sections = documented(&page());
    let mut tried = 0;
    for (title, names) in sections.iter().filter(|(title, _)| !title.is_empty()) {
        for name in names {
            let jobs: Vec<&str> = match title.as_str() {
                "run" => vec!["run k"],
                "top, queues" => vec!["top", "queues"],
                "ls, release" => vec!["ls", "release"],
                "serve" => vec!["serve"],
                "mcp" => vec!["mcp"],
                _ => vec!["run k", "top", "who k", "watch k", "queues", "ls", "serve", "mcp"],
            };
            let is_one = jobs.iter().any(|job| {
                let said = parse(job.split(' ').chain([name.as_str(), "1"]));
                said.err().is_none_or(|wrong| !wrong.contains("is not an option"))
            });
            assert!(is_one, "{title}: {name} is on the page, and no option");
            tried += 1;
        }
    }
    assert!(tried > 25, "{tried}");
}

#[test]
fn commands_variables_and_exit_codes_are_in_the_man_page() {
    let (page, help) = (page(), help());
    let jobs = help.lines().filter_map(|line| line.strip_prefix("rlock ")?.split(' ').next());
    let jobs: Vec<&str> = jobs.filter(|job| !job.starts_with('-')).collect();
    assert!(jobs.len() >= 9, "{jobs:?}");
    for job in jobs {
        assert!(page.contains(&format!(".It Cm {job}\n")), "{job}");
    }
    let variables = help.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let prefixes = ["RLOCK_", "REDISCLI_"];
    for name in variables.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
        assert!(page.contains(&format!("Ev {name}")), "{name}");
    }
    let codes = help.split("Exit codes:").nth(1).unwrap();
    let codes = codes.split(|c: char| !c.is_ascii_digit()).filter(|code| !code.is_empty());
    for code in codes.filter(|code| *code != "128") {
        let is_item = |line: &str| line.split(' ').take(2).eq([".It", code]);
        assert!(page.lines().any(is_item), "exit code {code}");
    }
}
