//! The users of `docs/operations.md`, and other places that say what they may do.

use crate::documented::page_named;
use rlock_testkit::{Server, items, text};

/// The lines for a server's configuration.
pub fn users_of_operations() -> String {
    block_below("### The users\n")
}

fn block_below(heading: &str) -> String {
    let page = page_named("docs/operations.md").text;
    let (_, section) = page.split_once(&format!("\n{heading}")).unwrap();
    let (_, fenced) = section.split_once("```").unwrap();
    let (_, block) = fenced.split_once('\n').unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Name and rules of each user: what follows the password, without the words that only reset.
fn rules_of(lines: &str) -> Vec<(String, String)> {
    let rules = |line: &str| {
        let words: Vec<&str> = line.split(' ').filter(|word| *word != "resetkeys").collect();
        (words[1].to_owned(), words[4..].join(" "))
    };
    lines.lines().map(rules).collect()
}

#[test]
fn the_high_availability_set_has_the_documented_users() {
    let servers = page_named("images/node.sh").text;
    let sentinels = page_named("images/sentinel.sh").text;
    let rule_of = |part: &str, name: &str| {
        let start = format!("user {name} ");
        let line = part.lines().find(|line| line.trim_start().starts_with(&start));
        let rule = line.unwrap().split_once("_PASSWORD\" ").unwrap().1;
        match rule {
            "\"$clients\"" => {
                let line = part.lines().find(|line| line.trim_start().starts_with("clients='"));
                line.unwrap().split('\'').nth(1).unwrap().to_owned()
            }
            rule => rule.trim_matches('\'').to_owned(),
        }
    };
    for (part, documented) in [
        (&servers, users_of_operations()),
        (&sentinels, block_below("### The users of Sentinel\n")),
    ] {
        let documented = rules_of(&documented);
        assert_eq!(documented.len(), 3);
        for (name, rules) in documented {
            assert_eq!(rule_of(part, &name), rules, "{name}");
        }
    }
}

/// The operator may send whatever the runbook names, unless the page leaves the command to an
/// administrator. The sessions test what they send.
#[test]
fn the_operator_may_send_what_the_runbook_names() {
    let server = Server::of(&format!("notify-keyspace-events KEd\n{}", users_of_operations()));
    let mut client = server.client();
    let page = page_named("docs/runbook.md");
    let (_, list) = page.text.split_once("\nOnly an administrator may send ").unwrap();
    let (list, _) = list.split_once(". ").unwrap();
    let left_to_admins: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    let known: Vec<String> = items(&client.ask("COMMAND LIST")).iter().map(text).collect();
    let mut named = 0;
    for span in page.spans() {
        let (word, rest) = span.split_once(' ').unwrap_or((&span, ""));
        // The sessions test what applications send.
        let is_of_applications = ["RLOCK.ACQUIRE", "RLOCK.RENEW", "READ"].contains(&word);
        if word != word.to_uppercase()
            || !known.contains(&word.to_lowercase())
            || is_of_applications
        {
            continue;
        }
        named += 1;
        let is_one = |of: &&str| span == **of || span.starts_with(&format!("{of} "));
        let line = match (span.as_str(), rest) {
            ("RLOCK.FORCE" | "RLOCK.INFO", _) => format!("{word} app:k"),
            (
                "RLOCK.CANCEL" | "RLOCK.HOLDS" | "RLOCK.PLACE" | "RLOCK.RELEASE" | "RLOCK.TAKE",
                _,
            ) => {
                format!("{word} app:k me")
            }
            ("RLOCK.CHECK", _) => format!("{word} app:k 1"),
            ("RLOCK.SLOWLOG", _) => format!("{word} GET"),
            ("CLIENT UNBLOCK", _) => format!("{span} 1"),
            ("CLIENT KILL", _) => format!("{span} ID 1"),
            ("CLIENT KILL ID", _) => format!("{span} 1"),
            ("SCAN", _) => format!("{span} 0"),
            _ => span.clone(),
        };
        let may = left_to_admins.iter().any(is_one)
            || client.text(&format!("ACL DRYRUN operator {line}")) == "OK";
        assert!(may, "{span}");
    }
    assert!(named > 30, "only {named} commands were found");
}
