//! `rlock serve` with a server, and a browser that is a plain socket.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `rlock serve`, killed when it is dropped.
pub struct Serve {
    process: Child,
    pub address: String,
}

impl Serve {
    /// Runs the command, which must print its address.
    pub fn start(mut command: Command) -> Serve {
        command.args(["--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        assert!(!address.is_empty(), "rlock serve ended at once");
        Serve { process, address }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }

    /// The status, the head and the body of the answer.
    pub fn ask(
        &self,
        request: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String, String) {
        let mut stream = self.connect(request, headers, body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
    }

    pub fn get(&self, path: &str) -> (u16, String, String) {
        self.ask(&format!("GET {path}"), &[], "")
    }

    pub fn metrics(&self) -> String {
        let (code, head, body) = self.get("/metrics");
        assert!(
            code == 200 && head.contains("application/openmetrics-text; version=1.0.0"),
            "{head}"
        );
        assert!(body.ends_with("# EOF\n"), "{body}");
        body
    }

    /// The value of the only sample with this name and these labels.
    pub fn value(&self, name: &str, labels: &[&str]) -> f64 {
        sample(&self.metrics(), name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
    }

    /// Reads looks, as a browser gets them, until one is as wanted.
    pub fn look_until(
        &self,
        path: &str,
        is_so: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let stream = self.connect(&format!("GET {path}"), &[], "");
        let end = Instant::now() + Duration::from_secs(30);
        let mut last = String::new();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let told: serde_json::Value = serde_json::from_str(data).unwrap();
            if told["servers"].is_array() && is_so(&told) {
                return told;
            }
            last = data.to_owned();
            assert!(Instant::now() < end, "not within 30 seconds: {last}");
        }
        panic!("the stream ended after {last}");
    }

    fn connect(&self, request: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut text = format!("{request} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }
}

/// The value of the first sample with this name and all these labels.
pub fn sample(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    text.lines().find_map(|line| {
        let (full, value) = line.rsplit_once(' ')?;
        let (own, rest) = full.split_once('{').unwrap_or((full, ""));
        let is_it = own == name && labels.iter().all(|label| rest.contains(label));
        is_it.then(|| value.parse().unwrap())
    })
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
