//! Links have a target, `make` targets exist, and each snippet of a program is a part of an
//! example.

use std::fs;
use std::path::{Path, PathBuf};

use super::pages::{Block, Page, page_named, pages, root};

/// The pages for those who work on the project, in addition to those for users.
const PAPERS: [&str; 3] = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

fn pages_and_papers() -> Vec<Page> {
    pages().into_iter().chain(PAPERS.map(page_named)).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages_and_papers();
    let links: Vec<(&Page, &str)> =
        pages.iter().flat_map(|page| page.links().map(move |link| (page, link))).collect();
    let broken: Vec<String> = links
        .iter()
        .filter(|(page, link)| !link.contains("://") && !leads_somewhere(page, link))
        .map(|(page, link)| format!("{}: {link}", page.name))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links.len() > 20, "only {} links were found", links.len());
}

fn leads_somewhere(page: &Page, link: &str) -> bool {
    let here = root().join(&page.name);
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { here } else { here.parent().unwrap().join(path) };
    if heading.is_empty() {
        return target.exists();
    }
    let text = fs::read_to_string(target).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading)
}

/// The anchor of a heading, as the sites that show these pages compute it.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches(['#', ' ']).to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

#[test]
fn every_make_target_in_backticks_is_one() {
    let makefile = include_str!("../../../Makefile");
    for page in pages_and_papers() {
        let shown = page.text.lines().filter_map(|line| line.strip_prefix("    make "));
        let spans = page.spans();
        let said = spans.iter().filter_map(|span| span.strip_prefix("make "));
        for words in shown.chain(said) {
            let target = words.split(' ').next().unwrap();
            let is_there = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            assert!(is_there, "{}: make {target}", page.name);
        }
    }
}

/// The examples are run by `make examples`.
#[test]
fn every_snippet_of_a_program_is_a_part_of_an_example() {
    let mut snippets = 0;
    for page in pages() {
        for block in page.blocks() {
            let Block::Fenced { kind, text, line } = block else { continue };
            let folder = match kind {
                // `scripts/shells.py` compares shell sessions, and the tests of a package compare
                // the diff of a program that was ported.
                "console" | "conf" | "text" | "shell" | "diff" | "" => continue,
                "javascript" => "node",
                language => language,
            };
            snippets += 1;
            let examples = root().join("examples").join(folder);
            let is_part = files_below(&examples).iter().any(|file| {
                fs::read_to_string(file).is_ok_and(|all| flat(&all).contains(&flat(text)))
            });
            assert!(is_part, "{}:{line}: not in examples/{folder}", page.name);
        }
    }
    assert!(snippets > 0, "none was found");
}

/// A program's text without its indentation.
fn flat(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim())).collect()
}

/// The files that the author wrote, without those that tools create.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        let is_fetched = ["node_modules", "target"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_fetched {
            files.extend(files_below(&path));
        } else if path.is_file() {
            files.push(path);
        }
    }
    files
}

impl Page {
    /// The targets of its links.
    fn links(&self) -> impl Iterator<Item = &str> {
        self.text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
    }
}
