"""The servers on which the script is played: standalone, with a replica, with Sentinel, Cluster; and their faults."""

import os
import shutil
import signal
import socket
import subprocess
import time

from access import Access
from proxy import Proxy
from resp import Refused, ask, section, slot

TROUBLE = (OSError, Refused, ValueError)


taken = set()  # runners that are played at the same time use different servers


def free_port():
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            # A Cluster node also uses the port 10 000 above its own.
            if port >= 55000 or {port, port - 10000, port + 10000} & taken:
                continue
            try:
                bus.bind(("127.0.0.1", port + 10000))
            except OSError:
                continue
        taken.add(port)
        return port


def until(what, is_so, within=20.0):
    """Repeats `is_so` until it returns something true, and returns that. An error of a server counts as "not yet"."""
    end = time.monotonic() + within
    problem = None
    while time.monotonic() < end:
        try:
            if result := is_so():
                return result
        except TROUBLE as error:
            problem = error
        time.sleep(0.01)
    raise AssertionError(f"not within {within} s: {what}" + (f" ({problem})" if problem else ""))


class Server:
    """One server process. It can be killed and started again with its data."""

    def __init__(self, program, folder, words, access=Access()):
        self.program, self.folder = program, folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        # Where the runners' clients and other servers find this server.
        self.public_port = free_port() if access.tls else self.port
        self.public_address = f"127.0.0.1:{self.public_port}"
        self.words = [*words, *access.server_words(self.public_port, "--cluster-enabled" in words)]
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self.start()

    def start(self, *more):
        log = open(f"{self.folder}/log", "ab")
        words = [self.program, *self.words, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, *more]
        self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        log.close()
        until(f"{self.folder} answers", self._answers)

    def _answers(self):
        if self.process.poll() is not None:
            raise SystemExit(f"a server does not start: {open(self.folder + '/log').read()[-2000:]}")
        return ask(self.address, "PING", timeout=1.0) == "PONG"

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def runs(self):
        return self.process.poll() is None


class Topology:
    """What all topologies share: the servers, and how to stop and start them."""

    def __init__(self, program, module, folder, access=Access()):
        self.program, self.folder, self.access = program, folder, access
        self.module = os.path.abspath(module)
        self.servers = []

    def server(self, name, *more):
        # Writes survive a kill even without fsync, and replies do not wait for this machine's disk.
        durable = ["--appendonly", "yes", "--appendfsync", "no", "--save", ""]
        words = [*durable, "--notify-keyspace-events", "KEd", "--loadmodule", self.module, *more]
        server = Server(self.program, f"{self.folder}/{name}", words, self.access)
        self.servers.append(server)
        return server

    def by_address(self, address):
        return next(server for server in self.servers if server.address == address)

    def by_public_address(self, address):
        return next(server for server in self.servers if server.public_address == address)

    def opens(self, addresses, **more):
        """The fields of a request `open`, with these addresses."""
        self.opening = {"kind": self.kind, "addresses": addresses, **more, **self.access.opening}

    def fault(self, step, key):
        name = step["server"]
        if name == "go":
            return self.go()
        if name == "start":
            return self.start_dead()
        getattr(self, name.replace("-", "_"))(key)

    def stop(self, key):
        self.by_address(self.primary(key)).signal(signal.SIGSTOP)

    def kill(self, key):
        self.by_address(self.primary(key)).kill()

    def go(self):
        for server in self.servers:
            if server.runs:
                server.signal(signal.SIGCONT)

    def start_dead(self):
        for server in self.servers:
            if not server.runs:
                server.start()

    def hang(self, key):
        """The primary falls silent, and another one takes over."""
        self._lose(key, lambda server: server.signal(signal.SIGSTOP))

    def crash(self, key):
        """The primary dies, and another one takes over."""
        self._lose(key, Server.kill)

    def _lose(self, key, how):
        old = self.primary(key)
        how(self.by_address(old))
        until("another primary", lambda: self.primary(key) != old, 40)

    def replicated(self, key):
        address = self.primary(key)
        offset = int(section(address, "replication")["master_repl_offset"])

        def is_there():
            replicas = [v for k, v in section(address, "replication").items() if k.startswith("slave") and "=" in v]
            fields = [dict(part.split("=", 1) for part in line.split(",")) for line in replicas]
            return fields and all(int(replica["offset"]) >= offset for replica in fields)

        until("the replicas have it", is_there)

    def close(self):
        for server in self.servers:
            if server.runs:
                server.signal(signal.SIGCONT)
                server.kill()


class Standalone(Topology):
    kind = "standalone"

    def __init__(self, *args):
        super().__init__(*args)
        self.one = self.server(self.kind)
        self.proxy = Proxy(self.one.public_address)
        self.opens([self.proxy.address])
        # For a client, this is a single server, even if it has a replica.
        self.opening["kind"] = "standalone"

    def primary(self, _key):
        return self.one.address

    def heal(self):
        self.go()
        self.start_dead()
        self.proxy.fault({"proxy": "heal"})
        ask(self.one.address, "CONFIG", "SET", "min-replicas-to-write", "0", "rlock.max-waiters", "5000")


class Replicated(Standalone):
    """A primary with one replica."""

    kind = "replicated"

    def __init__(self, *args):
        super().__init__(*args)
        ask(self.one.address, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        self.replica = self.server("replica", "--replicaof", "127.0.0.1", str(self.one.public_port))
        self.heal()

    def stop_replica(self, _key):
        self.replica.signal(signal.SIGSTOP)

    def kill_replica(self, _key):
        self.replica.kill()
        gone = lambda: section(self.one.address, "replication")["connected_slaves"] == "0"
        until("the primary has noticed that its replica is gone", gone)

    def heal(self):
        super().heal()
        if "rlock.acks-timeout-ms" in ask(self.one.address, "CONFIG", "GET", "rlock.acks-timeout-ms"):
            ask(self.one.address, "CONFIG", "SET", "rlock.acks-timeout-ms", "2000")
        until("the replica acknowledges", self._acknowledges)

    def _acknowledges(self):
        try:
            ask(self.one.address, "RLOCK.ACQUIRE", "conf:heal", "driver", "DEPTH", "1", "ACKS", "1")
        except Refused as refused:
            if str(refused).startswith("ERR"):
                return True  # the module has no ACKS, and no scenario will ask it for them
            raise
        return ask(self.one.address, "RLOCK.RELEASE", "conf:heal", "driver") == 0


class Sentinel(Topology):
    kind = "sentinel"

    def __init__(self, *args):
        super().__init__(*args)
        quick = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "10"]
        first = self.server("sentinel-1", *quick)
        self.replicas = [self.server(f"sentinel-{n}", *quick) for n in (2, 3)]
        for replica in self.replicas:
            ask(replica.address, "REPLICAOF", "127.0.0.1", first.public_port)
        os.makedirs(f"{self.folder}/sentinel", exist_ok=True)
        conf = f"{self.folder}/sentinel.conf"
        self.sentinel = Server.__new__(Server)
        self.sentinel.program, self.sentinel.folder = self.program, f"{self.folder}/sentinel"
        self.sentinel.words = [conf, "--sentinel"]
        self.sentinel.port = free_port()
        self.sentinel.address = f"127.0.0.1:{self.sentinel.port}"
        public_port = free_port() if self.access.tls else self.sentinel.port
        lines = [
            f"sentinel monitor locks 127.0.0.1 {first.public_port} 1", "sentinel down-after-milliseconds locks 1000",
            "sentinel failover-timeout locks 4000", "sentinel parallel-syncs locks 2", *self.access.sentinel_lines(public_port),
        ]
        with open(conf, "w") as file:
            file.write("".join(f"{line}\n" for line in lines))
        self.sentinel.start()
        self.opens([f"127.0.0.1:{public_port}"], service="locks")
        self.heal()

    def primary(self, _key):
        host, port = ask(self.sentinel.address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks")
        return self.by_public_address(f"{host}:{port}").address

    def failover(self, key):
        old = self.primary(key)
        until("Sentinel agrees", lambda: ask(self.sentinel.address, "SENTINEL", "FAILOVER", "locks") == "OK", 30)
        until("another primary", lambda: self.primary(key) != old, 30)

    def stop_sentinel(self, _key):
        self.sentinel.signal(signal.SIGSTOP)

    def go(self):
        self.sentinel.signal(signal.SIGCONT)
        super().go()

    def stop_replica(self, key):
        primary = self.primary(key)
        next(server for server in self.servers if server.address != primary).signal(signal.SIGSTOP)

    def heal(self):
        self.go()
        primary = self.by_address(self.primary(None))
        for server in self.servers:
            if not server.runs:
                server.start("--replicaof", "127.0.0.1", str(primary.public_port))

        def is_well():
            primary = self.primary(None)
            followed = self.by_address(primary).public_address
            roles = [ask(server.address, "ROLE", timeout=1.0) for server in self.servers]
            follows = [r for r in roles if r[0] == "slave" and f"{r[1]}:{r[2]}" == followed and r[3] == "connected"]
            seen = ask(self.sentinel.address, "SENTINEL", "MASTER", "locks")
            flags, replicas = (seen[seen.index(word) + 1] for word in ("flags", "num-slaves"))
            return len(follows) == 2 and ask(primary, "ROLE")[0] == "master" and flags == "master" and int(replicas) >= 2

        until("Sentinel and its servers are well", is_well, 60)

    def close(self):
        self.sentinel.kill()
        super().close()


class Cluster(Topology):
    kind = "cluster"

    def __init__(self, *args):
        super().__init__(*args)
        words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"]
        for n in range(6):
            self.server(f"cluster-{n + 1}", *words)
        bounds = [0, 5461, 10923, 16384]
        for n, server in enumerate(self.servers):
            ask(server.address, "CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            if n < 3:
                ask(server.address, "CLUSTER", "ADDSLOTSRANGE", bounds[n], bounds[n + 1] - 1)
            ask(server.address, "CLUSTER", "MEET", "127.0.0.1", self.servers[0].public_port)
        known = lambda: all(len(ask(s.address, "CLUSTER", "NODES").splitlines()) == 6 for s in self.servers)
        until("the nodes know each other", known)
        for primary, replica in zip(self.servers[:3], self.servers[3:]):
            name = ask(primary.address, "CLUSTER", "MYID")
            until("a replica follows", lambda: ask(replica.address, "CLUSTER", "REPLICATE", name) == "OK")
        self.opens([server.public_address for server in self.servers[:3]])
        self.heal()

    def primary(self, key):
        """The primary of the key's slot, as the node with the highest epoch reports it."""
        found = []
        for server in self.servers:
            try:
                lines = ask(server.address, "CLUSTER", "NODES", timeout=0.5).splitlines()
            except TROUBLE:
                continue
            mine = next(line for line in lines if "myself" in line).split()
            if "master" in mine[2] and any(_has(part, slot(key)) for part in mine[8:]):
                found.append((int(mine[6]), server.address))
        if not found:
            raise ConnectionError(f"nobody has the slot of {key}")
        return max(found)[1]

    def failover(self, key):
        old = self.primary(key)
        name = ask(old, "CLUSTER", "MYID")
        line = until("a replica is there", lambda: ask(old, "CLUSTER", "REPLICAS", name))[0]
        replica = line.split()[1].split("@")[0]
        until("it may", lambda: ask(replica, "CLUSTER", "FAILOVER") == "OK")
        until("another primary", lambda: self.primary(key) == replica, 30)

    def move(self, key):
        old, number = self.primary(key), slot(key)
        primaries = {self.primary(f"{{{n}}}") for n in range(60)}
        new = next(address for address in sorted(primaries) if address != old)
        names = {address: ask(address, "CLUSTER", "MYID") for address in (old, new)}
        ask(new, "CLUSTER", "SETSLOT", number, "IMPORTING", names[old])
        ask(old, "CLUSTER", "SETSLOT", number, "MIGRATING", names[new])
        while keys := ask(old, "CLUSTER", "GETKEYSINSLOT", number, 10):
            ask(old, "MIGRATE", *new.split(":"), "", 0, 5000, "KEYS", *keys)
        for address in (new, old, *primaries - {old, new}):
            ask(address, "CLUSTER", "SETSLOT", number, "NODE", names[new])

    def heal(self):
        self.go()
        self.start_dead()

        def is_well():
            roles = [ask(server.address, "ROLE", timeout=1.0) for server in self.servers]
            states = [ask(server.address, "CLUSTER", "INFO", timeout=1.0) for server in self.servers]
            tables = {_table(ask(server.address, "CLUSTER", "NODES", timeout=1.0)) for server in self.servers}
            replicas = [role for role in roles if role[0] == "slave" and role[3] == "connected"]
            return len(replicas) == 3 and all("cluster_state:ok" in state for state in states) and len(tables) == 1

        until("the cluster is well", is_well, 60)


def _has(part, number):
    first, _, last = part.partition("-")
    return first.isdigit() and int(first) <= number <= int(last or first)


def _table(nodes):
    """Which node has which slots, as one node sees it."""
    rows = (line.split() for line in nodes.splitlines())
    return tuple(sorted((row[0], tuple(row[8:]), "fail" in row[2]) for row in rows))


KINDS = {kind.kind: kind for kind in (Standalone, Replicated, Sentinel, Cluster)}
