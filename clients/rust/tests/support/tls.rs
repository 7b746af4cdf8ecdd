//! A server with TLS, and with a certificate of its own.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::support::{Server, free_port};

/// The certificate of `localhost`, which is its own authority, and its key.
pub struct Tls {
    folder: PathBuf,
    pub port: u16,
    pub server: Server,
}

impl Tls {
    /// Starts a server with these arguments; `None` if openssl, or a server with TLS, is missing.
    pub fn start(words: &[&str]) -> Option<Tls> {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("rlock-tls-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        let (key, certificate) = (file("key"), file("certificate"));
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=localhost", "-addext", "basicConstraints=CA:FALSE"])
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .args(["-keyout", &key, "-out", &certificate]);
        let is_made = make.output().is_ok_and(|made| made.status.success());
        let server = Server::start(words);
        let settings = format!(
            "CONFIG SET tls-cert-file {certificate} tls-key-file {key} \
             tls-ca-cert-file {certificate} tls-auth-clients optional tls-port {port}"
        );
        let is_there = is_made
            && super::support::command(&settings).query::<String>(&mut server.connect()).is_ok();
        if !is_there {
            eprintln!("NOT SEEN HERE: TLS, for lack of openssl or of a server that speaks it");
        }
        let tls = Tls { folder, port, server };
        is_there.then_some(tls)
    }

    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.port)
    }

    pub fn certificate(&self) -> String {
        self.folder.join("certificate").display().to_string()
    }

    pub fn key(&self) -> String {
        self.folder.join("key").display().to_string()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
