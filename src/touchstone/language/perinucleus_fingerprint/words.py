"""Frequent English words, and sentences built of them: seeds of keys where no model writes them."""

from __future__ import annotations

import numpy as np

__all__ = ["WORDS", "sentence"]

_NOUNS = """
time year people way day man woman child world school family student group country problem hand part place case week
company system program question work night point home water room mother area money story fact month lot right study
book eye job word business issue side kind head house service friend father power hour game line end member law car
city name team minute idea body back parent face level office door health person art war history party result change
morning reason research girl guy moment air teacher force education garden river bridge market kitchen window letter
train island village doctor farmer singer painter engine bottle blanket mirror
"""
_ADJECTIVES = """
good new first last long great little own other old big high different small large next early young important few
public bad same able local late hard major better economic strong possible whole free military true federal
international full special easy clear recent certain personal open red difficult available likely short single
medical current wrong private past foreign fine common poor natural significant similar hot dead central happy
serious ready simple left physical general quiet green cold warm bright broken wooden narrow hidden gentle
"""
_VERBS = """
carried found brought watched followed remembered opened painted visited described reached answered moved changed
built lost kept heard crossed helped studied cleaned measured repaired counted borrowed noticed ordered
"""
_PLACES = """
near beside behind before after without under above around across against among beyond along toward within
"""
WORDS: tuple[str, ...] = tuple(dict.fromkeys(" ".join((_NOUNS, _ADJECTIVES, _VERBS, _PLACES)).split()))


def sentence(rng: np.random.Generator) -> str:
    """Some eighteen words of a plain English sentence."""

    def one(text: str) -> str:
        words = text.split()
        return words[int(rng.integers(len(words)))]

    def thing() -> str:
        return f"the {one(_ADJECTIVES)} {one(_NOUNS)}"

    first = f"{thing()} {one(_VERBS)} {thing()} {one(_PLACES)} {thing()}"
    text = f"{first}, and {thing()} {one(_VERBS)} {thing()} {one(_PLACES)} {thing()}"
    return text[0].upper() + text[1:]
