//! Agents that are scripts, and a repository that they edit.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::support::{Rlock, Server};

/// What an editor starts for an agent: `rlock mcp`, and its answers.
pub struct Agent {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last: u64,
}

impl Agent {
    pub fn start(server: &Server, files: &Repository, name: &str) -> Agent {
        let mut command = server.rlock(&["mcp", "--root", files.path(), "--agent", name]);
        let mut process = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut agent = Agent { process, input, output, last: 0 };
        let client = json!({ "name": "a test", "version": "1" });
        let told = agent.ask(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
        );
        assert!(told["instructions"].as_str().unwrap().contains("claim_paths"), "{told}");
        agent.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        agent
    }

    fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, method: &str, words: Value) -> Value {
        self.last += 1;
        let id = self.last;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": words }));
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "rlock mcp has ended");
            let told: Value = serde_json::from_str(&line).unwrap();
            if told["id"] == json!(id) {
                assert!(told["error"].is_null(), "{told}");
                return told["result"].clone();
            }
        }
    }

    /// What a tool answers.
    pub fn call(&mut self, tool: &str, words: Value) -> Value {
        let told = self.ask("tools/call", json!({ "name": tool, "arguments": words }));
        told["structuredContent"].clone()
    }

    pub fn tools(&mut self) -> Vec<String> {
        let told = self.ask("tools/list", json!({}));
        let tools = told["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the agent, and thereby `rlock mcp`; returns its exit code.
    pub fn hang_up(&mut self) -> Option<i32> {
        self.input = None;
        self.process.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command with this input; returns its exit code and standard error.
pub fn said_to(mut command: Command, input: &str) -> (Option<i32>, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    (child.wait().unwrap().code(), complaint)
}

/// A folder with files, removed when it is dropped.
pub struct Repository(PathBuf);

impl Repository {
    pub fn new(name: &str, files: &[&str]) -> Repository {
        let folder = std::env::temp_dir().join(format!("rlock-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        Repository(folder)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The key of a path.
    pub fn key(&self, path: &str) -> String {
        format!("{{paths:{}}}/{path}", self.0.file_name().unwrap().to_str().unwrap())
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
