"""A Django site in one file: a lock around a transaction, and a command that runs once at a time.

`REDIS=redis://127.0.0.1:6380 python django_site.py runserver`, or `… nightly`.
"""

import os
import sys

import django
import redis
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, transaction
from django.http import JsonResponse
from django.urls import path

import rlock

settings.configure(
    DEBUG=False,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("DATABASE", "site.sqlite3"),
        }
    },
    REDIS=os.environ.get("REDIS", "redis://127.0.0.1:6380"),
)
django.setup()

# One for the whole process. It connects when it is first used, so a server that forks its workers may import this.
client = redis.Redis.from_url(settings.REDIS)


def sell(request, seat):
    """The lock is outside of the transaction: the next holder sees what this one has committed."""
    lock = rlock.Lock(client, f"seat:{seat}", wait=5)
    try:
        with lock, transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT buyer FROM sold WHERE seat = %s", [seat])
            if row := cursor.fetchone():
                return JsonResponse({"buyer": row[0]}, status=409)
            cursor.execute("INSERT INTO sold (seat, buyer) VALUES (%s, %s)", [seat, request.GET["buyer"]])
            return JsonResponse({"buyer": request.GET["buyer"]})
    except rlock.NotAcquired:
        return JsonResponse({"error": "the seat is being sold"}, status=503)


urlpatterns = [path("sell/<str:seat>", sell)]


def nightly():
    """Cron starts this on every machine; one of them does the work."""
    hold = rlock.Lock(client, "nightly").acquire(wait=0)
    if hold is None:
        return "another machine does it"
    with hold, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sold")
        return f"{cursor.fetchone()[0]} sold"


def create():
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS sold (seat TEXT, buyer TEXT)")


if __name__ == "__main__":
    create()
    print(nightly()) if sys.argv[1:] == ["nightly"] else execute_from_command_line(sys.argv)
