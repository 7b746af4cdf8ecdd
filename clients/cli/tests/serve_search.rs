//! `rlock serve` beside real servers: all databases, and the search for locks that nobody waits for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/http.rs"]
mod http;
mod support;

use std::collections::BTreeMap;

use http::{Serve, sample};
use support::{Rlock, Server, until};

const TOKEN: &str = "a-token-for-this-test";

fn info(server: &Server) -> BTreeMap<String, u64> {
    let text: String = server.ask("INFO rlock");
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn serve(server: &Server) -> Serve {
    Serve::start(server.rlock(&["serve"]))
}

fn serve_with(server: &Server, words: &[&str]) -> Serve {
    Serve::start(server.rlock(&[&["serve"], words].concat()))
}

fn in_database(server: &Server, db: i64) -> redis::Connection {
    let client = redis::Client::open(format!("{}/{db}", server.url())).unwrap();
    client.get_connection().unwrap()
}

/// In each of three databases somebody waits for a lock of one name.
#[test]
fn all_databases_are_shown_and_measured() {
    let server = Server::start(&[]);
    let mut waiting = Vec::new();
    for (db, count) in [(0, 1), (3, 2), (15, 4)] {
        let mut connection = in_database(&server, db);
        let holder = format!("RLOCK.ACQUIRE job ann:{db} LEASE 600000");
        support::command(&holder).query::<u64>(&mut connection).unwrap();
        for each in 0..count {
            let mut waits = in_database(&server, db);
            let words = support::command(&format!("RLOCK.ACQUIRE job bob:{db}:{each} BLOCK 0"));
            waits.send_packed_command(&words.get_packed_command()).unwrap();
            waiting.push(waits);
        }
    }
    until("all wait", || info(&server)["rlock_waiters"] == 7);
    let (_, own, _) = server.run(&["queues"]);
    assert!(own.lines().count() == 1 && own.starts_with("job: 1 in line"), "{own}");
    let (_, all, _) = server.run(&["queues", "--all-databases"]);
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 3, "{all}");
    assert!(
        lines[0].starts_with("job (database 15): 4 in line")
            && lines[0].ends_with("held by ann:15"),
        "{all}"
    );
    assert!(lines[2].starts_with("job (database 0): 1 in line"), "{all}");
    let (_, top, _) = server.run(&["top", "--once", "--all-databases"]);
    assert!(top.contains("job (database 3)") && top.contains("ann:3"), "{top}");
    let elsewhere = server.url() + "/7";
    let (_, none, _) = server.run(&["queues", "--url", &elsewhere]);
    assert_eq!(none, "nobody waits in database 7; 7 in other databases (see --all-databases)\n");

    let serve = serve(&server);
    let metrics = serve.metrics();
    let length = |text: &str, db: &str| {
        sample(text, "rlock_longest_queue", &[&format!("db=\"{db}\""), "kind=\"lock\""])
    };
    assert_eq!((length(&metrics, "0"), length(&metrics, "3")), (Some(1.0), None));
    let (code, _, _) = serve.get("/events?key=6a6f62&db=3");
    assert_eq!(code, 400);

    let mut command = server.rlock(&["serve", "--all-databases", "--allow-actions"]);
    command.env("RLOCK_SERVE_TOKEN", TOKEN);
    let serve = Serve::start(command);
    let metrics = serve.metrics();
    let lengths = ["0", "3", "15"].map(|db| length(&metrics, db));
    assert_eq!(lengths, [Some(1.0), Some(2.0), Some(4.0)], "{metrics}");
    let look = serve.look_until("/events?key=6a6f62&db=15", |told| !told["lock"].is_null());
    assert_eq!(look["lock"]["holders"][0]["owner"]["text"], "ann:15", "{look}");
    assert_eq!(look["lock"]["length"], 4);
    let queues = look["queues"].as_array().unwrap();
    let found: Vec<_> = queues.iter().map(|queue| queue["db"].as_i64().unwrap()).collect();
    assert_eq!(found, [15, 3, 0]);
    // An action affects the lock of its own database only.
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Content-Type", "application/json"), ("Authorization", bearer.as_str())];
    let force = r#"{"do":"force","key":"6a6f62","db":3}"#;
    let (code, _, said) = serve.ask("POST /actions", &headers, force);
    assert_eq!((code, said.as_str()), (200, "1\n"));
    until("the next one holds it", || {
        let mut connection = in_database(&server, 3);
        support::command("RLOCK.HOLDS job bob:3:0").query::<i64>(&mut connection) == Ok(1)
    });
    assert_eq!(server.ask::<i64>("RLOCK.HOLDS job ann:0"), 1);
}

/// A lock that is free and reserved has no key, and `INFO keyspace` does not name its database.
#[test]
fn a_database_without_keys_in_which_somebody_waits_is_shown() {
    let server = Server::start(&[]);
    let mut other = in_database(&server, 7);
    for line in ["ACQUIRE job ann", "ACQUIRE job bob QUEUE 60000", "RELEASE job ann"] {
        let _: redis::Value = support::command(&format!("RLOCK.{line}")).query(&mut other).unwrap();
    }
    assert_eq!(server.ask::<String>("INFO keyspace").matches("db7").count(), 0);
    assert_eq!(info(&server).get("rlock_queues_db7"), Some(&1));
    let (_, all, _) = server.run(&["queues", "--all-databases"]);
    assert!(all.starts_with("job (database 7): 1 in line"), "{all}");
    let serve = serve_with(&server, &["--all-databases"]);
    let metrics = serve.metrics();
    let length = sample(&metrics, "rlock_longest_queue", &["db=\"7\"", "kind=\"lock\""]);
    assert_eq!(length, Some(1.0), "{metrics}");
}

/// The whole search: the keys in hexadecimal, sorted, and how many answers it took.
fn found(serve: &Serve, text: &str) -> (Vec<String>, usize) {
    let (mut keys, mut answers, mut at) = (Vec::new(), 0, String::new());
    loop {
        let (code, _, body) = serve.get(&format!("/locks?find={text}{at}"));
        assert_eq!(code, 200, "{body}");
        let told: serde_json::Value = serde_json::from_str(&body).unwrap();
        answers += 1;
        let each = told["locks"].as_array().unwrap().iter();
        keys.extend(each.map(|one| one["key"]["text"].as_str().unwrap().to_owned()));
        match told["next"].as_str() {
            Some(next) => at = format!("&at={next}"),
            None => break,
        }
    }
    keys.sort();
    keys.dedup();
    (keys, answers)
}

/// Nobody waits for any of these locks.
#[test]
fn a_lock_that_nobody_waits_for_is_found() {
    let server = Server::start(&[]);
    server.acquire_all(&[
        "RLOCK.ACQUIRE order:42 ann LEASE 600000",
        "RLOCK.ACQUIRE order:43 Bob LEASE 600000",
        "RLOCK.ACQUIRE Invoice bob READ LEASE 600000",
        "RLOCK.ACQUIRE Invoice cy READ LEASE 600000",
        "RLOCK.ACQUIRE <b> dan LEASE 600000",
    ]);
    let () = server.ask("SET order:text x");
    let mut other = in_database(&server, 3);
    let () = support::command("RLOCK.ACQUIRE order:3 eve").query(&mut other).unwrap();
    let serve = serve(&server);
    until("it knows the server", || !found(&serve, "").0.is_empty());
    let of = |text: &str| found(&serve, text).0;
    assert_eq!(of(""), ["<b>", "Invoice", "order:42", "order:43"]);
    assert_eq!(of("order"), ["order:42", "order:43"]);
    assert_eq!(of("BOB"), ["Invoice", "order:43"]);
    assert_eq!(of("cy"), ["Invoice"]);
    assert_eq!(of("%3Cb%3E"), ["<b>"]);
    assert!(of("nobody").is_empty());
    let everywhere = serve_with(&server, &["--all-databases"]);
    until("it knows the server", || !found(&everywhere, "").0.is_empty());
    assert_eq!(found(&everywhere, "order").0, ["order:3", "order:42", "order:43"]);
    let (code, _, why) = serve.get("/locks?find=x&at=0.0");
    assert!(code == 400 && why.contains("three numbers"), "{why}");
    // A long search continues in further requests.
    let mut many = redis::pipe();
    for each in 0..5000 {
        many.cmd("RLOCK.ACQUIRE").arg(format!("many:{each}")).arg("zed").arg("LEASE").arg(600_000);
        many.ignore();
    }
    let () = many.query(&mut server.connect()).unwrap();
    let (keys, answers) = found(&serve, "zed");
    assert!(keys.len() == 5000 && answers > 2, "{} in {answers}", keys.len());
    let (keys, answers) = found(&serve, "many:4999");
    assert!(keys == ["many:4999"] && answers > 1, "{keys:?} in {answers}");
    // A user without the permission to search gets an error that says so.
    let () = server
        .ask("ACL SETUSER metrics on >secret -@all +@connection -@dangerous +info +rlock.queues");
    let url = format!("redis://metrics:secret@127.0.0.1:{}", server.port);
    let narrow = serve_with(&server, &["--url", &url]);
    until("it is told", || {
        let (code, _, why) = narrow.get("/locks?find=x");
        code == 409 && why.contains("may not send SCAN")
    });
}
