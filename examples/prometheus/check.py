"""Scrapes the exporter, which reads the server at 127.0.0.1:$PORT, and reads the page as Prometheus' own parser does."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from rlock_exporter import GAUGES, HELP, ask

SERVER = ("127.0.0.1", int(os.environ["PORT"]))


def info():
    return dict(re.findall(r"(rlock_\w+):(\d+)", ask(SERVER, ["INFO", "rlock"])[0]))


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return {family.name: family for family in text_string_to_metric_families(page.read().decode())}


def exporter(redis):
    program = pathlib.Path(__file__).with_name("rlock_exporter.py")
    words = [sys.executable, str(program), "--redis", redis, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def one_who_waits():
    """A lock that is handed over once, after 150 ms, so that there is a wait to be shown."""
    ask_number("RLOCK.ACQUIRE", "prom:lock", "ann", "LEASE", "60000")
    waiting = threading.Thread(target=ask_number, args=["RLOCK.ACQUIRE", "prom:lock", "bob", "LEASE", "60000", "BLOCK", "9000"])
    waiting.start()
    until(lambda: info()["rlock_waiters"] == "1")
    time.sleep(0.15)
    ask_number("RLOCK.RELEASE", "prom:lock", "ann")
    waiting.join()


def scrape_of_a_quiet_moment(url):
    """INFO and the page that says the same. What others left behind may end meanwhile: then once more."""
    end = time.monotonic() + 10
    while True:
        before, families, after = info(), scrape(url), info()
        if before == after:
            return before, families
        assert time.monotonic() < end, "somebody else uses this server"


def until(is_so):
    """Looks until `is_so`, for 10 seconds at most."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def ask_number(*words):
    # The exporter's own small client reads no numbers.
    with socket.create_connection(SERVER, timeout=20) as connection:
        connection.sendall((" ".join(words) + "\r\n").encode())
        reply = connection.recv(100)
        assert reply.startswith(b":"), reply


def main():
    process, url = exporter(f"{SERVER[0]}:{SERVER[1]}")
    try:
        one_who_waits()
        before, families = scrape_of_a_quiet_moment(url)
        assert families["rlock_up"].samples[0].value == 1
        for name in before:
            if name.startswith("rlock_wait_us"):
                continue
            assert name in HELP, f"{name} has no help text"
            family = families[name]
            assert family.type == ("gauge" if name in GAUGES else "counter"), family
            assert [sample.value for sample in family.samples] == [int(before[name])], family
        waits = families["rlock_wait_seconds"]
        assert waits.type == "histogram"
        buckets = [(float(s.labels["le"]), s.value) for s in waits.samples if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets) and len(buckets) == 7, buckets
        assert [count for _, count in buckets] == sorted(count for _, count in buckets), buckets
        values = {s.name: s.value for s in waits.samples}
        assert buckets[-1] == (float("inf"), values["rlock_wait_seconds_count"])
        assert values["rlock_wait_seconds_count"] == int(before["rlock_wait_us_count"]) >= 1
        assert abs(values["rlock_wait_seconds_sum"] * 1e6 - int(before["rlock_wait_us_sum"])) < 1
        assert values["rlock_wait_seconds_sum"] > 0.1, "bob waited for 150 ms"
        # Whatever the alerts name is there.
        names = {sample.name for family in families.values() for sample in family.samples}
        rules = pathlib.Path(__file__).with_name("alerts.yml").read_text()
        assert (missing := set(re.findall(r"\brlock_\w+", rules)) - names) == set(), missing
    finally:
        process.kill()
    process, url = exporter("127.0.0.1:1")
    try:
        families = scrape(url)
        assert list(families) == ["rlock_up"] and families["rlock_up"].samples[0].value == 0
    finally:
        process.kill()


main()
