"""The page of `rlock serve` in a real browser: try.py PROGRAM-OF-CHROMIUM PICTURES-FOLDER. $RLOCK, $RLOCK_SERVER and
$RLOCK_MODULE are the paths of `rlock`, the server and the module. Each line that begins with "ok" is one test."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from chromium import Browser

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "conformance"))
from resp import Connection, Refused, ask
from servers import Server, until

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e'\"&amp;"
SERVER, MODULE, RLOCK = (os.environ[name] for name in ("RLOCK_SERVER", "RLOCK_MODULE", "RLOCK"))


def server(folder, *words):
    """A server with the module."""
    words = ["--save", "", "--maxclients", "20000", "--repl-diskless-sync-delay", "0", "--loadmodule", MODULE, *words]
    return started(Server(SERVER, f"{folder}/{len(open_now)}", words))


def sentinel(folder, primary):
    conf = pathlib.Path(folder, "sentinel.conf")
    conf.write_text(f"sentinel monitor mine 127.0.0.1 {primary.port} 1\nsentinel down-after-milliseconds mine 700\n"
                    "sentinel failover-timeout mine 3000\n")
    return started(Server(SERVER, f"{folder}/sentinel", [conf, "--sentinel"]))


open_now = []


def started(server):
    open_now.append(server)
    return server


class Serve:
    """`rlock serve`, killed at the end of `with`."""

    def __init__(self, *words, **environment):
        words = [RLOCK, "serve", "--listen", "127.0.0.1:0", *words]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.url = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Seen:
    """Pictures, as the run's artifacts."""

    def __init__(self, browser, folder):
        self.browser, self.folder = browser, folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name, **how):
        self.browser.picture(self.folder / f"{name}.png", **how)


def a_queue_is_seen_as_it_is(browser, server, pictures):
    """Who holds, who waits, the chain, a refused deadlock; then the lock is handed over."""
    ask = Connection(server.address)
    tied = Connection(server.address)
    tied("RLOCK.ACQUIRE", "report:today", "worker-7", "SESSION")
    waiting = [Connection(server.address) for _ in range(4)]
    for at, client in enumerate(waiting):
        client.send("RLOCK.ACQUIRE", "report:today", f"worker-{8 + at}", "BLOCK", 0)
    ask("RLOCK.ACQUIRE", "stock", "worker-9", "LEASE", 600000)
    chain = Connection(server.address)
    chain.send("RLOCK.ACQUIRE", "stock", "worker-12", "BLOCK", 0)
    ask("RLOCK.ACQUIRE", "invoice", "ann", "LEASE", 600000)
    ask("RLOCK.ACQUIRE", "order", "bob", "LEASE", 600000)
    first = Connection(server.address)
    first.send("RLOCK.ACQUIRE", "order", "ann", "BLOCK", 0)
    until("ann waits", lambda: any(row[0] == "order" for row in ask("RLOCK.QUEUES")))
    try:
        raise AssertionError(ask("RLOCK.ACQUIRE", "invoice", "bob", "BLOCK", 1000))
    except Refused as refused:
        assert str(refused).startswith("DEADLOCK"), refused
    browser.size(1200, 900)
    browser.open(f"{pictures.url}/")
    browser.until("the queue is there", "document.querySelector('#queues tbody tr td')?.innerText === 'report:today'")
    row = browser.run("[...document.querySelectorAll('#queues tbody tr:first-child td')].map((cell) => cell.innerText)")
    assert row[1] == "4" and row[3:5] == ["write", "worker-7"] and "session" in row[6] and "127.0.0.1:" in row[8], row
    browser.until("the deadlock is told", "document.getElementById('graph-words').innerText.includes('bob waits for invoice')")
    browser.until("the chain is drawn", "document.querySelectorAll('#graph path.edge').length >= 3")
    ask("CONFIG", "SET", "rlock.slow-wait-ms", "1")
    # Activity for the plots.
    for round in range(40):
        ask("RLOCK.ACQUIRE", f"busy:{round % 4}", "mia", "LEASE", 60000)
        other = Connection(server.address)
        other.send("RLOCK.ACQUIRE", f"busy:{round % 4}", "noa", "BLOCK", 0)
        until("noa waits", lambda: ask("RLOCK.PLACE", f"busy:{round % 4}", "noa") == 1)
        time.sleep(0.02 * (round % 7))
        ask("RLOCK.RELEASE", f"busy:{round % 4}", "mia")
        other.reply()
        ask("RLOCK.RELEASE", f"busy:{round % 4}", "noa")
    browser.until("waits are plotted", "document.querySelectorAll('#waits path.series').length === 3")
    browser.until("the slow log is there", "document.querySelectorAll('#slow tbody tr').length > 5")
    pictures.take("page")
    browser.size(390, 844, is_phone=True)
    browser.until("it fits a phone", "document.documentElement.scrollWidth <= 390")
    pictures.take("page-phone")
    browser.size(1200, 900)
    browser.run("document.querySelector('#queues tbody a').click()")
    browser.until("the lock is there", "document.querySelectorAll('#waiters tbody tr').length === 4")
    assert "Held for write by 1. 4 wait." in browser.text("lock-state"), browser.text("lock-state")
    tied.socket.shutdown(socket.SHUT_RDWR)
    browser.until("the hand-over is told", "document.getElementById('lock-history').innerText.includes('worker-8 holds write, token')")
    pictures.take("lock")
    browser.run("location.hash = ''")
    browser.until("a lost connection is counted", "document.getElementById('ends').innerText.includes('connection lost\\n1')")
    return [tied, chain, first, *waiting]


def names_are_never_markup(browser, server, pictures):
    client = Connection(server.address)
    client("RLOCK.ACQUIRE", HOSTILE, HOSTILE, "LEASE", 600000)
    held = [Connection(server.address) for _ in range(60)]
    for at, waiting in enumerate(held):
        waiting.send("RLOCK.ACQUIRE", HOSTILE, f"{HOSTILE}{at}", "BLOCK", 0)
    browser.open(f"{pictures.url}/")
    shown = "document.querySelector('#queues tbody tr td')?.innerText"
    browser.until("it is the longest", f"{shown}?.includes('<img src=x onerror=alert(1)>')")
    assert "\u202e" not in browser.run("document.body.innerText"), "what turns text around is shown as it is"
    browser.run("document.querySelector('#queues tbody a').click()")
    browser.until("it is followed", "document.querySelectorAll('#waiters tbody tr').length === 60")
    assert browser.run("document.querySelectorAll('img, body script, iframe').length") == 0
    assert browser.run("document.getElementById('lock-name').innerText").startswith("<img src=x")
    # A foreign script would not run even if it got into the page.
    refused = "new Promise((told) => { document.addEventListener('securitypolicyviolation', (e) => told(e.effectiveDirective));" \
        "const s = document.createElement('div'); try { s.innerHTML = '<b>'; told('set') } catch { told('refused') } })"
    assert browser.run(refused) in ("refused", "require-trusted-types-for")
    assert browser.dialogs == [], browser.dialogs
    pictures.take("hostile", is_whole=False)
    return held


def long_names_fit(browser, server, pictures):
    """Nothing is wider than the page: not the queues, not the page of the lock, not its history, not what is found."""
    client, held = Connection(server.address), []
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    for width, is_phone in ((1200, False), (390, True)):
        key, owner = f"order:{width}:" + "x" * 300, "w" * 300
        client("RLOCK.ACQUIRE", key, owner, "LEASE", 600000)
        for at in range(3):
            held.append(Connection(server.address))
            held[-1].send("RLOCK.ACQUIRE", key, f"{owner}{at}", "BLOCK", 0)
        until("they wait", lambda: client("RLOCK.PLACE", key, f"{owner}2") == 3)
        browser.size(width, 844, is_phone=is_phone)
        browser.open(f"{pictures.url}/")
        link = f"[...document.querySelectorAll('#queues tbody a')].find((link) => link.innerText.includes('order:{width}'))"
        browser.until("it is listed", f"{link} !== undefined")
        browser.until("it fits", fits)
        search(browser, f"order:{width}")
        browser.until("it is found", "document.querySelector('#found tbody')?.innerText.includes('www')")
        browser.until("what is found fits", fits)
        browser.run(f"{link}.click()")
        browser.until("it is followed", "document.querySelectorAll('#waiters tbody tr').length === 3")
        client("RLOCK.RELEASE", key, owner)
        browser.until("the hand-over is told", "document.getElementById('lock-history').innerText.includes('no longer holds')")
        browser.until("its page fits", fits)
        pictures.take(f"long-{width}", is_whole=False)
        browser.run("location.hash = ''")
    browser.size(1200, 900)
    return held


def search(browser, text):
    browser.run(f"document.getElementById('find-text').value = {text!r}; document.getElementById('find').requestSubmit()")


def a_lock_that_nobody_waits_for_is_found(browser, server, pictures):
    ask = Connection(server.address)
    ask("RLOCK.ACQUIRE", "quiet:42", "ann", "LEASE", 600000)
    ask("RLOCK.ACQUIRE", "quiet:43", "bob", "LEASE", 600000)
    browser.open(f"{pictures.url}/")
    browser.until("it is live", "document.getElementById('state').innerText.includes('● live')")
    rows = "[...document.querySelectorAll('#found tbody tr')].map((row) => row.cells[0].innerText).sort().join()"
    for text, expected in (("quiet", "quiet:42,quiet:43"), ("ann", "quiet:42"), ("43", "quiet:43")):
        search(browser, text)
        browser.until(f"{text} is found", f"{rows} === {expected!r}")
    search(browser, "")
    browser.until("all are listed", f"{rows}.includes('quiet:42,quiet:43')")
    pictures.take("found", is_whole=False)
    search(browser, "quiet:43")
    browser.until("it is alone", f"{rows} === 'quiet:43'")
    browser.run("document.querySelector('#found tbody a').click()")
    browser.until("its page is there", "document.getElementById('holders').innerText.includes('bob')")
    browser.run("location.hash = ''")
    search(browser, "quiet:4")
    browser.run("document.querySelector('#find-exact a').click()")
    browser.until("a free one can be opened", "document.getElementById('lock-state').innerText.includes('It is free.')")
    browser.run("location.hash = ''")


def ten_thousand_locks(browser, server, pictures):
    """Each lock has a waiter: the page shows the longest queues, and stays quick."""
    client, lines = Connection(server.address), []
    for at in range(10_000):
        lines += [("RLOCK.ACQUIRE", f"many:{at}", "ann", "LEASE", 600000), ("RLOCK.ACQUIRE", f"many:{at}", "bob", "QUEUE", 60000)]
    for start in range(0, len(lines), 1000):
        for line in lines[start:start + 1000]:
            client.send(*line)
        for _ in lines[start:start + 1000]:
            client.reply()
    browser.open(f"{pictures.url}/")
    browser.until("all are counted", "document.getElementById('tiles').innerText.includes('10,0')")
    browser.until("the longest are listed", "document.querySelectorAll('#queues tbody tr').length === 50")
    assert "at least 950 shorter queues" in browser.text("queues-more"), browser.text("queues-more")
    browser.until("its cost is told", "/every .* takes .*% of/.test(document.getElementById('load').innerText)")
    took = browser.run("new Promise((told) => { const begun = performance.now(); requestAnimationFrame(() => setTimeout(() => told(performance.now() - begun))) })")
    print(f"   {browser.text('load')} A frame took {took:.0f} ms.")
    pictures.take("ten-thousand", is_whole=False)
    client("FLUSHALL")


def a_failover_is_seen(browser, folder, pictures):
    primary = server(folder)
    replica = server(folder, "--replicaof", "127.0.0.1", str(primary.port))
    until("it follows", lambda: "master_link_status:up" in ask(replica.address, "INFO", "replication"))
    watcher = sentinel(folder, primary)
    until("Sentinel knows both", lambda: len(ask(watcher.address, "SENTINEL", "REPLICAS", "mine")) == 1)
    until("it is acknowledged", lambda: ask(primary.address, "RLOCK.ACQUIRE", "job", "ann", "LEASE", 600000, "ACKS", 1))
    with Serve("--sentinel", "mine", "--url", f"redis://{watcher.address}") as serve:
        browser.open(serve.url)
        browser.until("the replica is there", f"document.getElementById('replicas').innerText.includes('{replica.port}')")
        pictures.take("failover-before", is_whole=False)
        primary.kill()
        browser.until("it says so", "document.getElementById('state').innerText.includes('▲')")
        pictures.take("failover-during", is_whole=False)
        browser.until("the promoted server is there", f"document.getElementById('servers').innerText.includes('{replica.port}: ') && document.getElementById('state').innerText.includes('● live')")
        until("it takes writes", lambda: ask(replica.address, "RLOCK.ACQUIRE", "other", "bob"))
        assert ask(replica.address, "RLOCK.HOLDS", "job", "ann") == 1
        browser.until("no replica is left", "document.getElementById('replicas-none').checkVisibility()")
        ask(replica.address, "CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            raise AssertionError(ask(replica.address, "RLOCK.ACQUIRE", "third", "cy"))
        except Refused:
            pass
        browser.until("the refusal is told", "document.getElementById('warnings').innerText.includes('no replica follows, and 1 requests got -NOREPLICAS')")
        pictures.take("failover-after", is_whole=False)


def a_silent_server_is_said(browser, server, pictures):
    browser.open(f"{pictures.url}/")
    browser.until("it is live", "document.getElementById('state').innerText.includes('● live')")
    server.signal(signal.SIGSTOP)
    browser.until("it says so", "document.getElementById('servers').innerText.includes('✗')")
    for id in ("queues-none", "tiles", "replicas-none"):
        assert not browser.run(f"document.getElementById('{id}').checkVisibility()"), f"{id} says something of a server that is silent"
    pictures.take("silent", is_whole=False)
    server.signal(signal.SIGCONT)
    browser.until("it is live again", "document.getElementById('state').innerText.includes('● live')")


def an_action_is_carried_out(browser, server, pictures):
    with Serve("--url", f"redis://{server.address}", "--allow-actions", RLOCK_SERVE_TOKEN="0123456789abcdef") as serve:
        ask = Connection(server.address)
        ask("RLOCK.ACQUIRE", "stuck", "ann", "LEASE", 600000)
        browser.open(f"{serve.url}#lock={b'stuck'.hex()}")
        browser.until("the lock is there", "document.getElementById('holders').innerText.includes('ann')")
        browser.run("document.getElementById('token').value = '0123456789abcdef'; window.confirm = () => true")
        browser.run("document.querySelector('#lock-actions button').click()")
        until("it is free", lambda: ask("RLOCK.HOLDS", "stuck", "ann") == 0)
        browser.until("the page says so", "document.getElementById('lock-state').innerText.includes('It is free.')")
        pictures.take("action", is_whole=False)


def only_the_page_itself_is_loaded(browser):
    foreign = [url for url in browser.requests if not url.startswith("http://127.0.0.1:")]
    assert foreign in ([], ["about:blank"]), foreign
    complaints = [text for text in browser.complaints if "ERR_" not in text and "TrustedHTML" not in text and "/favicon.ico" not in text]
    assert complaints == [], complaints


def main(program, folder):
    with tempfile.TemporaryDirectory() as work, Browser(program) as browser:
        try:
            play(browser, work, pathlib.Path(folder))
        finally:
            for one in open_now:
                one.signal(signal.SIGCONT)
                one.kill()


def play(browser, work, folder):
    one = server(work)
    with Serve("--url", f"redis://{one.address}") as serve:
        pictures = Seen(browser, folder)
        pictures.url = serve.url.rstrip("/")

        kept = []  # connections that wait

        def test(what, *of):
            begun = time.monotonic()
            kept.append(what(*of))
            print(f"ok {what.__name__.replace('_', ' ')} ({time.monotonic() - begun:.0f} s)", flush=True)

        test(a_queue_is_seen_as_it_is, browser, one, pictures)
        test(names_are_never_markup, browser, one, pictures)
        test(a_silent_server_is_said, browser, one, pictures)
        ask(one.address, "FLUSHALL")
        test(long_names_fit, browser, one, pictures)
        ask(one.address, "FLUSHALL")
        test(a_lock_that_nobody_waits_for_is_found, browser, one, pictures)
        ask(one.address, "FLUSHALL")
        test(ten_thousand_locks, browser, one, pictures)
        test(an_action_is_carried_out, browser, one, pictures)
        test(a_failover_is_seen, browser, work, pictures)
        test(only_the_page_itself_is_loaded, browser)


main(*sys.argv[1:])
