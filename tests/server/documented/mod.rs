//! What README and docs print is what the server says.
//!
//! Every `console` block is executed (`session.rs` says how), on a server that has the `conf`
//! block above it in the same section. Every command in backticks is one that the server reads.
//! `docs/commands.md` says what `COMMAND DOCS` says.

mod completion;
mod database;
mod links;
mod pages;
mod reference;
mod session;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::users::users_of_operations;
use database::Database;
pub use pages::page_named;
use pages::{Block, pages};
use rlock_testkit::Server;
use session::Users;

/// The configuration for a session whose section has no `conf` block: that of `make run`.
const CONF: &str = "notify-keyspace-events KEd\n";

#[test]
fn every_printed_session_gives_the_printed_replies() {
    let (mut sessions, mut failed) = (0, Vec::new());
    let with_users = format!("{CONF}{}", users_of_operations());
    for page in pages() {
        let has_users = page.name == "docs/runbook.md";
        let (usual, users) =
            if has_users { (with_users.as_str(), Users::Documented) } else { (CONF, Users::Any) };
        let mut conf = usual;
        for block in page.blocks() {
            match block {
                Block::Heading(_) => conf = usual,
                // A server reads it even if no session follows.
                Block::Fenced { kind: "conf", text, .. } => {
                    drop(Server::of(text));
                    conf = text;
                }
                Block::Fenced { kind: "console", text, line } => {
                    sessions += 1;
                    let place = format!("{}:{line}", page.name);
                    let played = catch_unwind(AssertUnwindSafe(|| {
                        for database in Database::each_for(text) {
                            session::play(text, conf, users, database, &place);
                        }
                    }));
                    failed.extend(played.err().map(|_| place));
                }
                _ => {}
            }
        }
    }
    assert!(sessions > 20, "only {sessions} sessions were found");
    assert!(failed.is_empty(), "not as printed, see above: {failed:#?}");
}

#[test]
fn every_command_in_backticks_is_one() {
    let server = Server::start();
    let mut commands = 0;
    for page in pages() {
        for span in page.spans() {
            if span.starts_with("RLOCK.") && !span.contains(['[', '…', '*']) {
                commands += usize::from(span.contains(' '));
                insist_that_it_is_read(&server, &span, &page.name);
            }
        }
    }
    assert!(commands > 20, "only {commands} commands were found");
}

/// Its words are a command's words, whatever the server answers to them.
#[track_caller]
fn insist_that_it_is_read(server: &Server, span: &str, page: &str) {
    // A client of its own: FLUSHALL closes the connection of a session.
    let mut client = server.client();
    let mut words: Vec<&str> = span.split(' ').collect();
    if words.len() == 1 {
        let known = client.ask(&format!("COMMAND INFO {span}"));
        assert_ne!(known, redis::Value::Array(vec![redis::Value::Nil]), "{page}: {span}");
        return;
    }
    for word in &mut words {
        // The names with which the pages mark values that a reader replaces.
        *word = match *word {
            "ms" => "5000",
            "n" | "t" | "token" => "1",
            word => word,
        };
    }
    if let Err(error) = client.attempt(&words.join(" ")) {
        // The word `payload` stands for bytes that nobody types.
        let is_read = !error.starts_with("ERR ") || error.starts_with("ERR malformed payload");
        assert!(is_read, "{page}: {span}: {error}");
    }
    server.client().ask("FLUSHALL");
}
