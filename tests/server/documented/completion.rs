//! `redis-cli` at a terminal shows hints for the arguments, from `COMMAND DOCS`.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rlock_testkit::{Server, cli_program, say_not_seen, until};

#[test]
fn redis_cli_hints_the_arguments() {
    let server = Server::start();
    // Wide enough for a hint. Otherwise, redis-cli would ask the terminal, which has no window.
    let cli =
        format!("stty cols 200; exec {} -s {}", cli_program().display(), server.socket().display());
    // Runs it at a terminal.
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-e", "-c", &cli, "/dev/null"]).env("TERM", "xterm");
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(terminal) = terminal.spawn() else {
        say_not_seen("the hints of redis-cli: there is no `script` to give it a terminal");
        return;
    };
    let mut terminal = Terminal(terminal);
    let mut output = terminal.0.stdout.take().unwrap();
    let (bytes, shown) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            bytes.send(buffer[..count].to_vec()).ok();
        }
    });
    let mut input = terminal.0.stdin.take().unwrap();
    let mut screen = String::new();
    let mut until_it_shows = |what: &str| {
        until(20_000, || {
            screen.extend(shown.try_iter().map(|b| String::from_utf8_lossy(&b).into_owned()));
            screen.contains(what)
        });
    };
    until_it_shows("> ");
    input.write_all(b"RLOCK.RENEW ").unwrap();
    until_it_shows("key owner [READ|WRITE] [LEASE ms] [TOKEN t]");
    drop(terminal);
    reader.join().unwrap();
}

/// Ends when the test ends, in whatever way.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
