"""The programs in celery.md and django.md, with a real worker and a real server."""

import importlib
import io
import os
import pathlib
import subprocess
import sys
import threading

import pytest
from support import one_server, until

import rlock

server = one_server
root = pathlib.Path(__file__).parents[3]
examples = root / "examples/python"
sys.path.insert(0, str(examples))


@pytest.fixture
def tasks(server, monkeypatch):
    """A worker with three processes."""
    monkeypatch.setenv("REDIS", f"redis://{server.one.address}")
    words = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool", "prefork", "--concurrency", "3"]
    worker = subprocess.Popen(words, cwd=examples, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield importlib.reload(importlib.import_module("celery_tasks"))
    finally:
        worker.terminate()
        worker.communicate(timeout=30)


def test_tasks_run_one_at_a_time(tasks):
    reports = [tasks.report.delay("monday") for _ in range(4)]
    loads = [tasks.load.delay("prices") for _ in range(3)]
    assert [each.get(timeout=60) for each in reports + loads] == [1] * 7


def test_a_task_that_still_runs_is_skipped(tasks):
    hold = rlock.Lock(tasks.client, "tidy").acquire()
    assert tasks.tidy.delay().get(timeout=60) == "skipped"
    hold.release()
    assert tasks.tidy.delay().get(timeout=60) == 1


def test_a_view_sells_a_seat_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS", f"redis://{server.one.address}")
    monkeypatch.setenv("DATABASE", str(tmp_path / "site.sqlite3"))
    site = importlib.import_module("django_site")
    from django.test import Client

    site.create()
    answers = []

    def buy(buyer):
        answers.append(Client().get(f"/sell/A1?buyer={buyer}").status_code)
        site.connection.close()

    threads = [threading.Thread(target=buy, args=(name,)) for name in "abcde"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409, 409, 409, 409]
    assert site.nightly() == "1 sold"
    other = rlock.Lock(server.client(), "nightly", owner="another machine").acquire()
    assert site.nightly() == "another machine does it"
    other.release()
    command = [sys.executable, str(examples / "django_site.py"), "nightly"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout == "1 sold\n"


@pytest.mark.parametrize("page, program", [("celery", "celery_tasks"), ("django", "django_site")])
def test_the_pages_show_these_programs(page, program):
    text = (examples / f"{program}.py").read_text()
    blocks = (root / f"clients/python/{page}.md").read_text().split("```python\n")[1:]
    shown = [block.split("```")[0] for block in blocks]
    assert shown and all(block in text for block in shown), [block for block in shown if block not in text]


def test_a_command_of_which_one_runs_at_a_time(server, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS", f"redis://{server.one.address}")
    monkeypatch.setenv("DATABASE", str(tmp_path / "site.sqlite3"))
    importlib.import_module("django_site")
    from django.core.management import CommandError, call_command
    from django.core.management.base import BaseCommand

    from rlock.django import SingleRun

    class Command(SingleRun, BaseCommand):
        lock_client = server.client()

        def add_arguments(self, parser):
            parser.add_argument("--fails", action="store_true")

        def handle(self, **options):
            if options["fails"]:
                raise CommandError("it fails")
            return ", ".join(key for key in ("test_frameworks", "named") if server.holders(key))

    def said(command=None, **options):
        out, err = io.StringIO(), io.StringIO()
        call_command(command or Command(), stdout=out, stderr=err, **options)
        return out.getvalue(), err.getvalue()

    class Named(Command):
        lock_key, lock_wait = "named", 10

    with pytest.raises(TypeError, match="put SingleRun before BaseCommand"):
        type("Command", (BaseCommand, SingleRun), {})
    assert said() == ("test_frameworks\n", "")
    with pytest.raises(CommandError):
        said(fails=True)
    server.ask("RLOCK.ACQUIRE", "test_frameworks", "another machine")
    assert said() == ("", "test_frameworks runs elsewhere: nothing is done\n")
    server.ask("RLOCK.ACQUIRE", "named", "another machine", "LEASE", 500)
    assert said(Named()) == ("test_frameworks, named\n", "")
    assert server.holders("named") == []
