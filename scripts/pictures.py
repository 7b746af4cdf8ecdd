#!/usr/bin/env python3
"""docs/pictures: draws what happens in which order, from a real run on this machine. $RLOCK_SERVER and $RLOCK_MODULE
name the server and the module; `make pictures` sets them. Every reply and every time in a picture comes from that run.
One run does not show how long a hand-off usually takes: docs/benchmarks.md does."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from html import escape

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "clients/conformance"))
from resp import Connection, Refused, ask
from servers import Server, free_port, until

PROGRAM, MODULE = os.environ["RLOCK_SERVER"], os.environ["RLOCK_MODULE"]
# Passes bytes on until it is stopped: then the network between a primary and its replica is silent.
RELAY = """
import socket, sys, threading
def pass_on(one, other):
    try:
        while some := one.recv(65536): other.sendall(some)
    except OSError: pass
    other.close()
heard = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    near, far = heard.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in ((near, far), (far, near)): threading.Thread(target=pass_on, args=pair, daemon=True).start()
"""


class Story:
    """The observed events: rows of (milliseconds, who, whom, words). If `whom` is None, the event happens to `who`
    alone."""

    def __init__(self, title, who):
        self.title, self.who, self.rows, self.begun = title, who, [], time.perf_counter()

    def tell(self, who, whom, words):
        self.rows.append(((time.perf_counter() - self.begun) * 1000, who, whom, words))

    def asks(self, who, whom, connection, *words):
        """Sends a command, and shows it with its reply."""
        self.sends(who, whom, connection, *words)
        return self.hears(who, whom, connection)

    def sends(self, who, whom, connection, *words):
        self.tell(who, whom, " ".join(str(word) for word in words))
        connection.send(*words)

    def hears(self, who, whom, connection, means=""):
        try:
            said = connection.reply()
            if isinstance(said, list):
                said = " ".join(one.decode() if isinstance(one, bytes) else str(one) for one in said)
        except Refused as refused:
            said = f"-{str(refused).split()[0]}"
        self.tell(whom, who, f"{'(nil)' if said is None else said}{means}")
        return said


def svg(story, unit=""):
    """A sequence: time runs downwards, not to scale. The times are on the left, in ms or s, if there is a unit."""
    left, column, row, top = 92, 222, 34, 74
    width, height = left + column * len(story.who) + 20, top + row * len(story.rows) + 30
    x = {who: left + column * at + column / 2 for at, who in enumerate(story.who)}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="13" role="img">', f"<title>{escape(story.title)}</title>",
           '<rect width="100%" height="100%" fill="#fff"/>',
           '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0L10,5L0,10z"/></marker>',
           f'<text x="10" y="22" font-weight="bold">{escape(story.title)}</text>', f'<text x="10" y="{top - 18}">{unit}</text>']
    for who, at in x.items():
        out.append(f'<text x="{at}" y="{top - 18}" text-anchor="middle" font-weight="bold">{escape(who)}</text>')
        out.append(f'<line x1="{at}" x2="{at}" y1="{top - 10}" y2="{height - 10}" stroke="#999" stroke-dasharray="3 4"/>')
    for number, (ms, who, whom, words) in enumerate(story.rows):
        y = top + row * number + 22
        if unit:
            out.append(f'<text x="10" y="{y}">{f"{max(ms, 0) / 1000:.1f}" if unit == "s" else f"{ms:.0f}"}</text>')
        text = f'text-anchor="middle" paint-order="stroke" stroke="#fff" stroke-width="5">{escape(words)}</text>'
        if whom is None:
            out.append(f'<text x="{x[who]}" y="{y}" font-weight="bold" {text}')
            continue
        answer = ' stroke-dasharray="6 4"' if any(kind in who for kind in ("server", "primary", "replica")) else ""
        out.append(f'<line x1="{x[who]}" x2="{x[whom]}" y1="{y}" y2="{y}" stroke="#000" stroke-width="1.4"{answer} marker-end="url(#head)"/>')
        out.append(f'<text x="{(x[who] + x[whom]) / 2}" y="{y - 8}" {text}')
    return "\n".join([*out, "</svg>", ""])


def server(folder, name, *words):
    return Server(PROGRAM, f"{folder}/{name}", ["--save", "", "--repl-diskless-sync-delay", "0", "--loadmodule", MODULE, *words])


def hand_off(one):
    holder, first, second = (Connection(one.address) for _ in range(3))
    story = Story("A hand-off: nobody polls, and each grant is one message", ["worker-1", "server", "worker-2", "worker-3"])
    story.asks("worker-1", "server", holder, "RLOCK.ACQUIRE", "job", "w1")
    for who, connection, place in (("worker-2", first, 1), ("worker-3", second, 2)):
        story.sends(who, "server", connection, "RLOCK.ACQUIRE", "job", f"w{place + 1}", "BLOCK", 0)
        until("it waits", lambda: ask(one.address, "RLOCK.PLACE", "job", f"w{place + 1}") == place)
    story.tell("server", None, "both wait in line")
    story.sends("worker-1", "server", holder, "RLOCK.RELEASE", "job", "w1")
    story.hears("worker-2", "server", first)
    story.hears("worker-1", "server", holder)
    story.sends("worker-2", "server", first, "RLOCK.RELEASE", "job", "w2")
    story.hears("worker-3", "server", second)
    story.hears("worker-2", "server", first)
    return story


def message(one):
    """A wait with TELL: the connection stays usable, and the reply comes as a message on its subscription."""
    holder, shared, hears = (Connection(one.address) for _ in range(3))
    story = Story("TELL: the connection is not blocked, and the late reply is a message", ["worker-1", "server", "shared connection", "subscription"])
    story.asks("subscription", "server", hears, "SSUBSCRIBE", "worker-7")
    story.asks("worker-1", "server", holder, "RLOCK.ACQUIRE", "task", "w1")
    story.asks("shared connection", "server", shared, "RLOCK.ACQUIRE", "task", "w2", "BLOCK", 60000, "TELL", "worker-7", 1)
    story.asks("shared connection", "server", shared, "RLOCK.ACQUIRE", "other", "w3")
    story.sends("worker-1", "server", holder, "RLOCK.RELEASE", "task", "w1")
    story.hears("subscription", "server", hears)
    story.hears("worker-1", "server", holder)
    return story


def failover(folder, name, acks):
    """A primary loses its replica, grants a lock or refuses it, and dies. Sentinel promotes the replica."""
    primary = server(folder, f"{name}-primary")
    port = free_port()
    relay = subprocess.Popen([sys.executable, "-c", RELAY, str(port), str(primary.port)])
    replica = server(folder, f"{name}-replica", "--replicaof", "127.0.0.1", str(port))
    conf = pathlib.Path(folder, f"{name}.conf")
    conf.write_text(f"sentinel monitor locks 127.0.0.1 {primary.port} 1\nsentinel down-after-milliseconds locks 1000\n")
    sentinel = Server(PROGRAM, f"{folder}/{name}-sentinel", [conf, "--sentinel"])
    try:
        until("a grant is acknowledged", lambda: ask(primary.address, "RLOCK.ACQUIRE", "other", "ann", "ACKS", 1))
        until("Sentinel knows both", lambda: len(ask(sentinel.address, "SENTINEL", "REPLICAS", "locks")) == 1)
        ann = Connection(primary.address)
        story = Story(f"A failover {'with ACKS 1' if acks else 'without ACKS'}", ["ann", "primary", "replica", "bob"])
        relay.send_signal(signal.SIGSTOP)
        os.waitpid(relay.pid, os.WUNTRACED)
        story.tell("replica", None, "is cut off")
        granted = story.asks("ann", "primary", ann, "RLOCK.ACQUIRE", "job", "ann", *(["ACKS", 1] if acks else []))
        story.tell("ann", None, "was refused, and waits" if isinstance(granted, str) else "works under the lock")
        primary.kill()
        relay.kill()
        story.tell("primary", None, "dies")
        until("it is promoted", lambda: ask(replica.address, "ROLE")[0] == "master", 60)
        story.tell("replica", None, "is promoted")
        second = story.asks("bob", "replica", Connection(replica.address), "RLOCK.ACQUIRE", "job", "bob")
        assert isinstance(second, int) and isinstance(granted, str) == acks, (granted, second)
        story.tell("bob", None, "holds it alone" if acks else "holds it, and so does ann")
        return story
    finally:
        for one in (primary, replica, sentinel):
            one.kill()
        relay.kill()
        relay.wait()


ALL = ["--appendonly", "yes", "--appendfsync", "always", "--min-replicas-to-write", "1"]
FLOOR = ["acks", "1"]


def failover_of_a_set(folder):
    """A set as in images/compose.yaml loses its primary. It has three servers and three Sentinels, and a server counts
    as dead after five seconds."""
    servers = [server(folder, "set-1", *FLOOR, *ALL)]
    servers += [server(folder, f"set-{number}", *FLOOR, *ALL, "--replicaof", "127.0.0.1", str(servers[0].port)) for number in (2, 3)]
    sentinels = []
    for number in (1, 2, 3):
        conf = pathlib.Path(folder, f"set-{number}.conf")
        conf.write_text(f"sentinel monitor locks 127.0.0.1 {servers[0].port} 2\nsentinel down-after-milliseconds locks 5000\n")
        sentinels.append(Server(PROGRAM, f"{folder}/set-sentinel-{number}", [conf, "--sentinel"]))
    try:
        until("a grant is acknowledged", lambda: ask(servers[0].address, "RLOCK.ACQUIRE", "other", "ann"), 60)
        for one in sentinels:
            until("Sentinel knows all", lambda: len(ask(one.address, "SENTINEL", "REPLICAS", "locks")) == 2
                  and len(ask(one.address, "SENTINEL", "SENTINELS", "locks")) == 2, 60)
        ann, bob = Connection(servers[0].address), Connection(servers[0].address)
        story = Story("A failover: three servers, three Sentinels, rlock.acks 1", ["ann", "bob", "primary", "replica"])
        token = story.asks("ann", "primary", ann, "RLOCK.ACQUIRE", "job", "ann")
        story.sends("bob", "primary", bob, "RLOCK.ACQUIRE", "job", "bob", "BLOCK", 60000)
        until("bob waits", lambda: ask(servers[0].address, "RLOCK.PLACE", "job", "bob") == 1)
        earlier, story.begun = story.begun, time.perf_counter()
        story.rows = [((earlier - story.begun) * 1000 + ms, *rest) for ms, *rest in story.rows]
        servers[0].kill()
        story.tell("primary", None, "dies")
        story.tell("bob", None, "loses its connection")
        until("one is promoted", lambda: any(ask(one.address, "ROLE")[0] == "master" for one in servers[1:]), 60)
        promoted = next(one for one in servers[1:] if ask(one.address, "ROLE")[0] == "master")
        story.tell("replica", None, "is promoted")
        until("it has a replica", lambda: ask(promoted.address, "RLOCK.ACQUIRE", "another", "cy"), 60)
        story.tell("replica", None, "has a replica of its own")
        story.asks("ann", "replica", Connection(promoted.address), "RLOCK.RENEW", "job", "ann", "TOKEN", token)
        bob = Connection(promoted.address)
        story.sends("bob", "replica", bob, "RLOCK.ACQUIRE", "job", "bob", "BLOCK", 60000)
        until("bob waits", lambda: ask(promoted.address, "RLOCK.PLACE", "job", "bob") == 1)
        story.asks("ann", "replica", Connection(promoted.address), "RLOCK.RELEASE", "job", "ann", "TOKEN", token)
        story.hears("bob", "replica", bob)
        return story
    finally:
        for one in (*servers, *sentinels):
            one.kill()


def partition(folder, acks):
    """A primary keeps one of its replicas, and the other one is promoted. Later the first one follows the new
    primary."""
    patience = ["acks-timeout-ms", "500"]
    old = server(folder, f"cut-{acks}-1", *patience)
    port = free_port()
    relay = subprocess.Popen([sys.executable, "-c", RELAY, str(port), str(old.port)])
    new = server(folder, f"cut-{acks}-2", *patience, "--replicaof", "127.0.0.1", str(port))
    other = server(folder, f"cut-{acks}-3", *patience, "--replicaof", "127.0.0.1", str(old.port))
    try:
        until("both acknowledge", lambda: ask(old.address, "RLOCK.ACQUIRE", "other", "ann", "ACKS", 2), 60)
        story = Story(f"A partition with ACKS {acks}", ["ann", "old primary", "replica", "new primary", "bob"])
        relay.send_signal(signal.SIGSTOP)
        os.waitpid(relay.pid, os.WUNTRACED)
        story.tell("old primary", None, "is cut off, but for one replica")
        ask(new.address, "REPLICAOF", "NO", "ONE")
        story.tell("new primary", None, "is promoted")
        first = story.asks("ann", "old primary", Connection(old.address), "RLOCK.ACQUIRE", "job", "ann", "ACKS", acks)
        story.tell("ann", None, "holds the lock" if isinstance(first, int) else "was refused")
        ask(other.address, "REPLICAOF", "127.0.0.1", new.port)
        until("it follows", lambda: ask(new.address, "RLOCK.ACQUIRE", "another", "cy", "ACKS", 1), 60)
        story.tell("replica", None, "follows the new primary")
        second = story.asks("bob", "new primary", Connection(new.address), "RLOCK.ACQUIRE", "job", "bob", "ACKS", acks)
        assert isinstance(first, int) == isinstance(second, int) == (acks == 1), (first, second)
        story.tell("bob", None, "holds it, and so does ann" if acks == 1 else "waits for a second replica")
        return story
    finally:
        for one in (old, new, other):
            one.kill()
        relay.kill()
        relay.wait()


def main(pictures):
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        one = server(folder, "one")
        try:
            handed_off = hand_off(one)
            sent = message(one)
        finally:
            one.kill()
        stories = {
            "hand-off": (handed_off, ""),
            "tell": (sent, ""),
            "failover-without-acks": (failover(folder, "without", False), "ms"),
            "failover-with-acks": (failover(folder, "with", True), "ms"),
            "failover": (failover_of_a_set(folder), "s"),
            "partition-acks-1": (partition(folder, 1), "ms"),
            "partition-acks-2": (partition(folder, 2), "ms"),
        }
        for name, (story, unit) in stories.items():
            (pictures / f"{name}.svg").write_text(svg(story, unit))
            print(f"ok {name}")


main(ROOT / "docs/pictures")
