//! TCP ports of servers that are killed and started again.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// A TCP port of this machine that only the servers to which it is given use, even while none of
/// them runs: replicas of a dead primary would copy the data of any server that came to its port.
pub struct Port {
    pub number: u16,
    /// Bound to the port, without listening.
    _socket: OwnedFd,
}

impl Port {
    /// One below the range that the system uses for outgoing connections.
    pub fn free() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let spread = std::process::id().wrapping_mul(211);
        loop {
            let number = spread.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            if let Ok(port) = Port::reserve(10_000 + (number % 20_000) as u16) {
                return port;
            }
        }
    }

    /// Fails if the port is in use or reserved.
    fn reserve(number: u16) -> Result<Port, Errno> {
        let (family, kind, flags) = (AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = socket_with(family, kind, flags, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, number))?;
        // From now on, a server may listen there. If this came first, two could reserve the port.
        set_socket_reuseaddr(&socket, true)?;
        Ok(Port { number, _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_stays_reserved_while_no_server_listens() {
        let port = Port::free();
        let address = ("127.0.0.1", port.number);
        assert!(Port::reserve(port.number).is_err());
        assert!(TcpStream::connect(address).is_err());
        for _ in 0..2 {
            let server = TcpListener::bind(address).unwrap();
            let _client = TcpStream::connect(address).unwrap();
            drop(server.accept().unwrap());
            assert!(Port::reserve(port.number).is_err());
        }
        assert!(Port::reserve(port.number).is_err());
    }
}
