//! `rlock mcp` on a real server: its answers, and thirty agents on one repository.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/mcp.rs"]
mod agent;
mod support;

use std::time::{Duration, Instant};

use agent::{Agent, Repository};
use serde_json::{Value, json};
use support::{Rlock, Server, said, until};

/// A file of the example for agents.
fn example(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents").join(name)
}

fn claim(agent: &mut Agent, paths: &[&str], seconds: f64) -> Value {
    agent.call("claim_paths", json!({ "paths": paths, "seconds": seconds }))
}

#[test]
fn an_agent_claims_waits_and_releases() {
    let (server, files) =
        (Server::start(&[]), Repository::new("claims", &["src/a.rs", "src/b.rs"]));
    let mut ann = Agent::start(&server, &files, "ann");
    let mut bob = Agent::start(&server, &files, "bob");
    assert_eq!(ann.tools(), ["claim_paths", "wait", "release", "who"]);

    let held = claim(&mut ann, &["src/a.rs", "docs/new.md"], 20.0);
    assert_eq!(held["state"], "held", "{held}");
    assert!(held["token"].as_u64().unwrap() > 0, "{held}");
    assert_eq!(claim(&mut ann, &["./src/a.rs"], 20.0)["state"], "yours already");
    // All or none: bob does not hold the free path while he waits for the other.
    let waits = claim(&mut bob, &["src/a.rs", "src/b.rs"], 0.0);
    assert_eq!((&waits["state"], &waits["place"]), (&json!("waiting"), &json!(1)), "{waits}");
    assert_eq!(waits["at"], "src/a.rs", "{waits}");
    let behind = waits["behind"].as_str().unwrap();
    assert!(behind.starts_with("ann/") && behind.contains(" has held write for "), "{waits}");
    let who = ann.call("who", json!({ "paths": ["src/a.rs", "src", "README.md"] }));
    assert_eq!(who["paths"][0]["claims"][0]["claims"], "this path", "{who}");
    assert_eq!(
        (&who["paths"][0]["waiting"], &who["paths"][2]["state"]),
        (&json!(1), &json!("free"))
    );
    assert_eq!(who["paths"][1]["claims"][0]["claims"], "something in it", "{who}");
    assert_eq!(who["mine"][0]["paths"], json!(["docs/new.md", "src/a.rs"]), "{who}");

    // A folder is not free while a file in it is claimed, and an agent that holds something does
    // not wait.
    let refused = claim(&mut ann, &["src/b.rs"], 20.0);
    assert!(refused["state"] == "held" || refused["state"] == "refused", "{refused}");
    let mut cy = Agent::start(&server, &files, "cy");
    let other = claim(&mut cy, &["other.md"], 20.0);
    let refused = claim(&mut cy, &["src"], 20.0);
    assert_eq!(refused["state"], "refused", "{refused}");
    assert_eq!(refused["you_hold"], json!(["other.md"]), "{refused}");
    cy.call("release", json!({ "claim": other["claim"] }));
    // Who holds a file below a folder does not pass the one that waits for the folder.
    let waits_for_all = claim(&mut cy, &["."], 0.0);
    let refused = claim(&mut ann, &["docs/other.md"], 0.0);
    assert_eq!(refused["state"], "refused", "{refused}");
    assert_eq!(refused["at"], ".", "{refused}");
    assert!(refused["behind"].as_str().unwrap().starts_with("cy/"), "{refused}");
    cy.call("release", json!({ "claim": waits_for_all["claim"] }));

    let released = ann.call("release", json!({}));
    assert_eq!(released["released"][0]["was"], "held", "{released}");
    let held = bob.call("wait", json!({ "claim": waits["claim"], "seconds": 30 }));
    assert_eq!(held["state"], "held", "{held}");
    for (tool, words, why) in [
        ("claim_paths", json!({ "paths": ["../x"] }), "is outside of"),
        ("claim_paths", json!({ "paths": [] }), "no path is named"),
        ("claim_paths", json!({ "paths": "src" }), "must be a list"),
        ("claim_paths", json!({ "paths": ["src"] }), "release it first"),
        ("wait", json!({ "claim": 99 }), "no claim 99"),
        ("release", json!({ "paths": ["src"] }), "release has no argument 'paths': it has claim"),
        ("wait", json!({ "claim": held["claim"], "seconds": 601 }), "from 0 to 600"),
    ] {
        let wrong = bob.call(tool, words);
        assert!(wrong["error"].as_str().unwrap().contains(why), "{wrong}");
    }
    // A waiter that gives up its place leaves nothing behind.
    let waits = claim(&mut ann, &["src"], 0.0);
    assert_eq!(waits["state"], "waiting", "{waits}");
    let left = ann.call("release", json!({ "claim": waits["claim"] }));
    assert_eq!(left["released"][0]["was"], "waiting");
    until("nobody waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").is_empty());
}

#[test]
fn what_a_dead_agent_held_is_free_and_what_was_forced_is_told() {
    let (server, files) = (Server::start(&[]), Repository::new("dead", &["a.rs"]));
    let mut bob = Agent::start(&server, &files, "bob");
    for is_killed in [true, false] {
        let mut ann = Agent::start(&server, &files, "ann");
        assert_eq!(claim(&mut ann, &["a.rs"], 20.0)["state"], "held");
        let waits = claim(&mut bob, &["a.rs"], 0.0);
        assert_eq!(waits["state"], "waiting", "{waits}");
        if is_killed {
            ann.kill()
        } else {
            assert_eq!(ann.hang_up(), Some(0))
        }
        let held = bob.call("wait", json!({ "claim": waits["claim"], "seconds": 30 }));
        assert_eq!(held["state"], "held", "{held}");
        bob.call("release", json!({}));
    }
    let held = claim(&mut bob, &["a.rs"], 20.0);
    server.ask::<u64>(&format!("RLOCK.FORCE {}", files.key("a.rs")));
    let (mut told, end) = (Value::Null, Instant::now() + Duration::from_secs(30));
    while told["lost"].is_null() && Instant::now() < end {
        told = bob.call("who", json!({}));
    }
    assert_eq!(told["lost"][0]["claim"], held["claim"]);
    assert!(told["lost"][0]["why"].as_str().unwrap().contains("stop writing"), "{told}");
    assert_eq!(told["mine"], json!([]));
}

#[test]
fn a_hook_can_ask_whether_a_path_is_claimed() {
    let (server, files) = (Server::start(&[]), Repository::new("hook", &["src/a.rs"]));
    let check = |agent: &str, path: &str| {
        server.run(&["mcp", "--root", files.path(), "--agent", agent, "--check", path])
    };
    let (code, _, complaint) = check("ann", "src/a.rs");
    assert!(
        code == 1 && complaint.contains("ann has not claimed src/a.rs (nobody has)"),
        "{complaint}"
    );
    let mut ann = Agent::start(&server, &files, "ann");
    claim(&mut ann, &["src"], 20.0);
    assert_eq!(check("ann", "src/a.rs"), (0, String::new(), String::new()));
    assert_eq!(check("ann", "src/new/b.rs").0, 0);
    assert_eq!(check("ann", "docs/b.md").0, 1);
    let (code, _, complaint) = check("an", "src/a.rs");
    assert!(
        code == 1 && complaint.contains("ann/") && complaint.contains("has claimed src"),
        "{complaint}"
    );
    let (code, _, complaint) = server.run(&["mcp", "--root", files.path(), "--check", "a"]);
    assert!(code == 125 && complaint.contains("--check needs --agent"), "{complaint}");
    // The hook of the example, as an editor runs it: 2 refuses the write.
    let hook = example("refuse-unclaimed-write.py");
    let path = std::env::join_paths(
        std::iter::once(
            std::path::Path::new(env!("CARGO_BIN_EXE_rlock")).parent().unwrap().to_owned(),
        )
        .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let write = |file: &str, agent: Option<&str>| {
        let mut command = std::process::Command::new("python3");
        command.arg(&hook).env("RLOCK_URL", server.url()).env("PATH", path.as_ref().unwrap());
        command.env("CLAUDE_PROJECT_DIR", files.path()).env_remove("RLOCK_AGENT");
        agent.map(|agent| command.env("RLOCK_AGENT", agent));
        let input = json!({ "tool_name": "Write", "tool_input": { "file_path": file } });
        agent::said_to(command, &input.to_string())
    };
    let file = format!("{}/src/a.rs", files.path());
    assert_eq!(write(&file, Some("ann")), (Some(0), String::new()));
    let (code, why) = write(&file, Some("bob"));
    assert!(code == Some(2) && why.contains("bob has not claimed src/a.rs"), "{why}");
    assert_eq!(write(&file, None).0, Some(2));
    assert_eq!(write("/tmp/elsewhere.txt", Some("bob")), (Some(0), String::new()));
}

/// With claims, no edit collides, and with lease files some do: what agents do is in the script.
#[test]
fn thirty_agents_on_one_repository_never_collide() {
    let server = Server::start(&["--maxclients", "4000"]);
    let mut script = std::process::Command::new("python3");
    script.arg(example("collisions.py")).args(["--agents", "30", "--tasks", "2"]);
    script.env("RLOCK", env!("CARGO_BIN_EXE_rlock")).env("RLOCK_URL", server.url());
    let (code, output, complaint) = said(script.output().unwrap());
    println!("{output}");
    assert_eq!(code, 0, "{output}{complaint}");
}
