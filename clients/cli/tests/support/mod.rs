//! Real servers, and `rlock` itself.
#![allow(dead_code, unused_imports, reason = "each test takes what it needs")]

#[path = "../../../rust/tests/support/mod.rs"]
mod server;

use std::process::{Command, Output, Stdio};

pub use server::{Server, cluster, command, free_port, is_held, replica_of, until};

/// `rlock` beside a server.
pub trait Rlock {
    /// `rlock` with these words.
    fn rlock(&self, words: &[&str]) -> Command;
    /// Runs `rlock` to its end; returns its exit code, standard output and standard error.
    fn run(&self, words: &[&str]) -> (i32, String, String);
}

impl Rlock for Server {
    fn rlock(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlock"));
        command.env("RLOCK_URL", self.url()).env_remove("REDISCLI_AUTH").args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> (i32, String, String) {
        said(self.rlock(words).output().unwrap())
    }
}

pub fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
