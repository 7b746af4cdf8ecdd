//! Each rule about waits with `TELL` has a test, and a fault that the test detects: all of those
//! that the table in `docs/decisions` names must exist.

use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = "docs/decisions/0021-a-late-reply-has-a-sink.md";
/// How many rules there are.
const RULES: usize = 20;
/// Where the tests are that the table names.
const TESTS: [&str; 3] = ["simulation/tests", "engine/tests", "tests/server"];
const MUTANTS: [&str; 2] = ["scripts/mutants.txt", "scripts/mutants-engine.txt"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The text of a file; empty if there is none.
fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_default()
}

/// The sources below a folder.
fn sources(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(sources(&path)),
            false => all.push(fs::read_to_string(&path).unwrap()),
        }
    }
    all
}

/// The texts between pairs of this mark.
fn between(text: &str, mark: char) -> Vec<&str> {
    text.split(mark).skip(1).step_by(2).collect()
}

/// Whether any of the test programs has this test, named as `module::name`.
fn has_test(path: &str) -> bool {
    let Some((module, name)) = path.split_once("::") else { return false };
    let head = format!("#[test]\nfn {name}() {{");
    TESTS.iter().any(|folder| text(&format!("{folder}/{module}.rs")).contains(&head))
}

/// The rows of the table: a rule, its test, and the fault that makes the test fail.
fn rows(page: &str) -> Vec<[&str; 3]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| T")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    cells.map(|cells| cells.try_into().unwrap_or_else(|row| panic!("{row:?}"))).collect()
}

/// The names in the table that do not exist.
fn missing(page: &str) -> Vec<(&str, &str)> {
    let laws: String = sources(&root().join("simulation/src")).concat();
    let mutants: String = MUTANTS.map(text).concat();
    let is_law = |name: &str| laws.contains(&format!("\"{name}\""));
    let is_mutant = |title: &str| mutants.contains(&format!("= {title}\n"));
    let mut missing = Vec::new();
    for [rule, checks, faults] in rows(page) {
        let checks = between(checks, '`');
        let (planted, mutated) = (between(faults, '`'), between(faults, '"'));
        if checks.is_empty() {
            missing.push((rule, "a test"));
        }
        if planted.len() + mutated.len() == 0 {
            missing.push((rule, "a fault"));
        }
        let unknown = checks.into_iter().filter(|name| !has_test(name) && !is_law(name));
        let unplanted = planted.into_iter().filter(|name| !has_test(name));
        let unmutated = mutated.into_iter().filter(|title| !is_mutant(title));
        missing.extend(unknown.chain(unplanted).chain(unmutated).map(|name| (rule, name)));
    }
    missing
}

#[test]
fn each_rule_has_a_test_and_a_fault_that_turns_it_red() {
    let page = text(TABLE);
    let numbers: Vec<String> = rows(&page)
        .iter()
        .map(|[rule, ..]| rule.chars().take_while(char::is_ascii_digit).collect())
        .collect();
    let all: Vec<String> = (1..=RULES).map(|number| number.to_string()).collect();
    assert_eq!(numbers, all, "{TABLE}");
    assert_eq!(missing(&page), [], "{TABLE}");
}

#[test]
fn what_is_not_there_is_found() {
    let page = "| T1 the same wait | law `a law that nobody wrote` | `planted::nothing` |\n\
                | T2 the reply | tests | the mutant \"of nothing\" |\n\
                | T3 a message | `tell::t4_the_forms_of_the_message` | faults |\n";
    let found: Vec<&str> = missing(page).into_iter().map(|(_, what)| what).collect();
    assert_eq!(
        found,
        ["a law that nobody wrote", "planted::nothing", "a test", "of nothing", "a fault"]
    );
}
