//! Writes the tables between the marks of two pages: `docs/benchmarks.md` has the essential tables,
//! and `bench/results/README.md` has all of them. The text around the tables is left alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::book::{Book, Figure, short};
use crate::rows;
use crate::{arrivals, goals, instructions, long_steps, peers, plots, rivals};

/// Runs by the name of their server.
type Books = BTreeMap<String, Book>;

/// The pages with marks.
const PAGES: [&str; 2] = ["docs/benchmarks.md", "bench/results/README.md"];

/// The servers in the tables that readers see first: the oldest, and the newest of each kind that
/// has a whole run. The tables of all servers contain the others.
const SHOWN: [&str; 3] = ["Redis 7.0", "Redis 8.0", "Valkey 9.1"];

/// Rows whose names begin like this are only in the tables of all servers.
const ONLY_IN_RESULTS: [&str; 3] =
    ["Redisson's fair lock", "Redisson's read lock", "Redisson's write lock"];

/// Writes the tables of all runs in `bench/results` into the pages.
pub fn write() {
    let (books, parts): (Books, Books) =
        rows::load_all().into_iter().partition(|(_, book)| book.is_whole());
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in PAGES {
        let page = std::fs::read_to_string(root.join(name));
        let page = page.unwrap_or_else(|e| panic!("{name}: {e}"));
        std::fs::write(root.join(name), with_tables(name, &page, &books, &parts)).unwrap();
        println!("written into {name}");
    }
}

/// The table of goals of one run, as the program prints it.
pub fn goals_of(book: &Book) -> String {
    let rows = goals::ALL.iter().map(|goal| {
        let verdict = match goal.figure(book) {
            None => "not measured".to_owned(),
            Some((figure, is_reached)) => figure + if is_reached { "" } else { ", MISSED" },
        };
        format!("{:<70} {:<12} {:<24} {}\n", goal.work, goal.limit(book), verdict, goal.rival)
    });
    rows.collect()
}

/// The page with new text between `<!-- NAME -->` and `<!-- / -->`.
fn with_tables(page_name: &str, page: &str, books: &Books, parts: &Books) -> String {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        let Some(name) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let end = lines.by_ref().find(|line| *line == "<!-- / -->");
        assert!(end.is_some(), "{page_name}: {line} has no end");
        let region = match name {
            "servers" => Some(servers(books.values().chain(parts.values()))),
            name => region(name, books),
        };
        let region = region.unwrap_or_else(|| panic!("{page_name}: there are no tables {name:?}"));
        out += &format!("{region}\n<!-- / -->\n");
    }
    out
}

fn region(name: &str, books: &Books) -> Option<String> {
    Some(match name.split_once(' ') {
        None if name == "missed" => goal_table(&shown(books), Rows::Missed),
        None if name == "arrivals" => arrivals_table(first(books)),
        None if name == "plots" => plots::draw(first(books)).trim_end().to_owned() + "\n",
        None if name == "peers" => peer_table(books),
        None if name == "pairs" => pairs(first(books)),
        Some(("all", "machines")) => about(&books.values().collect::<Vec<_>>()),
        Some(("all", "goals")) => goal_table(&books.values().collect::<Vec<_>>(), Rows::All),
        None if name == "steps" => steps(books),
        Some(("peers", "summary")) => peer_summary(books),
        Some(("table", section)) => essential_table(first(books), section),
        Some(("figures", sections)) => figures(sections, books),
        _ => return None,
    })
}

fn about(books: &[&Book]) -> String {
    let mut out = row(["", "machine", "run"]);
    out += &row(["---"; 3]);
    for book in books {
        let machine = book.about("machine");
        let mut run = format!("{} profile, {}", book.about("profile"), book.when());
        for (part, when) in book.parts() {
            run += &format!("; {part}: {when}");
        }
        out += &row([book.about("server"), machine, &run]);
        let missing = book.missing.iter().map(|what| row(["", "not measured", what]));
        out.extend(missing);
    }
    out
}

fn shown(books: &Books) -> Vec<&Book> {
    let is_shown = |book: &&Book| SHOWN.iter().any(|name| book.about("server").starts_with(name));
    books.values().filter(is_shown).collect()
}

/// Which goals a table contains.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    All,
    /// The goals that at least one of the servers misses.
    Missed,
}

fn goal_table(books: &[&Book], rows: Rows) -> String {
    let servers = || books.iter().map(|book| book.about("server"));
    let mut out = row(["work", "compared with", "goal"].into_iter().chain(servers()));
    out += &row(vec!["---"; books.len() + 3]);
    let mut first = "";
    for goal in goals::ALL {
        // "the same" refers to the work of a row above, which a table of missed goals may lack.
        let work = match goal.work.strip_prefix("the same") {
            Some("") if rows == Rows::Missed => first.to_owned(),
            Some(rest) if rows == Rows::Missed => {
                // The work ends at the last comma; what is measured follows it.
                first.rsplit_once(", ").map_or(first, |(work, _)| work).to_owned() + rest
            }
            Some(_) => goal.work.to_owned(),
            None => {
                first = goal.work;
                first.to_owned()
            }
        };
        let is_missed = |book: &&Book| goal.figure(book).is_some_and(|(_, is_reached)| !is_reached);
        if rows == Rows::Missed && !books.iter().any(is_missed) {
            continue;
        }
        let mut limits: Vec<String> = books.iter().map(|book| goal.limit(book)).collect();
        limits.dedup();
        let limits = limits.join(" / ");
        let figures = books.iter().map(|book| {
            goal.figure(book)
                .map_or_else(String::new, |(figure, is_reached)| marked(figure, is_reached))
        });
        let figures: Vec<String> = figures.collect();
        let cells = [work.as_str(), goal.rival, &limits].into_iter();
        out += &row(cells.chain(figures.iter().map(String::as_str)));
    }
    out
}

/// The instructions of everyday work on every server.
fn servers<'b>(books: impl Iterator<Item = &'b Book>) -> String {
    let pairs = [
        ("the pair vs SET NX PX + DEL", rivals::RLOCK, rivals::SET_DEL),
        ("vs the floor", rivals::RLOCK, rivals::FLOOR),
        ("READ vs the floor", rivals::RLOCK_READ, rivals::FLOOR),
        ("vs compare-and-delete", rivals::RLOCK, rivals::SET_SCRIPT),
        ("vs Redisson's scripts", rivals::RLOCK, rivals::REDISSON),
        ("hand-off vs publish and retry", instructions::HAND_OFF, instructions::PUBLISH_AND_RETRY),
    ];
    let mut out = row(["server"].into_iter().chain(pairs.map(|(title, ..)| title)));
    out += &row(["---"; 7]);
    let (section, column) = (instructions::SECTION, instructions::INSTRUCTIONS);
    for book in books {
        let ratios = pairs.map(|(_, ours, rival)| book.ratio(section, column, ours, rival));
        let cells = ratios.map(|it| it.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
        out += &row([book.about("server")].into_iter().chain(cells.iter().map(String::as_str)));
    }
    out
}

/// How much a free lock costs with each setting of the server: its CPU per pair in a pipeline, and
/// the number of pairs per second with one command at a time.
fn pairs(book: &Book) -> String {
    let settings = ["no persistence", "notifications KEd", "append-only file every second"];
    let settings = settings.into_iter().chain(["append-only file always", "a replica"]);
    let rivals = [rivals::RLOCK, rivals::SET_DEL, rivals::SET_SCRIPT];
    let columns = ["CPU µs, P50", "pairs/s, P1"];
    let titles = columns.iter().flat_map(|column| rivals.map(|rival| format!("{rival}: {column}")));
    let titles: Vec<String> = titles.collect();
    let mut out = row([book.about("server")].into_iter().chain(titles.iter().map(String::as_str)));
    out += &row(vec!["---"; titles.len() + 1]);
    for setting in settings {
        let section = format!("pair, {setting}");
        let value =
            |column, rival| book.value(&section, rival, column).map_or(String::new(), short);
        let cells = columns.iter().flat_map(|column| rivals.map(|rival| value(column, rival)));
        let cells: Vec<String> = cells.collect();
        out += &row([setting].into_iter().chain(cells.iter().map(String::as_str)));
    }
    out
}

/// The slowest `PING` of each long step on every server, with the module and with the server alone.
fn steps(books: &Books) -> String {
    let servers = books.values().map(|book| book.about("server"));
    let mut out = row(["RLOCK / the server alone"].into_iter().chain(servers));
    out += &row(vec!["---"; books.len() + 1]);
    let figures = books.values().flat_map(|book| &book.figures);
    for step in distinct(figures.filter(|f| f.section == long_steps::SECTION).map(|f| &f.row)) {
        let cells = books.values().map(|book| {
            long_steps::figure(book, step).map_or_else(String::new, |(ours, alone, is_short)| {
                format!("{} / {}", marked(short(ours), is_short), short(alone))
            })
        });
        let cells: Vec<String> = cells.collect();
        out += &row([step.as_str()].into_iter().chain(cells.iter().map(String::as_str)));
    }
    out
}

/// The figure, in bold if it misses its goal.
fn marked(figure: String, is_reached: bool) -> String {
    if is_reached { figure } else { format!("**{figure}**") }
}

fn first(books: &Books) -> &Book {
    books.values().next().expect("bench/results has no run")
}

/// How long jobs wait that arrive at random times, as the program prints it and the pages show it.
pub fn arrivals_table(book: &Book) -> String {
    let mut lines = arrivals::lines(book);
    lines.insert(1, vec!["---".to_owned(); lines[0].len()]);
    lines.iter().map(|cells| row(cells.iter().map(String::as_str))).collect()
}

fn peer_table(books: &Books) -> String {
    let mut out = row(peers::COLUMNS);
    out += &row(["---"; peers::COLUMNS.len()]);
    for figures in books.values().flat_map(|book| &book.peers) {
        out += &row(peers::cells(figures).iter().map(String::as_str));
    }
    out
}

/// One line for each peer.
fn peer_summary(books: &Books) -> String {
    let mut out = row(peers::SUMMARY_COLUMNS);
    out += &row(["---"; peers::SUMMARY_COLUMNS.len()]);
    for book in books.values() {
        for cells in peers::summary(&book.peers) {
            out += &row(cells.iter().map(String::as_str));
        }
    }
    out
}

/// The table that readers see first: a section without the rows that only the tables of all servers
/// contain.
fn essential_table(book: &Book, section: &str) -> String {
    let is_essential =
        |figure: &&Figure| !ONLY_IN_RESULTS.iter().any(|begin| figure.row.starts_with(begin));
    let figures: Vec<&Figure> =
        figures_of(book, section).into_iter().filter(is_essential).collect();
    table(book.about("server"), &figures)
}

fn section_table(book: &Book, section: &str) -> String {
    table(book.about("server"), &figures_of(book, section))
}

fn figures_of<'b>(book: &'b Book, section: &str) -> Vec<&'b Figure> {
    let figures: Vec<&Figure> = book.figures.iter().filter(|f| f.section == section).collect();
    assert!(!figures.is_empty(), "{} has no section {section:?}", book.about("server"));
    figures
}

/// The tables of all sections whose names begin with `begin`, each for every server.
fn figures(begin: &str, books: &Books) -> String {
    let all = || books.values().flat_map(|book| &book.figures);
    let sections = distinct(all().map(|f| &f.section).filter(|name| name.starts_with(begin)));
    let mut out = String::new();
    for section in sections {
        out += &format!("### {}{}\n\n", section[..1].to_uppercase(), &section[1..]);
        for book in books.values() {
            if book.figures.iter().any(|figure| figure.section == *section) {
                out += &section_table(book, section);
                out += "\n";
            }
        }
    }
    out.trim_end().to_owned() + "\n"
}

fn table(server: &str, figures: &[&Figure]) -> String {
    let columns = distinct(figures.iter().map(|figure| &figure.column));
    let rows = distinct(figures.iter().map(|figure| &figure.row));
    let names = columns.iter().map(|column| column.as_str());
    let mut out = row([server].into_iter().chain(names));
    out += &row(vec!["---"; columns.len() + 1]);
    for name in rows {
        let cells = columns.iter().map(|column| {
            let is_it = |f: &&&Figure| f.row == *name && f.column == **column;
            figures.iter().find(is_it).map_or(String::new(), |figure| cell(figure))
        });
        let cells: Vec<String> = cells.collect();
        out += &row([name.as_str()].into_iter().chain(cells.iter().map(String::as_str)));
    }
    out
}

fn cell(figure: &Figure) -> String {
    match figure.least < figure.most {
        true => format!("{} ({}…{})", short(figure.value), short(figure.least), short(figure.most)),
        false => short(figure.value),
    }
}

fn row<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells: Vec<&str> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut found: Vec<&String> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}
