//! Traces: the inputs and outputs of machines, in the format of `clients/traces/README.md`.

use std::fmt::Write;

use super::machine::*;

fn time(ms: Ms) -> String {
    if ms == FOREVER { "forever".into() } else { ms.to_string() }
}

/// The first line of an attempt, without its number.
pub fn attempt_line(ask: &Ask) -> String {
    let Ask { wait, patience, outage, lease, depth, .. } = *ask;
    let [wait, outage] = [wait, outage].map(time);
    let [hears, session, acks] = [ask.hears, ask.session, ask.has_acks].map(u8::from);
    let below = ask.below.map_or(String::new(), |token| format!(" below={token}"));
    format!(
        "attempt wait={wait} patience={patience} outage={outage} lease={lease} depth={depth}{below} \
         hears={hears} session={session} acks={acks}"
    )
}

/// The first line of a release.
pub fn release_line(level: &Level) -> String {
    let Level { patience, lease, depth, token, deadline, lingers } = *level;
    format!(
        "release patience={patience} lease={lease} depth={depth} token={token} \
         deadline={deadline} lingers={}",
        u8::from(lingers)
    )
}

/// The first line of a hold.
pub fn hold_line(kept: &Kept) -> String {
    let Kept { token, lease, sent, margin, .. } = *kept;
    let [session, acks, renews] = [kept.session, kept.has_acks, kept.renews].map(u8::from);
    format!(
        "hold lease={lease} sent={sent} token={token} margin={margin} session={session} \
         acks={acks} renews={renews}"
    )
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Token(token) => format!("token {token}"),
        Outcome::Nil => "nil".into(),
        Outcome::Waiting => "waiting".into(),
        Outcome::Refused(code) => format!("refused {code}"),
        Outcome::Unsent => "unsent".into(),
        Outcome::Broken => "broken".into(),
        Outcome::Silent => "silent".into(),
    }
}

/// An input in the format of a trace.
pub fn input(input: &Input) -> String {
    match input {
        Input::Call => "call".into(),
        Input::Opened => "opened".into(),
        Input::Ended(ended) => outcome(ended),
        Input::Own(ended) => format!("own {}", outcome(ended)),
        Input::Listening(rtt) => format!("listening {rtt}"),
        Input::Message(ended) => format!("message {}", outcome(ended)),
        Input::Lost => "lost".into(),
        Input::Time => "time".into(),
        Input::Taken => "taken".into(),
        Input::Cancel => "cancel".into(),
        Input::Close => "close".into(),
        Input::Untied => "ended".into(),
        Input::Seat(Some(depth)) => format!("seat yes {depth}"),
        Input::Seat(None) => "seat no".into(),
        Input::Releasing => "releasing".into(),
        Input::Released => "released".into(),
        Input::Gone => "gone".into(),
        Input::Extend(sent) => format!("extend {sent}"),
    }
}

fn request(request: &Request) -> String {
    match request {
        Request::Acquire(None) => "acquire".into(),
        Request::Acquire(Some(ms)) => format!("acquire block={ms}"),
        Request::Renew(token) => format!("renew {token}"),
        Request::Cancel => "cancel".into(),
        Request::Info => "info".into(),
        Request::Release(token, depth) => format!("release {token} {depth}"),
    }
}

fn told(tell: &Tell) -> String {
    match tell {
        Tell::Granted(token, sent, lingers) => {
            format!("granted {token} sent={sent}{}", if *lingers { " lingers=1" } else { "" })
        }
        Tell::Nil => "nil".into(),
        Tell::Released => "released".into(),
        Tell::Lost => "lost".into(),
        Tell::Unavailable => "unavailable".into(),
        Tell::NoReplicas => "noreplicas".into(),
        Tell::Refused(code) => format!("refused {code}"),
        Tell::Cancelled => "cancelled".into(),
        Tell::Closed => "closed".into(),
    }
}

/// An output in the format of a trace.
pub fn output(output: &Output) -> String {
    match output {
        Output::Open(by) => format!("open by={}", time(*by)),
        Output::Own { block, session, depth, by } => {
            let mut text = String::from("own acquire");
            if let Some(ms) = block {
                let _ = write!(text, " block={ms}");
            }
            text.push_str(if *session { " session" } else { "" });
            if let Some(depth) = depth {
                let _ = write!(text, " depth={depth}");
            }
            text + " by=" + &time(*by)
        }
        Output::Send(what, by) => format!("send {} by={}", request(what), time(*by)),
        Output::Await(by) => format!("await by={}", time(*by)),
        Output::Listen(by) => format!("listen by={}", time(*by)),
        Output::Wait(by) => format!("wait by={}", time(*by)),
        Output::Sleep(by) => format!("sleep by={}", time(*by)),
        Output::Seat => "seat".into(),
        Output::Keep => "keep".into(),
        Output::Drop => "drop".into(),
        Output::Tell(tell) => format!("tell {}", told(tell)),
        Output::Undo => "undo".into(),
        Output::Free => "free".into(),
        Output::Doubt => "doubt".into(),
        Output::Tied => "tied".into(),
        Output::Leave => "leave".into(),
        Output::Done => "done".into(),
    }
}

/// A line of a trace.
pub fn line(now: Ms, told: &Input, outputs: &[Output]) -> String {
    let all: Vec<String> = outputs.iter().map(output).collect();
    let all = if all.is_empty() { "-".into() } else { all.join("; ") };
    format!("{now} {} -> {all}", input(told))
}

fn read_outcome(words: &[&str]) -> Option<Outcome> {
    Some(match words {
        ["token", token] => Outcome::Token(token.parse().ok()?),
        ["nil"] => Outcome::Nil,
        ["waiting"] => Outcome::Waiting,
        ["refused", code] => Outcome::Refused((*code).into()),
        ["unsent"] => Outcome::Unsent,
        ["broken"] => Outcome::Broken,
        ["silent"] => Outcome::Silent,
        _ => return None,
    })
}

fn read_input(words: &[&str]) -> Option<Input> {
    Some(match words {
        ["call"] => Input::Call,
        ["opened"] => Input::Opened,
        ["own", rest @ ..] => Input::Own(read_outcome(rest)?),
        ["listening", rtt] => Input::Listening(rtt.parse().ok()?),
        ["message", rest @ ..] => Input::Message(read_outcome(rest)?),
        ["lost"] => Input::Lost,
        ["time"] => Input::Time,
        ["taken"] => Input::Taken,
        ["cancel"] => Input::Cancel,
        ["close"] => Input::Close,
        ["ended"] => Input::Untied,
        ["seat", "yes", depth] => Input::Seat(Some(depth.parse().ok()?)),
        ["seat", "no"] => Input::Seat(None),
        ["releasing"] => Input::Releasing,
        ["released"] => Input::Released,
        ["gone"] => Input::Gone,
        ["extend", sent] => Input::Extend(sent.parse().ok()?),
        rest => Input::Ended(read_outcome(rest)?),
    })
}

/// The machine of a first line, `trace <number> <machine> <name>=<value> …`.
fn begun(words: &[&str]) -> Option<Box<dyn Machine>> {
    let value = |name: &str| {
        let mut pairs = words.iter().filter_map(|word| word.split_once('='));
        let text = pairs.find(|(key, _)| *key == name)?.1;
        if text == "forever" { Some(FOREVER) } else { text.parse().ok() }
    };
    let is = |name: &str| Some(value(name)? == 1);
    let planted = Planted::Nothing;
    let depth = || value("depth")?.try_into().ok();
    Some(match *words.get(2)? {
        "attempt" => {
            let ask = Ask {
                wait: value("wait")?,
                patience: value("patience")?,
                outage: value("outage")?,
                lease: value("lease")?,
                depth: depth()?,
                below: value("below"),
                hears: is("hears")?,
                session: is("session")?,
                has_acks: is("acks")?,
            };
            Box::new(Attempt::new(ask, planted))
        }
        "release" => {
            let (patience, lease) = (value("patience")?, value("lease")?);
            let (token, deadline) = (value("token")?, value("deadline")?);
            let (depth, lingers) = (depth()?, is("lingers")?);
            let level = Level { patience, lease, depth, token, deadline, lingers };
            Box::new(Release::new(level, planted))
        }
        "hold" => {
            let kept = Kept {
                token: value("token")?,
                lease: value("lease")?,
                sent: value("sent")?,
                margin: value("margin")?,
                session: is("session")?,
                has_acks: is("acks")?,
                renews: is("renews")?,
            };
            Box::new(Hold::new(kept, planted))
        }
        _ => return None,
    })
}

/// Replays the traces in `text`. Returns their number. # Errors The first line with different
/// outputs, or that cannot be parsed.
///
/// # Errors
/// The first line that the machine answers otherwise, or that nobody can read.
pub fn replay(text: &str) -> Result<u64, String> {
    let (mut machine, mut count, mut title): (Option<Box<dyn Machine>>, _, _) = (None, 0, "");
    for text in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = text.split(' ').collect();
        let unread = || format!("{title}\n{text}\ncannot be read");
        match words.as_slice() {
            ["trace", ..] => {
                (machine, count, title) = (Some(begun(&words).ok_or_else(unread)?), count + 1, text)
            }
            ["end"] => machine = None,
            [now, rest @ ..] => {
                let arrow = rest.iter().position(|word| *word == "->").ok_or_else(unread)?;
                let now = now.parse().map_err(|_| unread())?;
                let told = rest.get(..arrow).and_then(read_input).ok_or_else(unread)?;
                let mut out = Vec::new();
                machine.as_mut().ok_or_else(unread)?.step(now, told.clone(), &mut out);
                let answer = line(now, &told, &out);
                if answer != text {
                    return Err(format!("{title}\nexpected: {text}\nanswered: {answer}"));
                }
            }
            [] => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_traces_in_the_repository_are_answered_as_they_are() {
        let text = include_str!("../../../traces/golden.txt");
        assert_eq!(super::replay(text).map(|count| count >= 24), Ok(true));
        // If RLOCK_TRACES names a file, replays its traces as well.
        if let Ok(file) = std::env::var("RLOCK_TRACES") {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            assert_eq!(super::replay(&text).map(|count| count > 0), Ok(true));
        }
    }
}
