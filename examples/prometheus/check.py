"""Scrapes the exporter, which reads the server at 127.0.0.1:$PORT, and reads the page as Prometheus' own parser does."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import dashboard_rules
from rlock_exporter import GAUGES, HELP, HISTOGRAM, REASONS, Down, Server

SERVER = ("127.0.0.1", int(os.environ["PORT"]))
PROGRAM = os.environ["RLOCK_SERVER"]


def ask(*words):
    with Server(SERVER, None) as server:
        return server.ask(*words)


def info():
    return {name: int(value) for name, value in re.findall(r"(rlock_\w+):(\d+)", ask("INFO", "rlock"))}


def scrape(url):
    with urllib.request.urlopen(url, timeout=20) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return {family.name: family for family in text_string_to_metric_families(page.read().decode())}


@contextlib.contextmanager
def exporter(port, *options, **environment):
    """Its address, and what it says on stderr."""
    words = [sys.executable, "-B", str(HERE / "rlock_exporter.py"), "--redis", f"localhost:{port}", *options]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([*words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=said, text=True,
                                   env={**os.environ, **environment})
        try:
            yield process.stdout.readline().strip(), lambda: said.seek(0) or said.read()
        finally:
            process.kill()
            process.wait()


def until(is_so):
    """Looks until `is_so`, for 10 seconds at most."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def scrape_of_a_quiet_moment(url):
    """INFO and the page that says the same. What others left behind may end meanwhile: then once more."""
    end = time.monotonic() + 10
    while True:
        before, families, after = info(), scrape(url), info()
        if before == after:
            return before, families
        assert time.monotonic() < end, "somebody else uses this server"


def only(families, name):
    (found,) = families[name].samples
    return found.value


def a_wait_is_shown_and_counted(url):
    """A lock that is handed over once: while bob waits the page says so, and later how long he did."""
    ask("RLOCK.ACQUIRE", "prom:lock", "ann", "LEASE", "60000")
    waiting = threading.Thread(target=ask, args=["RLOCK.ACQUIRE", "prom:lock", "bob", "LEASE", "60000", "BLOCK", "9000"])
    waiting.start()
    until(lambda: ask("RLOCK.QUEUES") and ask("RLOCK.QUEUES")[0][2] > 150)
    families = scrape(url)
    assert 0.15 <= only(families, "rlock_head_wait_seconds") < 10, families
    assert only(families, "rlock_longest_queue") == only(families, "rlock_waiters") == 1
    ask("RLOCK.RELEASE", "prom:lock", "ann")
    waiting.join()
    assert only(scrape(url), "rlock_head_wait_seconds") == 0


def a_shut_gate_is_shown(url):
    """A lease ends, somebody is next, and the server would refuse the write."""
    ask("RLOCK.ACQUIRE", "prom:gate", "ann", "LEASE", "1000")
    ask("RLOCK.ACQUIRE", "prom:gate", "bob", "QUEUE", "60000")
    ask("CONFIG", "SET", "min-replicas-to-write", "1")
    until(lambda: info()["rlock_gate_shut"] == 1)
    since = only(scrape(url), "rlock_gate_shut_since_seconds")
    assert only(scrape(url), "rlock_gate_shut") == 1 and abs(time.time() - since) < 60, since
    ask("CONFIG", "SET", "min-replicas-to-write", "0")
    until(lambda: info()["rlock_gate_shut"] == 0)
    assert only(scrape(url), "rlock_gate_shut_since_seconds") == 0
    ask("RLOCK.CANCEL", "prom:gate", "bob")


def refusals_for_lack_of_replicas_are_shown(url):
    """By the module, for a request with ACKS; and by the server, for any write, which the module never sees."""
    families = scrape(url)
    before = only(families, "rlock_noreplicas"), only(families, "rlock_noreplicas_errors")

    def is_refused(*words):
        with contextlib.suppress(Down):
            ask(*words)
            raise AssertionError(f"{words} was not refused")
        families = scrape(url)
        after = only(families, "rlock_noreplicas"), only(families, "rlock_noreplicas_errors")
        return after[0] - before[0], after[1] - before[1]

    assert is_refused("RLOCK.ACQUIRE", "prom:acks", "ann", "ACKS", "1") == (1, 1)
    ask("CONFIG", "SET", "min-replicas-to-write", "1")
    assert is_refused("RLOCK.ACQUIRE", "prom:acks", "ann") == (1, 2)
    ask("CONFIG", "SET", "min-replicas-to-write", "0")


def a_refused_session_is_counted():
    most = ask("CONFIG", "GET", "rlock.max-sessions")[1]
    ask("CONFIG", "SET", "rlock.max-sessions", "0")
    with contextlib.suppress(Down):
        ask("RLOCK.ACQUIRE", "prom:session", "ann", "SESSION")
        raise AssertionError("the session was granted")
    ask("CONFIG", "SET", "rlock.max-sessions", most)


def all_of_info_is_served(url):
    before, families = scrape_of_a_quiet_moment(url)
    assert only(families, "rlock_up") == 1
    assert {s.labels["reason"]: s.value for s in families["rlock_down"].samples} == dict.fromkeys(REASONS, 0)
    assert before["rlock_sessions_refused"] == 1
    for name, value in before.items():
        if HISTOGRAM.fullmatch(name) or name == "rlock_gate_shut_since_ms":
            continue
        assert name in HELP, f"{name} has no help text"
        family = families[name]
        assert family.type == ("gauge" if name in GAUGES else "counter"), family
        assert [sample.value for sample in family.samples] == [value], family
    for kind in ("wait", "hold"):
        histogram_is_served(families[f"rlock_{kind}_seconds"], before, f"rlock_{kind}_us")
    assert before["rlock_wait_us_sum"] > 100_000, "bob waited for 150 ms"
    names = {sample.name for family in families.values() for sample in family.samples}
    what_is_named_is_served(names)


def histogram_is_served(family, before, prefix):
    assert family.type == "histogram"
    buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and len(buckets) == 17, buckets
    assert [count for _, count in buckets] == sorted(count for _, count in buckets), buckets
    values = {s.name: s.value for s in family.samples}
    assert buckets[-1] == (float("inf"), values[family.name + "_count"])
    assert values[family.name + "_count"] == before[prefix + "_count"] >= 1
    assert abs(values[family.name + "_sum"] * 1e6 - before[prefix + "_sum"]) < 1


def what_is_named_is_served(names):
    """Whatever the alerts and the dashboard name is there."""
    rules = re.sub(r"(?m)^ *#.*|^ *summary:.*", "", (HERE / "alerts.yml").read_text())
    for text in (rules, " ".join(dashboard_rules.queries())):
        named = set(re.findall(r"\brlock_\w+", text))
        assert len(named) > 5 and named <= names, named - names
    ids = [panel["id"] for panel in dashboard_rules.PANELS]
    assert len(set(ids)) == len(ids) and all(panel["targets"] for panel in dashboard_rules.PANELS)
    taken = [(x, y) for panel in dashboard_rules.PANELS for x, y in cells(panel["gridPos"])]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24, "panels overlap"


def cells(grid):
    return [(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])]


def is_down(reason, port, *options, **environment):
    with exporter(port, *options, **environment) as (url, said):
        families = scrape(url)
        assert sorted(families) == ["rlock_down", "rlock_up"] and only(families, "rlock_up") == 0, families
        reasons = {s.labels["reason"] for s in families["rlock_down"].samples if s.value == 1}
        scrape(url)
        assert reasons == {reason} and said().count(f"rlock_up 0, {reason}: ") == 1, (reasons, said())


@contextlib.contextmanager
def bare_server(folder):
    """A server with a password and without the module: its port and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [PROGRAM, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
             "--requirepass", "right"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield port, process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def it_says_why_it_is_down(folder):
    is_down("unreachable", 1)
    with bare_server(folder) as (port, process):
        is_down("no_module", port, REDISCLI_AUTH="right")
        is_down("password", port, REDISCLI_AUTH="wrong")
        is_down("password", port)
        process.send_signal(signal.SIGSTOP)
        is_down("timeout", port)
    ask("ACL", "SETUSER", "prom", "on", ">secret", "-@all", "+info")
    login = {"REDIS_USER": "prom", "REDISCLI_AUTH": "secret"}
    is_down("permission", SERVER[1], **login)
    # As docs/operations.md has it.
    ask("ACL", "SETUSER", "prom", "+rlock.queues")
    with exporter(SERVER[1], **login) as (url, _):
        assert only(scrape(url), "rlock_up") == 1


def it_speaks_tls(folder):
    key, certificate = f"{folder}/key", f"{folder}/certificate"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    if not shutil.which("openssl"):
        return print("TLS was not seen: no openssl to make a certificate with")
    subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["tls-cert-file", certificate, "tls-key-file", key, "tls-ca-cert-file", certificate, "tls-port", str(port)]
    try:
        ask("CONFIG", "SET", *words)
    except Down as down:
        return print(f"TLS was not seen: {down}")
    is_down("tls", port, "--tls")
    # The server asks for the client's certificate, too.
    with exporter(port, "--tls", "--cacert", certificate, "--cert", certificate, "--key", key) as (url, _):
        assert only(scrape(url), "rlock_up") == 1
    ask("CONFIG", "SET", "tls-port", "0")


def main():
    with exporter(SERVER[1]) as (url, _):
        a_wait_is_shown_and_counted(url)
        a_shut_gate_is_shown(url)
        refusals_for_lack_of_replicas_are_shown(url)
        a_refused_session_is_counted()
        all_of_info_is_served(url)
    with tempfile.TemporaryDirectory() as folder:
        it_says_why_it_is_down(folder)
        it_speaks_tls(folder)


main()
