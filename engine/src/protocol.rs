//! Replies of the server in RESP2. Parsing them here is faster than letting the server parse them.

use crate::host::Replication;

/// The rest of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Rest<'r>(pub &'r [u8]);

impl<'r> Rest<'r> {
    fn take(&mut self, len: usize) -> Option<&'r [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest.strip_prefix(b"\r\n")?;
        Some(taken)
    }

    /// A number or a length; `sign` says which kind.
    pub fn number(&mut self, sign: u8) -> Option<u64> {
        let len = self.0.iter().position(|byte| *byte == b'\r')?;
        let line = self.take(len)?;
        decimal(line.strip_prefix(&[sign])?)
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Option<&'r [u8]> {
        let len = self.number(b'$')?;
        self.take(usize::try_from(len).ok()?)
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

/// The reply to `ROLE` of a primary, which lists the replicas that are connected and fully loaded.
pub fn replication(role: &[u8]) -> Option<Replication> {
    let mut rest = Rest(role);
    if rest.number(b'*')? != 3 || rest.bytes()? != b"master" {
        return None;
    }
    let (offset, mut acknowledged) = (rest.number(b':')?, Vec::new());
    for _ in 0..rest.number(b'*')? {
        // Address, port, offset.
        if rest.number(b'*')? != 3 {
            return None;
        }
        rest.bytes()?;
        rest.bytes()?;
        acknowledged.extend(decimal(rest.bytes()?).filter(|offset| *offset > 0));
    }
    Some(Replication { offset, acknowledged })
}

/// The reply to `PUBSUB SHARDNUMSUB`: how many subscribers each channel has.
pub fn subscribers(reply: &[u8]) -> Option<impl Iterator<Item = u64>> {
    let mut rest = Rest(reply);
    let channels = rest.number(b'*')? / 2;
    Some((0..channels).map_while(move |_| {
        rest.bytes()?;
        rest.number(b':')
    }))
}

#[cfg(test)]
mod tests {
    use super::{replication, subscribers};

    fn offsets(role: &[u8]) -> Option<(u64, Vec<u64>)> {
        replication(role).map(|all| (all.offset, all.acknowledged))
    }

    #[test]
    fn a_primary_lists_its_replicas() {
        let role = b"*3\r\n$6\r\nmaster\r\n:3129\r\n*2\r\n\
            *3\r\n$4\r\na\r\nb\r\n$4\r\n6380\r\n$4\r\n3129\r\n\
            *3\r\n$9\r\n127.0.0.1\r\n$4\r\n6381\r\n$1\r\n0\r\n";
        assert_eq!(offsets(role), Some((3129, vec![3129])));
        assert_eq!(offsets(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"), Some((0, vec![])));
        for len in 0..role.len() {
            assert_eq!(role.get(..len).and_then(offsets), None, "{len}");
        }
    }

    #[test]
    fn other_replies_are_none() {
        for reply in [
            &b"-ERR unknown command 'ROLE'\r\n"[..],
            b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:3129\r\n",
            b"*3\r\n$6\r\nmaster\r\n:1\r\n*1\r\n*1\r\n$1\r\n0\r\n",
            b"*3\r\n$99999999999999999999\r\nmaster\r\n:1\r\n*0\r\n",
            b"*3\r\n$-1\r\n",
        ] {
            assert_eq!(offsets(reply), None, "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn channels_have_subscribers() {
        let counts = |reply| subscribers(reply).map(Iterator::collect::<Vec<u64>>);
        let reply = b"*4\r\n$3\r\none\r\n:2\r\n$5\r\nt\r\n:9\r\n:0\r\n";
        assert_eq!(counts(reply), Some(vec![2, 0]));
        assert_eq!(counts(b"-NOPERM\r\n"), None);
        assert_eq!(counts(b"*2\r\n$3\r\none\r\n"), Some(vec![]));
    }
}
