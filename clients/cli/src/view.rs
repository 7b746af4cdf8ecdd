//! Draws a snapshot as lines on a terminal: current numbers, rates per second, times waited and
//! held, the longest queues, and one lock in detail.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};

use crate::histogram::{Histogram, Percentile};
use crate::snapshot::{Holder, Lock, Name, Queue, Snapshot, Waiter};

/// Counters that are shown as rates, with their labels.
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

/// Draws `now`, with rates since `before`, which is an earlier snapshot of the same servers.
/// `chosen` is the selected row.
pub fn draw(
    frame: &mut Frame,
    name: &str,
    before: Option<&Snapshot>,
    now: &Snapshot,
    chosen: Option<usize>,
) {
    let [head, body] =
        Layout::vertical([Constraint::Length(6), Constraint::Fill(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(name, before, now)), head);
    // A printed page is as wide as the names need; on a screen, the names share the width.
    let (key, owner) = match chosen {
        None => {
            let (key, owner) = names(now);
            (Constraint::Length(key), Constraint::Length(owner))
        }
        Some(_) => (Constraint::Fill(2), Constraint::Fill(2)),
    };
    let widths = [
        key,
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(5),
        owner,
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let titles = ["LOCK", "WAITING", "FIRST FOR", "MODE", "HELD BY", "SINCE", "LEASE"];
    let title = match (now.queues.is_empty(), chosen) {
        (true, _) => "nobody waits",
        (false, None) => "the longest queues",
        (false, Some(_)) => "the longest queues   up, down: choose   Enter: details q: quit",
    };
    let rows = now.queues.iter().map(|queue| row(queue, now.is_everywhere));
    table(frame, body, title, &titles, &widths, rows, chosen);
}

fn head_lines(name: &str, before: Option<&Snapshot>, now: &Snapshot) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(vec![name.to_owned().bold(), state(now).into()])];
    match before {
        Some(before) => lines.extend(rates(before, now)),
        None => lines.push("rates follow with the next update".dim().into()),
    }
    lines.push(spans(before, now, "wait", "waits"));
    lines.push(spans(before, now, "hold", "holds"));
    lines
}

/// A longer name is cut, so that a page of a thousand of them stays small.
const NAME_WIDTH_MAX: usize = 500;

/// How wide the names of the locks are, and those of their holders.
fn names(now: &Snapshot) -> (u16, u16) {
    let widest = |all: &mut dyn Iterator<Item = usize>| {
        u16::try_from(all.max().unwrap_or(0).clamp(8, NAME_WIDTH_MAX)).unwrap_or(8)
    };
    let keys = &mut now.queues.iter().map(|queue| queue.name(now.is_everywhere).len());
    let owners = &mut now.queues.iter().map(|queue| held_by(queue).len());
    (widest(keys), widest(owners))
}

/// The width of a page on which nothing is cut.
#[must_use]
pub fn page_width(name: &str, now: &Snapshot) -> u16 {
    let (key, owner) = names(now);
    let table = key + owner + 7 + 10 + 5 + 9 + 9 + 6; // and the columns between them
    let lines = head_lines(name, None, now);
    let head = lines.iter().map(Line::width).max().unwrap_or(0);
    table.max(u16::try_from(head).unwrap_or(u16::MAX))
}

fn held_by(queue: &Queue) -> String {
    match queue.lock.as_ref().map_or(&[][..], |lock| &lock.holders) {
        [] => String::new(),
        [one] => one.owner.to_string(),
        [first, others @ ..] => format!("{} +{}", first.owner, others.len()),
    }
}

/// Draws one lock: who holds it, who waits for it.
pub fn draw_lock(frame: &mut Frame, name: &str, key: &Name, lock: &Lock) {
    let rows =
        u16::try_from(lock.holders.len()).unwrap_or(u16::MAX).min(frame.area().height / 3).max(1);
    let [head, holders, waiters] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(rows.saturating_add(3)),
        Constraint::Fill(1),
    ])
    .areas(frame.area());
    let observers = match lock.observers {
        0 => String::new(),
        observers => format!("   observed by {observers}"),
    };
    let (mode, holders_count, length) = (&lock.mode, lock.holder_count, lock.length);
    let state = format!("   {mode}   held by {holders_count}   awaited by {length}{observers}");
    let lines = vec![
        Line::from(vec![key.to_string().bold(), state.into()]),
        Line::from(format!("{name}   Esc: back   q: quit")).dim(),
    ];
    frame.render_widget(Paragraph::new(lines), head);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(16),
    ];
    let titles = ["HELD BY", "MODE", "DEPTH", "SINCE", "LEASE", "SESSION", "TOKEN"];
    table(frame, holders, "holders", &titles, &widths, lock.holders.iter().map(holder_row), None);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(7),
    ];
    let titles = ["WAITS", "MODE", "KIND", "SINCE", "STILL", "CLIENT", "LIMIT"];
    let title =
        if lock.waiters.is_empty() { "nobody waits" } else { "waiters, first in line on top" };
    table(frame, waiters, title, &titles, &widths, lock.waiters.iter().map(waiter_row), None);
}

fn table<'a>(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    titles: &[&str; 7],
    widths: &[Constraint; 7],
    rows: impl Iterator<Item = Row<'a>>,
    chosen: Option<usize>,
) {
    let table = Table::new(rows, widths)
        .header(Row::new(titles.map(str::to_owned)).style(Style::new().bold()))
        .row_highlight_style(Style::new().reversed())
        .block(Block::new().title(title.to_owned()));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

fn state(now: &Snapshot) -> String {
    let [locks, waiters, tells, tickets, sessions, observers] =
        ["locks", "waiters", "tells", "tickets", "sessions", "observers"]
            .map(|name| now.number(name));
    let shut = if now.number("gate_shut") > 0 { "   NO WRITES" } else { "" };
    let observers = if observers > 0 { format!("   observers {observers}") } else { String::new() };
    format!(
        "   locks held {locks}   blocked {waiters}   by message {tells}   tickets {tickets}   sessions {sessions}\
         {observers}{shut}"
    )
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

/// Times waited or held, from the histogram's buckets: those since the last look, or all if this is
/// the first.
fn spans(before: Option<&Snapshot>, now: &Snapshot, kind: &str, title: &str) -> Line<'static> {
    let Some(all) = Histogram::of(&now.numbers, kind) else { return Line::default() };
    let spans = match before.and_then(|before| Histogram::of(&before.numbers, kind)) {
        Some(before) => all.since(&before),
        None => all,
    };
    let Some(mean) = spans.mean() else { return Line::from(format!("{title}: none")) };
    let shares = [("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999)];
    let each = shares.map(|(name, share)| match spans.percentile(share) {
        Percentile::About(time) => format!("{name} ~{}", short(time)),
        Percentile::Over(time) => format!("{name} over {}", short(time)),
    });
    Line::from(format!("{title}: {}   mean {}   {}", spans.count, short(mean), each.join("   ")))
}

fn row(queue: &Queue, is_everywhere: bool) -> Row<'static> {
    let key = queue.name(is_everywhere);
    let mut cells = vec![key, queue.length.to_string(), short(queue.head_waits)];
    let holders = queue.lock.as_ref().map_or(&[][..], |lock| &lock.holders);
    if let [first, ..] = holders {
        cells.extend([first.mode.clone(), held_by(queue), short(first.held), lease(first)]);
    }
    Row::new(cells)
}

fn lease(hold: &Holder) -> String {
    if hold.session == 0 { short(hold.left) } else { "session".to_owned() }
}

fn holder_row(hold: &Holder) -> Row<'static> {
    Row::new([
        hold.owner.to_string(),
        hold.mode.clone(),
        hold.depth.to_string(),
        short(hold.held),
        short(hold.left),
        some(hold.session),
        hold.token.to_string(),
    ])
}

fn waiter_row(wait: &Waiter) -> Row<'static> {
    let kind = if wait.has_turn { "turn".to_owned() } else { wait.kind.clone() };
    Row::new([
        wait.owner.to_string(),
        wait.mode.clone(),
        kind,
        short(wait.waited),
        wait.left.map_or("forever".to_owned(), short),
        some(wait.client),
        some(wait.limit),
    ])
}

fn some(number: u64) -> String {
    if number == 0 { "-".to_owned() } else { number.to_string() }
}

/// A time in at most seven columns.
#[must_use]
pub fn short(time: Duration) -> String {
    let (ms, s) = (time.as_millis(), time.as_secs());
    match s {
        0 if ms == 0 => format!("{}us", time.as_micros()),
        0 => format!("{ms}ms"),
        1..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}
