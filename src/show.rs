//! What an operator sees: holders, waiters, queues and the slow log.

use rlock_core::grammar::{self, Command, commands};
use rlock_core::manager::{LongQueue, SlowEntry};
use rlock_core::{ClientId, Confirmation, Mode};
use rlock_engine::Keys;
use rlock_engine::reply::Replies;

use crate::ffi::Ctx;
use crate::invocation::{Invocation, Serve};
use crate::state;

/// `RLOCK.INFO`
pub struct ShowInfo;

/// A hold or a wait, field by field.
type Row = Vec<(&'static str, Field)>;

enum Field {
    Bytes(Vec<u8>),
    Word(&'static str),
    Number(i64),
    Rows(Vec<Row>),
}

impl Serve for ShowInfo {
    const COMMAND: &'static Command = &commands::INFO;

    fn serve(call: &Invocation<'_>) -> Result<(), String> {
        let (ctx, now) = (call.ctx, state::now());
        let db = ctx.db();
        let (mode, holder_count, mut holders, has_void_turns) = call.look(|lock| {
            let holders = lock.holds_at(now).take(call.args.holders).map(|(owner, mode, hold)| {
                let row: Row = vec![
                    ("owner", Field::Bytes(owner.to_vec())),
                    ("mode", Field::Word(mode.lower())),
                    ("depth", Field::Number(hold.depth.into())),
                    ("token", number(hold.token.get())),
                    ("ttl-ms", number(hold.deadline.left_at(now))),
                    ("held-ms", number(hold.token.age_ms(now))),
                ];
                (hold.token, row)
            });
            let mode = lock.mode_at(now).map_or("free", Mode::lower);
            let has_void_turns = state::with(|state| {
                let volatile = state.manager.volatile(db, call.args.key);
                volatile.is_some_and(|volatile| lock.has_void_turns(volatile, now))
            });
            (mode, lock.hold_count_at(now), holders.collect::<Vec<_>>(), has_void_turns)
        })?;
        let (queue_len, waiters) = state::with(|state| {
            let volatile = state.manager.volatile(db, call.args.key);
            for (token, row) in &mut holders {
                let session = volatile.and_then(|volatile| volatile.sessions.get(*token));
                row.push(("session", number(session.map_or(0, |session| session.client.get()))));
                let acks =
                    volatile.map_or(Confirmation::None, |volatile| volatile.confirmation(*token));
                row.push(("acks", Field::Word(acks.word())));
            }
            let Some(queue) = volatile.map(|volatile| &volatile.queue) else {
                return (0, Vec::new());
            };
            let rows = queue.iter().take(call.args.count).map(|(entry, has_turn)| {
                let told = entry.kind.number().and_then(|waiter| state.manager.told_line(waiter));
                let kind = match &told {
                    Some(_) => "tell",
                    None if entry.kind.is_ticket() => "queue",
                    None => "block",
                };
                let waited_ms = now.us().saturating_sub(entry.since.us()) / 1000;
                let group = entry.kind.group().and_then(|waiter| state.manager.group(waiter));
                let ends_at = group.map_or(entry.ends_at, |group| group.entry.ends_at);
                let remaining_ms = ends_at.map_or(Field::Number(-1), |at| number(at.left_at(now)));
                let blocked = entry.client.filter(|_| kind == "block");
                let channel = told.map_or_else(Vec::new, |line| line.channel.to_vec());
                let has_turn = has_turn && !has_void_turns;
                let keys = group.map_or(1, |group| group.keys.len());
                let at = match group {
                    Some(group) => group.next_key().map_or(&[][..], |key| &*key.key),
                    None if has_turn => &[],
                    None => call.args.key,
                };
                vec![
                    ("owner", Field::Bytes(entry.owner.as_bytes().to_vec())),
                    ("mode", Field::Word(entry.mode.lower())),
                    ("kind", Field::Word(kind)),
                    ("turn", Field::Number(has_turn.into())),
                    ("waited-ms", number(waited_ms)),
                    ("left-ms", remaining_ms),
                    ("limit", number(entry.limit.map_or(0, |limit| limit.get().into()))),
                    ("client", number(blocked.map_or(0, ClientId::get))),
                    ("keys", count(keys)),
                    ("at", Field::Bytes(at.to_vec())),
                    ("channel", Field::Bytes(channel)),
                ]
            });
            (queue.len(), rows.collect())
        });
        let observers = state::with(|state| state.manager.observers_of(db, call.args.key));
        // RESP2 clients read by position: a new field must be the last one.
        reply_row(
            ctx,
            vec![
                ("mode", Field::Word(mode)),
                ("holders", Field::Rows(holders.into_iter().map(|(_, row)| row).collect())),
                ("queue-length", count(queue_len)),
                ("waiters", Field::Rows(waiters)),
                ("holder-count", count(holder_count)),
                ("observers", count(observers)),
            ],
        );
        Ok(())
    }
}

fn number(value: u64) -> Field {
    Field::Number(value.cast_signed())
}

fn count(value: usize) -> Field {
    Field::Number(i64::try_from(value).unwrap_or(i64::MAX))
}

fn reply_rows(ctx: &Ctx, rows: Vec<Row>) {
    ctx.reply_array(rows.len());
    rows.into_iter().for_each(|row| reply_row(ctx, row));
}

fn reply_row(ctx: &Ctx, row: Row) {
    ctx.reply_map(row.len());
    row.into_iter().for_each(|(name, field)| reply_field(ctx, name, field));
}

fn reply_field(ctx: &Ctx, name: &str, field: Field) {
    ctx.reply_bytes(name.as_bytes());
    match field {
        Field::Bytes(bytes) => ctx.reply_bytes(&bytes),
        Field::Word(word) => ctx.reply_bytes(word.as_bytes()),
        Field::Number(value) => ctx.reply_integer(value),
        Field::Rows(rows) => reply_rows(ctx, rows),
    }
}

/// `RLOCK.PLACE`
pub struct ShowPlace;

impl Serve for ShowPlace {
    const COMMAND: &'static Command = &commands::PLACE;

    fn serve(call: &Invocation<'_>) -> Result<(), String> {
        if !state::with(|state| state.manager.is_primary()) {
            return Err("ERR this server is a replica: only the primary knows who waits".into());
        }
        let (db, now) = (call.ctx.db(), state::now());
        let place = call.look(|lock| {
            state::with(|state| {
                let volatile = state.manager.volatile(db, call.args.key)?;
                let (place, is_turn) = volatile.queue.place(call.args.owner)?;
                Some(if is_turn && !lock.has_void_turns(volatile, now) { 0 } else { place })
            })
        })?;
        match place {
            Some(place) => call.reply_count(u64::try_from(place).unwrap_or(u64::MAX)),
            None => call.ctx.reply_null(),
        }
        Ok(())
    }
}

/// `RLOCK.QUEUES`
pub struct ShowQueues;

impl Serve for ShowQueues {
    const COMMAND: &'static Command = &commands::QUEUES;

    fn serve(call: &Invocation<'_>) -> Result<(), String> {
        let (ctx, now) = (call.ctx, state::now());
        let (db, most) = (ctx.db(), call.args.count);
        let queues = state::with(|state| state.manager.longest_queues(db, most));
        ctx.reply_array(queues.len());
        for LongQueue { key, len, since } in queues {
            ctx.reply_array(3);
            ctx.reply_bytes(&key);
            ctx.reply_integer(i64::try_from(len).unwrap_or(i64::MAX));
            call.reply_count(now.us().saturating_sub(since.us()) / 1000);
        }
        Ok(())
    }
}

/// `RLOCK.SLOWLOG`
pub struct ShowSlowLog;

impl Serve for ShowSlowLog {
    const COMMAND: &'static Command = &commands::SLOWLOG;

    fn serve(call: &Invocation<'_>) -> Result<(), String> {
        let ctx = call.ctx;
        match call.args.slowlog {
            grammar::SlowLogRequest::Len => {
                let len = state::with(|state| state.manager.slowlog.count());
                call.reply_count(u64::try_from(len).unwrap_or(u64::MAX));
            }
            grammar::SlowLogRequest::Reset => {
                state::with(|state| state.manager.slowlog.clear());
                ctx.reply_ok();
            }
            grammar::SlowLogRequest::Get(most) => {
                let entries: Vec<SlowEntry> = state::with(|state| {
                    state.manager.slowlog.newest().take(most).cloned().collect()
                });
                ctx.reply_array(entries.len());
                entries.iter().for_each(|entry| reply_slow(ctx, entry));
            }
        }
        Ok(())
    }
}

fn reply_slow(ctx: &Ctx, entry: &SlowEntry) {
    let text = |text: String| Field::Bytes(text.into_bytes());
    let fields = [
        ("id", number(entry.id)),
        ("unix-ms", number(entry.unix_ms)),
        ("kind", Field::Word(entry.kind)),
        ("db", Field::Number(entry.db.into())),
        ("key", text(entry.key())),
        ("owner", text(entry.owner())),
        ("mode", Field::Word(entry.mode)),
        ("limit", number(entry.limit.into())),
        ("ms", number(entry.ms)),
        ("outcome", Field::Word(entry.outcome)),
    ];
    ctx.reply_map(fields.len().saturating_add(2));
    fields.into_iter().for_each(|(name, field)| reply_field(ctx, name, field));
    ctx.reply_bytes(b"holders");
    let holders = entry.holders();
    ctx.reply_array(holders.len());
    for (owner, key) in holders {
        if let Some(key) = key {
            ctx.reply_array(2);
            ctx.reply_bytes(owner.as_bytes());
            ctx.reply_bytes(key.as_bytes());
        } else {
            ctx.reply_bytes(owner.as_bytes());
        }
    }
    let keys = i64::try_from(entry.keys).unwrap_or(i64::MAX);
    reply_field(ctx, "keys", Field::Number(keys));
}
