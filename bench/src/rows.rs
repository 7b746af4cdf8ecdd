//! A run as text: a line `# NAME = …` for what to know before reading the figures, then a row a
//! figure, with commas between the cells.

use crate::book::{Book, Figure};

const HEADER: &str = "section,row,column,value,least,most";

/// The run as it is stored.
pub fn written(book: &Book) -> String {
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

/// The run that was stored so; `None` if a line is not as [`written`] makes it.
pub fn read(text: &str) -> Option<Book> {
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

/// As CSV has it: in quotes if it must be, and a quote in it twice.
fn cell(name: &str) -> String {
    if name.contains(['"', ',']) || name.starts_with('#') {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}

/// The first cell, and what follows its comma.
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
