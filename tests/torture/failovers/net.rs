//! Network namespaces of this machine, connected by a bridge. What one of them sends to another can
//! be lost, while it still receives what the other one sends.

use std::process::{Command, Output};

/// Only these namespaces know its addresses.
const NETWORK: &str = "10.213.0";

pub struct Net {
    /// The prefix of their names.
    name: String,
    places: usize,
}

impl Net {
    /// Fails without root, without `ip`, or if the kernel refuses; the error says why.
    pub fn of(places: usize) -> Result<Net, String> {
        let net = Net { name: format!("rlock-{}", std::process::id()), places };
        let hub = net.hub();
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add bridge type bridge"))?;
        ip(&format!("-n {hub} link set bridge up"))?;
        for place in 0..places {
            let own = net.at(place);
            ip(&format!("netns add {own}"))?;
            ip(&format!("-n {own} link add cable type veth peer name end{place} netns {hub}"))?;
            ip(&format!("-n {hub} link set end{place} master bridge up"))?;
            ip(&format!("-n {own} addr add {}/24 dev cable", net.address(place)))?;
            ip(&format!("-n {own} link set cable up"))?;
            ip(&format!("-n {own} link set lo up"))?;
        }
        Ok(net)
    }

    pub fn address(&self, place: usize) -> String {
        format!("{NETWORK}.{}", place + 1)
    }

    /// The program under which another one runs in that namespace.
    pub fn within(&self, place: usize) -> [String; 4] {
        ["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), self.at(place)]
    }

    /// From now on, what `from` sends to `to` is lost.
    pub fn lose(&self, from: usize, to: usize) {
        let (from, to) = (self.at(from), self.address(to));
        ip(&format!("-n {from} route add blackhole {to}/32")).unwrap();
    }

    /// Nothing is lost anymore.
    pub fn heal(&self) {
        for place in 0..self.places {
            ip(&format!("-n {} route flush type blackhole", self.at(place))).unwrap();
        }
    }

    fn at(&self, place: usize) -> String {
        format!("{}-{place}", self.name)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // Some may not exist, if the others could not be made.
        for name in (0..self.places).map(|place| self.at(place)).chain([self.hub()]) {
            ip(&format!("netns del {name}")).ok();
        }
    }
}

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let said = |Output { stderr, .. }| String::from_utf8_lossy(&stderr).trim().to_owned();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {words}: {}", said(output))),
        Err(error) => Err(format!("ip: {error}")),
    }
}
