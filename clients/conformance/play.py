"""Plays one scenario of the script: what each kind of step does. See README.md."""

import concurrent.futures
import json
import os
import signal
import socket
import time

from resp import Refused, ask, lock_info, section
from runner import unix_ms
from servers import TROUBLE, free_port, until
from worlds import at_most

SLACK = 250


class Play:
    """One scenario on one topology with one runner."""

    count = 0

    def __init__(self, scenario, topology, runner, threads, stalled):
        self.scenario, self.topology, self.runner, self.threads = scenario, topology, runner, threads
        self.stalled = stalled  # for how long threads have waited for a processor since the scenario began, in ms
        Play.count += 1
        self.prefix = f"{topology.access.prefix}conf:{runner.process.pid}:{Play.count}:"
        self.started = {}
        refused = f"127.0.0.1:{free_port()}"  # nobody listens there
        self.saved = {"slack": SLACK, "refused": refused, "hostname": socket.gethostname(), "pid": runner.process.pid, "len": len, "all": all, "str": str}
        self.killed = self.closed = False

    def run(self):
        self.request({"do": "open", "client": "c", **self.scenario.get("open", {}), "gives": {"ok": True}})
        for number, step in enumerate(self.scenario["steps"], 1):
            try:
                self.step(step)
            except (AssertionError, *TROUBLE) as error:
                raise AssertionError(f"step {number}: {json.dumps(step)}\n    {error}") from None
        if not self.killed:
            self.topology.heal()
        if not self.killed and not self.closed:
            self.request({"do": "close", "client": "c", "gives": {"ok": True}})

    def put(self, value):
        """The value, with `@` and `$` filled in."""
        if isinstance(value, str) and value[:1] == "@":
            return self.prefix + value[1:]
        if isinstance(value, str) and value[:1] == "$":
            return self.saved[value[1:]]
        if isinstance(value, list):
            return [self.put(item) for item in value]
        if isinstance(value, dict):
            return {key: self.put(item) for key, item in value.items()}
        return value

    def step(self, step):
        kind = next(iter(step))
        getattr(self, "step_" + kind)(step)

    def step_do(self, step):
        self.request(step)

    def request(self, step):
        ours = ("gives", "save", "start") if step["do"] in ("lost", "observed") else ("gives", "save", "start", "within")
        request = {k: self.put(v) for k, v in step.items() if k not in ours}
        self.closed = self.closed or (request["do"], request.get("client")) == ("close", "c")
        if request["do"] == "open":
            request = {**self.topology.opening, **request}
            if host := request.pop("host", None):
                request["addresses"] = [f"{host}:{address.rsplit(':', 1)[1]}" for address in request["addresses"]]
            if request.pop("other-names", False):
                others = [address.replace("127.0.0.1", "localhost") for address in request["addresses"]]
                request["addresses"] = others[:0:-1] or others
        future = self.runner.ask(request)
        if "start" in step:
            self.started[step["start"]] = future
        else:
            self.check_reply(future, step)

    def check_reply(self, future, step):
        bound = 10000 + step["within"] if step.get("do") in ("lost", "observed") else step.get("within", 15000 if "do" in step else 10000)
        try:
            reply = future.result(bound / 1000)
        except concurrent.futures.TimeoutError:
            raise AssertionError("no reply in time") from None
        except (ConnectionError, Refused) as error:
            raise AssertionError(str(error)) from None
        if "gives" in step:
            wanted = self.put(step["gives"])
            assert matches(reply, wanted), f"it gave {json.dumps(reply)}"
        for name, path in step.get("save", {}).items():
            self.saved[name] = found(reply, path)

    def step_await(self, step):
        future = self.started[step["await"]]
        self.check_reply(future, step)
        took = (time.monotonic() - future.began) * 1000
        # A blocked wait ends one round trip early (clients/ALGORITHM.md). That is a few milliseconds, and longer if
        # threads had to wait for a processor.
        early = step.get("after", 0) - took - 10
        assert early <= 0 or early <= self.stalled(), f"after {took:.1f} ms already"
        if "saves_time" in step:
            self.saved[step["saves_time"]] = future.at

    def step_pending(self, step):
        future = self.started[step["pending"]]
        assert not future.done(), f"it has the reply {future.result()}"

    def step_cancel(self, step):
        self.request({"do": "cancel", "of": self.started[step["cancel"]].id, "gives": {"ok": True}})

    def step_say(self, step):
        words = self.put(step["say"])
        key = self.put(step["key"]) if "key" in step else next((w for w in words if str(w).startswith(self.prefix)), self.prefix)
        if "start" in step:
            address = self.said_at
            future = self.threads.submit(ask, address, *words, timeout=60)
            future.began = time.monotonic()
            future.add_done_callback(lambda done: setattr(done, "at", unix_ms()))
            self.started[step["start"]] = future
            time.sleep(0.05)  # this only helps: steps that need the request in the queue check for it
            return
        try:
            reply = until_primary(lambda: ask(self.topology.primary(key), *words))
        except Refused as refused:
            assert "error" in step and str(refused).startswith(step["error"]), f"it replied {refused}"
            return
        assert "error" not in step, f"it replied {reply}"
        assert "gives" not in step or reply == step["gives"], f"it replied {reply!r}"

    @property
    def said_at(self):
        return self.topology.primary(self.prefix)

    def step_info(self, step):
        key, wanted, seen = self.put(step["info"]), self.put(step["until"]), [None]

        def is_so():
            seen[0] = lock_info(self.topology.primary(key), key)
            return matches(seen[0], wanted)

        try:
            until("", is_so, step.get("within", 10000) / 1000)
        except AssertionError:
            raise AssertionError(f"RLOCK.INFO stays {json.dumps(seen[0])}") from None
        for name, path in step.get("save", {}).items():
            self.saved[name] = found(seen[0], path)

    def step_blocked(self, step):
        def waits():
            told = section(self.said_at, "rlock").get("rlock_tells", 0)
            return int(section(self.said_at, "clients")["blocked_clients"]) + int(told)

        until(f"{step['blocked']} waits", lambda: waits() == step["blocked"], 5)

    def step_many(self, step):
        for number in range(step["many"]):
            self.step(numbered(step["step"], str(number)))

    def step_connects(self, step):
        self.saved[step["connects"]] = self.topology.proxy.accepted

    def step_threads(self, step):
        self.saved[step["threads"]] = len(os.listdir(f"/proc/{self.runner.process.pid}/task"))

    def step_lines(self, step):
        """How many lines the runner has written to its standard error."""
        self.saved[step["lines"]] = self.runner.complaints().count("\n")

    def step_at_most(self, step):
        """Limits how many threads and processes the runner may have from now on."""
        at_most(self.runner.process.pid, step["at_most"])

    def step_names(self, step):
        self.runner.world.delay = step["names"] / 1000

    def step_connected(self, step):
        """Saves how many connections the server has, without the one that asks."""
        self.saved[step["connected"]] = len(ask(self.said_at, "CLIENT", "LIST").splitlines()) - 1

    def step_closed(self, step):
        """Waits until the connections that the proxy has accepted since `first` are closed."""
        first = self.put(step["closed"])
        is_so = lambda: all(number <= first for number in tuple(self.topology.proxy.open))
        until("the connections are closed", is_so, step.get("within", 10000) / 1000)

    def step_clock(self, step):
        self.saved[step["clock"]] = unix_ms()

    def step_check(self, step):
        right = eval(step["check"], {"__builtins__": {}}, dict(self.saved))  # this is safe: the script is our own
        known = {k: v for k, v in self.saved.items() if k in step["check"]}
        assert right, f"it is not so: {known}"

    def step_sleep(self, step):
        time.sleep(step["sleep"] / 1000)

    def step_server(self, step):
        self.topology.fault(step, self.put(step.get("key", "@k")))

    def step_replicated(self, step):
        self.topology.replicated(self.put(step["replicated"]))

    def step_proxy(self, step):
        self.topology.proxy.fault(step)

    def step_runner(self, step):
        match step["runner"]:
            case "stop":
                self.runner.process.send_signal(signal.SIGSTOP)
            case "go":
                self.runner.process.send_signal(signal.SIGCONT)
            case "kill":
                self.runner.process.kill()
                self.runner.process.wait()
                self.killed = True


def until_primary(do):
    """Calls `do`, and repeats it while no primary answers."""
    end = time.monotonic() + 20
    while True:
        try:
            return do()
        except (OSError, StopIteration):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def found(value, path):
    """The part of a reply at the path `a.0.b`."""
    for name in path.split("."):
        try:
            value = value[int(name) if isinstance(value, list) else name]
        except (KeyError, IndexError):
            raise AssertionError(f"{json.dumps(value)} has no {name}") from None
    return value


def numbered(step, number):
    """The value, with `#` replaced by that number."""
    return json.loads(json.dumps(step).replace("#", number))


def matches(value, wanted):
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and matches(value[key], part) for key, part in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(matches, value, wanted))
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
