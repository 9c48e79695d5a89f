"""The files that the browser gets: all of them local, and vendored ones as published."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from klamm.console.server import STATIC

VENDORED = (STATIC / "vendor", Path(__file__).parent.parent / "browser" / "vendor")
#: Names of XML vocabularies, which nobody opens, and a comment that says whose code it is.
NAMES_ONLY = re.compile(
    r"http://www\.w3\.org/(?:1998/Math/MathML|1999/xhtml|2000/svg)|"
    r"https://github\.com/leeoniya/uPlot(?= \(v)"
)


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.parent.name)
def test_vendored_files_are_as_they_were_published(folder: Path):
    record = json.loads((folder / "vendored.json").read_text())
    scripts = {path.name for path in folder.iterdir() if path.suffix in (".js", ".mjs", ".css")}
    assert scripts == set(record)
    for name, entry in record.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
        assert entry["version"]
        assert entry["licence"]
        assert (folder / entry["licence_file"]).is_file()


def test_nothing_is_asked_of_another_site():
    for path in STATIC.rglob("*"):
        if path.is_file() and "LICENSE" not in path.name:
            text = NAMES_ONLY.sub("", path.read_text(encoding="utf-8"))
            assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text, re.IGNORECASE), path


def test_no_page_writes_html_of_its_own():
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "eval(" not in text
