"""Both packages have one interface, and `help` explains it."""

import inspect

import pytest

import rlock.asyncio
from rlock import _sync

KINDS = ["Hold", "Holds", "Locks", "Lock", "ReadLock", "Permit", "AllLocks", "AnyLock", "Election", "Observer"]
#: What only one of them has, or has by another name.
OWN = {"close", "aclose", "cancel"}


def public(kind):
    return {member for member in dir(kind) if not member.startswith("_")} - OWN


@pytest.mark.parametrize("name", KINDS)
def test_both_packages_have_the_same_methods(name):
    of_threads, of_tasks = getattr(_sync, name), getattr(rlock.asyncio, name)
    assert public(of_threads) == public(of_tasks)
    for member in public(of_threads):
        one, other = getattr(of_threads, member), getattr(of_tasks, member)
        if callable(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), member


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("package", [_sync, rlock.asyncio])
def test_each_method_is_explained_and_typed(name, package):
    kind = getattr(package, name)
    assert inspect.getdoc(kind)
    for member in public(kind) - {"key", "owner", "mode"}:
        value = getattr(kind, member)
        assert inspect.getdoc(value), member
        if callable(value):
            assert inspect.signature(value).return_annotation not in (inspect.Signature.empty, "Any"), member
