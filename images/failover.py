"""Runs images/compose.yaml without Docker and lets the primary die: each service in a network namespace with its address,
in the folder of an image as images/steps.py makes it. As root, on Linux, with iproute2.

    failover.py IMAGE-FOLDER COMPOSE-FILE WORK-FOLDER

Says how long the failover took and that the lock was there afterwards; anything else ends it with an error. The
namespaces, which nothing else is connected to, and the processes end with it.
"""

import os
import pathlib
import subprocess
import sys
import time

import yaml

NETWORK = "locks"
BRIDGE = "rlock-bridge"


class Service:
    def __init__(self, name: str, settings: dict, image: pathlib.Path, work: pathlib.Path):
        self.name, self.image = name, image
        self.address = settings["networks"][NETWORK]["ipv4_address"]
        # As the engine does with $$.
        words = [*settings.get("entrypoint", ["docker-entrypoint.sh"]), *settings["command"]]
        self.words = [word.replace("$$", "$") for word in words]
        self.data = work / name
        self.data.mkdir()
        os.chmod(self.data, 0o777)
        self.log = open(work / f"{name}.log", "ab")
        self.process: subprocess.Popen | None = None

    @property
    def space(self) -> str:
        return f"rlock-{self.name}"

    def connect(self, number: int) -> None:
        inner, outer = f"rlock-in{number}", f"rlock-out{number}"
        run("ip", "netns", "add", self.space)
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.space)
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "set", outer, "master", BRIDGE, "up")
        run("ip", "-n", self.space, "address", "add", f"{self.address}/24", "dev", inner)
        run("ip", "-n", self.space, "link", "set", inner, "up")
        run("ip", "-n", self.space, "link", "set", "lo", "up")

    def start(self) -> None:
        inside = f'mount --bind "{self.data}" "{self.image}/data" && exec chroot "{self.image}" /bin/sh -c \'cd /data && exec "$@"\' sh "$@"'
        words = ["ip", "netns", "exec", self.space, "unshare", "--mount", "/bin/sh", "-c", inside, "sh", *self.words]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=environment)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, *words: str, port: int = 6379) -> list[str]:
        """The lines of the reply by redis-cli, none if nobody answers."""
        command = ["ip", "netns", "exec", self.space, "chroot", self.image, "redis-cli", "-h", self.address, "-p", str(port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split("\n")[:-1]


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def until(what: str, is_so, seconds: float = 60) -> float:
    start = time.monotonic()
    while not is_so():
        if time.monotonic() - start > seconds:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - start


def field(lines: list[str], name: str) -> str:
    pairs = dict(zip(lines[::2], lines[1::2]))
    return pairs.get(name, "")


def play(services: dict[str, Service]) -> None:
    primary = services["primary"]
    replicas = [service for name, service in services.items() if name.startswith("replica")]
    sentinels = [service for name, service in services.items() if name.startswith("sentinel")]
    for service in services.values():
        service.start()
    until("the replicas follow", lambda: primary.ask("wait", "2", "1000") == ["2"])

    def all_is_known(sentinel: Service) -> bool:
        known = sentinel.ask("sentinel", "master", NETWORK, port=26379)
        return (field(known, "num-slaves"), field(known, "num-other-sentinels")) == (str(len(replicas)), "2")

    for sentinel in sentinels:
        until(f"{sentinel.name} knows the others", lambda: all_is_known(sentinel))
    # No wait: the reply says that a replica has it.
    (token,) = primary.ask("rlock.acquire", "order:42", "worker-1", "lease", "600000")
    primary.kill()
    where = ["sentinel", "get-master-addr-by-name", NETWORK]

    def another() -> Service | None:
        address = sentinels[0].ask(*where, port=26379)
        return next((replica for replica in replicas if address == [replica.address, "6379"]), None)

    took = until("another primary", another)
    promoted = another()
    until("it is one", lambda: "role:master" in "\n".join(promoted.ask("info", "replication")).replace("\r", ""))
    if promoted.ask("rlock.holds", "order:42", "worker-1") != ["1"]:
        sys.exit("the lock is lost")
    # The other replica is enough: work goes on while the old primary is down.
    again = until("the next grant", lambda: promoted.ask("rlock.acquire", "order:43", "worker-3")[0].isdigit())
    if promoted.ask("rlock.release", "order:43", "worker-3", "depth", "0") != ["0"]:
        sys.exit("not released")
    primary.start()
    until("the old primary follows", lambda: "role:slave" in "\n".join(primary.ask("info", "replication")))
    until("and may be waited for", lambda: promoted.ask("wait", "2", "1000") == ["2"])
    if promoted.ask("rlock.acquire", "order:42", "worker-1", "depth", "1") != [token]:
        sys.exit("another token")
    if promoted.ask("rlock.acquire", "order:42", "worker-2") != [""]:
        sys.exit("two hold one lock")
    print(
        f"compose: six services; the primary died, another one {took:.1f} s later, with the lock and its token, and the next"
        f" grant {again:.1f} s after that; the old one follows"
    )


def main(image: str, compose: str, work: str) -> None:
    with open(compose) as file:
        settings = yaml.safe_load(file)
    folder = pathlib.Path(work)
    services = {name: Service(name, each, pathlib.Path(image), folder) for name, each in settings["services"].items()}
    spaces = [f"rlock-{BRIDGE}", *(service.space for service in services.values())]
    try:
        # The bridge has a namespace of its own, too: this machine is not connected to it.
        run("ip", "netns", "add", f"rlock-{BRIDGE}")
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "set", BRIDGE, "up")
        for number, service in enumerate(services.values()):
            service.connect(number)
        play(services)
    finally:
        for service in services.values():
            service.kill()
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL)


main(*sys.argv[1:])
