//! The databases that compare tokens: PostgreSQL, where its programs are installed, and SQLite by
//! Python's standard library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rlock_testkit::{Program, say_not_seen, until};

/// Where a session's `sql>` lines go: one connection.
pub struct Database {
    terminal: Program,
    folder: PathBuf,
    /// PostgreSQL's server.
    process: Option<Child>,
}

/// The user that PostgreSQL runs as if the tests run as root, which it refuses.
const NOBODY: &str = "65534";

/// Prints for each line of input its rows as psql prints them without alignment, or its command
/// tag.
const SQLITE: &str = "
import sqlite3, sys
database = sqlite3.connect(':memory:', isolation_level=None)
for statement in sys.stdin:
    verb = statement.split()[0].upper().rstrip(';')
    done = database.execute(statement)
    if verb == 'SELECT':
        for row in done: print('|'.join(str(value) for value in row), flush=True)
    else:
        tags = {'CREATE': 'CREATE TABLE', 'INSERT': 'INSERT 0 %d', 'UPDATE': 'UPDATE %d'}
        tag = tags.get(verb, verb)
        print(tag % done.rowcount if '%' in tag else tag, flush=True)
";

impl Database {
    /// The databases with which a session is to be played, one after the other; `None` for a
    /// session without SQL, which is played once.
    pub fn each_for(session: &str) -> Vec<Option<Database>> {
        if !session.contains("sql> ") {
            return vec![None];
        }
        let each: Vec<_> = [postgres(), sqlite()].into_iter().flatten().map(Some).collect();
        assert!(!each.is_empty(), "neither PostgreSQL nor Python is here to play a session with");
        each
    }

    /// The lines that are printed for the statement; there must be this many.
    #[track_caller]
    pub fn ask(&mut self, statement: &str, lines: usize) -> Vec<String> {
        self.terminal.say(statement);
        self.terminal.lines(lines)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Ends it at once, with its children: it has nothing to keep.
            let quit = format!("kill -QUIT {}", process.id());
            Command::new("sh").args(["-c", &quit]).status().ok();
            process.wait().ok();
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn sqlite() -> Option<Database> {
    let has_sqlite = Command::new("python3").args(["-c", "import sqlite3"]).status();
    if !has_sqlite.is_ok_and(|status| status.success()) {
        say_not_seen("the fenced write with SQLite: there is no python3 with sqlite3");
        return None;
    }
    let mut python = Command::new("python3");
    let terminal = Program::of(python.args(["-c", SQLITE]));
    Some(Database { terminal, folder: new_folder(), process: None })
}

fn postgres() -> Option<Database> {
    let Some(programs) = postgres_programs() else {
        say_not_seen("the fenced write with PostgreSQL: there is no initdb");
        return None;
    };
    let folder = new_folder();
    if is_root() {
        let status = Command::new("chown").arg(NOBODY).arg(&folder).status().unwrap();
        assert!(status.success());
    }
    let mut initdb = as_user(&programs.join("initdb"));
    initdb.args(["-U", "rlock", "-A", "trust", "--no-sync", "-D"]).arg(folder.join("data"));
    let Ok(made) = initdb.output() else {
        say_not_seen(
            "the fenced write with PostgreSQL: there is no setpriv, and root may not run it",
        );
        fs::remove_dir_all(folder).unwrap();
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut server = as_user(&programs.join("postgres"));
    server.arg("-D").arg(folder.join("data")).arg("-k").arg(&folder);
    server.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let process = server.spawn().unwrap();
    until(60_000, || {
        psql(&programs, &folder).args(["-c", "SELECT 1"]).output().unwrap().status.success()
    });
    let terminal = Program::of(&mut psql(&programs, &folder));
    Some(Database { terminal, folder, process: Some(process) })
}

fn psql(programs: &Path, folder: &Path) -> Command {
    let mut psql = Command::new(programs.join("psql"));
    // Unaligned, rows only, and without the user's own settings.
    psql.args(["-A", "-t", "-X", "-U", "rlock", "-d", "postgres", "-h"]).arg(folder);
    psql
}

/// Where `initdb`, `postgres` and `psql` are: on PATH, or where Debian puts them.
fn postgres_programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    let is_whole = |place: &PathBuf| {
        ["initdb", "postgres", "psql"].iter().all(|program| place.join(program).is_file())
    };
    places.into_iter().find(is_whole)
}

fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command.current_dir("/");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}

fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("rlock-sql-{}-{number}", std::process::id()));
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).unwrap();
    folder
}
