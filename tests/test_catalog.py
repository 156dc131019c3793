"""The catalog says what works, truthfully, and the citation file names every paper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from touchstone.catalog import METHODS, ROOMS, method, offering
from touchstone.decisions.predictions import ROLES
from touchstone.errors import InputError

ROOT = Path(__file__).parent.parent


def test_38_methods_in_known_rooms():
    assert len(METHODS) == len({record.slug for record in METHODS}) == 38
    assert {record.room for record in METHODS} <= set(ROOMS)


@pytest.mark.parametrize("record", METHODS, ids=lambda record: record.slug)
def test_what_is_offered_is_there_and_what_is_there_is_offered(record):
    folder = ROOT / "src" / Path(*record.package.split("."))
    for part in ("check", "study"):
        assert (folder / f"{part}.py").is_file() == (part in record.offers)
        if part in record.offers:
            assert callable(getattr(record.part(part), part))
        else:
            with pytest.raises(InputError, match=f"has no {part} yet"):
                record.part(part)
    assert bool(record.offers) == (folder / "__init__.py").is_file()
    if record.offers:
        assert (ROOT / "docs" / "methods" / f"{record.slug}.md").is_file()
        assert (ROOT / "docs" / "evidence" / record.slug / "evidence.json").is_file()
        assert (ROOT / "examples" / f"{record.slug}.py").is_file()


@pytest.mark.parametrize("record", offering("check"), ids=lambda record: record.slug)
def test_checks_declare_what_plans_may_set_and_limit(record):
    module = record.part("check")
    if record.room == "language":
        assert module.NEEDS in ("local", "text")
    else:
        assert set(module.NEEDS) <= set(ROLES)
    assert module.METRICS
    module.Settings()


def test_unknown_methods_get_the_nearest_name():
    assert method("largo").room == "language"
    with pytest.raises(InputError, match="did you mean 'largo'"):
        method("lagro")


def test_the_citation_file_names_every_paper():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for record in METHODS:
        assert record.paper in text, record.slug
        assert record.url in text, record.slug


def test_importing_touchstone_and_its_rooms_loads_nothing_heavy():
    code = (
        "import sys, touchstone, touchstone.cli, touchstone.catalog, touchstone.language\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
