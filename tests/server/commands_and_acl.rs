//! What the server itself says of the commands, and whom it lets use them.

use std::collections::BTreeMap;

use redis::Value;

use crate::support::{Client, Server, flat_map, integer, items, say_not_seen, text};

/// Command, flags that it has, flags that it must not have, arity, whether its first word is a key.
type Description = (&'static str, &'static [&'static str], &'static [&'static str], i64, bool);

const COMMANDS: [Description; 11] = [
    ("rlock.acquire", &["write", "denyoom", "fast", "blocking"], &["readonly", "admin"], -3, true),
    ("rlock.release", &["write", "fast"], &["readonly", "denyoom"], -3, true),
    ("rlock.renew", &["write", "fast"], &["readonly", "denyoom"], -3, true),
    ("rlock.cancel", &["write", "fast"], &["readonly", "denyoom"], 3, true),
    ("rlock.force", &["write"], &["readonly", "denyoom"], -2, true),
    ("rlock.holds", &["readonly", "fast"], &["write"], -3, true),
    ("rlock.check", &["readonly", "fast"], &["write"], -3, true),
    ("rlock.info", &["readonly"], &["write"], -2, true),
    ("rlock.queues", &["readonly"], &["write"], -1, false),
    ("rlock.help", &[], &["write"], 1, false),
    ("rlock.apply", &["write", "admin"], &["readonly", "denyoom"], 3, true),
];

/// Which of our commands stand in which category.
const CATEGORIES: [(&str, &[&str]); 7] = [
    (
        "rlock",
        &[
            "acquire", "release", "renew", "cancel", "force", "holds", "check", "info", "queues",
            "help", "apply",
        ],
    ),
    ("write", &["acquire", "release", "renew", "cancel", "force", "apply"]),
    ("read", &["holds", "check", "info", "queues"]),
    ("fast", &["acquire", "release", "renew", "cancel", "holds", "check"]),
    ("blocking", &["acquire"]),
    ("admin", &["apply"]),
    ("dangerous", &["apply"]),
];

#[test]
fn the_server_knows_each_commands_flags_arity_and_key() {
    let server = Server::start();
    let mut client = server.client();
    for (command, has, has_not, arity, has_key) in COMMANDS {
        let reply = client.ask(&format!("COMMAND INFO {command}"));
        let entry = items(&items(&reply)[0]);
        assert_eq!(text(&entry[0]), command);
        let flags: Vec<String> = items(&entry[2]).iter().map(text).collect();
        for flag in has {
            assert!(flags.iter().any(|f| f == flag), "{command}: {flags:?}");
        }
        for flag in has_not {
            assert!(flags.iter().all(|f| f != flag), "{command}: {flags:?}");
        }
        assert_eq!(integer(&entry[1]), arity, "{command}");
        let key_range: Vec<i64> = entry[3..6].iter().map(integer).collect();
        let owed = if has_key { [1, 1, 1] } else { [0, 0, 0] };
        assert_eq!(key_range, owed, "{command}");
    }
}

#[test]
fn the_server_finds_the_key_in_each_command() {
    let server = Server::start();
    let mut client = server.client();
    for line in [
        "RLOCK.ACQUIRE door ann READ LEASE 5000",
        "RLOCK.RELEASE door ann TOKEN 5",
        "RLOCK.RENEW door ann",
        "RLOCK.CANCEL door ann",
        "RLOCK.FORCE door",
        "RLOCK.HOLDS door ann",
        "RLOCK.CHECK door 5",
        "RLOCK.INFO door WAITERS 5",
        "RLOCK.APPLY door payload",
    ] {
        let keys = client.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(text(&items(&keys)[0]), "door", "{line}");
        assert_eq!(items(&keys).len(), 1, "{line}");
    }
    client.error("COMMAND GETKEYS RLOCK.HELP");
}

#[test]
fn every_command_is_documented_with_its_arguments() {
    let server = Server::start();
    let mut client = server.client();
    for (command, ..) in COMMANDS {
        let docs = docs(&mut client, command);
        assert!(text(&docs["summary"]).len() > 10, "{command}: {docs:?}");
        assert!(docs.contains_key("since"), "{command}: {docs:?}");
        assert!(docs.contains_key("complexity"), "{command}: {docs:?}");
    }
    let mut tokens = Vec::new();
    for argument in items(&docs(&mut client, "rlock.acquire")["arguments"]) {
        collect_tokens(argument, &mut tokens);
    }
    for token in
        ["READ", "WRITE", "LEASE", "BLOCK", "QUEUE", "UPGRADE", "SESSION", "DEPTH", "WITHTTL"]
    {
        assert!(tokens.iter().any(|t| t == token), "{token} in {tokens:?}");
    }
}

#[test]
fn the_commands_stand_in_their_acl_categories() {
    let server = Server::start();
    let mut client = server.client();
    let version = server.version();
    if !version.has_module_categories() {
        let categories = client.ask("ACL CAT");
        assert!(items(&categories).iter().all(|c| text(c) != "rlock"));
        say_not_seen(&format!("ACL categories of module commands: {version:?} has none"));
        return;
    }
    for (category, commands) in CATEGORIES {
        let listed = client.ask(&format!("ACL CAT {category}"));
        let listed: Vec<String> = items(&listed).iter().map(text).collect();
        for (command, ..) in COMMANDS {
            let short = command.trim_start_matches("rlock.");
            let is_listed = listed.iter().any(|l| l == command);
            // What takes as long as there are holders, or ends what others hold, may be judged so.
            let may_be = match category {
                "fast" => &["force", "info", "queues", "help", "apply"][..],
                "dangerous" => &["force"],
                _ => &[],
            };
            if may_be.contains(&short) {
                continue;
            }
            assert_eq!(is_listed, commands.contains(&short), "{command} in @{category}");
        }
    }
    client.ask("ACL SETUSER warden on >secret ~* +@rlock -@dangerous");
    let mut warden = server.client_of("warden");
    warden.granted("RLOCK.ACQUIRE door ann");
    assert!(warden.error("RLOCK.APPLY door x").starts_with("NOPERM "));
    assert!(warden.error("GET door").starts_with("NOPERM "));
}

#[test]
fn a_user_of_some_commands_gets_no_others() {
    let server = Server::start();
    let mut client = server.client();
    client.ask(
        "ACL SETUSER guest on >secret ~* -@all +ping +rlock.acquire +rlock.release +rlock.renew",
    );
    let mut guest = server.client_of("guest");
    guest.granted("RLOCK.ACQUIRE door guest");
    assert_eq!(guest.number("RLOCK.RENEW door guest"), 1);
    assert_eq!(guest.number("RLOCK.RELEASE door guest"), 0);
    for line in ["RLOCK.FORCE door", "RLOCK.APPLY door x", "RLOCK.INFO door", "DEL door"] {
        assert!(guest.error(line).starts_with("NOPERM "), "{line}");
    }
}

#[test]
fn a_user_of_some_keys_gets_no_others() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER guest on >secret ~guests:* +@all");
    client.granted("RLOCK.ACQUIRE door ann");
    let before = client.dump("door");
    let mut guest = server.client_of("guest");
    guest.granted("RLOCK.ACQUIRE guests:door guest");
    for line in [
        "RLOCK.ACQUIRE door guest",
        "RLOCK.RELEASE door ann",
        "RLOCK.RENEW door ann",
        "RLOCK.CANCEL door ann",
        "RLOCK.FORCE door",
        "RLOCK.HOLDS door ann",
        "RLOCK.CHECK door 5",
        "RLOCK.INFO door",
        "RLOCK.APPLY door x",
    ] {
        assert!(guest.error(line).starts_with("NOPERM "), "{line}");
    }
    assert_eq!(client.dump("door"), before);
}

#[test]
fn a_user_who_may_only_read_a_key_may_look_but_not_take() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER watcher on >secret %R~* +@all");
    client.granted("RLOCK.ACQUIRE door ann");
    let mut watcher = server.client_of("watcher");
    assert_eq!(watcher.number("RLOCK.HOLDS door ann"), 1);
    assert_eq!(watcher.number("RLOCK.CHECK door 5"), 0);
    assert_eq!(watcher.shows("door"), "write: ann write 1");
    for line in [
        "RLOCK.ACQUIRE free watcher",
        "RLOCK.RELEASE door ann",
        "RLOCK.RENEW door ann",
        "RLOCK.FORCE door",
        "RLOCK.APPLY door x",
    ] {
        assert!(watcher.error(line).starts_with("NOPERM "), "{line}");
    }
}

#[track_caller]
fn docs(client: &mut Client, command: &str) -> BTreeMap<String, Value> {
    let reply = flat_map(&client.ask(&format!("COMMAND DOCS {command}")));
    flat_map(&reply[command])
}

fn collect_tokens(argument: &Value, tokens: &mut Vec<String>) {
    let argument = flat_map(argument);
    if let Some(token) = argument.get("token") {
        tokens.push(text(token));
    }
    if let Some(inner) = argument.get("arguments") {
        for argument in items(inner) {
            collect_tokens(argument, tokens);
        }
    }
}
