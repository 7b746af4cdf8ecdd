//! The pages of the documentation, parsed.

use std::fs;
use std::path::{Path, PathBuf};

/// A page of the documentation.
pub struct Page {
    /// Its path, from the root of the repository.
    pub name: String,
    pub text: String,
}

/// The parts of a page that can be checked.
#[derive(Clone, Copy)]
pub enum Block<'a> {
    /// A heading of the second level or above: a section begins.
    Heading(&'a str),
    /// The text between two fences, and the line of the page where it begins.
    Fenced { kind: &'a str, text: &'a str, line: usize },
    /// Any other line.
    Line(&'a str),
}

/// The README, and all pages below docs.
pub fn pages() -> Vec<Page> {
    let (mut open, mut found) = (vec![root().join("docs")], vec![page(&root().join("README.md"))]);
    while let Some(folder) = open.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "md") {
                found.push(page(&path));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// One page by its path from the root.
pub fn page_named(name: &str) -> Page {
    page(&root().join(name))
}

fn page(path: &Path) -> Page {
    let name = path.strip_prefix(root()).unwrap().display().to_string();
    Page { name, text: fs::read_to_string(path).unwrap() }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

impl Page {
    pub fn blocks(&self) -> Vec<Block<'_>> {
        let (mut blocks, mut rest, mut line) = (Vec::new(), self.text.as_str(), 1);
        while let Some((this, after)) = rest.split_once('\n') {
            rest = after;
            line += 1;
            if let Some(kind) = this.strip_prefix("```") {
                let end = rest.find("```").unwrap_or_else(|| panic!("{}:{line}", self.name));
                let (text, after) = rest.split_at(end);
                blocks.push(Block::Fenced { kind, text, line });
                line += text.lines().count() + 1;
                rest = after.split_once('\n').map_or("", |(_, rest)| rest);
            } else if this.starts_with("# ") || this.starts_with("## ") {
                blocks.push(Block::Heading(this.trim_start_matches(['#', ' '])));
            } else {
                blocks.push(Block::Line(this));
            }
        }
        blocks
    }

    /// The text between backticks in the prose, with a space for the end of a line.
    pub fn spans(&self) -> Vec<String> {
        let mut prose = String::new();
        for block in self.blocks() {
            if let Block::Line(line) = block {
                prose.extend([line, " "]);
            }
        }
        prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }
}
