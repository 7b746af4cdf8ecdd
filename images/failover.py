"""Runs the services of images/compose.yaml without Docker, and kills one after another. Each service has a network
namespace with its address, and runs in the folder of an image that images/steps.py has made. Needs root, Linux and
iproute2.

    failover.py IMAGE-FOLDER COMPOSE-FILE WORK-FOLDER [names]

With `names`, the members refer to each other by name instead of by address, as in kubernetes-ha.yaml.
For each death, a line says what kept working and what stopped. The script fails if anything differs from what
docs/high-availability.md describes. When the script ends, the processes end, and the
namespaces, which nothing else is connected to, are removed.
"""

import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import time

import yaml

NETWORK = "locks"
BRIDGE = "rlock-bridge"
PASSWORDS = {f"RLOCK_{user}_PASSWORD": secrets.token_hex(8) for user in ("NODE", "APP", "OPERATOR", "METRICS")}
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Service:
    def __init__(self, name: str, settings: dict, image: pathlib.Path, work: pathlib.Path):
        self.name, self.image = name, image
        self.address = settings["networks"][NETWORK]["ipv4_address"]
        self.words = [*settings["entrypoint"], *settings["command"]]
        self.environment = {name: filled(value) for name, value in settings["environment"].items()}
        self.known_as = self.address
        self.user = settings.get("user", "0:0")
        self.data = work / name
        self.make_data()
        self.log = open(work / f"{name}.log", "ab")
        self.process: subprocess.Popen | None = None

    def make_data(self) -> None:
        """Makes a folder like a new volume: it belongs to the image's own user."""
        self.data.mkdir(mode=0o755)
        os.chown(self.data, 999, 999)

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
        enter = f'exec chroot --userspec={self.user} "{self.image}" /bin/sh -c \'cd /data && exec "$@"\' sh "$@"'
        inside = f'mount --bind "{self.data}" "{self.image}/data" && {enter}'
        words = ["ip", "netns", "exec", self.space, "unshare", "--mount", "/bin/sh", "-c", inside, "sh", *self.words]
        environment = {"PATH": PATHS, **self.environment}
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)

    def kill(self) -> None:
        """Kills the service and the processes that node.sh left running beside it."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def lose_data(self) -> None:
        run("rm", "-r", str(self.data))
        self.make_data()

    def ask(self, *words: str, port: int = 6379, user: str = "app") -> list[str]:
        """The lines of the reply, as redis-cli prints them; no lines if no server answers."""
        command = ["ip", "netns", "exec", self.space, "chroot", self.image, "redis-cli", "--user", user, "-h", self.address, "-p", str(port), *words]
        secret = {"PATH": PATHS, "REDISCLI_AUTH": PASSWORDS[f"RLOCK_{user.upper()}_PASSWORD"]}
        return subprocess.run(command, capture_output=True, text=True, timeout=20, env=secret).stdout.split("\n")[:-1]

    def info(self, section: str) -> dict[str, str]:
        return dict(line.strip().split(":", 1) for line in self.ask("info", section) if ":" in line)

    def page(self, path: str) -> str:
        get = f"import urllib.request as u; print(u.urlopen('http://{self.address}:9121{path}', timeout=5).read().decode())"
        command = ["ip", "netns", "exec", self.space, sys.executable, "-c", get]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


def filled(text: str) -> str:
    return re.sub(r"\$\{(\w+):\?\}", lambda found: PASSWORDS[found[1]], text)


def name_all(services: dict[str, Service], image: pathlib.Path) -> None:
    hosts = {service.address: f"{name}.locks" for name, service in services.items()}
    (image / "etc/hosts").write_text("".join(f"{address} {name}\n" for address, name in hosts.items()))
    for service in services.values():
        service.known_as = hosts[service.address]
        for variable, text in service.environment.items():
            service.environment[variable] = " ".join(hosts.get(word, word) for word in text.split(" "))


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def until(what: str, is_so, seconds: float = 120) -> float:
    start = time.monotonic()
    while not is_so():
        if time.monotonic() - start > seconds:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - start


def check(what: str, is_so: bool) -> None:
    if not is_so:
        sys.exit(f"not so: {what}")


class Play:
    def __init__(self, services: dict[str, Service]):
        self.services = services
        self.servers = [service for name, service in services.items() if name.startswith("server")]
        self.sentinels = [service for name, service in services.items() if name.startswith("sentinel")]
        self.serve = services["serve"]
        self.count = 0

    def named(self) -> Service | None:
        """The primary, according to a running Sentinel that an application may ask."""
        for sentinel in (one for one in self.sentinels if one.process):
            address = sentinel.ask("sentinel", "get-master-addr-by-name", NETWORK, port=26379)
            for server in self.servers:
                if address and address[0] == server.known_as:
                    return server
        return None

    def primary(self) -> Service:
        """The primary. Waits for it, because a starting Sentinel may itself wait for others."""
        found: list[Service | None] = []

        def is_named() -> bool:
            found[:] = [self.named()]
            return found[0] is not None

        until("a Sentinel names a primary", is_named)
        return found[0]

    def replicas(self) -> list[Service]:
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def acquires(self) -> str:
        """The first word of the reply: a token, or an error. The hold expires within a minute."""
        self.count += 1
        said = self.primary().ask("rlock.acquire", f"app:{self.count}", "someone", "lease", "60000")
        return said[0].split(" ")[0] if said else ""

    def works(self) -> bool:
        if not self.acquires().isdigit():
            return False
        return self.primary().ask("rlock.release", f"app:{self.count}", "someone")[:1] == ["0"]

    def whole(self) -> None:
        """Waits until all services are running and have found each other."""
        primary = self.primary()
        until("two replicas follow", lambda: primary.info("replication").get("connected_slaves") == "2")
        until("and are told apart", lambda: all(server.info("replication").get("master_link_status") == "up" for server in self.replicas()))
        for sentinel in self.sentinels:
            until(f"{sentinel.name} knows the others", lambda: self.all_is_known(sentinel))
        until("it works", self.works)

    def all_is_known(self, sentinel: Service) -> bool:
        lines = sentinel.ask("sentinel", "master", NETWORK, port=26379)
        known = dict(zip(lines[::2], lines[1::2]))
        if (known.get("num-slaves"), known.get("num-other-sentinels"), known.get("flags")) != ("2", "2", "master"):
            return False
        # Each replica may be promoted: it has everything, and this Sentinel has noticed that.
        said = sentinel.ask("sentinel", "replicas", NETWORK, port=26379)
        priorities = [value for name, value in zip(said, said[1:]) if name == "slave-priority"]
        return len(priorities) == 2 and "0" not in priorities

    def held(self) -> list[str]:
        return self.primary().ask("rlock.acquire", "app:kept", "worker-1", "depth", "1", "lease", "600000")

    def a_command_runs(self) -> None:
        """Runs a command with `rlock run`, as docs/high-availability.md describes."""
        urls = [word for one in self.sentinels for word in ("--url", f"redis://app@{one.known_as}:26379")]
        words = ["rlock", "run", "--sentinel", NETWORK, *urls, "app:nightly", "--", "sh", "-c", "echo token $RLOCK_TOKEN"]
        # `rlock run` executes its own program file again, which it finds through /proc. So /proc is mounted.
        inside = f'mount -t proc proc "{self.serve.image}/proc" && exec chroot "{self.serve.image}" "$@"'
        command = ["ip", "netns", "exec", self.serve.space, "unshare", "--mount", "/bin/sh", "-c", inside, "sh", *words]
        secret = {"PATH": PATHS, "REDISCLI_AUTH": PASSWORDS["RLOCK_APP_PASSWORD"]}
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, env=secret)
        check(f"rlock run: {said.stderr}", re.fullmatch(r"token \d+\n", said.stdout) is not None)

    # --- the deaths

    def the_page(self) -> None:
        self.serve.kill()
        check("locks work without the page", self.works())
        self.serve.start()
        until("the page is back", lambda: "rlock_up{" in self.serve.page("/metrics"))
        print("serve dies: locks are granted and released", flush=True)

    def a_sentinel(self) -> None:
        for sentinel in self.sentinels:
            sentinel.kill()
            check(f"locks work without {sentinel.name}", self.works())
            sentinel.start()
        self.whole()
        print("any one Sentinel dies: locks are granted and released", flush=True)

    def a_replica(self) -> None:
        for replica in self.replicas():
            replica.kill()
            primary = self.primary()
            until("it is missed", lambda: primary.info("replication").get("connected_slaves") == "1")
            check(f"locks work without {replica.name}", self.works())
            replica.start()
            self.whole()
        print("any one replica dies: locks are granted and released", flush=True)

    def both_replicas(self) -> None:
        primary, replicas = self.primary(), self.replicas()
        for replica in replicas:
            replica.kill()
        until("they are missed", lambda: primary.info("replication").get("connected_slaves") == "0")
        check("-NOREPLICAS", self.acquires() == "NOREPLICAS")
        said = primary.ask("rlock.release", "app:kept", "worker-1", "depth", "0")
        check("nor released", said[:1] != ["0"] and "NOREPLICAS" in said[0])
        check("what only reads works", primary.ask("rlock.holds", "app:kept", "worker-1") == ["1"])
        replicas[0].start()
        took = until("it works again", self.works)
        replicas[1].start()
        self.whole()
        print(f"both replicas die: -NOREPLICAS, commands that only read work; granted {took:.1f} s after one of them was started again", flush=True)

    def the_primary(self) -> None:
        token, old = self.held(), self.primary()
        old.kill()
        took = until("another primary", lambda: self.primary() is not old)
        again = until("the next grant", self.works)
        check("the lock is kept, with its token", self.held() == token)
        check("and excludes", self.primary().ask("rlock.acquire", "app:kept", "worker-2") == [""])
        seen = until("the page has found it", lambda: f'rlock_primary{{server="{self.primary().known_as}:6379"}} 1' in self.serve.page("/metrics"))
        old.start()
        until("the old one follows", lambda: old.info("replication").get("role") == "slave")
        self.whole()
        check("the lock is kept", self.held() == token)
        print(f"the primary dies: {took:.1f} s until another one is named, {again:.1f} s more until the next grant; the lock has its token, the old"
              f" primary follows; the page has it {seen:.1f} s later", flush=True)

    def the_primary_loses_its_disk(self) -> None:
        token, old = self.held(), self.primary()
        old.kill()
        old.lose_data()
        old.start()

        def is_replaced() -> bool:
            check("it does not begin as an empty primary", old.info("replication").get("role") != "master")
            return self.primary() is not old

        until("another primary", is_replaced)
        until("it follows", lambda: old.info("replication").get("role") == "slave")
        self.whole()
        check("the lock is kept, with its token", self.held() == token)
        print("the primary restarts at once without its data: it waits until another one takes over, the lock has its token", flush=True)

    def the_primary_and_two_sentinels(self) -> None:
        token, old = self.held(), self.primary()
        for sentinel in self.sentinels[1:]:
            sentinel.kill()
        old.kill()
        # This is three times as long as a majority of Sentinels takes to declare the primary down.
        time.sleep(15)
        check("one Sentinel promotes nobody", self.primary() is old and self.acquires() == "")
        self.sentinels[1].start()
        took = until("another primary", lambda: self.primary() is not old)
        until("it works", self.works)
        self.sentinels[2].start()
        old.start()
        self.whole()
        check("the lock is kept, with its token", self.held() == token)
        print(f"the primary and two Sentinels die: nothing works; {took:.1f} s after one of these Sentinels was started again, another primary", flush=True)

    def all_of_them(self) -> None:
        token = self.held()
        for service in self.services.values():
            service.kill()
        for service in self.services.values():
            service.start()
        until("it works", self.works)
        check("the lock is kept, with its token", self.held() == token)
        self.whole()
        print("all die at once and are started again: the lock has its token", flush=True)


def main(image: str, compose: str, work: str, names: str = "") -> None:
    with open(compose) as file:
        settings = yaml.safe_load(file)
    folder = pathlib.Path(work)
    services = {name: Service(name, each, pathlib.Path(image), folder) for name, each in settings["services"].items()}
    if names:
        name_all(services, pathlib.Path(image))
    spaces = [f"rlock-{BRIDGE}", *(service.space for service in services.values())]
    try:
        # The bridge has its own namespace as well, so that this machine is not connected to it.
        run("ip", "netns", "add", f"rlock-{BRIDGE}")
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "-n", f"rlock-{BRIDGE}", "link", "set", BRIDGE, "up")
        for number, service in enumerate(services.values()):
            service.connect(number)
            service.start()
        play = Play(services)
        play.whole()
        check("an application may not list the queues", play.primary().ask("rlock.queues")[0].startswith("NOPERM"))
        play.held()
        play.a_command_runs()
        play.the_page()
        play.a_sentinel()
        play.a_replica()
        play.both_replicas()
        play.the_primary()
        play.the_primary_loses_its_disk()
        play.the_primary_and_two_sentinels()
        play.all_of_them()
    finally:
        for service in services.values():
            service.kill()
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL)


main(*sys.argv[1:])
