//! Calls go in one direction: the files of the core and the engine call each other in no circle.
//! (Imports do not show all calls.) And no two types have the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type OwnerNames = BTreeMap<String, BTreeSet<String>>;

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut open = vec![root.join("core/src"), root.join("engine/src")];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        let entries: Vec<PathBuf> =
            folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        for path in entries {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.push((name, code(&fs::read_to_string(&path).unwrap())));
            }
        }
    }
    assert!(found.len() > 40, "only {} files were found", found.len());
    found
}

/// Without comments, and without the tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod").next().unwrap_or_default();
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The names behind a keyword: `fn name`, `struct Name`.
fn declared<'t>(text: &'t str, keyword: &'t str) -> impl Iterator<Item = &'t str> {
    let words = text.split_whitespace().zip(text.split_whitespace().skip(1));
    let names = words.filter(move |(word, _)| *word == keyword).map(|(_, name)| name);
    names.filter_map(|name| name.split(|letter| !is_letter(letter)).next())
}

/// The names that are called: `name(`, `.name(`, `Type::name(`.
fn called(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices('(') {
        let before = text.get(..at).unwrap_or_default();
        let name: String = before.chars().rev().take_while(|letter| is_letter(*letter)).collect();
        let name: String = name.chars().rev().collect();
        let head = before.strip_suffix(name.as_str()).unwrap_or_default();
        if !name.is_empty() && !head.ends_with("fn ") {
            found.insert(name);
        }
    }
    found
}

/// Names that the standard library has, too: calls of these show nothing.
const STANDARD: [&str; 38] = [
    "new", "default", "get", "insert", "remove", "len", "is_empty", "iter", "next", "push", "pop",
    "clear", "contains", "extend", "take", "map", "filter", "find", "max", "min", "from", "into",
    "clone", "cmp", "eq", "fmt", "drop", "write", "read", "append", "retain", "entry", "first",
    "last", "set", "of", "as_bytes", "get_mut",
];

/// For each file, the files whose functions it calls. A function counts only if no other file
/// defines one of the same name.
fn arrows() -> OwnerNames {
    let files = sources();
    let mut homes: OwnerNames = BTreeMap::new();
    for (name, text) in &files {
        for function in declared(text, "fn") {
            homes.entry(function.into()).or_default().insert(name.clone());
        }
    }
    let home = |function: &String| match homes.get(function) {
        Some(homes) if homes.len() == 1 => homes.first().cloned(),
        _ => None,
    };
    let mut arrows = OwnerNames::new();
    for (name, text) in &files {
        let calls = called(text).into_iter().filter(|name| !STANDARD.contains(&name.as_str()));
        let others = calls.filter_map(|function| home(&function)).filter(|home| home != name);
        arrows.insert(name.clone(), others.collect());
    }
    arrows
}

fn reached(arrows: &OwnerNames, from: &str) -> BTreeSet<String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(file) = open.pop() {
        for next in arrows.get(&file).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

#[test]
fn calls_between_files_form_no_circle() {
    let arrows = arrows();
    let circles: Vec<&String> =
        arrows.keys().filter(|file| reached(&arrows, file).contains(*file)).collect();
    assert!(circles.is_empty(), "these files call each other in a circle: {circles:?}");
    assert!(arrows.values().map(BTreeSet::len).sum::<usize>() > 50, "hardly a call was found");
}

#[test]
fn no_two_types_have_one_name() {
    let mut homes: OwnerNames = BTreeMap::new();
    for (name, text) in sources() {
        for keyword in ["struct", "enum", "trait"] {
            for declared in declared(&text, keyword) {
                homes.entry(declared.into()).or_default().insert(name.clone());
            }
        }
    }
    let twice: Vec<_> = homes.iter().filter(|(_, homes)| homes.len() > 1).collect();
    assert!(twice.is_empty(), "declared twice: {twice:?}");
}
