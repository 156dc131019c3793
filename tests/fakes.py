"""A method with a check and a study that need no model: stands in for real ones in tests of the spine."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pandas as pd

from touchstone import catalog
from touchstone.budget import Cost
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement, Table
from touchstone.run import Run

METRICS = {"refusal_rate": "share of prompts refused", "cost": "what it costs"}
NEEDS = "local"
COST = Cost(seconds=4.0, setting="units", least=2, most=100)


@dataclass(frozen=True)
class Settings:
    units: int = 4
    rate: float = 0.1
    log: str = ""
    seconds: float = 0.0
    broken: bool = False


def unit(settings: Settings, i: int) -> int:
    if settings.log:
        with Path(settings.log).open("a") as stream:
            stream.write(f"{i}\n")
    time.sleep(settings.seconds)
    return i


def check(model: object, settings: Settings, run: Run) -> Evidence:
    if settings.broken:
        raise InputError("subject: cannot be checked")
    done = run.map("units", partial(unit, settings), list(range(settings.units)))
    findings = [
        Finding(
            "refusal-rate", "The model refuses.", "holds", Measurement("refusal rate", settings.rate, "", 0.0, 0.3, 9)
        ),
        Finding("cost", "It costs.", "holds", Measurement("cost", float(sum(done)), "units")),
    ]
    return run.evidence("Fake check", "fake", "check", findings)


def study(scale: str, run: Run, *, shift: float = 0.0) -> Evidence:
    noise = run.map("draws", partial(_draw, run.seed), [0, 1, 2])
    finding = Finding(
        "claim", "It works.", "holds", Measurement("gain", sum(noise) + shift), Measurement("baseline", 0.0)
    )
    even = Finding(
        "even", "The seed is even.", "holds" if run.seed % 2 == 0 else "fails", Measurement("seed", run.seed)
    )
    table = Table("noise", "Noise", pd.DataFrame({"noise": noise}))
    return run.evidence("Fake study", "fake", "study", [finding, even], tables=[table], scale=scale)


def _draw(seed: int, i: int) -> float:
    return float(seed + i)


def install() -> None:
    """Make ``fake`` a method of the catalog, in this process."""
    here = sys.modules[__name__]
    package = ModuleType("touchstone.language.fake")
    package.__path__ = []
    sys.modules["touchstone.language.fake"] = package
    sys.modules["touchstone.language.fake.check"] = here
    sys.modules["touchstone.language.fake.study"] = here
    if all(record.slug != "fake" for record in catalog.METHODS):
        record = catalog.Method("fake", "language", "Stand in.", "A paper", offers=("check", "study"))
        catalog.METHODS = (*catalog.METHODS, record)


@dataclass(frozen=True)
class PairSettings:
    ledger: str = ""


def pair_check(model: object, settings: PairSettings, run: Run, *, before: object = None) -> Evidence:
    """Says which models it was given."""
    table = Table("given", "Given", pd.DataFrame({"what": [repr(model), repr(before), settings.ledger]}))
    cost = Finding("cost", "It costs.", "holds", Measurement("cost", 1.0, "units"))
    return run.evidence("Fake comparison", "fake-pair", "check", [cost], tables=[table])


def install_needy(slug: str, **constants: object) -> None:
    """Make a check a method of the catalog that needs more than the model, as its module's ``constants`` say."""
    name = f"touchstone.language.{slug.replace('-', '_')}"
    package, part = ModuleType(name), ModuleType(f"{name}.check")
    package.__path__ = []
    vars(part).update(check=pair_check, Settings=PairSettings, METRICS={"cost": "cost"}, NEEDS="local", **constants)
    sys.modules[name], sys.modules[f"{name}.check"] = package, part
    record = catalog.Method(slug, "language", "Compare.", "A paper", offers=("check",))
    catalog.METHODS = (*catalog.METHODS, record)
