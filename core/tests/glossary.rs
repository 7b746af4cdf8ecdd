//! Words that the glossary replaces must not occur in the texts that users read.

use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside of `docs/`, and the texts of commands and errors with the comments around them.
const TEXTS: [&str; 14] = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/results/README.md",
    "clients/cli/README.md",
    "clients/go/README.md",
    "clients/java/README.md",
    "clients/node/README.md",
    "clients/python/README.md",
    "clients/rust/README.md",
    "examples/README.md",
    "core/src/grammar/commands.rs",
    "core/src/step/refusal.rs",
];

const GLOSSARY: &str = "docs/glossary.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// The words in italics in the last column of the glossary.
fn doubles() -> Vec<String> {
    let glossary = text(GLOSSARY);
    let rows = glossary.lines().filter_map(|line| line.strip_suffix(" |"));
    let last_cells = rows.filter_map(|row| row.rsplit('|').next());
    last_cells.flat_map(|cell| cell.split('*').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn pages_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages_below(&path));
        } else if path.extension().is_some_and(|ext| ext == "md") {
            found.push(path.strip_prefix(root()).unwrap().display().to_string());
        }
    }
    found
}

/// The text in lower case, with line ends and comment marks replaced by a space.
fn flat(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["///", "//!", "//", "\\"].contains(word));
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// As a whole word: `parks` is not in `sparks`.
fn has_word(text: &str, word: &str) -> bool {
    let is_apart = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text.get(..at), text.get(at..).and_then(|t| t.get(word.len()..)));
        is_apart(before.and_then(|t| t.chars().next_back()))
            && is_apart(after.and_then(|t| t.chars().next()))
    })
}

#[test]
fn what_users_read_keeps_to_the_glossary() {
    let doubles = doubles();
    assert!(doubles.len() > 5, "{doubles:?}");
    let pages = pages_below(&root().join("docs")).into_iter().chain(TEXTS.map(str::to_owned));
    let mut wrong = Vec::new();
    for name in pages.filter(|name| name != GLOSSARY) {
        let text = flat(&text(&name));
        let found = doubles.iter().filter(|double| has_word(&text, double));
        wrong.extend(found.map(|double| format!("{name}: {double}")));
    }
    assert_eq!(wrong, [""; 0], "see {GLOSSARY}");
}

#[test]
fn a_double_is_found_across_lines_and_only_as_a_word() {
    assert!(has_word(&flat("is\n/// Parked."), "parked"));
    assert!(has_word(&flat("so it enters\nagain"), "enters again"));
    assert!(!has_word(&flat("sparked"), "parked"));
}
