//! `man 7 rlock` names each command and each setting.

use std::fs;
use std::path::Path;

use rlock_core::grammar::commands::COMMANDS;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
}

#[test]
fn each_command_is_on_the_page() {
    let page = read("packaging/rlock.7");
    let words: Vec<&str> = page.split_whitespace().collect();
    for command in COMMANDS {
        assert!(words.contains(&command.name), "{} is not in rlock.7", command.name);
    }
}

#[test]
fn each_setting_is_on_the_page_with_its_default() {
    let (page, table) = (read("packaging/rlock.7"), read("docs/operations.md"));
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `rlock."));
    let mut count = 0;
    for row in rows.filter(|row| row.contains("` | ") && row.split(" | ").count() == 4) {
        let (name, rest) = row.split_once("` | ").unwrap();
        let default = rest.split(" | ").next().unwrap();
        let line = format!(".It Ic rlock.{name} Pq {default}\n");
        assert!(page.contains(&line), "rlock.7 has no line {line}");
        count += 1;
    }
    assert!(count >= 13, "the table has only {count} settings");
}
