//! A snapshot as lines on a terminal: what is now, what happens per second, how long is waited, the longest queues.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

use crate::snapshot::{Queue, Snapshot};

/// Counters shown as rates, with what they are called.
const RATES: [(&str, &str); 8] = [
    ("acquired", "acquired"),
    ("handed_off", "handed off"),
    ("released", "released"),
    ("renewed", "renewed"),
    ("refused", "refused"),
    ("timed_out", "timed out"),
    ("expired", "expired"),
    ("deadlocks", "deadlocks"),
];

/// Draws `now`, with rates since `before`, which is an earlier snapshot of the same server.
pub fn draw(frame: &mut Frame, server: &str, before: Option<&Snapshot>, now: &Snapshot) {
    let [head, body] =
        Layout::vertical([Constraint::Length(5), Constraint::Fill(1)]).areas(frame.area());
    let mut lines = vec![Line::from(vec![server.to_owned().bold(), state(now).into()])];
    match before {
        Some(before) => lines.extend(rates(before, now)),
        None => lines.push("rates from the second look on".dim().into()),
    }
    lines.push(waits(before, now));
    frame.render_widget(Paragraph::new(lines), head);
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(5),
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let titles = ["LOCK", "WAITING", "FIRST FOR", "MODE", "HELD BY", "SINCE", "LEASE"];
    let table = Table::new(now.queues.iter().map(row), widths)
        .header(Row::new(titles).style(Style::new().bold()))
        .block(Block::new().title(if now.queues.is_empty() {
            "nobody waits"
        } else {
            "the longest queues"
        }));
    frame.render_widget(table, body);
}

fn state(now: &Snapshot) -> String {
    let [locks, waiters, tickets, sessions] =
        ["locks", "waiters", "tickets", "sessions"].map(|name| now.number(name));
    format!("   locks held {locks}   blocked {waiters}   tickets {tickets}   sessions {sessions}")
}

fn rates(before: &Snapshot, now: &Snapshot) -> [Line<'static>; 2] {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let each = RATES.map(|(name, title)| {
        #[expect(clippy::cast_precision_loss, reason = "a count of one look")]
        let count = now.number(name).saturating_sub(before.number(name)) as f64;
        format!("{title} {:.0}", count / seconds)
    });
    let (good, other) = each.split_at(each.len() / 2);
    [("per second: ", good), ("            ", other)]
        .map(|(start, part)| Line::from(format!("{start}{}", part.join("   "))))
}

/// From the histogram's buckets: those since the last look, or all when there is none.
fn waits(before: Option<&Snapshot>, now: &Snapshot) -> Line<'static> {
    let since = |name: &str| {
        now.number(name) - before.map_or(0, |old| old.number(name)).min(now.number(name))
    };
    let count = since("wait_us_count");
    if count == 0 {
        return Line::from("waits: none");
    }
    let mut buckets: Vec<(u64, u64)> = now
        .numbers
        .keys()
        .filter_map(|name| {
            let bound = name.strip_prefix("wait_us_le_")?;
            Some((bound.parse().unwrap_or(u64::MAX), since(name)))
        })
        .collect();
    buckets.sort_unstable();
    let below = |share: u64| {
        let enough = buckets.iter().find(|(_, reached)| reached * 100 >= count * share);
        match enough {
            Some(&(bound, _)) if bound < u64::MAX => {
                format!("under {}", short(Duration::from_micros(bound)))
            }
            _ => "over 10.0s".to_owned(),
        }
    };
    let mean = short(Duration::from_micros(since("wait_us_sum") / count));
    Line::from(format!("waits: {count}   mean {mean}   half {}   99 % {}", below(50), below(99)))
}

fn row(queue: &Queue) -> Row<'static> {
    let mut cells = vec![queue.key.clone(), queue.length.to_string(), short(queue.head_waits)];
    if let Some(first) = queue.holders.first() {
        let others = queue.holders.len() - 1;
        let others = if others == 0 { String::new() } else { format!(" +{others}") };
        let lease = if first.is_session { "session".to_owned() } else { short(first.left) };
        cells.extend([
            first.mode.clone(),
            format!("{}{others}", first.owner),
            short(first.held),
            lease,
        ]);
    }
    Row::new(cells)
}

/// A time in at most seven columns.
fn short(time: Duration) -> String {
    let (ms, s) = (time.as_millis(), time.as_secs());
    match s {
        0 if ms == 0 => format!("{}us", time.as_micros()),
        0 => format!("{ms}ms"),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}
