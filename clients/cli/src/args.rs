//! The command line.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use rlock_client::{One, limit, read};

pub use crate::jobs::{IfItFails, Job, List, Mcp, Release, Run, Serve, Take};

fn text(word: OsString) -> Result<String, String> {
    word.into_string().map_err(|word| format!("'{}' is not UTF-8", word.display()))
}

fn is_option(word: &OsString) -> bool {
    word.len() > 1 && word.as_encoded_bytes().starts_with(b"-")
}

const JOBS: [&str; 10] =
    ["run", "top", "who", "watch", "queues", "ls", "release", "take", "serve", "mcp"];

fn known(job: &str) -> Result<&'static str, String> {
    let found = JOBS.iter().find(|known| **known == job);
    let wrong = || format!("unknown command '{job}': it must be one of {}", JOBS.join(", "));
    found.copied().ok_or_else(wrong)
}

/// Takes the options that name the server, which may stand before any command.
fn server_options(words: &mut VecDeque<OsString>) -> Result<Vec<OsString>, String> {
    let mut taken = Vec::new();
    while let Some(word) = words.front().and_then(|word| word.to_str()) {
        let (name, is_whole) = word.split_once('=').map_or((word, false), |(name, _)| (name, true));
        let takes_value = match name {
            "-u" | "--url" | "--sentinel" | "--cacert" | "--cert" | "--key" => !is_whole,
            "--cluster" => false,
            _ => break,
        };
        let name = name.to_owned();
        taken.extend(words.pop_front());
        if takes_value {
            taken.push(words.pop_front().ok_or(format!("{name} needs a value"))?);
        }
    }
    Ok(taken)
}

/// Parses the arguments after the program's name.
///
/// # Errors
/// A line that says what is wrong.
pub fn parse<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Result<Job, String> {
    let mut words: VecDeque<OsString> = words.into_iter().map(W::into).collect();
    let leading = server_options(&mut words)?;
    let Some(job) = words.pop_front().map(text).transpose()? else {
        return Err(no_command());
    };
    if matches!(job.as_str(), "-h" | "--help" | "help") {
        let about = words.pop_front().map(text).transpose()?;
        return Ok(Job::Help(about.as_deref().map(known).transpose()?));
    }
    if matches!(job.as_str(), "-V" | "--version") {
        return Ok(Job::Version);
    }
    if job.starts_with('-') {
        return Err(format!("'{job}' must stand after the command, as in rlock run {job} …"));
    }
    let name_of_job = known(&job)?;
    for word in leading.into_iter().rev() {
        words.push_front(word);
    }
    let (mut run, mut is_once, mut count) = (Run::default(), false, None);
    let mut free: Vec<String> = Vec::new();
    let (mut serve, mut mcp) = (Serve::default(), Mcp::default());
    let mut take = Take::default();
    let (mut list, mut is_all, mut is_sure) = (List::default(), false, false);
    while let Some(word) = words.pop_front() {
        if job == "run" && !run.command.is_empty() && !is_option(&word) {
            return Err("-c has the whole command already".into());
        }
        // For `run`, the second word begins the command; all words from there on belong to the
        // command.
        if job == "run" && !run.key.is_empty() && !is_option(&word) {
            run.command.push(word);
            run.command.extend(words.drain(..));
            break;
        }
        let word = text(word)?;
        let (name, given) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                (name.to_owned(), Some(value.to_owned()))
            }
            _ => (word.clone(), None),
        };
        let mut value = || match given.clone() {
            Some(value) => Ok(value),
            None => text(words.pop_front().ok_or(format!("{name} needs a value"))?),
        };
        match (job.as_str(), name.as_str()) {
            (_, "-h" | "--help") => return Ok(Job::Help(Some(name_of_job))),
            (_, "-u" | "--url") => run.at.urls.push(value()?),
            (_, "--cluster") => run.at.is_cluster = true,
            (_, "--sentinel") => run.at.sentinel = Some(value()?),
            (_, "--cacert") => run.at.authority = Some(value()?),
            (_, "--cert") => run.at.certificate = Some(value()?),
            (_, "--key") => run.at.key = Some(value()?),
            ("top" | "queues" | "ls" | "release" | "serve", "--all-databases") => {
                run.at.is_everywhere = true;
            }
            ("ls" | "release", "--owner") => list.owner = Some(value()?),
            ("ls", "--json") => list.is_json = true,
            ("release", "--all") => is_all = true,
            ("release", "--yes") => is_sure = true,
            ("take", "--owner") => take.owner = Some(value()?),
            ("take", "--lease") => take.lease = Some(time(&name, &value()?)?),
            ("take", "--acks") => take.acks = Some(number(&name, &value()?, 16)?),
            ("mcp", "--root") => mcp.root = Some(value()?),
            ("mcp", "--prefix") => mcp.prefix = Some(value()?),
            ("mcp", "--agent") => mcp.agent = Some(value()?),
            ("mcp", "--check") => mcp.check = Some(value()?),
            ("top", "--once") => is_once = true,
            ("top" | "queues", "-n" | "--count") => count = Some(number(&name, &value()?, 1000)?),
            ("serve", "--listen") => serve.listen = Some(address(&name, &value()?)?),
            ("serve", "--allow-host") => serve.hosts.push(value()?),
            ("serve", "--elections") => serve.elections.push(value()?),
            ("serve", "--allow-actions") => serve.allows_actions = true,
            ("run", "-w" | "--wait" | "--timeout") => run.wait = Some(time(&name, &value()?)?),
            ("run", "-n" | "--nonblock") => run.wait = Some(Duration::ZERO),
            ("run", "-s" | "--shared" | "--read") => run.is_read = true,
            ("run", "-x" | "-e" | "--exclusive") => run.is_read = false,
            ("run", "-c" | "--command") => {
                run.command = vec!["/bin/sh".into(), "-c".into(), value()?.into()];
            }
            ("run", "--limit") => run.limit = Some(number(&name, &value()?, 1_000_000)?),
            ("run", "--and") => run.others.push(One::from(value()?)),
            ("run", "--and-read") => run.others.push(read(value()?)),
            ("run", "--and-limit") => run.others.push(permit(&name, &value()?)?),
            ("run", "--lease") => run.lease = Some(time(&name, &value()?)?),
            ("run", "--acks") => run.acks = Some(number(&name, &value()?, 16)?),
            ("run", "--max-queue") => run.max_queue = Some(number(&name, &value()?, 1_000_000)?),
            ("run", "--owner") => run.owner = Some(value()?),
            ("run", "-E" | "--conflict-exit-code") => {
                run.conflict = Some(number(&name, &value()?, u8::MAX)?)
            }
            ("run", "-k" | "--kill-after") => run.kill_after = Some(time(&name, &value()?)?),
            ("run", "--foreground") => run.is_foreground = true,
            ("run", "--once-per") => run.once_per = Some(time(&name, &value()?)?),
            ("run", "--if-it-fails") => run.if_it_fails = Some(if_it_fails(&name, &value()?)?),
            ("run", "-v" | "--verbose") => run.is_verbose = true,
            ("run", "--") => run.command.extend(words.drain(..)),
            (_, option) if option.len() > 1 && option.starts_with('-') => {
                return Err(format!("'{option}' is not an option of rlock {job}"));
            }
            ("run", "") => return Err("the key to lock is empty".into()),
            ("run", _) => run.key = word,
            ("top" | "serve", url) if url.contains("://") => run.at.urls.push(word),
            _ => free.push(word),
        }
    }
    let at = || run.at.clone();
    match (job.as_str(), free.as_slice()) {
        ("run", []) if run.key.is_empty() => Err("no key to lock is given".into()),
        ("run", []) if run.command.is_empty() => Err("no command to run is given".into()),
        ("run", []) if !run.others.is_empty() && run.owner.is_some() => {
            Err("--owner is for one lock, without --and".into())
        }
        ("run", []) => once_per(&run).map(|()| Job::Run(Box::new(run))),
        ("top", []) => Ok(Job::Top { at: at(), is_once, count: count.unwrap_or(100) }),
        ("serve", []) => Ok(Job::Serve(Serve { at: at(), ..serve })),
        ("mcp", []) => Ok(Job::Mcp(Mcp { at: at(), ..mcp })),
        ("release", _) if list.owner.as_ref().is_none_or(String::is_empty) => {
            Err("release needs --owner NAME".into())
        }
        ("release", []) if !is_all => {
            Err("release needs a pattern of keys, or --all for all that the owner holds".into())
        }
        ("ls" | "release", [] | [_]) => {
            let list = List { at: at(), pattern: free.first().cloned(), ..list };
            Ok(if job == "ls" { Job::Ls(list) } else { Job::Release(Release { list, is_sure }) })
        }
        ("who", [key]) => Ok(Job::Who { at: at(), key: key.clone() }),
        ("watch", [key]) => Ok(Job::Watch { at: at(), key: key.clone() }),
        ("take", [key]) => Ok(Job::Take(Take { at: at(), key: key.clone(), ..take })),
        ("who" | "watch" | "take", []) => Err("no key is given".into()),
        ("queues", []) => Ok(Job::Queues { at: at(), count: count.unwrap_or(20) }),
        (_, [.., last]) => Err(format!("unexpected argument '{last}'")),
        _ => Err(no_command()),
    }
}

fn number<T: TryFrom<u64> + std::fmt::Display>(
    name: &str,
    text: &str,
    most: T,
) -> Result<T, String> {
    let wrong = || format!("{name} must be a whole number up to {most}, not '{text}'");
    let number = text.parse::<u64>().map_err(|_| wrong())?;
    let is_less = most.to_string().parse::<u64>().is_ok_and(|most| number <= most);
    T::try_from(number).ok().filter(|_| is_less).ok_or_else(wrong)
}

fn permit(name: &str, text: &str) -> Result<One, String> {
    let wrong = || format!("{name} must be N:KEY, like 3:encoder, not '{text}'");
    let (count, key) = text.split_once(':').ok_or_else(wrong)?;
    Ok(limit(key, number(name, count, 1_000_000)?))
}

fn no_command() -> String {
    format!("no command is given: it must be one of {}", JOBS.join(", "))
}

fn if_it_fails(name: &str, text: &str) -> Result<IfItFails, String> {
    match text {
        "keep" => Ok(IfItFails::Keep),
        "again" => Ok(IfItFails::Again),
        _ => Err(format!("{name} must be keep or again, not '{text}'")),
    }
}

/// Refuses the options that cannot be combined with `--once-per`.
fn once_per(run: &Run) -> Result<(), String> {
    let Some(every) = run.once_per else {
        let is_alone = run.if_it_fails.is_some();
        return if is_alone { Err("--if-it-fails needs --once-per".into()) } else { Ok(()) };
    };
    let others = [
        ("--read", run.is_read),
        ("--limit", run.limit.is_some()),
        ("--and", !run.others.is_empty()),
        ("--owner", run.owner.is_some()),
        ("--max-queue", run.max_queue.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, is_said)| *is_said) {
        return Err(format!("--once-per cannot be combined with {name}"));
    }
    if every < Duration::from_secs(1) {
        return Err("--once-per must be at least 1 second".into());
    }
    let is_again = run.if_it_fails == Some(IfItFails::Again);
    if run.lease.is_some() && !is_again {
        return Err("--lease needs --if-it-fails again: otherwise the lease is the interval".into());
    }
    Ok(())
}

fn address(name: &str, text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|_| {
        format!("{name} must be host:port of this machine, like 127.0.0.1:9121, not '{text}'")
    })?;
    found.next().ok_or_else(|| format!("{name}: '{text}' has no address"))
}

fn time(name: &str, text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 24.0 * 3600.0,
        _ => f64::NAN,
    };
    let seconds = digits.parse::<f64>().map_or(f64::NAN, |count| count * unit);
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time <= Duration::from_secs(7 * 24 * 3600) => Ok(time),
        _ => Err(format!(
            "{name} must be a time like 10, 500ms, 2m, 1h or 7d, up to seven days, not '{text}'"
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Job, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_after_the_command_are_passed_to_it() {
        let Ok(Job::Run(run)) = parsed("run backup --wait 500ms --limit=3 ls -w x --read") else {
            panic!()
        };
        assert_eq!(
            (run.key.as_str(), run.command.join(" ".as_ref())),
            ("backup", OsString::from("ls -w x --read"))
        );
        assert_eq!(
            (run.wait, run.limit, run.is_read),
            (Some(Duration::from_millis(500)), Some(3), false)
        );
        let Ok(Job::Run(run)) = parsed("run -n --lease 1.5m backup -- -odd") else { panic!() };
        assert_eq!(
            (run.wait, run.command.as_slice()),
            (Some(Duration::ZERO), [OsString::from("-odd")].as_slice())
        );
        assert_eq!(run.lease, Some(Duration::from_secs(90)));
    }

    #[test]
    fn the_options_of_flock_are_understood() {
        let Ok(Job::Run(run)) = parsed("run -s --timeout 5 backup -c date") else { panic!() };
        assert_eq!((run.is_read, run.wait), (true, Some(Duration::from_secs(5))));
        assert_eq!(run.command.join(" ".as_ref()), OsString::from("/bin/sh -c date"));
        let Ok(Job::Run(run)) = parsed("run -x backup date") else { panic!() };
        assert!(!run.is_read);
    }

    #[test]
    fn an_empty_key_is_refused() {
        assert_eq!(parse(["run", "", "ls"]).map(drop), Err("the key to lock is empty".to_owned()));
    }

    #[test]
    fn each_error_in_a_command_line_is_explained() {
        for (line, text) in [
            ("", "no command is given"),
            ("fly", "unknown command 'fly'"),
            ("run", "no key to lock"),
            ("run k", "no command to run"),
            ("run k --wait soon ls", "--wait must be a time like 10"),
            ("run k --wait -1 ls", "--wait must be a time like 10"),
            ("run k --limit many ls", "--limit must be a whole number up to 1000000"),
            ("run k --and-limit 3 ls", "--and-limit must be N:KEY"),
            ("run k --and l --owner me ls", "--owner is for one lock"),
            ("run k --acks 17 ls", "--acks must be a whole number up to 16"),
            ("run k --wait", "--wait needs a value"),
            ("run k --quick ls", "'--quick' is not an option of rlock run"),
            ("who", "no key is given"),
            ("who a b", "unexpected argument 'b'"),
            ("watch", "no key is given"),
            ("watch a b", "unexpected argument 'b'"),
            ("queues -n 0x", "--count must be a whole number"),
            ("serve --listen 9121", "--listen must be host:port of this machine"),
            ("serve a", "unexpected argument 'a'"),
            ("top --allow-actions", "not an option of rlock top"),
            ("ls a b", "unexpected argument 'b'"),
            ("ls --yes", "'--yes' is not an option of rlock ls"),
            ("release a", "release needs --owner NAME"),
            ("release --owner ann", "release needs a pattern of keys, or --all"),
            ("run k --once-per 1h --read ls", "--once-per cannot be combined with --read"),
            ("run k --once-per 1h --owner a ls", "--once-per cannot be combined with --owner"),
            ("run k --once-per 1h --lease 9 ls", "--lease needs --if-it-fails again"),
            ("run k --once-per 5ms ls", "--once-per must be at least 1 second"),
            ("run k --if-it-fails again ls", "--if-it-fails needs --once-per"),
            ("run k --once-per 1h --if-it-fails ask ls", "must be keep or again, not 'ask'"),
        ] {
            let error = parsed(line).map(drop).unwrap_err();
            assert!(
                error.contains(text) || error.replace("-n", "--count").contains(text),
                "{line}: {error}"
            );
        }
    }
}
