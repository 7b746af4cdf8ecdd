//! `TELL channel id`: where the late reply goes to a request that blocks no connection.

use super::{ACKS_MAX, Arguments, BadWord, Command, Word};
use crate::text::quoted;

/// The longest name of a channel.
pub const CHANNEL_BYTES_MAX: usize = 512;

/// The longest identifier of a message.
pub const ID_BYTES_MAX: usize = 64;

/// Where the late reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TellTo<'a> {
    /// The shard channel.
    pub channel: &'a [u8],
    /// The id with which the message begins: printable ASCII without spaces.
    pub id: &'a [u8],
}

/// Reads the two arguments of `TELL`.
pub(super) fn read<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Result<TellTo<'a>, BadWord> {
    let (Some(channel), Some(id)) = (words.next(), words.next()) else {
        return Err(BadWord("ERR syntax error: TELL needs a channel and an id".into()));
    };
    if channel.is_empty() || channel.len() > CHANNEL_BYTES_MAX {
        return Err(BadWord(format!(
            "ERR the channel of TELL must be 1 to {CHANNEL_BYTES_MAX} bytes long, not {}",
            channel.len()
        )));
    }
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.iter().all(u8::is_ascii_graphic) {
        return Err(BadWord(format!(
            "ERR the id of TELL must be 1 to {ID_BYTES_MAX} bytes of printable ASCII without \
             spaces, not {}",
            quoted(id)
        )));
    }
    Ok(TellTo { channel, id })
}

impl Command {
    /// The error for `QUEUE` in a command that waits, but has no tickets.
    pub(super) fn without_tickets(&self) -> BadWord {
        let name = self.name;
        BadWord(format!(
            "ERR syntax error: {name} has no QUEUE: wait with BLOCK ms, and with TELL channel id \
             where the connection must not be blocked"
        ))
    }

    /// Checks that the options of waiting fit together.
    pub(super) fn check_wait(&self, said: &Arguments<'_>) -> Result<(), BadWord> {
        if said.queue.is_some() && said.acks > 0 {
            return Err(BadWord(
                "ERR QUEUE cannot wait for acknowledgments (ACKS n or rlock.acks): wait with \
                 BLOCK ms, and with TELL channel id where the connection must not be blocked"
                    .into(),
            ));
        }
        if said.tell.is_none() {
            return Ok(());
        }
        let knows = |word: Word| self.options.contains(&word);
        if said.block_ms.is_some() || knows(Word::Acks) && said.acks > 0 {
            return Ok(());
        }
        let acks = format!("ACKS n with n from 1 to {ACKS_MAX}");
        let needs = match (knows(Word::Block), knows(Word::Acks)) {
            (true, true) => format!("BLOCK ms or {acks}"),
            (true, false) => "BLOCK ms".into(),
            _ => acks,
        };
        Err(BadWord(format!("ERR TELL needs {needs}: otherwise nothing is to be waited for")))
    }
}
