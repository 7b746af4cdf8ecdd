//! A printed session, played on a server of its own.
//!
//! A line `> COMMAND` is sent on a connection of its own, and `name> COMMAND` on the connection of
//! that name, which stays; the lines below it are its reply. Without a reply below, it waits, and
//! `name< REPLY` is what it gets later; QUIT ends the connection. `sql> STATEMENT` goes to a
//! database. On a page that has users, each name speaks as its user. A session that shows a map is
//! played in RESP3. Tokens stand for the tokens of this run, in the same order.

use std::collections::BTreeMap;

use super::database::Database;
use super::values::Values;
use rlock_testkit::{Program, Server, module, until};

/// Which user of `docs/operations.md` each speaker is.
#[derive(Clone, Copy)]
pub enum Users {
    /// Everybody may do everything.
    Any,
    /// `operator>` and `admin>` are those users, and all others are applications.
    Documented,
}

impl Users {
    /// The user and the password of a speaker; `None` for the default user, who may do everything.
    fn of(self, who: &str) -> Option<&'static str> {
        match (self, who) {
            (Users::Any, _) | (_, "admin") => None,
            (_, "operator") => Some("operator operator-secret"),
            (_, "") => panic!("on a page that has users, every prompt names one"),
            _ => Some("app app-secret"),
        }
    }
}

/// Plays it, and asserts that the replies are those that are printed.
pub fn play(session: &str, conf: &str, users: Users, database: Option<Database>, place: &str) {
    let is_module_loaded_in_it = session.contains("MODULE LOAD");
    let server = if is_module_loaded_in_it { Server::without_module() } else { Server::of(conf) };
    let enter = if session.contains("# \"") { Program::with_maps } else { Program::as_shown };
    let mut stage = Stage {
        server,
        enter,
        users,
        database,
        speakers: BTreeMap::new(),
        values: Values::default(),
        place: place.to_owned(),
    };
    let mut lines = session.lines().filter(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let mut printed = Vec::new();
        while let Some(reply) = lines.next_if(|line| spoken(line).is_none()) {
            printed.push(reply);
        }
        let (who, is_said, rest) = spoken(line).expect("a session begins with a command");
        if is_said {
            stage.say(who, rest, &printed);
        } else {
            printed.insert(0, rest);
            stage.hear(who, &printed);
        }
    }
    stage.end();
}

/// The speaker, whether the line is a command (otherwise, it is a late reply), and the rest.
fn spoken(line: &str) -> Option<(&str, bool, &str)> {
    let end = line.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit())?;
    let (who, rest) = line.split_at(end);
    let said = rest.strip_prefix("> ").map(|rest| (who, true, rest));
    said.or_else(|| rest.strip_prefix("< ").map(|rest| (who, false, rest)))
}

struct Stage<'a> {
    server: Server,
    /// How a speaker connects.
    enter: fn(&Server) -> Program,
    users: Users,
    database: Option<Database>,
    speakers: BTreeMap<&'a str, Speaker<'a>>,
    values: Values,
    place: String,
}

struct Speaker<'a> {
    terminal: Program,
    /// The command whose reply is still missing.
    waits_for: Option<&'a str>,
    /// Whether it has subscribed.
    is_listening: bool,
}

impl<'a> Stage<'a> {
    fn say(&mut self, who: &'a str, command: &'a str, printed: &[&str]) {
        let context = format!("{}: {command}", self.place);
        let real = self.values.real(command).replace("/path/to/librlock.so", &module_path());
        if who == "sql" {
            let database = self.database.as_mut().expect("a database");
            let replied = database.ask(&real, printed.len());
            self.values.compare(printed, &replied, &context);
        } else if who.is_empty() && self.users.of(who).is_none() {
            let mut terminal = (self.enter)(&self.server);
            terminal.say(&real);
            terminal.say("QUIT");
            self.values.compare(printed, &terminal.all_lines(), &context);
        } else if command == "QUIT" {
            self.speakers.remove(who);
        } else {
            self.say_and_stay(who, command, &real, printed, &context);
        }
    }

    fn say_and_stay(
        &mut self,
        who: &'a str,
        command: &'a str,
        real: &str,
        printed: &[&str],
        context: &str,
    ) {
        let waiting = self.waiting();
        let (server, enter, login) = (&self.server, self.enter, self.users.of(who));
        let speaker = self.speakers.entry(who).or_insert_with(|| Speaker {
            terminal: logged_in(enter(server), login),
            waits_for: None,
            is_listening: false,
        });
        speaker.is_listening |= command.contains("SUBSCRIBE");
        speaker.terminal.say(real);
        if printed.is_empty() {
            speaker.waits_for = Some(command);
            let mut client = self.server.client();
            let blocked = ["rlock_waiters", "rlock_observers"];
            until(5000, || {
                let blocked = blocked.map(|field| client.info_number("rlock", field) as usize);
                blocked.iter().sum::<usize>() > waiting
            });
        } else {
            let replied = speaker.terminal.lines(printed.len());
            self.values.compare(printed, &replied, context);
        }
    }

    fn hear(&mut self, who: &'a str, printed: &[&str]) {
        let speaker = self.speakers.get_mut(who).expect("nobody of that name");
        let command = speaker.waits_for.take().unwrap_or("a message");
        let replied = speaker.terminal.lines(printed.len());
        let context = format!("{}: {who}< of {command}", self.place);
        self.values.compare(printed, &replied, &context);
    }

    fn waiting(&self) -> usize {
        self.speakers.values().filter(|speaker| speaker.waits_for.is_some()).count()
    }

    /// Asserts that nobody waits anymore, and that nobody has got a reply that the page does not
    /// show.
    fn end(self) {
        assert_eq!(self.waiting(), 0, "{}: somebody waits at the end", self.place);
        // Whoever subscribed is in a mode in which redis-cli reads no more commands.
        let asked = self.speakers.into_iter().filter(|(_, speaker)| !speaker.is_listening);
        for (who, mut speaker) in asked {
            speaker.terminal.say("ECHO end");
            let left = speaker.terminal.lines(1);
            assert!(left[0].contains("end"), "{}: {who} was told more: {left:?}", self.place);
        }
    }
}

/// A terminal in which that user has logged in.
fn logged_in(mut terminal: Program, login: Option<&str>) -> Program {
    if let Some(login) = login {
        terminal.say(&format!("AUTH {login}"));
        assert_eq!(terminal.lines(1), ["OK"], "{login}");
    }
    terminal
}

fn module_path() -> String {
    module().display().to_string()
}
