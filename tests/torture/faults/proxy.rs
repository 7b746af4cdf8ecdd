//! A network between two sides: connections are passed on to a server until the network is cut.
//! Then either both ends only see silence for a while, as when a cable is cut, or their connections
//! are closed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

pub struct Proxy {
    port: u16,
    cable: Arc<Cable>,
}

/// The connections through it, and whether anything passes.
struct Cable {
    target: u16,
    state: Mutex<State>,
    is_whole: Condvar,
}

#[derive(Default)]
struct State {
    is_cut: bool,
    is_gone: bool,
    /// The clients' ends and the server's ends.
    fronts: Vec<TcpStream>,
    backs: Vec<TcpStream>,
}

impl Proxy {
    /// A proxy in front of the server at that port.
    pub fn of(target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, is_whole) = (Mutex::default(), Condvar::new());
        let cable = Arc::new(Cable { target, state, is_whole });
        let to = cable.clone();
        std::thread::spawn(move || to.serve(&listener));
        Proxy { port, cable }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, nothing passes, and neither end is informed.
    pub fn cut(&self) {
        self.cable.state.lock().unwrap().is_cut = true;
    }

    /// Clients lose their connections; the server is not informed.
    pub fn drop_fronts(&self) {
        close(&mut self.cable.state.lock().unwrap().fronts);
    }

    /// Both ends lose their connections.
    pub fn drop_all(&self) {
        let mut state = self.cable.state.lock().unwrap();
        close(&mut state.fronts);
        close(&mut state.backs);
    }

    /// New connections pass again. Earlier ones stay closed.
    pub fn mend(&self) {
        self.drop_all();
        self.cable.state.lock().unwrap().is_cut = false;
        self.cable.is_whole.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cable.state.lock().unwrap().is_gone = true;
        self.mend();
        // The thread waits for this.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

impl Cable {
    fn serve(self: Arc<Cable>, listener: &TcpListener) {
        for front in listener.incoming().map_while(Result::ok) {
            let mut state = self.state.lock().unwrap();
            if state.is_gone {
                return;
            }
            // Connections during the cut are closed.
            if state.is_cut {
                continue;
            }
            let Ok(back) = TcpStream::connect(("127.0.0.1", self.target)) else { continue };
            for end in [&front, &back] {
                end.set_nodelay(true).unwrap();
            }
            state.fronts.push(front.try_clone().unwrap());
            state.backs.push(back.try_clone().unwrap());
            for (from, to) in [(&front, &back), (&back, &front)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let cable = self.clone();
                std::thread::spawn(move || cable.pass_on(from, to));
            }
        }
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut chunk = [0; 16_384];
        loop {
            let count = from.read(&mut chunk).unwrap_or(0);
            let state = self.state.lock().unwrap();
            drop(self.is_whole.wait_while(state, |state| state.is_cut && !state.is_gone).unwrap());
            if count == 0 || to.write_all(&chunk[..count]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    }
}

/// Closes these connections, and forgets them.
fn close(ends: &mut Vec<TcpStream>) {
    ends.drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
}
