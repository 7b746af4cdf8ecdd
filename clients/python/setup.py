"""The version is the module's. The rest is in pyproject.toml."""

import pathlib
import re
import shutil

from setuptools import setup

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent


def version() -> str:
    """From Cargo.toml in a checkout, else from what the source distribution says of itself."""
    told = here / "PKG-INFO"
    if told.exists():
        return re.search(r"^Version: (.+)$", told.read_text(), re.M)[1]  # type: ignore[index]
    return re.search(r'^version = "(.+)"$', (root / "Cargo.toml").read_text(), re.M)[1]  # type: ignore[index]


for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
    if (root / licence).exists():
        shutil.copyfile(root / licence, here / licence)

setup(version=version())
