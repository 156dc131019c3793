"""The documentation builds without a warning, and what is generated from the catalog is up to date."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from touchstone.catalog import METHODS

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("name", list(generate.FILES))
def test_generated_files_are_up_to_date(name):
    assert (ROOT / name).read_text(encoding="utf-8") == generate.FILES[name](), "run `make docs`"


def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<(?:link|script)[^>]+(?:href|src)="https?://fonts', home)
    for record in METHODS:
        assert (tmp_path / "site" / "methods" / record.slug).is_dir() == bool(record.offers)


def test_the_readme_lists_exactly_what_works():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for record in METHODS:
        assert (f"docs/methods/{record.slug}.md" in text) == bool(record.offers), record.slug
