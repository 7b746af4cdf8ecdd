//! What `--help` prints: the help of all commands, or of one.

/// The commands, with a line of help for each.
const JOBS: [(&str, &str); 10] = [
    (
        "run",
        "rlock run KEY [options] [--] COMMAND...  run a command while holding the lock KEY (or -c 'SHELL COMMAND')",
    ),
    (
        "top",
        "rlock top [options] [URL]                show a live view: queues, holders, waiters, rates",
    ),
    ("who", "rlock who KEY [options]                  show who holds KEY, and who waits for it"),
    (
        "watch",
        "rlock watch KEY [options]                print a line each time the holder of KEY changes",
    ),
    ("queues", "rlock queues [options]                   print the longest queues"),
    (
        "ls",
        "rlock ls [PATTERN] [options]             list all holds, or those whose keys match PATTERN",
    ),
    ("release", "rlock release --owner NAME [PATTERN]     release what an owner holds"),
    (
        "take",
        "rlock take KEY [options]                 end all holds of KEY and hold it, ahead of all waiters",
    ),
    (
        "serve",
        "rlock serve [options]                    serve a live page for browsers, and metrics for Prometheus",
    ),
    (
        "mcp",
        "rlock mcp [options]                      let an agent claim files, over the Model Context Protocol",
    ),
];

const SERVER: &str = "\
The server, for all commands (these options may also stand before the command):
  -u, --url URL       redis://[[user]:password@]host[:port][/db], rediss:// for TLS, unix:///path for a socket.
                      Repeat it for more nodes or Sentinels; `serve` watches each server that is named.
                      Default: $RLOCK_URL, else redis://127.0.0.1:6379. $REDISCLI_AUTH is the password if no URL has one
  --cluster           the URLs are nodes of a Cluster
  --sentinel NAME     the URLs are Sentinels, which monitor the primary under NAME
  --cacert FILE       trust this certificate authority instead of the system's
  --cert FILE, --key FILE   the client's certificate, and the certificate's key
";

const RUN: &str = "\
run:
  -w, --wait TIME     (--timeout) wait at most this long; with 0 or -n, do not wait. Default: no limit
  -s, --read          (--shared) acquire the read lock, which is shared; -x, the default, acquires the write lock
  --limit N           acquire one of N permits
  --and KEY           also acquire this lock, in one step: all locks, or none; --and-read KEY: its read lock;
                      --and-limit N:KEY: one of its N permits. Repeat these options for more locks
  --lease TIME        how long the lock lasts if nothing renews it, as after a failover (30)
  --acks N            the lock counts only once N replicas have acknowledged it
  --max-queue N       do not wait if N others are already waiting
  --owner NAME        the owner's name, which no other run may have at the same time. Default: host/pid/number
  -E, --conflict-exit-code N   the exit code when the lock is not acquired (1)
  -k, --kill-after TIME        kill a command that outlives the loss of the lock by this long (5)
  --once-per TIME     at most one run in each interval of this length, on all machines: the lock is kept that long
  --if-it-fails keep|again   after a run that failed: no other run in the interval (the default), or another may begin
  -v, --verbose       say on standard error what is done: connected, waiting behind whom, acquired, renewed, released
  --foreground        leave the command in this process group: it can read from the terminal, and if the lock is lost,
                      the processes that it started are not ended. The default if the input is a terminal
";

const TOP: &str = "\
top:
  --once              print one snapshot
  -n, --count N       how many locks to show (100)
  --all-databases     show the locks of all databases, not only of the one that the URL names
";

const QUEUES: &str = "\
queues:
  -n, --count N       how many locks to show (20)
  --all-databases     show the locks of all databases, not only of the one that the URL names
";

const LS: &str = "\
ls:
  PATTERN             only locks whose keys match, as in SCAN: * stands for any text, ? for one character
  --owner NAME        only this owner's holds; an asterisk at the end stands for any rest, as in 'web3/*'
  --json              a JSON object for each lock
  --all-databases     list the locks of all databases, not only of the one that the URL names
";

const RELEASE: &str = "\
release:
  --owner NAME        whose holds; an asterisk at the end stands for any rest, as in 'web3/*'
  PATTERN, or --all   only locks whose keys match, as in SCAN, or all that the owner holds
  --yes               release them; without this option, they are only listed
  --all-databases     in all databases, not only in the one that the URL names
";

const TAKE: &str = "\
take:
  --owner NAME        who holds KEY then. Default: $USER/take
  --lease TIME        for how long (600)
  --acks N            the lock counts only once N replicas have acknowledged it
";

const SERVE: &str = "\
serve:
  --listen HOST:PORT  the address to which browsers and Prometheus connect (127.0.0.1:9121)
  --allow-host NAME   also answer requests for this name, not only for localhost and IP addresses; repeat it for more
  --elections PREFIX  keys with this prefix are leader elections, which are held for a long time; repeat it for more
  --all-databases     show and measure the locks of all databases, not only of the one that the URL names
  --allow-actions     anybody with the token in $RLOCK_SERVE_TOKEN can force locks, cancel waits and kill connections
";

const MCP: &str = "\
mcp:
  --root FOLDER       the repository whose paths are claimed (.)
  --prefix TEXT       what the keys begin with ({paths:NAME}, with the folder's name)
  --agent NAME        the agent's name, with which its owners begin. Default: $RLOCK_AGENT, else host/pid
  --check PATH        only say whether this agent has claimed PATH: exit code 0, or 1 if it has not
";

const CODES: &str = "\
TIME is in seconds, or has a unit: 500ms, 10s, 2m, 1h, 7d.
The command has RLOCK_KEY, RLOCK_TOKEN and RLOCK_OWNER in its environment. If the lock is lost, it gets TERM, then KILL.
Exit codes: the command's; 128 + n if signal n ended it; 1 if the lock was not acquired, or somebody else ran in this
interval; 124 if it was lost (137 if KILL was needed); 125 if rlock itself failed; 126 if the command cannot be run; 127
if it is not found.
";

/// The help of one command, or of all.
#[must_use]
pub fn help(job: Option<&str>) -> String {
    let is_wanted = |name: &str| job.is_none_or(|job| job == name);
    let mut lines: Vec<&str> =
        JOBS.iter().filter(|(name, _)| is_wanted(name)).map(|(_, line)| *line).collect();
    if job.is_none() {
        lines.extend([
            "rlock help COMMAND                       explain one command",
            "rlock --version",
        ]);
    }
    let own = [
        ("run", RUN),
        ("top", TOP),
        ("queues", QUEUES),
        ("ls", LS),
        ("release", RELEASE),
        ("take", TAKE),
        ("serve", SERVE),
        ("mcp", MCP),
        ("run", CODES),
    ];
    let own = own.iter().filter(|(name, _)| is_wanted(name)).map(|(_, text)| *text);
    let sections: Vec<String> = std::iter::once(lines.join("\n") + "\n")
        .chain(std::iter::once(SERVER.to_owned()))
        .chain(own.map(str::to_owned))
        .collect();
    sections.join("\n")
}
