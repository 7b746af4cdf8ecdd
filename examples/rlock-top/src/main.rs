//! A live view of a server's locks: `rlock-top [URL] [--once]`. Ends with q, Esc or Ctrl-C.

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Terminal};
use redis::{Client, Connection, RedisError};
use rlock_top::snapshot::Snapshot;
use rlock_top::view;

const USAGE: &str = "rlock-top [URL] [--once]
  URL     the server, redis://127.0.0.1:6379 if not said; rlock-top redis://:password@host:port/db
  --once  one look, printed; else a live view until q";

/// More rows than a terminal has.
const QUEUES: usize = 100;

/// Often enough to see a hand-over, seldom enough that the server does not notice.
const EVERY: Duration = Duration::from_secs(1);

/// A server that hangs must not hang the view.
const PATIENCE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let (mut url, mut is_once) = ("redis://127.0.0.1:6379".to_owned(), false);
    for word in env::args().skip(1) {
        match word.as_str() {
            "--once" => is_once = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ if word.contains("://") => url = word,
            _ => {
                eprintln!("{word}: neither a URL nor an option\n{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    let outcome = if is_once { once(&url) } else { live(&url) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn once(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::open(url)?;
    let now = Snapshot::take(&mut connect(&client)?, QUEUES)?;
    // Drawn on paper: what ratatui has for tests serves a printed page as well.
    let columns = terminal::size().map_or(100, |(columns, _)| columns.max(80));
    let rows = 7 + u16::try_from(now.queues.len())?;
    let mut paper = Terminal::new(TestBackend::new(columns, rows))?;
    paper.draw(|frame| view::draw(frame, &name(&client), None, &now))?;
    for row in paper.backend().buffer().content().chunks(usize::from(columns)) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        println!("{}", line.trim_end());
    }
    Ok(())
}

fn live(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::open(url)?;
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&client, &mut terminal);
    ratatui::restore();
    outcome
}

fn watch(
    client: &Client,
    terminal: &mut DefaultTerminal,
) -> Result<(), Box<dyn std::error::Error>> {
    let (mut connection, mut before) = (None, None);
    loop {
        match look(client, &mut connection) {
            Ok(now) => {
                terminal.draw(|frame| view::draw(frame, &name(client), before.as_ref(), &now))?;
                before = Some(now);
            }
            Err(error) => {
                // The next look connects anew, perhaps to a server that was started again.
                (connection, before) = (None, None);
                let text = format!("{}: {error}", name(client));
                terminal.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area()))?;
            }
        }
        if event::poll(EVERY)? && is_end(&event::read()?) {
            return Ok(());
        }
    }
}

fn look(client: &Client, connection: &mut Option<Connection>) -> Result<Snapshot, RedisError> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(connect(client)?),
    };
    Snapshot::take(open, QUEUES)
}

fn connect(client: &Client) -> Result<Connection, RedisError> {
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// Host and port, without the password.
fn name(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}

fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, .. }) = event else { return false };
    matches!(code, KeyCode::Char('q') | KeyCode::Esc)
        || (*code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL))
}
