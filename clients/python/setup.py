"""The version is the module's, and links in the README are absolute. Everything else is in pyproject.toml."""

import pathlib
import re
import shutil

from setuptools import setup

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent


def version() -> str:
    """From Cargo.toml in a checkout, otherwise from the source distribution's metadata."""
    told = here / "PKG-INFO"
    if told.exists():
        return re.search(r"^Version: (.+)$", told.read_text(), re.M)[1]  # type: ignore[index]
    return re.search(r'^version = "(.+)"$', (root / "Cargo.toml").read_text(), re.M)[1]  # type: ignore[index]


def readme() -> str:
    """The README with absolute links: on PyPI, relative ones lead nowhere."""
    repository = re.search(r'^Repository = "(.+)"$', (here / "pyproject.toml").read_text(), re.M)[1]  # type: ignore[index]

    def absolute(link: "re.Match[str]") -> str:
        folder, path = "clients/python", link[1]
        while path.startswith("../"):
            folder, path = folder.rpartition("/")[0], path[3:]
        return f"]({repository}/blob/v{version()}/{folder + '/' if folder else ''}{path})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", absolute, (here / "README.md").read_text())


for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
    if (root / licence).exists():
        shutil.copyfile(root / licence, here / licence)

setup(version=version(), long_description=readme(), long_description_content_type="text/markdown")
