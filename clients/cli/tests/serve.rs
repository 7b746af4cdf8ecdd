//! `rlock serve` beside real servers: its metrics, its page's events, who may ask and who may act.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/http.rs"]
mod http;
#[path = "support/sentinel.rs"]
mod sentinel;
mod support;

use std::collections::BTreeMap;
use std::path::Path;

use http::{Serve, sample};
use rustix::process::{Signal, kill_process};
use sentinel::Sentinel;
use support::{Rlock, Server, replica_of, until};

const TOKEN: &str = "a-token-for-this-test";

fn serve(server: &Server) -> Serve {
    Serve::start(server.rlock(&["serve"]))
}

fn serve_with(server: &Server, words: &[&str]) -> Serve {
    Serve::start(server.rlock(&[&["serve"], words].concat()))
}

fn info(server: &Server) -> BTreeMap<String, u64> {
    let text: String = server.ask("INFO rlock");
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// Metrics that have the module's own name, although another metric has it too.
const RENAMED: [&str; 2] = ["rlock_gate_shut_since_ms", "rlock_tokens_ahead_s"];

#[test]
fn each_field_of_info_is_a_metric() {
    let server = Server::start(&[]);
    let serve = serve(&server);
    server.ask::<u64>("RLOCK.ACQUIRE job ann");
    let waiting = server.send("RLOCK.ACQUIRE job bob BLOCK 0");
    until("bob waits", || info(&server)["rlock_waiters"] == 1);
    server.ask::<u64>("RLOCK.RELEASE job ann");
    until("bob holds", || info(&server)["rlock_handed_off"] == 1);
    server.ask::<String>("CONFIG RESETSTAT");
    let before = info(&server);
    until("a look as new", || sample(&serve.metrics(), "rlock_handed_off_total", &[]) == Some(1.0));
    let text = serve.metrics();
    assert_eq!(info(&server), before, "somebody else uses this server");
    assert_eq!(sample(&text, "rlock_up", &[]), Some(1.0));
    for (name, value) in &before {
        let value = *value as f64;
        let found = if let Some((kind, part)) = name.split_once("_us_") {
            match part.strip_prefix("le_") {
                Some("inf") => sample(&text, &format!("{kind}_seconds_bucket"), &["le=\"+Inf\""]),
                Some(bound) => {
                    let le = format!("le=\"{:?}\"", bound.parse::<f64>().unwrap() / 1e6);
                    sample(&text, &format!("{kind}_seconds_bucket"), &[&le])
                }
                None => sample(&text, &format!("{kind}_seconds_{part}"), &[])
                    .map(|sum| if part == "sum" { (sum * 1e6).round() } else { sum }),
            }
        } else if RENAMED.contains(&name.as_str()) {
            continue;
        } else {
            sample(&text, name, &[]).or_else(|| sample(&text, &format!("{name}_total"), &[]))
        };
        assert_eq!(found, Some(value), "{name} in\n{text}");
    }
    drop(waiting);
}

#[test]
fn every_metric_in_the_alerts_and_the_dashboard_is_served() {
    let server = Server::start(&[]);
    let text = serve(&server).metrics();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/prometheus");
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let rules = std::fs::read_to_string(folder.join(file)).unwrap();
        let rules = rules.lines().filter(|line| !line.trim_start().starts_with(['#', 's', 'd']));
        let rules: String = rules.flat_map(|line| [line, "\n"]).collect();
        let words = rules.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named: std::collections::BTreeSet<&str> =
            words.filter(|word| word.starts_with("rlock_")).collect();
        assert!(named.len() > 5, "{file} names only {named:?}");
        for name in named {
            let is_served = text
                .lines()
                .any(|line| line.split(['{', ' ']).next() == Some(name) && !line.starts_with('#'));
            assert!(is_served, "{file} names {name}, which is not in\n{text}");
        }
    }
}

#[test]
fn each_alert_has_a_severity_and_a_runbook_section() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let (rules, runbook, proofs) = (
        read("examples/prometheus/alerts.yml"),
        read("docs/runbook.md"),
        read("examples/prometheus/alerts-test.yml"),
    );
    let anchor = |title: &str| title.to_lowercase().replace([',', '`', '.'], "").replace(' ', "-");
    let sections: Vec<String> =
        runbook.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect();
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 20, "{}", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        let severities = ["severity: page", "severity: ticket"];
        assert!(severities.iter().any(|severity| alert.contains(severity)), "{alert}");
        let section = alert.split("docs/runbook.md#").nth(1).expect(name);
        let section = section.lines().next().unwrap().trim_end_matches('"');
        assert!(sections.iter().any(|known| known == section), "{name}: no section #{section}");
        assert!(runbook.contains(&format!("`{name}`")), "the runbook does not name {name}");
        assert!(proofs.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
    }
}

#[test]
fn queues_for_locks_and_for_elections_are_measured_separately() {
    let server = Server::start(&[]);
    let serve = serve_with(&server, &["--elections", "leader:", "--elections", "chief:"]);
    let _waiting = ["job", "leader:a", "chief:b"].map(|key| {
        server.ask::<u64>(&format!("RLOCK.ACQUIRE {key} ann LEASE 60000"));
        server.send(&format!("RLOCK.ACQUIRE {key} bob BLOCK 0"))
    });
    let _second = server.send("RLOCK.ACQUIRE leader:a cy BLOCK 0");
    let length = |kind: &str| serve.value("rlock_longest_queue", &[&format!("kind=\"{kind}\"")]);
    until("all wait", || length("lock") == 1.0 && length("election") == 2.0);
    let head = |kind: &str| serve.value("rlock_head_wait_seconds", &[&format!("kind=\"{kind}\"")]);
    until("they have waited", || head("lock") > 0.0 && head("election") > 0.0);
    assert!(serve.metrics().contains("db=\"0\""), "{}", serve.metrics());
}

#[test]
fn refusals_and_a_shut_gate_are_shown() {
    let server = Server::start(&[]);
    let serve = serve(&server);
    let refused = || {
        let text = serve.metrics();
        ["rlock_noreplicas_total", "rlock_noreplicas_errors_total"]
            .map(|name| sample(&text, name, &[]).unwrap())
    };
    assert_eq!(refused(), [0.0, 0.0]);
    let ask = |line: &str| support::command(line).query::<u64>(&mut server.connect());
    ask("RLOCK.ACQUIRE job ann ACKS 1").unwrap_err();
    until("the module's refusal is counted", || refused() == [1.0, 1.0]);
    server.ask::<u64>("RLOCK.ACQUIRE gate ann LEASE 1000");
    server.ask::<redis::Value>("RLOCK.ACQUIRE gate bob QUEUE 60000");
    server.ask::<String>("CONFIG SET min-replicas-to-write 1");
    ask("RLOCK.ACQUIRE job ann").unwrap_err();
    until("the server's refusal is counted", || refused() == [1.0, 2.0]);
    until("the gate is shut", || serve.value("rlock_gate_shut", &[]) == 1.0);
    assert!(serve.value("rlock_gate_shut_since_seconds", &[]) > 1.6e9);
    assert_eq!(serve.value("rlock_replicas", &[]), 0.0);
    server.ask::<String>("CONFIG SET min-replicas-to-write 0");
    until("it opens", || serve.value("rlock_gate_shut", &[]) == 0.0);
}

#[test]
fn a_server_that_is_down_is_shown_with_the_reason() {
    let is_down = |serve: &Serve, reason: &str| {
        let text = serve.metrics();
        let down = |name: &str| sample(&text, "rlock_down", &[&format!("reason=\"{name}\"")]);
        assert_eq!(sample(&text, "rlock_up", &[]), Some(0.0), "{text}");
        assert_eq!(down(reason), Some(1.0), "{text}");
        assert_eq!(text.matches("rlock_down{").count(), 8, "{text}");
        let (code, _, said) = serve.get("/healthz");
        assert!(code == 200 && said.contains(reason), "{said}");
    };
    let bare = Server::bare(&["--requirepass", "right"]);
    let with = |password: Option<&str>, url: &str| {
        let mut command = bare.rlock(&["serve", "--url", url]);
        command.envs(password.map(|password| ("REDISCLI_AUTH", password)));
        Serve::start(command)
    };
    is_down(&with(None, "redis://127.0.0.1:1"), "unreachable");
    is_down(&with(Some("right"), &bare.url()), "no_module");
    is_down(&with(Some("wrong"), &bare.url()), "password");
    is_down(&with(None, &bare.url()), "password");
    let server = Server::start(&[]);
    server.ask::<String>("ACL SETUSER metrics on >secret -@all +info +ping");
    let url = format!("redis://metrics:secret@127.0.0.1:{}", server.port);
    is_down(&with(None, &url), "permission");
    server.ask::<String>("ACL SETUSER metrics +rlock.queues");
    // The rules of docs/operations.md: this user may not see who waits for what.
    server.ask::<u64>("RLOCK.ACQUIRE job ann LEASE 60000");
    server.ask::<redis::Value>("RLOCK.ACQUIRE job bob QUEUE 60000");
    server.ask::<String>("ACL LOG RESET");
    let metrics = with(None, &url);
    assert_eq!(metrics.value("rlock_up", &[]), 1.0);
    assert_eq!(metrics.value("rlock_longest_queue", &["kind=\"lock\""]), 1.0);
    let told = metrics.look_until("/events", |told| told["point"].is_object());
    assert!(told["queues"][0]["lock"].is_null(), "{told}");
    let log: Vec<BTreeMap<String, String>> = server.ask("ACL LOG");
    let refused = log.iter().map(|entry| (entry["object"].as_str(), entry["count"].as_str()));
    assert_eq!(
        refused.collect::<BTreeMap<_, _>>(),
        BTreeMap::from([("rlock.info", "1"), ("rlock.slowlog", "1")]),
        "what is refused is asked once, and nothing is that does not concern locks"
    );
    // A server that falls silent, and later answers again.
    let serve = serve(&server);
    assert_eq!(serve.value("rlock_up", &[]), 1.0);
    kill_process(server.pid(), Signal::STOP).unwrap();
    until("it is silent", || serve.value("rlock_up", &[]) == 0.0);
    is_down(&serve, "timeout");
    until("it is said in words", || serve.get("/healthz").2.contains("no answer within 3 s"));
    kill_process(server.pid(), Signal::CONT).unwrap();
    until("it speaks", || serve.value("rlock_up", &[]) == 1.0);
}

#[test]
fn a_server_whose_certificate_is_untrusted_is_shown_with_the_reason() {
    let folder = std::env::temp_dir().join(format!("rlock-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name).display().to_string();
    let (key, certificate) = (file("key"), file("certificate"));
    let mut make = std::process::Command::new("openssl");
    make.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ])
    .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"])
    .args(["-keyout", &key, "-out", &certificate]);
    let server = Server::start(&[]);
    let port = support::free_port();
    let tls = format!(
        "CONFIG SET tls-cert-file {certificate} tls-key-file {key} tls-ca-cert-file {certificate} tls-port {port}"
    );
    let is_there = make.output().is_ok_and(|made| made.status.success())
        && support::command(&tls).query::<String>(&mut server.connect()).is_ok();
    if !is_there {
        eprintln!("NOT SEEN HERE: TLS, for lack of openssl or of a server that speaks it");
        return;
    }
    let url = format!("rediss://localhost:{port}");
    let stranger = serve_with(&server, &["--url", &url]);
    assert_eq!(stranger.value("rlock_down", &["reason=\"tls\""]), 1.0);
    // The server also requires a client certificate.
    let words = ["--url", &url, "--cacert", &certificate, "--cert", &certificate, "--key", &key];
    assert_eq!(serve_with(&server, &words).value("rlock_up", &[]), 1.0);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_page_from_another_site_gets_no_data() {
    let server = Server::start(&[]);
    let serve = serve_with(&server, &["--allow-host", "locks.example"]);
    let code = |request: &str, headers: &[(&str, &str)]| serve.ask(request, headers, "").0;
    for path in ["/", "/page.js", "/plots.js", "/page.css", "/metrics", "/healthz"] {
        let (status, head, body) = serve.get(path);
        assert_eq!((status, body.is_empty()), (200, false), "{path}");
        for line in [
            "default-src 'none'; script-src 'self'; style-src 'self';",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.to_ascii_lowercase().contains(line), "{path}: {head}");
        }
        let get = format!("GET {path}");
        assert_eq!(code(&get, &[("Host", "evil.example:9121")]), 421, "{path}");
        assert_eq!(code(&get, &[("Host", "locks.example")]), 200, "{path}");
        assert_eq!(code(&get, &[("Sec-Fetch-Site", "cross-site")]), 403, "{path}");
        assert_eq!(code(&get, &[("Origin", "http://evil.example")]), 403, "{path}");
    }
    assert_eq!(code("GET /events", &[("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(code("GET /events?key=0", &[]), 400);
    assert_eq!(code("GET /other", &[]), 404);
    assert_eq!(code("DELETE /", &[]), 405);
    // Scripts and styles are separate files, and no script turns received text into markup.
    let (.., page) = serve.get("/");
    assert!(!page.contains("<style") && !page.contains(" style="), "{page}");
    let is_handler = |word: &&str| word.starts_with("on") && word.contains('=');
    assert_eq!(page.split_whitespace().find(is_handler), None);
    assert_eq!(page.matches("<script").count(), page.matches("src=\"/page.js\"></script>").count());
    assert!(!page.contains("//"), "nothing comes from another host: {page}");
    for path in ["/page.js", "/plots.js"] {
        let (.., script) = serve.get(path);
        for markup in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!script.contains(markup), "{path} has {markup}");
        }
    }
}

#[test]
fn a_browser_can_view_queues_and_one_lock_in_detail() {
    let server = Server::start(&["--requirepass", ""]);
    let serve = serve(&server);
    let hostile = "<img/src=x/onerror=alert(1)>";
    let mut session = server.send(&format!("RLOCK.ACQUIRE job {hostile} SESSION"));
    session.recv_response().unwrap();
    let _waiting = server.send("RLOCK.ACQUIRE job bob BLOCK 0");
    let told = serve.look_until("/events", |told| told["queues"][0]["length"] == 1);
    let queue = &told["queues"][0];
    let hold = &queue["lock"]["holders"][0];
    assert_eq!((&queue["key"]["text"], &queue["key"]["hex"]), (&"job".into(), &"6a6f62".into()));
    assert_eq!(hold["owner"]["text"], hostile);
    assert!(hold["session"].as_u64() > Some(0) && hold["token"].as_u64() > Some(1_000_000));
    assert!(hold["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{hold}");
    assert_eq!(queue["lock"]["waiters"][0]["owner"]["text"], "bob");
    assert_eq!(told["can_act"], false);
    let told = serve.look_until("/events?key=6a6f62", |told| told["lock"]["length"] == 1);
    assert_eq!(told["lock"]["holders"][0]["owner"]["text"], hostile);
    // A key may have 512 MB.
    let long = "k".repeat(100_000);
    server.ask::<u64>(&format!("RLOCK.ACQUIRE {long} ann LEASE 60000"));
    server.ask::<redis::Value>(&format!("RLOCK.ACQUIRE {long} bob QUEUE 60000"));
    let told = serve.look_until("/events", |told| told["queue_count"] == 2);
    let longest = told["queues"]
        .as_array()
        .unwrap()
        .iter()
        .max_by_key(|one| one["key"]["text"].as_str().unwrap().len());
    let key = &longest.unwrap()["key"];
    assert!(
        key["hex"].is_null() && key["text"].as_str().unwrap().ends_with("k… (100000 bytes)"),
        "{key}"
    );
    assert!(told.to_string().len() < 20_000, "{told}");
    // Rates and costs are known from the second look on.
    let told = serve.look_until("/events", |told| told["point"].is_object());
    assert!(
        told["share"].as_f64() > Some(0.0) && told["every_ms"].as_u64() >= Some(1000),
        "{told}"
    );
    // A refused deadlock, with its cycle.
    server.ask::<u64>("RLOCK.ACQUIRE a ann LEASE 60000");
    server.ask::<u64>("RLOCK.ACQUIRE b ben LEASE 60000");
    let _first = server.send("RLOCK.ACQUIRE b ann BLOCK 60000");
    until("ann waits", || info(&server)["rlock_waiters"] == 2);
    support::command("RLOCK.ACQUIRE a ben BLOCK 60000")
        .query::<redis::Value>(&mut server.connect())
        .unwrap_err();
    let told = serve.look_until("/events", |told| {
        told["servers"][0]["slow"]["entries"][0]["kind"] == "deadlock"
    });
    let circle = &told["servers"][0]["slow"]["entries"][0]["holders"];
    assert_eq!(*circle, serde_json::json!([["ben", "a"], ["ann", "b"]]));
}

#[test]
fn nobody_can_act_without_permission_and_a_token() {
    let server = Server::start(&[]);
    let held = || {
        server.ask::<u64>("RLOCK.ACQUIRE job ann LEASE 60000");
        r#"{"do":"force","key":"6a6f62"}"#
    };
    let json = ("Content-Type", "application/json");
    let right = ("Authorization", "Bearer a-token-for-this-test");
    let post = |serve: &Serve, headers: &[(&str, &str)], body: &str| {
        let (code, _, said) = serve.ask("POST /actions", headers, body);
        (code, said.trim().to_owned())
    };
    assert_eq!(post(&serve(&server), &[json, right], held()).0, 403);
    let (code, _, complaint) = server.run(&["serve", "--allow-actions"]);
    assert!(code == 125 && complaint.contains("a token of at least 16 bytes"), "{complaint}");

    let mut command = server.rlock(&["serve", "--allow-actions"]);
    command.env("RLOCK_SERVE_TOKEN", TOKEN);
    let serve = Serve::start(command);
    serve.look_until("/events", |told| told["can_act"] == true);
    assert_eq!(post(&serve, &[json], held()).0, 401);
    assert_eq!(
        post(&serve, &[json, ("Authorization", "Bearer a-token-for-this-tesT")], held()).0,
        401
    );
    // As another site's form could send it.
    assert_eq!(post(&serve, &[("Content-Type", "text/plain"), right], held()).0, 415);
    assert_eq!(post(&serve, &[json, right, ("Origin", "http://evil.example")], held()).0, 403);
    assert_eq!(post(&serve, &[json, right, ("Sec-Fetch-Site", "cross-site")], held()).0, 403);
    assert_eq!(post(&serve, &[json, right], r#"{"do":"flushall"}"#).0, 422);
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS job ann"), 6, "nothing was done until now");

    assert_eq!(post(&serve, &[json, right], held()), (200, "1".into()));
    assert_eq!(server.ask::<u64>("RLOCK.HOLDS job ann"), 0);
    held();
    let mut waiting = server.send("RLOCK.ACQUIRE job bob BLOCK 0");
    until("bob waits", || info(&server)["rlock_waiters"] == 1);
    let cancel = r#"{"do":"cancel","key":"6a6f62","owner":"626f62"}"#;
    assert_eq!(post(&serve, &[json, right], cancel), (200, "1".into()));
    assert_eq!(waiting.recv_response().unwrap(), redis::Value::Nil);
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut waiting).unwrap();
    let name = format!("127.0.0.1:{}", server.port);
    let kill = format!(r#"{{"do":"kill","server":"{name}","client":{id}}}"#);
    assert_eq!(post(&serve, &[json, right], &kill), (200, "1".into()));
    assert!(redis::cmd("PING").query::<String>(&mut waiting).is_err());
    let elsewhere = r#"{"do":"kill","server":"127.0.0.1:1","client":1}"#;
    assert_eq!(post(&serve, &[json, right], elsewhere).0, 409);
}

/// The label of a server's metrics.
fn label(server: &Server) -> String {
    format!("server=\"127.0.0.1:{}\"", server.port)
}

#[test]
fn serve_watches_each_server_that_is_named_and_other_commands_refuse_several() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = replica_of(&primary);
    let named = [&primary, &replica].map(|server| format!("redis://127.0.0.1:{}", server.port));
    let urls = ["--url", &named[0], "--url", &named[1]];
    let serve = Serve::start(primary.rlock(&[&["serve"], &urls[..]].concat()));
    until("the primary is shown with its replica", || {
        sample(&serve.metrics(), "rlock_replicas", &[&label(&primary)]) == Some(1.0)
    });
    let shown = serve.metrics();
    for (server, is_primary) in [(&primary, 1.0), (&replica, 0.0)] {
        assert_eq!(sample(&shown, "rlock_up", &[&label(server)]), Some(1.0), "{shown}");
        assert_eq!(sample(&shown, "rlock_primary", &[&label(server)]), Some(is_primary), "{shown}");
    }
    primary.ask::<u64>("RLOCK.ACQUIRE k ann");
    until("the replica has it", || replica.ask::<u64>("EXISTS k") == 1);
    serve.look_until("/events", |told| told["point"]["locks"] == 1);
    let other = format!("{}/1", named[0]);
    let (code, _, error) = primary.run(&["serve", "--url", &named[0], "--url", &other]);
    assert!(code == 125 && error.contains("is named twice: name one database of it"), "{error}");
    for words in [&["queues"][..], &["who", "k"], &["run", "k", "--", "true"]] {
        let (command, others) = words.split_at(1);
        let output = primary.rlock(&[command, &urls[..], others].concat()).output().unwrap();
        let (code, _, error) = support::said(output);
        assert_ne!(code, 0, "{words:?}");
        assert!(error.contains("add --cluster or --sentinel NAME"), "{words:?}: {error}");
    }
}

#[test]
fn locks_of_the_same_key_at_two_primaries_are_two_locks() {
    let (one, two) = (Server::start(&[]), Server::start(&[]));
    one.ask::<u64>("RLOCK.ACQUIRE job ann LEASE 60000");
    two.ask::<u64>("RLOCK.ACQUIRE job ben LEASE 60000");
    let words = ["serve", "--allow-actions", "--url", &one.url(), "--url", &two.url()];
    let mut command = one.rlock(&words);
    command.env("RLOCK_SERVE_TOKEN", TOKEN);
    let serve = Serve::start(command);
    for (server, owner) in [(&one, "ann"), (&two, "ben")] {
        let path = format!("/events?key=6a6f62&server=127.0.0.1:{}", server.port);
        let told = serve.look_until(&path, |told| told["lock"]["holder_count"] == 1);
        assert_eq!(told["lock"]["holders"][0]["owner"]["text"], owner);
        assert_eq!(told["is_fixed"], true);
    }
    let authorization = format!("Bearer {TOKEN}");
    let headers = [("Content-Type", "application/json"), ("Authorization", authorization.as_str())];
    let post = |body: &str| serve.ask("POST /actions", &headers, body);
    let (code, _, why) = post(r#"{"do":"force","key":"6a6f62"}"#);
    assert!(code == 409 && why.contains("must name one"), "{why}");
    let name = format!("127.0.0.1:{}", two.port);
    let force = format!(r#"{{"do":"force","key":"6a6f62","server":"{name}"}}"#);
    assert_eq!(post(&force).0, 200);
    let holds =
        |server: &Server, owner: &str| server.ask::<u64>(&format!("RLOCK.HOLDS job {owner}"));
    assert_eq!((holds(&one, "ann") > 0, holds(&two, "ben")), (true, 0));
}

#[test]
fn serve_follows_a_failover_through_sentinel_and_ends_on_a_signal() {
    let mut primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = replica_of(&primary);
    let sentinel = Sentinel::of(&primary);
    let url = format!("redis://127.0.0.1:{}", sentinel.port);
    let mut serve = Serve::start(primary.rlock(&["serve", "--sentinel", "mine", "--url", &url]));
    until("the primary is shown", || {
        sample(&serve.metrics(), "rlock_replicas", &[&label(&primary)]) == Some(1.0)
    });
    until("Sentinel knows the replica", || sentinel.replicas() == 1);
    primary.kill();
    until("the promoted server is shown", || {
        sample(&serve.metrics(), "rlock_up", &[&label(&replica)]) == Some(1.0)
    });
    assert_eq!(sample(&serve.metrics(), "rlock_up", &[&label(&primary)]), None);
    kill_process(serve.pid(), Signal::TERM).unwrap();
    assert_eq!(serve.wait(), Some(0));
}
