//! `docs/commands.md` and the server agree about its commands.

use redis::Value;

use super::pages::{Block, page_named, pages};
use rlock_testkit::{Client, Server, flat_map, items, text};

#[test]
fn the_commands_page_says_what_command_docs_says() {
    let page = page_named("docs/commands.md");
    let server = Server::start();
    let mut client = server.client();
    let mut documented = Vec::new();
    let mut blocks = page.blocks().into_iter().peekable();
    while let Some(block) = blocks.next() {
        let Block::Heading(heading) = block else { continue };
        if !heading.starts_with("RLOCK.") {
            continue;
        }
        documented.push(heading.to_lowercase());
        let mut section = Vec::new();
        while let Some(block) = blocks.next_if(|block| !matches!(block, Block::Heading(_))) {
            section.push(block);
        }
        insist_on_the_docs(&mut client, heading, &section);
    }
    let names = items(&client.ask("COMMAND LIST FILTERBY MODULE rlock")).iter().map(text).collect();
    let mut names: Vec<String> = names;
    names.sort();
    documented.sort();
    assert_eq!(documented, names);
}

#[test]
fn the_readme_has_the_syntax_of_the_commands_page() {
    let (reference, readme) = (page_named("docs/commands.md"), page_named("README.md"));
    let blocks = reference.blocks();
    let known: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Fenced { kind: "text", text, .. } => Some(text.trim_end()),
            _ => None,
        })
        .collect();
    // A bar in a table is written with a backslash.
    let spans = readme.spans().into_iter().map(|span| span.replace("\\|", "|"));
    let shown: Vec<String> =
        spans.filter(|span| span.starts_with("RLOCK.") && span.contains('[')).collect();
    assert!(shown.len() >= 3, "{shown:?}");
    for syntax in shown {
        assert!(known.contains(&syntax.as_str()), "{syntax}");
    }
}

#[test]
fn the_info_page_has_every_field_in_order() {
    let page = page_named("docs/commands.md");
    let section = page.text.split("\n## ").find(|section| section.starts_with("RLOCK.INFO"));
    let rows = section.unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let server = Server::start();
    let reply = server.client().ask("RLOCK.INFO k");
    let fields: Vec<String> = items(&reply).iter().step_by(2).map(text).collect();
    assert_eq!(documented, fields);
}

#[test]
fn the_settings_have_the_documented_defaults_and_bounds() {
    let server = Server::start();
    let mut client = server.client();
    let page = page_named("docs/operations.md");
    let mut documented = Vec::new();
    for row in page.text.lines().filter(|line| line.starts_with("| `rlock.")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_matches('`');
        let known = flat_map(&client.ask(&format!("CONFIG GET {name}")));
        assert_eq!(text(&known[name]), cells[1], "{name}");
        if let Some((least, most)) = cells[2].split_once(" to ") {
            let (least, most): (i64, i64) = (least.parse().unwrap(), most.parse().unwrap());
            for (value, is_valid) in
                [(least - 1, false), (least, true), (most, true), (most + 1, false)]
            {
                let set = client.attempt(&format!("CONFIG SET {name} {value}"));
                assert_eq!(set.is_ok(), is_valid, "{name} {value}");
            }
        }
        documented.push(name.to_owned());
    }
    let known = flat_map(&client.ask("CONFIG GET rlock.*"));
    documented.sort();
    assert_eq!(documented, known.into_keys().collect::<Vec<_>>());
}

#[test]
fn every_counter_in_backticks_is_one() {
    let server = Server::start();
    let mut client = server.client();
    let mut fields = 0;
    for page in pages() {
        // A database in which nobody waits has no field.
        let is_field =
            |span: &&String| span.starts_with("rlock_") && !span.starts_with("rlock_queues_db");
        for span in page.spans().iter().filter(is_field) {
            fields += 1;
            assert!(client.info("rlock", span).is_some(), "{}: {span}", page.name);
        }
    }
    assert!(fields > 20, "only {fields} were found");
}

/// Asserts that the section begins with the summary, the syntax in a block, and the complexity.
fn insist_on_the_docs(client: &mut Client, command: &str, section: &[Block<'_>]) {
    let reply = flat_map(&client.ask(&format!("COMMAND DOCS {command}")));
    let docs = flat_map(&reply[&command.to_lowercase()]);
    let mut prose = String::new();
    let mut syntax = None;
    for block in section {
        match block {
            Block::Line(line) => prose.extend([line, " "]),
            Block::Fenced { kind: "text", text, .. } if syntax.is_none() => syntax = Some(*text),
            _ => {}
        }
    }
    let arguments = docs.get("arguments").map(items).unwrap_or_default();
    let arguments = arguments.iter().map(argument).collect::<Vec<_>>().join(" ");
    let owed = format!("{command} {arguments}");
    assert_eq!(syntax.map(str::trim_end), Some(owed.trim_end()), "the syntax of {command}");
    for owed in [text(&docs["summary"]), format!("Complexity: {}.", text(&docs["complexity"]))] {
        assert!(prose.contains(&owed), "{command}: {owed:?} is not in {prose:?}");
    }
}

/// As `redis-cli` and the documentation of Redis write an argument.
fn argument(argument: &Value) -> String {
    let fields = flat_map(argument);
    let kind = text(&fields["type"]);
    let name = text(&fields["name"]);
    let token = fields.get("token").map(text);
    let flags = fields.get("flags").map(items).unwrap_or_default();
    let has = |flag: &str| flags.iter().any(|other| text(other) == flag);
    let name = if has("multiple") { format!("{name} [{name} ...]") } else { name };
    let said = match (kind.as_str(), token) {
        ("oneof", _) => {
            let each: Vec<String> =
                items(&fields["arguments"]).iter().map(self::argument).collect();
            each.join(" | ")
        }
        ("block", token) => {
            let each = items(&fields["arguments"]).iter().map(self::argument);
            token.into_iter().chain(each).collect::<Vec<String>>().join(" ")
        }
        ("pure-token", Some(token)) => token,
        (_, Some(token)) => format!("{token} {name}"),
        (_, None) => name,
    };
    if has("optional") { format!("[{said}]") } else { said }
}
