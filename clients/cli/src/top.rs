//! `rlock top`: a live view.

use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::{Paragraph, Wrap};
use ratatui::{DefaultTerminal, Terminal};
use redis::Connection;

use crate::servers::{Server, Trouble, Where, explain, home_of};
use crate::show::{connect, look};
use crate::signals::{Ending, by_signal};
use crate::snapshot::{Ask, Lock, Name, Queue, Snapshot};
use crate::view;

/// Often enough to see hand-offs, seldom enough not to burden the server.
const EVERY: Duration = Duration::from_secs(1);

/// Takes one snapshot, and returns the view as text.
///
/// # Errors
/// What the servers say.
pub fn once(at: &Where, count: usize) -> Result<String, Trouble> {
    let servers = at.primaries()?;
    let ask = Ask { is_everywhere: at.is_everywhere, ..Ask::longest(count) };
    let now = Snapshot::take(&mut connect(&servers)?, home_of(&servers), ask)
        .map_err(|error| explain(&error))?;
    // ratatui's backend for tests draws the printed page.
    let columns = view::page_width(&name(&servers), &now).max(80);
    let rows = 9_u16.saturating_add(u16::try_from(now.queues.len()).unwrap_or(u16::MAX));
    let mut paper =
        Terminal::new(TestBackend::new(columns, rows)).map_err(|error| error.to_string())?;
    let drawn = paper.draw(|frame| view::draw(frame, &name(&servers), None, &now, None));
    drawn.map_err(|error| error.to_string())?;
    let lines = paper.backend().buffer().content().chunks(usize::from(columns));
    Ok(lines
        .map(|row| {
            row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n"
        })
        .collect())
}

fn name(servers: &[Server]) -> String {
    match servers {
        [first, .., _] => format!("{} and {} more", first.name, servers.len() - 1),
        [one] => one.name.clone(),
        [] => String::new(),
    }
}

/// Shows the live view until q is pressed.
///
/// # Errors
/// When there is no terminal, or the words of the command line are wrong. A server that is away is
/// shown.
pub fn live(at: &Where, count: usize) -> Result<(), Trouble> {
    at.nodes()?;
    leave_at_a_signal().map_err(|error| error.to_string())?;
    let mut terminal = ratatui::try_init().map_err(|error| error.to_string())?;
    let outcome = Top::new(at, count).watch(&mut terminal);
    ratatui::restore();
    outcome.map_err(|error| error.to_string())
}

/// If a signal ends `rlock top`, the terminal is restored.
fn leave_at_a_signal() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Ending::new() })?;
    std::thread::spawn(move || {
        let signal = runtime.block_on(signals.next());
        ratatui::restore();
        std::process::exit(i32::from(by_signal(signal)));
    });
    Ok(())
}

struct Top<'a> {
    at: &'a Where,
    count: usize,
    servers: Vec<Server>,
    connections: Vec<Connection>,
    before: Option<Snapshot>,
    now: Option<Snapshot>,
    chosen: usize,
    /// The lock that is shown in detail: its database, its key and its state.
    close: Option<Close>,
    trouble: Option<Trouble>,
}

/// One lock, as it was last read.
struct Close {
    db: i64,
    key: Name,
    lock: Option<Lock>,
}

impl Top<'_> {
    fn new(at: &Where, count: usize) -> Top<'_> {
        let (servers, connections) = (Vec::new(), Vec::new());
        Top {
            at,
            count,
            servers,
            connections,
            before: None,
            now: None,
            chosen: 0,
            close: None,
            trouble: None,
        }
    }

    fn watch(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.look();
                next = Instant::now() + EVERY;
            }
            self.draw(terminal)?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                match event::read()? {
                    Event::Key(key) if self.press(&key) => return Ok(()),
                    Event::Key(key) if key.code == KeyCode::Enter => next = Instant::now(),
                    _ => {}
                }
            }
        }
    }

    fn look(&mut self) {
        self.trouble = self.try_to_look().err();
        if self.trouble.is_some() {
            // The next look connects anew, perhaps to other primaries.
            (self.servers, self.connections) = (Vec::new(), Vec::new());
            (self.before, self.now) = (None, None);
        }
    }

    fn try_to_look(&mut self) -> Result<(), Trouble> {
        if self.connections.is_empty() {
            self.servers = self.at.primaries()?;
            self.connections = connect(&self.servers)?;
        }
        let home = home_of(&self.servers);
        if let Some(close) = &mut self.close {
            close.lock = Some(look(&mut self.connections, home, close.db, &close.key)?);
        }
        let ask = Ask { is_everywhere: self.at.is_everywhere, ..Ask::longest(self.count) };
        let now =
            Snapshot::take(&mut self.connections, home, ask).map_err(|error| explain(&error))?;
        // The selection stays on its lock when the order of the rows changes.
        if let Some(chosen) = self.chosen() {
            let is_it = |queue: &Queue| queue.key == chosen.key && queue.db == chosen.db;
            self.chosen = now.queues.iter().position(is_it).unwrap_or(self.chosen);
        }
        self.chosen = self.chosen.min(now.queues.len().saturating_sub(1));
        self.before = self.now.replace(now);
        Ok(())
    }

    fn chosen(&self) -> Option<Close> {
        let queue = self.now.as_ref()?.queues.get(self.chosen)?;
        Some(Close { db: queue.db, key: queue.key.clone(), lock: None })
    }

    fn draw(&self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let name = name(&self.servers);
        terminal.draw(|frame| match (&self.trouble, &self.close, &self.now) {
            (Some(trouble), _, _) => {
                let text = format!("{trouble}\n\ntrying again every second   q: quit");
                frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), frame.area());
            }
            (_, Some(Close { db, key, lock: Some(lock) }), _) => {
                let place =
                    if self.at.is_everywhere { format!(", database {db}") } else { String::new() };
                view::draw_lock(frame, &(name + &place), key, lock);
            }
            (_, _, Some(now)) => {
                view::draw(frame, &name, self.before.as_ref(), now, Some(self.chosen))
            }
            _ => {}
        })?;
        Ok(())
    }

    /// Handles a key; returns whether it ends the program.
    fn press(&mut self, key: &KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.close.is_some() => {
                self.close = None
            }
            KeyCode::Esc => return true,
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                let last = self.now.as_ref().map_or(0, |now| now.queues.len().saturating_sub(1));
                self.chosen = (self.chosen + 1).min(last);
            }
            KeyCode::Enter | KeyCode::Right => self.close = self.chosen(),
            _ => {}
        }
        false
    }
}
