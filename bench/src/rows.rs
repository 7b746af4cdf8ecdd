//! Runs as files in `bench/results`. A file begins with lines `# NAME = …`, which a reader should
//! know first. Then it has one row for each figure, with commas between the cells.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::book::{Book, Figure, PARTS};

const HEADER: &str = "section,row,column,value,least,most";

/// Writes a run to `bench/results`, under the server's name: `redis-7.0.csv`.
pub fn save(book: &Book) {
    let name = book.about("server").to_lowercase().replace(' ', "-");
    let name = name.rsplit_once('.').map_or(name.as_str(), |(minor, _)| minor);
    let path = folder().join(format!("{name}.csv"));
    std::fs::create_dir_all(folder()).unwrap();
    std::fs::write(&path, written(book)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Writes the sections whose names begin with `begin` into the file of this server, and replaces
/// the ones that are there.
pub fn save_part(book: &Book, begin: &str) {
    let servers = load_all();
    let same = servers.into_values().find(|other| other.about("server") == book.about("server"));
    let mut all = same.unwrap_or_else(|| {
        let mut about = book.about.clone();
        about.insert("profile".to_owned(), PARTS.to_owned());
        Book { about, ..Book::default() }
    });
    all.figures.retain(|figure| !figure.section.starts_with(begin));
    all.figures.extend(book.figures.iter().cloned());
    if !book.peers.is_empty() {
        all.peers.clone_from(&book.peers);
    }
    let is_measured = |what: &String| what.split(':').next().is_some_and(|of| begin.ends_with(of));
    all.missing.retain(|what| !is_measured(what));
    all.about.insert(begin.to_owned(), book.when());
    save(&all);
}

/// All stored runs, by name.
pub fn load_all() -> BTreeMap<String, Book> {
    let files = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let paths = files.map(|file| file.path());
    let books = paths.filter(|path| path.extension().is_some_and(|ext| ext == "csv"));
    let runs = books.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let book = read(&text);
        let book = book.unwrap_or_else(|| panic!("{} is not a run", path.display()));
        (path.file_stem().unwrap().to_string_lossy().into_owned(), book)
    });
    runs.collect()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// The run as text.
fn written(book: &Book) -> String {
    let mut out = String::new();
    for (name, said) in &book.about {
        out += &format!("# about {name} = {said}\n");
    }
    for what in &book.missing {
        out += &format!("# missing = {what}\n");
    }
    for peer in &book.peers {
        out += &format!("# peer = {peer}\n");
    }
    out += &format!("{HEADER}\n");
    for Figure { section, row, column, value, least, most } in &book.figures {
        let names = [section, row, column].map(|name| cell(name)).join(",");
        out += &format!("{names},{value},{least},{most}\n");
    }
    out
}

/// The run that a text describes; `None` if a line is not as [`written`] makes it.
fn read(text: &str) -> Option<Book> {
    let mut book = Book::default();
    for line in text.lines().filter(|line| *line != HEADER) {
        let Some(said) = line.strip_prefix("# ") else {
            book.figures.push(figure(line)?);
            continue;
        };
        match said.split_once(" = ")? {
            ("missing", what) => book.missing.push(what.to_owned()),
            ("peer", json) => book.peers.push(serde_json::from_str(json).ok()?),
            (name, what) => {
                let name = name.strip_prefix("about ")?;
                book.about.insert(name.to_owned(), what.to_owned());
            }
        }
    }
    Some(book)
}

fn figure(line: &str) -> Option<Figure> {
    let mut rest = Some(line);
    let mut next = || {
        let (cell, after) = first_cell(rest?)?;
        rest = after;
        Some(cell)
    };
    let (section, row, column) = (next()?, next()?, next()?);
    let mut number = || next()?.parse().ok();
    let (value, least, most) = (number()?, number()?, number()?);
    Some(Figure { section, row, column, value, least, most })
}

/// A cell of CSV: in quotes if necessary, with each quote in it doubled.
fn cell(name: &str) -> String {
    if name.contains(['"', ',']) || name.starts_with('#') {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

/// The first cell, and the text after its comma.
fn first_cell(line: &str) -> Option<(String, Option<&str>)> {
    let Some(mut rest) = line.strip_prefix('"') else {
        let (cell, after) = line.split_once(',').map_or((line, None), |(a, b)| (a, Some(b)));
        return Some((cell.to_owned(), after));
    };
    let mut cell = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        cell += part;
        match after.strip_prefix('"') {
            Some(more) => {
                cell.push('"');
                rest = more;
            }
            None => return Some((cell, after.strip_prefix(','))),
        }
    }
}
