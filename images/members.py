"""Runs the members that a compose or a Kubernetes file describes as processes on this machine, without Docker. Each
member has an address of the loopback interface, in a separate network. A member of a Kubernetes file is a pod: its name
resolves only while it runs, and it has another address each time it starts. Needs root and Linux."""

import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
NAME = "locks"
VARIABLES = [f"RLOCK_{user}_PASSWORD" for user in ("NODE", "APP", "OPERATOR", "METRICS")]
PASSWORDS = {variable: os.environ.get(variable) or secrets.token_hex(8) for variable in VARIABLES}
# A run that is asked to end must also end its sets, so SIGTERM raises an exception and `finally` is executed.
signal.signal(signal.SIGTERM, signal.default_int_handler)
NAMES = threading.Lock()
# Stands in for the entrypoint of the official images. A server on this machine must not listen on every address.
ENTRYPOINT = """#!/bin/sh
exec redis-server "$@" --bind $RLOCK_BIND
"""


def described(file: str) -> dict[str, dict[str, str]]:
    """The name of each server and Sentinel, with its environment. Addresses become loopback addresses."""
    with open(file) as opened:
        documents = list(yaml.safe_load_all(opened))
    members = of_compose(documents[0]) if "services" in documents[0] else of_kubernetes(documents)
    addresses = {}
    for place, environment in enumerate(members.values()):
        addresses[environment["RLOCK_SELF"]] = f"127.77.0.{11 + place}"
    for environment in members.values():
        environment["ADDRESS"] = addresses[environment["RLOCK_SELF"]]
        if "." in environment["RLOCK_SELF"] and environment["RLOCK_SELF"][0].isdigit():
            for variable in ("RLOCK_SELF", "RLOCK_SERVERS", "RLOCK_SENTINELS"):
                environment[variable] = " ".join(addresses[word] for word in environment[variable].split())
    return members


def of_compose(document: dict) -> dict[str, dict[str, str]]:
    return {name: dict(service["environment"]) for name, service in document["services"].items() if "RLOCK_SELF" in service["environment"]}


def of_kubernetes(documents: list[dict]) -> dict[str, dict[str, str]]:
    maps = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    members = {}
    for one in documents:
        if one["kind"] != "StatefulSet":
            continue
        container = one["spec"]["template"]["spec"]["containers"][0]
        for number in range(one["spec"]["replicas"]):
            pod = f"{one['metadata']['name']}-{number}"
            environment = {}
            for source in container["envFrom"]:
                environment |= maps[source["configMapRef"]["name"]]
            for each in container["env"]:
                environment[each["name"]] = each.get("value", "").replace("$(POD)", pod)
            members[pod.replace("rlock-", "")] = environment
    return members


def inside(*words: str) -> list[str]:
    """The command that runs this program with these words in namespaces of its own, where all its processes end with
    it."""
    space = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*space, sys.executable, "-B", sys.argv[0], *words]


def connect_inside(folder: pathlib.Path, place: pathlib.Path) -> None:
    """Sentinel writes the name of its folder into its state, so each set must have the same name: a place where the
    set's own folder is mounted."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    folder.mkdir(parents=True, exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, place], check=True)


class Member:
    def __init__(self, name: str, environment: dict[str, str], set_folder: pathlib.Path, server: pathlib.Path):
        self.name, self.kind = name, name.split("-")[0]
        self.address = environment["ADDRESS"]
        self.known_as = environment["RLOCK_SELF"]
        self.is_pod = self.known_as != self.address
        self.starts = 0
        self.port = 6379 if self.kind == "server" else 26379
        self.data = set_folder / "data" / name
        self.log = set_folder / f"{name}.log"
        self.node = set_folder / "node.sh"
        self.environment = {**environment, **PASSWORDS, "RLOCK_DATA": str(self.data), "RLOCK_SETTINGS": str(set_folder / "server.conf")}
        self.environment["PATH"] = f"{set_folder / 'bin'}:{server}:{os.environ['PATH']}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.starts += 1
        if self.is_pod:
            self.address = f"127.77.{self.starts % 250}.{self.address.rpartition('.')[2]}"
            write_names(self)
        self.environment["RLOCK_BIND"] = self.address
        self.data.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(b"--- start\n")
            log.flush()
            self.process = subprocess.Popen(
                [self.node, self.kind], cwd=self.data, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kills everything that the member started, at once, as when the machine loses power."""
        if self.process:
            try:
                os.killpg(self.process.pid, 9)
            except ProcessLookupError:
                pass  # It has already ended.
            self.process.wait()
            self.process = None
            if self.is_pod:
                write_names(self, is_there=False)

    def end(self, seconds: float) -> None:
        """Ends the member as when its pod is deleted: what does not end by itself in time is killed."""
        try:
            os.kill(self.process.pid, signal.SIGTERM)
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def lose_data(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)

    def run(self, word: str, seconds: float | None = None) -> subprocess.CompletedProcess:
        """Runs node.sh with another word, beside the running member."""
        words = [self.node, word]
        try:
            return subprocess.run(words, cwd=self.data, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 1, "", f"not within {seconds} s")

    def ask(self, *words, user: str = "app"):
        """The reply: a text, a number, a list or None. An error is a text that begins with -, and so is the result if
        the member does not answer."""
        if not self.process:
            return "-down"
        try:
            with socket.create_connection((self.address, self.port), timeout=5) as connection, connection.makefile("rb") as replies:
                for line in (["AUTH", user, PASSWORDS[f"RLOCK_{user.upper()}_PASSWORD"]], words):
                    parts = [str(word).encode() for word in line]
                    connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
                    reply = read(replies)
                    if isinstance(reply, str) and reply.startswith("-"):
                        return reply
                return reply
        except (OSError, ValueError) as why:
            return f"-{why}"

    def info(self, section: str) -> dict[str, str]:
        said = self.ask("info", section, user="node")
        return dict(line.split(":", 1) for line in said.split("\r\n") if ":" in line) if isinstance(said, str) and said[:1] != "-" else {}

    def since_start(self) -> list[str]:
        if not self.log.exists():
            return []
        return self.log.read_text(errors="replace").rpartition("--- start\n")[2].splitlines()

    def logged(self, event: str) -> int:
        """How often the event is in the log since the member was started."""
        return sum(event in line for line in self.since_start())

    def reason(self) -> str:
        """What node.sh waits for, according to its last log line since it was started; empty if it does not wait."""
        said = [line for line in self.since_start() if line.startswith("node.sh: ")]
        return said[-1] if said and ": waiting:" in said[-1] else ""


def write_names(member: Member, is_there: bool = True) -> None:
    """Writes the member's name into the hosts file. Members start at the same time, in threads, so nobody may find the
    file empty in between."""
    with NAMES, open("/etc/hosts", "r+") as hosts:
        lines = [line for line in hosts.read().splitlines() if line.split()[-1] != member.known_as]
        lines += [f"{member.address} {member.known_as}"] * is_there
        hosts.seek(0)
        hosts.write("".join(f"{line}\n" for line in lines))
        hosts.truncate()


def read(replies):
    line = replies.readline()
    if not line:
        raise ValueError("closed")
    kind, rest = line[:1], line[1:-2].decode(errors="replace")
    if kind == b":":
        return int(rest)
    if kind == b"+":
        return rest
    if kind == b"$":
        return None if rest == "-1" else replies.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [read(replies) for _ in range(int(rest))]
    return "-" + rest


class Members:
    """A set, in its own folder."""

    def __init__(self, file: str, folder: pathlib.Path, server: pathlib.Path, module: pathlib.Path):
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        entrypoint = folder / "bin/docker-entrypoint.sh"
        entrypoint.write_text(ENTRYPOINT)
        entrypoint.chmod(0o755)
        settings = (HERE / "../packaging/rlock.conf").read_text()
        lines = [line for line in settings.splitlines() if not line.startswith("#")]
        (folder / "server.conf").write_text("\n".join([f"loadmodule {module}", *lines, ""]))
        scripts = pathlib.Path(os.environ.get("RLOCK_NODE_SH", HERE / "node.sh")).parent
        for script in ("node.sh", "sentinel.sh"):
            shutil.copy(scripts / script, folder / script)
        members = [Member(name, environment, folder, server) for name, environment in described(file).items()]
        self.servers = [one for one in members if one.kind == "server"]
        self.sentinels = [one for one in members if one.kind == "sentinel"]
        self.all = members
        self.names = {one.name: one for one in members}
        if any(one.is_pod for one in members):
            hosts = folder / "hosts"
            hosts.write_text("127.0.0.1 localhost\n")
            subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def killed(self, *servers: Member) -> Member:
        """Kills the servers. Returns the Sentinel that is then elected to replace the primary. On a slow machine,
        another one may have been elected before, in vain."""
        before = {one.name: one.logged("+elected-leader") for one in self.sentinels}
        for one in servers:
            one.kill()
        elected = []

        def is_elected() -> bool:
            elected[:] = [one for one in self.sentinels if one.logged("+elected-leader") > before[one.name]]
            return bool(elected)

        until("a Sentinel is elected", is_elected, members=self)
        return elected[0]

    def kill_all(self) -> None:
        for one in self.all:
            one.kill()

    def named(self, sentinel: Member) -> Member | None:
        said = sentinel.ask("sentinel", "get-master-addr-by-name", NAME)
        found = [one for one in self.servers if isinstance(said, list) and one.known_as == said[0]]
        return found[0] if found else None

    def primary(self) -> Member | None:
        """The primary that an application finds: it asks the Sentinels in order, and takes the first server named that
        calls itself the primary."""
        for sentinel in self.sentinels:
            server = self.named(sentinel) if sentinel.process else None
            if server and server.info("replication").get("role") == "master":
                return server
        return None

    def grants(self, key: str, owner: str) -> int | None:
        """A confirmed grant for a day, from the primary."""
        server = self.primary()
        said = server.ask("rlock.acquire", key, owner, "lease", "86400000") if server else None
        return said if isinstance(said, int) else None

    def is_whole(self) -> bool:
        """Whether all members run, have everything, and know each other."""
        primary = self.primary()
        if not primary or primary.info("replication").get("connected_slaves") != str(len(self.servers) - 1):
            return False
        for sentinel in self.sentinels:
            said = sentinel.ask("sentinel", "master", NAME)
            known = dict(zip(said[::2], said[1::2])) if isinstance(said, list) else {}
            if self.named(sentinel) is not primary or (known.get("num-slaves"), known.get("num-other-sentinels"), known.get("flags")) != ("2", "2", "master"):
                return False
            # Every ten seconds, Sentinel checks whether a replica may be promoted.
            for replica in sentinel.ask("sentinel", "replicas", NAME):
                if dict(zip(replica[::2], replica[1::2])).get("slave-priority") == "0":
                    return False
        # This check is the last one, because it starts processes.
        return not any(server.run("ready").returncode for server in self.servers)

    def follow(self, key: str) -> bool:
        """Whether the running replicas have everything that the primary has written."""
        said = self.primary()
        mine = said.info("replication") if said else {}
        lines = [mine[f"slave{number}"] for number in range(int(mine.get("connected_slaves", 0)))]
        return bool(mine) and all(f"offset={mine['master_repl_offset']}," in line for line in lines)

    def logs(self, lines: int = 6) -> str:
        return "".join(f"  {one.name}: {line}\n" for one in self.all for line in one.since_start()[-lines:])


def until(what: str, is_so, seconds: float = 600, members: Members | None = None) -> float:
    start = time.monotonic()
    while not is_so():
        if time.monotonic() - start > seconds:
            if members:
                print(members.logs(), flush=True)
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - start
