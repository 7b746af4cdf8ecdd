//! Sentinel, beside a server.
#![allow(dead_code, reason = "each test takes what it needs")]

use super::support::{Server, command, free_port, until};

/// A Sentinel that monitors the primary as `mine`.
pub struct Sentinel {
    process: std::process::Child,
    conf: std::path::PathBuf,
    pub port: u16,
}

impl Sentinel {
    pub fn of(primary: &Server) -> Sentinel {
        Sentinel::with(primary, &[])
    }

    /// With additional lines in its configuration.
    pub fn with(primary: &Server, lines: &[&str]) -> Sentinel {
        let more = lines.join("\n");
        let port = free_port();
        let conf = std::env::temp_dir().join(format!("rlock-sentinel-{port}.conf"));
        let lines = [
            format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor mine 127.0.0.1 {} 1",
                primary.port
            ),
            "sentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 2000".into(),
            more,
        ];
        std::fs::write(&conf, lines.join("\n")).unwrap();
        let mut server = std::process::Command::new(std::env::var("RLOCK_SERVER").unwrap());
        server.arg(&conf).arg("--sentinel").stdout(std::process::Stdio::null());
        let sentinel = Sentinel { process: server.spawn().unwrap(), conf, port };
        until("Sentinel is up", || sentinel.connect().is_ok());
        sentinel
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?.get_connection()
    }

    /// Makes a replica the primary. False if the Sentinel knows no fit replica.
    pub fn fail_over(&self) -> bool {
        let mut connection = self.connect().unwrap();
        command("SENTINEL FAILOVER mine").query::<String>(&mut connection).is_ok()
    }

    pub fn replicas(&self) -> usize {
        let found = command("SENTINEL REPLICAS mine").query(&mut self.connect().unwrap());
        found.map(|found: Vec<redis::Value>| found.len()).unwrap()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.conf);
    }
}
