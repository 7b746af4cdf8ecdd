//! What the server itself reports about the commands, and who may use them.

use std::collections::BTreeMap;

use redis::Value;

use crate::users::users_of_operations;
use rlock_testkit::{Client, Server, flat_map, integer, items, say_not_seen, text};

/// The command, flags that it has, flags that it must not have, its arity, and whether its first
/// word is a key; every word of `RLOCK.APPLY` but the last is one.
type Description = (&'static str, &'static [&'static str], &'static [&'static str], i64, bool);

const COMMANDS: [Description; 17] = [
    ("rlock.acquire", &["write", "denyoom", "fast", "blocking"], &["readonly", "admin"], -3, true),
    ("rlock.release", &["write", "fast"], &["readonly", "denyoom"], -3, true),
    ("rlock.renew", &["write", "fast", "blocking"], &["readonly", "denyoom"], -3, true),
    ("rlock.macquire", &["write", "denyoom", "blocking"], &["readonly", "fast"], -4, false),
    ("rlock.mrelease", &["write"], &["readonly", "denyoom", "fast"], -4, false),
    ("rlock.mrenew", &["write", "blocking"], &["readonly", "denyoom", "fast"], -4, false),
    ("rlock.cancel", &["write", "fast"], &["readonly", "denyoom"], 3, true),
    ("rlock.force", &["write"], &["readonly", "denyoom"], -2, true),
    ("rlock.holds", &["readonly", "fast"], &["write"], -3, true),
    ("rlock.check", &["readonly", "fast"], &["write"], -3, true),
    ("rlock.await", &["readonly", "fast", "blocking"], &["write"], -3, true),
    ("rlock.info", &["readonly"], &["write"], -2, true),
    ("rlock.queues", &["readonly"], &["write"], -1, false),
    ("rlock.place", &["readonly", "fast"], &["write"], 3, true),
    ("rlock.slowlog", &["admin"], &["write", "readonly"], -2, false),
    ("rlock.help", &[], &["write"], 1, false),
    ("rlock.apply", &["write", "admin"], &["readonly", "denyoom"], -3, true),
];

/// Which of our commands are in which category.
const CATEGORIES: [(&str, &[&str]); 8] = [
    (
        "rlock",
        &[
            "acquire", "release", "renew", "macquire", "mrelease", "mrenew", "cancel", "force",
            "holds", "check", "await", "info", "place", "queues", "slowlog", "help", "apply",
        ],
    ),
    (
        "write",
        &[
            "acquire", "release", "renew", "macquire", "mrelease", "mrenew", "cancel", "force",
            "apply",
        ],
    ),
    ("read", &["holds", "check", "await", "info", "place", "queues"]),
    ("fast", &["acquire", "release", "renew", "cancel", "holds", "check", "await", "place"]),
    ("blocking", &["acquire", "renew", "macquire", "mrenew", "await"]),
    ("admin", &["apply", "slowlog"]),
    ("slow", &["slowlog"]),
    ("dangerous", &["apply", "slowlog"]),
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
        let owed = match command {
            "rlock.apply" => [1, -2, 1],
            _ if has_key => [1, 1, 1],
            _ => [0, 0, 0],
        };
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
        "RLOCK.TAKE door ann",
        "RLOCK.HOLDS door ann",
        "RLOCK.CHECK door 5",
        "RLOCK.AWAIT door 0",
        "RLOCK.INFO door WAITERS 5",
        "RLOCK.PLACE door ann",
        "RLOCK.APPLY door payload",
    ] {
        let keys = client.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(text(&items(&keys)[0]), "door", "{line}");
        assert_eq!(items(&keys).len(), 1, "{line}");
    }
    let keys = client.ask("COMMAND GETKEYS RLOCK.APPLY door gate hall payload");
    assert_eq!(items(&keys).iter().map(text).collect::<Vec<_>>(), ["door", "gate", "hall"]);
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
fn a_category_lets_a_user_have_its_commands_and_no_others() {
    let server = Server::start();
    let mut client = server.client();
    let version = server.version();
    for (category, commands) in CATEGORIES {
        let is_there = match category {
            "rlock" => version.has_module_categories(),
            _ => version.puts_modules_into_categories(),
        };
        let rule = format!("ACL SETUSER warden reset ~* -@all +@{category}");
        if category == "rlock" && !is_there {
            assert!(client.error(&rule).contains("Unknown command or category"), "{version:?}");
            continue;
        }
        client.ask(&rule);
        for (command, _, _, arity, _) in COMMANDS {
            let short = command.trim_start_matches("rlock.");
            // A command whose time grows with the holders, or that ends others' holds, may be in
            // this category.
            let may_be = match category {
                "fast" => &["force", "info", "queues", "help", "apply"][..],
                "slow" => &["macquire", "mrelease", "mrenew"],
                "dangerous" => &["force"],
                _ => &[],
            };
            if is_there && may_be.contains(&short) {
                continue;
            }
            let owed = is_there && commands.contains(&short);
            let line = format!("ACL DRYRUN warden {}", shortest(command, arity));
            assert_eq!(client.text(&line) == "OK", owed, "{command} in @{category}");
        }
    }
}

#[test]
fn a_user_of_the_own_category_without_what_is_dangerous_locks_and_no_more() {
    let server = Server::start();
    let mut client = server.client();
    let version = server.version();
    if !version.has_module_categories() {
        say_not_seen(&format!("users of @rlock: {version:?} has no such category"));
        return;
    }
    client.ask("ACL SETUSER warden on >secret ~* +@rlock -@dangerous");
    let mut warden = server.client_of("warden");
    warden.granted("RLOCK.ACQUIRE door ann");
    assert!(warden.error("RLOCK.APPLY door x").starts_with("NOPERM "));
    assert!(warden.error("GET door").starts_with("NOPERM "));
}

/// Redis 7.4 and Valkey 8.0 let users have the commands of a module by category, and do not list
/// them.
#[test]
fn acl_cat_lists_the_commands_of_a_category() {
    let server = Server::start();
    let mut client = server.client();
    let version = server.version();
    if !version.lists_module_commands() {
        say_not_seen(&format!("ACL CAT with commands of modules: not in {version:?}"));
        return;
    }
    for (category, commands) in CATEGORIES {
        let listed = client.ask(&format!("ACL CAT {category}"));
        let listed: Vec<String> = items(&listed).iter().map(text).collect();
        for command in commands {
            let command = format!("rlock.{command}");
            assert!(listed.contains(&command), "{command} in @{category}: {listed:?}");
        }
    }
}

/// The command with as many words as it needs.
fn shortest(command: &str, arity: i64) -> String {
    if ["rlock.macquire", "rlock.mrelease", "rlock.mrenew"].contains(&command) {
        return format!("{command} 1 app:door ann");
    }
    let words = ["app:door", "1"].into_iter().take(arity.unsigned_abs() as usize - 1);
    [command].into_iter().chain(words).collect::<Vec<_>>().join(" ")
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
        "RLOCK.TAKE door guest",
        "RLOCK.HOLDS door ann",
        "RLOCK.CHECK door 5",
        "RLOCK.INFO door",
        "RLOCK.APPLY door x",
        "RLOCK.APPLY door guests:door x",
        "RLOCK.APPLY guests:a guests:door hall x",
    ] {
        assert!(guest.error(line).starts_with("NOPERM "), "{line}");
    }
    let error = guest.error("RLOCK.APPLY guests:a guests:door hall");
    assert!(error.starts_with("ERR malformed payload"), "the last word is no key: {error}");
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
        "RLOCK.TAKE door watcher",
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

fn recommended() -> Server {
    Server::of(&format!("notify-keyspace-events KEd\n{}", users_of_operations()))
}

fn application(server: &Server) -> Client {
    Client::connect(&server.url("?user=app&pass=app-secret")).unwrap()
}

#[test]
fn a_recommended_application_locks_and_hears_what_is_its_own() {
    let server = recommended();
    let mut app = application(&server);
    app.granted("RLOCK.ACQUIRE app:door app:ann LEASE 60000");
    app.refused("RLOCK.ACQUIRE app:door app:bob QUEUE 60000");
    let mut ears = application(&server);
    for channel in ["__keyspace@0__:app:door", "__keyevent@0__:rlock.turn:app:bob"] {
        ears.send(&["SUBSCRIBE", channel]);
        assert_eq!(text(&items(&ears.receive())[1]), channel);
    }
    assert_eq!(app.number("RLOCK.RENEW app:door app:ann"), 1);
    assert_eq!(app.number("RLOCK.RELEASE app:door app:ann"), 0);
    let heard: Vec<String> = (0..3).map(|_| text(&items(&ears.receive())[2])).collect();
    assert_eq!(heard, ["rlock.released", "rlock.turn:app:bob", "app:door"]);
    for line in [
        "SUBSCRIBE __keyspace@0__:billing:door",
        "SUBSCRIBE __keyevent@0__:rlock.acquired",
        "PSUBSCRIBE *",
        "PSUBSCRIBE __keyevent@*__:*",
        "PUBLISH __keyevent@0__:rlock.turn:app:bob app:door",
        "RLOCK.ACQUIRE billing:door app:ann",
        "PTTL billing:door",
        "EXISTS billing:door",
        "RLOCK.FORCE app:door",
        "RLOCK.TAKE app:door app:ann",
        "RLOCK.APPLY app:door x",
        "RLOCK.QUEUES",
        "DEL app:door",
        "CONFIG SET rlock.max-waiters 1",
        "CLIENT KILL TYPE normal",
        "CLIENT LIST",
        "SHUTDOWN NOSAVE",
    ] {
        assert!(app.error(line).starts_with("NOPERM "), "{line}");
    }
}

/// What the clients and examples of this repository send, by a user with the recommended
/// permissions.
#[test]
fn a_recommended_application_may_do_what_the_clients_do() {
    let server = recommended();
    let mut ears = application(&server);
    ears.send(&["PSUBSCRIBE", "__keyevent@*__:rlock.turn:*"]);
    assert_eq!(text(&items(&ears.receive())[0]), "psubscribe");
    let mut app = application(&server);
    for line in ["PING", "CLIENT ID", "CLIENT SETNAME worker", "COMMAND COUNT", "WAIT 0 100"] {
        app.ask(line);
    }
    // By the run ID, clients know which server this is.
    assert!(app.info("server", "run_id").is_some());
    if server.version().puts_modules_into_categories() {
        app.ask("CLIENT SETINFO LIB-NAME worker");
    }
    // This works in another database, too: the user's channels name none.
    for database in [0, 9] {
        app.ask(&format!("SELECT {database}"));
        let token = app.granted("RLOCK.ACQUIRE app:door ann WRITE SESSION DEPTH 1 LEASE 60000");
        assert_eq!(app.number("EXISTS app:door"), 1);
        assert!((50_000..=60_000).contains(&app.lives_ms("app:door")));
        assert_eq!(app.number(&format!("RLOCK.CHECK app:door {token}")), 1);
        assert_eq!(app.number("RLOCK.HOLDS app:door ann"), 1);
        assert_eq!(app.shows("app:door"), "write: ann write 1");
        app.refused("RLOCK.ACQUIRE app:door bob BLOCK 1");
        app.refused("RLOCK.ACQUIRE app:door cid QUEUE 60000");
        app.refused("RLOCK.ACQUIRE app:door dan QUEUE 60000");
        assert_eq!(app.number("RLOCK.CANCEL app:door cid"), 1);
        assert_eq!(app.number(&format!("RLOCK.RENEW app:door ann TOKEN {token}")), 1);
        assert_eq!(app.number("RLOCK.RELEASE app:door ann DEPTH 0"), 0);
        let heard = ears.receive();
        let channel = format!("__keyevent@{database}__:rlock.turn:dan");
        let words: Vec<String> = items(&heard).iter().skip(2).map(text).collect();
        assert_eq!(words, [channel.as_str(), "app:door"]);
    }
    ears.send(&["PUNSUBSCRIBE", "__keyevent@*__:rlock.turn:*"]);
    assert_eq!(text(&items(&ears.receive())[0]), "punsubscribe");
}

#[test]
fn an_application_may_be_let_hear_of_its_own_turns_only() {
    let server = recommended();
    let own = "&__keyevent@0__:rlock.turn:app:*";
    assert!(include_str!("../../docs/operations.md").contains(&format!("`{own}`")));
    server.client().ask(&format!("ACL SETUSER app resetchannels {own}"));
    for line in [
        "SUBSCRIBE __keyevent@0__:rlock.turn:billing:bob",
        "PSUBSCRIBE __keyevent@*__:rlock.turn:*",
        // This pattern is a part of what the user may hear, but is not literally the same.
        "PSUBSCRIBE __keyevent@0__:rlock.turn:app:worker:*",
    ] {
        assert!(application(&server).error(line).starts_with("NOPERM "), "{line}");
    }
    for line in
        ["SUBSCRIBE __keyevent@0__:rlock.turn:app:bob", &format!("PSUBSCRIBE {}", &own[1..])]
    {
        let mut ears = application(&server);
        ears.send(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(integer(&items(&ears.receive())[2]), 1, "{line}");
    }
}

#[test]
fn an_application_may_be_let_ask_for_the_map_of_slots() {
    let server = recommended();
    let mut client = server.client();
    let rules = "+cluster|slots +cluster|shards +cluster|nodes +cluster|info";
    assert!(include_str!("../../docs/operations.md").contains(&format!("`{rules}`")));
    let may = |client: &mut Client, words: &str| {
        client.text(&format!("ACL DRYRUN app cluster {words}")) == "OK"
    };
    assert!(!may(&mut client, "slots"));
    client.ask(&format!("ACL SETUSER app {rules}"));
    assert!(["slots", "shards", "nodes", "info"].iter().all(|words| may(&mut client, words)));
    assert!(!may(&mut client, "failover"));
}

/// What docs/operations.md warns about.
#[test]
fn what_is_dangerous_is_forbidden_with_its_category_where_there_is_one() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER warden reset ~* +@all -@dangerous");
    for command in ["rlock.force door", "rlock.apply door x"] {
        let is_allowed = client.text(&format!("ACL DRYRUN warden {command}")) == "OK";
        assert_eq!(is_allowed, !server.version().puts_modules_into_categories(), "{command}");
    }
}

#[test]
fn a_recommended_operator_may_look_and_force() {
    let server = recommended();
    let mut client = server.client();
    let mut operator = Client::connect(&server.url("?user=operator&pass=operator-secret")).unwrap();
    let mut metrics = Client::connect(&server.url("?user=metrics&pass=metrics-secret")).unwrap();
    client.granted("RLOCK.ACQUIRE app:door app:ann");
    client.refused("RLOCK.ACQUIRE app:door app:bob QUEUE 60000");
    for collector in [&mut operator, &mut metrics] {
        assert_eq!(items(&collector.ask("RLOCK.QUEUES")).len(), 1);
        assert_eq!(collector.info_number("rlock", "rlock_acquired"), 1);
        assert!(collector.error("RLOCK.ACQUIRE app:door me").starts_with("NOPERM "));
        assert!(collector.error("RLOCK.APPLY app:door x").starts_with("NOPERM "));
    }
    for line in ["RLOCK.FORCE app:door", "RLOCK.TAKE app:door me"] {
        assert!(metrics.error(line).starts_with("NOPERM "), "{line}");
    }
    assert_eq!(operator.number("RLOCK.CANCEL app:door app:bob"), 1);
    assert_eq!(operator.number("RLOCK.FORCE app:door"), 1);
    assert_eq!(operator.number("RLOCK.HOLDS app:door app:ann"), 0);
    operator.granted("RLOCK.TAKE app:door me");
}

#[test]
fn the_recommended_category_says_what_the_list_of_names_says() {
    let server = recommended();
    let mut client = server.client();
    let version = server.version();
    if !version.has_module_categories() {
        say_not_seen(&format!("the ACL recipe with @rlock: {version:?} has no such category"));
        return;
    }
    let rules = "+@rlock -@dangerous -rlock.queues";
    assert!(include_str!("../../docs/operations.md").contains(&format!("`{rules}`")));
    client.ask(&format!("ACL SETUSER short on >secret ~app:* -@all {rules}"));
    for (command, _, _, arity, _) in COMMANDS {
        let line = shortest(command, arity);
        let may = |user: &str, client: &mut Client| {
            client.text(&format!("ACL DRYRUN {user} {line}")) == "OK"
        };
        let is_help = command == "rlock.help"; // says nothing that is secret
        assert!(may("app", &mut client) == may("short", &mut client) || is_help, "{line}");
    }
}
