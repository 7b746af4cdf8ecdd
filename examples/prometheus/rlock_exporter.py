#!/usr/bin/env python3
"""What `INFO rlock` says, for Prometheus. Python's standard library only.

    rlock_exporter.py [--redis HOST:PORT] [--listen HOST:PORT]      REDISCLI_AUTH, REDIS_USER: if it needs them

One server, one exporter: run it beside each. Then see prometheus.yml. A scrape that cannot reach the server says
rlock_up 0 and nothing else.
"""

import argparse
import os
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What is so now; all else is counted since the server's start.
GAUGES = {"rlock_locks", "rlock_waiters", "rlock_tickets", "rlock_sessions"}
HELP = {
    "rlock_locks": "Locks that are held.",
    "rlock_waiters": "Connections parked by BLOCK.",
    "rlock_tickets": "Places kept by QUEUE.",
    "rlock_sessions": "Holds tied to a connection.",
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
}
BUCKET = "rlock_wait_us_le_"


def ask(address, *commands):
    """The replies to commands that are answered by OK or a bulk string."""
    with socket.create_connection(address, timeout=5) as connection, connection.makefile("rb") as reader:
        for words in commands:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        replies = []
        for _ in commands:
            kind, rest = (line := reader.readline())[:1], line[1:].strip().decode()
            if kind == b"+":
                replies.append(rest)
            elif kind == b"$":
                replies.append(reader.read(int(rest) + 2)[:-2].decode())
            else:
                raise OSError(f"the server says {rest or 'nothing'}")
        return replies


def metrics(info):
    """The text of `INFO rlock` as Prometheus reads it."""
    fields = dict(line.split(":", 1) for line in info.split("\r\n") if ":" in line)
    lines = ["# TYPE rlock_up gauge", "rlock_up 1"]
    for name, value in fields.items():
        if name.startswith("rlock_wait_us_"):
            continue
        is_gauge = name in GAUGES
        full = name if is_gauge else name + "_total"
        if name in HELP:
            lines.append(f"# HELP {full} {HELP[name]}")
        lines += [f"# TYPE {full} {'gauge' if is_gauge else 'counter'}", f"{full} {value}"]
    lines += ["# HELP rlock_wait_seconds How long connections waited that were granted.",
              "# TYPE rlock_wait_seconds histogram"]
    for name, value in fields.items():
        if name.startswith(BUCKET):
            bound = name[len(BUCKET):]
            seconds = "+Inf" if bound == "inf" else repr(int(bound) / 1e6)
            lines.append(f'rlock_wait_seconds_bucket{{le="{seconds}"}} {value}')
    lines.append(f"rlock_wait_seconds_sum {int(fields['rlock_wait_us_sum']) / 1e6!r}")
    lines.append(f"rlock_wait_seconds_count {fields['rlock_wait_us_count']}")
    return "\n".join(lines) + "\n"


def scrape(address):
    login = []
    if password := os.environ.get("REDISCLI_AUTH"):
        login = [["AUTH", os.environ.get("REDIS_USER", "default"), password]]
    try:
        info = ask(address, *login, ["INFO", "rlock"])[-1]
        # Before the module is loaded the section is empty.
        return metrics(info) if "rlock_locks:" in info else "# TYPE rlock_up gauge\nrlock_up 0\n"
    except OSError:
        return "# TYPE rlock_up gauge\nrlock_up 0\n"


def main():
    options = argparse.ArgumentParser(description="INFO rlock for Prometheus")
    options.add_argument("--redis", default="127.0.0.1:6379")
    options.add_argument("--listen", default="127.0.0.1:9722")
    options = options.parse_args()
    redis, listen = ((host, int(port)) for host, _, port in (a.rpartition(":") for a in (options.redis, options.listen)))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/metrics":
                return self.send_error(404, "see /metrics")
            body = scrape(redis).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(listen, Page) as server:
        print(f"http://{listen[0]}:{server.server_port}/metrics", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
