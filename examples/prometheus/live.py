"""Tests the alerts in a real Prometheus, which scrapes real `rlock serve` processes while the servers are in the states
that the alerts are for: live.py PROMETHEUS. $RLOCK, $RLOCK_SERVER and $RLOCK_MODULE name `rlock`, the server and the
module. A minute becomes half a second, so that the test ends soon; otherwise, the rules are those of alerts.yml."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "clients/conformance"))
from resp import Connection, Refused, ask, section
from servers import Server, free_port, until

import dashboard_rules

PROGRAM, MODULE, RLOCK = (os.environ[name] for name in ("RLOCK_SERVER", "RLOCK_MODULE", "RLOCK"))
# Healthy servers: no alert may fire for them.
QUIET = ["good", "election"]


class Play:
    def __init__(self, folder):
        self.folder, self.servers, self.processes, self.kept, self.names = folder, [], [], [], {}

    def server(self, name, *words, has_module=True):
        module = ["--loadmodule", MODULE] if has_module else []
        server = Server(PROGRAM, f"{self.folder}/{name}", ["--save", "", "--repl-diskless-sync-delay", "0", *module, *words])
        self.servers.append(server)
        self.names[server.address] = name
        return server

    def serve(self, *urls, words=()):
        for url in urls:
            process = subprocess.Popen([RLOCK, "serve", "--listen", "127.0.0.1:0", "--url", url, *words],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.processes.append(process)
            yield process.stdout.readline().strip().removeprefix("http://").rstrip("/")

    def waits(self, address, *words):
        connection = Connection(address, 600)
        connection.send("RLOCK.ACQUIRE", *words)
        self.kept.append(connection)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for server in self.servers:
            if server.runs:
                server.signal(signal.SIGCONT)
                server.kill()


def refused(address, *words):
    try:
        raise AssertionError(f"{words} was not refused: {ask(address, *words)}")
    except Refused:
        pass


def stuck(play):
    """A holder that hangs, a queue, a deadlock, and sessions that were refused."""
    one = play.server("stuck", "--appendonly", "yes").address
    ask(one, "RLOCK.ACQUIRE", "report", "ann", "LEASE", 600000)
    play.waits(one, "report", "bob", "BLOCK", 0)
    ask(one, "RLOCK.ACQUIRE", "stock", "bob", "LEASE", 600000)
    until("bob waits", lambda: ask(one, "RLOCK.PLACE", "report", "bob") == 1)
    yield one
    time.sleep(4)  # a counter must have been seen before it rises
    refused(one, "RLOCK.ACQUIRE", "stock", "ann", "BLOCK", 1000)
    ask(one, "CONFIG", "SET", "rlock.max-sessions", "0")
    refused(one, "RLOCK.ACQUIRE", "other", "cy", "SESSION")


def election(play):
    one = play.server("election", "--appendonly", "yes").address
    ask(one, "RLOCK.ACQUIRE", "leader:mail", "ann", "LEASE", 600000)
    play.waits(one, "leader:mail", "bob", "BLOCK", 0)
    yield one


def acknowledged(play, name):
    """The address of a primary on which ann holds `job`, and its replica, which has acknowledged this hold."""
    primary = play.server(name, "--appendonly", "yes")
    replica = play.server(f"{name}-replica", "--replicaof", "127.0.0.1", str(primary.port))
    one = primary.address
    until("it is acknowledged", lambda: ask(one, "RLOCK.ACQUIRE", "job", "ann", "ACKS", 1))
    return one, replica


def good(play):
    """A primary with a replica that acknowledges, and locks that are handed over."""
    one, _ = acknowledged(play, "good")
    yield one
    for _ in range(20):
        play.waits(one, "job", "bob", "BLOCK", 0)
        until("bob waits", lambda: ask(one, "RLOCK.PLACE", "job", "bob") == 1)
        ask(one, "RLOCK.RELEASE", "job", "ann", "DEPTH", 0)
        until("bob holds", lambda: ask(one, "RLOCK.HOLDS", "job", "bob") == 1)
        ask(one, "RLOCK.RELEASE", "job", "bob")
        ask(one, "RLOCK.ACQUIRE", "job", "ann", "ACKS", 1)


def replicas(play):
    """A replica that hangs, then dies: -NOACKS, then -NOREPLICAS, and a gate that is shut."""
    one, replica = acknowledged(play, "replicas")
    ask(one, "CONFIG", "SET", "rlock.acks-timeout-ms", "200")
    yield one
    time.sleep(4)
    replica.signal(signal.SIGSTOP)
    refused(one, "RLOCK.ACQUIRE", "late", "ann", "ACKS", 1)
    replica.signal(signal.SIGCONT)
    replica.kill()
    until("it is missed", lambda: section(one, "replication")["connected_slaves"] == "0")
    ask(one, "RLOCK.ACQUIRE", "gate", "ann", "LEASE", 500)
    ask(one, "RLOCK.ACQUIRE", "gate", "bob", "QUEUE", 60000)
    ask(one, "CONFIG", "SET", "min-replicas-to-write", "1")
    refused(one, "RLOCK.ACQUIRE", "job", "ann")


def fewer(play):
    """A primary that loses one of two replicas."""
    primary = play.server("fewer", "--appendonly", "yes")
    both = [play.server(f"fewer-replica-{number}", "--replicaof", "127.0.0.1", str(primary.port)) for number in range(2)]
    one = primary.address
    follow = lambda count: str(section(one, "replication")).count("state=online") == count
    until("both follow", lambda: follow(2))
    yield one
    time.sleep(4)
    both[0].kill()
    until("it is missed", lambda: follow(1))


def crowd(play):
    """A queue that grows, and waits that end too late or without the lock."""
    one = play.server("crowd", "--appendonly", "yes").address
    ask(one, "RLOCK.ACQUIRE", "slow", "ann", "LEASE", 600000)
    ask(one, "RLOCK.ACQUIRE", "door", "ann", "LEASE", 600000)
    play.waits(one, "door", "first", "BLOCK", 0)
    yield one
    time.sleep(7)  # longer than the offset that the rule compares with
    for number in range(60):
        play.waits(one, "door", f"owner-{number}", "BLOCK", 0)
        play.waits(one, "slow", f"owner-{number}", "BLOCK", 1500)
    until("they gave up", lambda: section(one, "rlock")["rlock_timed_out"] == "60")
    waiting = Connection(one)
    waiting.send("RLOCK.ACQUIRE", "slow", "bob", "BLOCK", 0)
    time.sleep(1.5)
    ask(one, "RLOCK.RELEASE", "slow", "ann")
    waiting.reply()


def lost(play):
    """Connections that close while they hold locks, and leases that nobody renews."""
    one = play.server("lost", "--appendonly", "yes").address
    yield one
    time.sleep(4)
    for number in range(60):
        ask(one, "RLOCK.ACQUIRE", f"tied:{number}", "ann", "SESSION")  # over a separate connection
        ask(one, "RLOCK.ACQUIRE", f"leased:{number}", "ann", "LEASE", 100)


def late(play):
    """A replica that acknowledges, but only after a pause."""
    one, replica = acknowledged(play, "late")
    ask(one, "CONFIG", "SET", "rlock.acks-timeout-ms", "10000")
    yield one
    time.sleep(4)
    for number in range(3):
        replica.signal(signal.SIGSTOP)
        waiting = Connection(one)
        waiting.send("RLOCK.ACQUIRE", f"late:{number}", "ann", "ACKS", 1)
        time.sleep(0.8)
        replica.signal(signal.SIGCONT)
        waiting.reply()


def evicted(play):
    one = play.server("evicted", "--appendonly", "yes").address
    ask(one, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    yield one
    time.sleep(4)
    ask(one, "RLOCK.ACQUIRE", "job", "ann")
    ask(one, "CONFIG", "SET", "maxmemory", "1mb")
    for _ in range(2):
        try:
            ask(one, "SET", "more", "x" * 100)
        except Refused:
            pass


def unsaved(play):
    """No append-only file; then a snapshot that cannot be written."""
    server = play.server("unsaved")
    ask(server.address, "RLOCK.ACQUIRE", "job", "ann", "LEASE", 600000)
    yield server.address
    os.makedirs(f"{server.folder}/dump.rdb")  # a folder in place of the file
    ask(server.address, "BGSAVE")
    until("it failed", lambda: section(server.address, "persistence")["rdb_last_bgsave_status"] == "err")


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def dumped(address, key):
    connection = Connection(address)
    connection.send("DUMP", key)
    size = int(connection.file.readline()[1:])
    return connection.file.read(size)


def with_checksum(payload):
    """Appends the end of a DUMP payload: the server's variant of CRC-64."""
    crc = 0
    for byte in payload:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return payload + crc.to_bytes(8, "little")


def syncing(play):
    """A replica whose file is written for a while after its full sync."""
    one, other = play.server("synced"), play.server("syncing", "--appendonly", "yes")
    yield other.address
    ask(one.address, "MSET", *(word for i in range(1000) for word in (f"x{i}", "y")))
    ask(other.address, "CONFIG", "SET", "rdb-key-save-delay", 100_000)
    ask(other.address, "REPLICAOF", *one.address.split(":"))


def ahead(play):
    """A lock arrives whose token comes from a clock that was 50 seconds ahead."""
    one = play.server("ahead", "--appendonly", "yes").address
    yield one
    token = ask(one, "RLOCK.ACQUIRE", "job", "ann", "LEASE", 600000)
    payload = dumped(one, "job")
    moved = payload[:-8].replace(varint(token), varint(token + 50_000_000))
    assert with_checksum(payload[:-8]) == payload != with_checksum(moved)
    ask(one, "RESTORE", "job", 0, with_checksum(moved), "REPLACE")
    assert ask(one, "RLOCK.ACQUIRE", "next", "bob") > token + 49_000_000


def away(play):
    server = play.server("away", "--appendonly", "yes")
    yield server.address
    server.signal(signal.SIGSTOP)


def bare(play):
    yield play.server("bare", has_module=False).address


STATES = [stuck, election, good, replicas, fewer, crowd, lost, late, evicted, unsaved, syncing, ahead, away, bare]
WANTED = {
    ("stuck", "RlockHeadWaits"), ("stuck", "RlockDeadlocks"), ("stuck", "RlockSessionsRefused"),
    ("replicas", "RlockNoAcks"), ("replicas", "RlockNoReplicas"), ("replicas", "RlockReplicasMissing"), ("replicas", "RlockGateShut"),
    ("fewer", "RlockReplicaLost"),
    ("crowd", "RlockQueueGrows"), ("crowd", "RlockManyWait"), ("crowd", "RlockWaitsTimeOut"), ("crowd", "RlockSlowWaits"),
    ("lost", "RlockSessionsLost"), ("lost", "RlockLeasesRunOut"), ("late", "RlockAcksLate"),
    ("evicted", "RlockEvicted"), ("unsaved", "RlockNotSaved"), ("unsaved", "RlockSaveFails"),
    ("syncing", "RlockFileIncomplete"), ("ahead", "RlockTokensAhead"), ("away", "RlockDown"), ("bare", "RlockModuleMissing"), ("", "RlockServeDown"),
}


def prometheus(play, program, targets):
    rules = (HERE / "alerts.yml").read_text()
    assert set(re.findall(r"alert: (\w+)", rules)) == {alert for _, alert in WANTED}, "each alert is tried"
    rules = re.sub(r"for: (\d+)m", lambda found: f"for: {int(found[1]) * 500}ms", rules)
    rules = rules.replace("> 300", "> 5").replace("> 3600", "> 10").replace("> 2500", "> 25").replace("offset 10m", "offset 5s")
    pathlib.Path(play.folder, "alerts.yml").write_text(rules)
    config = (HERE / "prometheus.yml").read_text().replace("15s", "1s").replace('["127.0.0.1:9121"]', json.dumps(targets))
    pathlib.Path(play.folder, "prometheus.yml").write_text("global: { evaluation_interval: 1s }\n" + config)
    port = free_port()
    words = [program, f"--config.file={play.folder}/prometheus.yml", f"--storage.tsdb.path={play.folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"]
    play.processes.append(subprocess.Popen(words, stderr=open(f"{play.folder}/prometheus.log", "w")))

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=20) as answer:
            return json.load(answer)["data"]

    until("Prometheus answers", lambda: get("status/runtimeinfo"), 60)
    return get


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        play = Play(folder)
        try:
            states = [state(play) for state in STATES]
            urls = [f"redis://{next(state)}" for state in states]
            targets = list(play.serve(*urls, words=["--elections", "leader:"]))
            dead, = play.serve("redis://127.0.0.1:1")
            play.processes[-1].kill()
            get = prometheus(play, program, [*targets, dead])
            healthy = lambda: [t["health"] for t in get("targets")["activeTargets"]].count("up") == len(targets)
            until("all are scraped and read", healthy, 60)
            with ThreadPoolExecutor() as players:
                assert not any(players.map(lambda state: next(state, None), states))
            fired = set()

            def firing():
                # This includes alerts that have ended.
                labels = [one["metric"] for one in get("query?query=" + quote('max_over_time(ALERTS{alertstate="firing"}[1h])'))["result"]]
                fired.update((play.names.get(of.get("server", ""), ""), of["alertname"], of["severity"]) for of in labels)
                return WANTED <= {(name, alert) for name, alert, _ in fired}

            try:
                until("all alerts fire", firing, 120)
            except AssertionError as error:
                raise AssertionError(f"not fired: {sorted(WANTED - {(n, a) for n, a, _ in fired})}") from error
            for name, alert, severity in sorted(fired):
                print(f"fired: {alert} ({severity}) for {name or 'rlock serve'}")
            wrong = [(name, alert) for name, alert, _ in fired if name in QUIET]
            assert wrong == [], f"all is well there: {wrong}"
            drawn = list(dashboard_rules.queries())
            empty = [query for query in drawn if not get("query?query=" + quote(query))["result"]]
            assert empty == [], f"the dashboard has nothing to draw for: {empty}"
            print(f"dashboard: {len(drawn)} queries, each with something to draw")
        finally:
            play.close()


main(sys.argv[1])
