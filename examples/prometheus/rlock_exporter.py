#!/usr/bin/env python3
"""What `INFO rlock`, `RLOCK.QUEUES` and `INFO errorstats` say, for Prometheus. Python's standard library only.

    rlock_exporter.py [--redis HOST:PORT] [--listen HOST:PORT] [--db N]...
                      [--tls [--cacert FILE] [--cert FILE --key FILE]]     REDISCLI_AUTH, REDIS_USER: if it needs them

One server, one exporter: run it beside each, replicas too. Then see prometheus.yml. When the server does not answer as
it should, the page has rlock_up 0, rlock_down says why, and nothing else; each new reason is a line on stderr.
"""

import argparse
import os
import re
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What is so now; all else is counted since the server's start.
GAUGES = {"rlock_locks", "rlock_waiters", "rlock_tickets", "rlock_sessions", "rlock_acks_pending", "rlock_gate_shut"}
HELP = {
    "rlock_up": "1: the server answers and has the module.",
    "rlock_down": "1: why rlock_up is 0.",
    "rlock_locks": "Locks that are held.",
    "rlock_waiters": "Connections blocked by BLOCK.",
    "rlock_tickets": "Places kept by QUEUE.",
    "rlock_sessions": "Holds tied to a connection.",
    "rlock_acks_pending": "Callers whose grant replicas have not acknowledged yet.",
    "rlock_acquired": "New holds.",
    "rlock_reentered": "Holds entered again.",
    "rlock_refused": "Requests that were refused.",
    "rlock_timed_out": "Waits that ended without the lock.",
    "rlock_handed_off": "Holds given to one that waited.",
    "rlock_released": "Holds that ended by release.",
    "rlock_renewed": "RENEW commands.",
    "rlock_expired": "Holds that ended with their lease.",
    "rlock_disconnected": "Holds that ended with their connection.",
    "rlock_forced": "Holds that ended by force.",
    "rlock_evicted": "Locks that were evicted: each is a broken promise.",
    "rlock_deadlocks": "Waits refused because they would never end.",
    "rlock_deadlock_searches_given_up": "Searches for a deadlock that looked at too many.",
    "rlock_noacks": "Callers that were told that too few replicas acknowledged in time.",
    "rlock_sessions_refused": "Requests for SESSION that rlock.max-sessions refused.",
    "rlock_noreplicas": "Requests that the module refused for lack of replicas.",
    "rlock_noreplicas_errors": "Commands of any kind that got -NOREPLICAS, from the module or by min-replicas-to-write.",
    "rlock_gate_shut": "1: something is due that the module may not do now.",
    "rlock_gate_shut_since_seconds": "Since when, as Unix time; 0 while it may.",
    "rlock_wait_seconds": "How long connections waited that were granted.",
    "rlock_hold_seconds": "How long holds lasted that ended.",
    "rlock_acks_seconds": "How long grants waited for acknowledgements.",
    "rlock_head_wait_seconds": "How long the longest-waiting first in line has waited, of the 1000 longest queues of a database.",
    "rlock_longest_queue": "How many wait in the longest queue of a database.",
}
REASONS = ("unreachable", "timeout", "tls", "password", "permission", "loading", "no_module", "error")
BY_ERROR = {"NOAUTH": "password", "WRONGPASS": "password", "NOPERM": "permission", "LOADING": "loading"}
NOREPLICAS = re.compile(r"errorstat_NOREPLICAS:count=(\d+)")
HISTOGRAM = re.compile(r"(rlock_\w+)_us_(sum|count|le_\w+)")


class Down(Exception):
    """Why there is nothing to show: one of REASONS, and in words."""

    def __init__(self, reason, words):
        super().__init__(words)
        self.reason = reason


class Server:
    """A connection for one scrape."""

    def __init__(self, address, tls):
        try:
            connection = socket.create_connection(address, timeout=5)
            self.connection = tls.wrap_socket(connection, server_hostname=address[0]) if tls else connection
        except ssl.SSLError as error:
            raise Down("tls", str(error)) from error
        self.reader = self.connection.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.close()
        self.connection.close()

    def ask(self, *words):
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        self.connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return self.reply()

    def reply(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise Down("unreachable", "the server closed the connection")
        kind, rest = line[:1], line[1:-2].decode(errors="replace")
        if kind == b"-":
            raise Down(BY_ERROR.get(rest.split(" ")[0], "error"), f"the server says {rest}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.reader.read(int(rest) + 2)[:-2].decode(errors="replace")
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        raise Down("error", "what answers there is no Redis or Valkey")


def sample(lines, name, kind, value, labels=""):
    """One metric, or one more sample of the one before."""
    if not (lines and re.match(rf"{name}\b", lines[-1])):
        if text := HELP.get(name.removesuffix("_total")):
            lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
    lines.append(f"{name}{labels} {value}")


def metrics(info, errors, queues):
    """The text of `INFO rlock` and `INFO errorstats`, and the queues of each database, as Prometheus reads them."""
    fields = dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)
    lines, histograms = [], {}
    for name, value in fields.items():
        if found := HISTOGRAM.fullmatch(name):
            histograms.setdefault(found[1], {})[found[2]] = value
        elif name == "rlock_gate_shut_since_ms":
            sample(lines, "rlock_gate_shut_since_seconds", "gauge", repr(int(value) / 1000))
        elif name in GAUGES:
            sample(lines, name, "gauge", value)
        else:
            sample(lines, name + "_total", "counter", value)
    refused = NOREPLICAS.search(errors)
    sample(lines, "rlock_noreplicas_errors_total", "counter", refused[1] if refused else 0)
    for name, parts in histograms.items():
        histogram(lines, name + "_seconds", parts)
    for name, of in (("rlock_head_wait_seconds", lambda q: q[2] / 1000), ("rlock_longest_queue", lambda q: q[1])):
        for database, longest in queues.items():
            sample(lines, name, "gauge", max(map(of, longest), default=0), f'{{db="{database}"}}')
    return lines


def histogram(lines, name, parts):
    lines += [f"# HELP {name} {HELP.get(name, 'Seconds.')}", f"# TYPE {name} histogram"]
    for part, count in parts.items():
        if part.startswith("le_"):
            bound = part.removeprefix("le_")
            lines.append(f'{name}_bucket{{le="{"+Inf" if bound == "inf" else repr(int(bound) / 1e6)}"}} {count}')
    lines += [f"{name}_sum {int(parts['sum']) / 1e6!r}", f"{name}_count {parts['count']}"]


def look(options):
    try:
        with Server(options.redis, options.context) as server:
            if password := os.environ.get("REDISCLI_AUTH"):
                server.ask("AUTH", os.environ.get("REDIS_USER", "default"), password)
            info = server.ask("INFO", "rlock")
            if "rlock_locks:" not in info:
                raise Down("no_module", "the server runs without the module")
            # What min-replicas-to-write refuses never reaches the module.
            errors = server.ask("INFO", "errorstats")
            queues = {}
            for database in options.db or [0]:
                if database:
                    server.ask("SELECT", str(database))
                queues[database] = server.ask("RLOCK.QUEUES", "COUNT", "1000")
            return metrics(info, errors, queues)
    except TimeoutError as error:
        raise Down("timeout", "no answer within 5 seconds") from error
    except OSError as error:
        raise Down("unreachable", str(error)) from error


class Scrapes:
    def __init__(self, options):
        self.options = options
        self.said, self.lock = None, threading.Lock()

    def page(self):
        lines, reason = [], None
        try:
            found = look(self.options)
        except Down as down:
            found, reason = [], down.reason
            self.say(f"rlock_up 0, {reason}: {down}")
        else:
            self.say("rlock_up 1")
        sample(lines, "rlock_up", "gauge", int(reason is None))
        for each in REASONS:
            sample(lines, "rlock_down", "gauge", int(each == reason), f'{{reason="{each}"}}')
        return "\n".join(lines + found) + "\n"

    def say(self, words):
        """What is as it was is not said again."""
        with self.lock:
            if words != self.said:
                print(words, file=sys.stderr, flush=True)
            self.said = words


def parse():
    options = argparse.ArgumentParser(description="INFO rlock and RLOCK.QUEUES for Prometheus")
    options.add_argument("--redis", type=address, default="127.0.0.1:6379", metavar="HOST:PORT")
    options.add_argument("--listen", type=address, default="127.0.0.1:9722", metavar="HOST:PORT")
    options.add_argument("--db", type=int, action="append", help="whose queues; again for more (0)")
    options.add_argument("--tls", action="store_true")
    options.add_argument("--cacert", help="trust this authority instead of the system's")
    options.add_argument("--cert", help="our own certificate, with --key")
    options.add_argument("--key")
    parsed = options.parse_args()
    if bool(parsed.cert) != bool(parsed.key):
        options.error("--cert and --key belong together")
    if (parsed.cacert or parsed.cert) and not parsed.tls:
        options.error("--cacert, --cert and --key need --tls")
    parsed.context = None
    if parsed.tls:
        try:
            parsed.context = ssl.create_default_context(cafile=parsed.cacert)
            if parsed.cert:
                parsed.context.load_cert_chain(parsed.cert, parsed.key)
        except OSError as error:
            options.error(f"a certificate cannot be read: {error}")
    return parsed


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def main():
    options = parse()
    scrapes = Scrapes(options)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/metrics":
                return self.send_error(404, "see /metrics")
            body = scrapes.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(options.listen, Page) as server:
        print(f"http://{options.listen[0]}:{server.server_port}/metrics", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
