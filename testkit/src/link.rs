//! The socket of every client of these tests. Its reads have a time limit, and Linux lets those
//! fail with `EINTR` after the process was stopped and continued, as happens on a busy machine.
//! Such a call is made again, here and nowhere else.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest time for a reply: a server that takes longer hangs.
pub const REPLY_MS_MAX: u64 = 20_000;

/// A connection to a unix socket, as plain bytes.
pub type Link = Untiring<UnixStream>;

/// Makes calls again that were interrupted.
pub struct Untiring<S>(S);

impl Link {
    /// Connects to this socket.
    pub fn to(socket: &Path) -> io::Result<Link> {
        let socket = UnixStream::connect(socket)?;
        socket.set_read_timeout(Some(Duration::from_millis(REPLY_MS_MAX)))?;
        Ok(Untiring(socket))
    }

    /// A second handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Link> {
        self.0.try_clone().map(Untiring)
    }

    /// From now on, a read fails with [`ErrorKind::WouldBlock`] after this many milliseconds.
    pub fn set_patience(&self, ms: u64) -> io::Result<()> {
        self.0.set_read_timeout(Some(Duration::from_millis(ms.max(1))))
    }

    /// From now on, a read takes what has arrived, or fails with [`ErrorKind::WouldBlock`].
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(is_nonblocking)
    }
}

impl<S: Read> Read for Untiring<S> {
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        again_if_interrupted(|| self.0.read(chunk))
    }
}

impl<S: Write> Write for Untiring<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again_if_interrupted(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        again_if_interrupted(|| self.0.flush())
    }
}

fn again_if_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails with this kind of error first.
    struct Tired(Option<ErrorKind>);

    impl Read for Tired {
        fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
            self.0.take().map_or(Ok(chunk.len()), |kind| Err(kind.into()))
        }
    }

    impl Write for Tired {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.take().map_or(Ok(bytes.len()), |kind| Err(kind.into()))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_call_that_was_interrupted_is_made_again() {
        let tired = || Untiring(Tired(Some(ErrorKind::Interrupted)));
        assert_eq!(tired().read(&mut [0; 3]).unwrap(), 3);
        assert_eq!(tired().write(b"word").unwrap(), 4);
        // Any other error is reported.
        let late = || Untiring(Tired(Some(ErrorKind::WouldBlock)));
        assert_eq!(late().read(&mut [0; 3]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(late().write(b"word").unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
