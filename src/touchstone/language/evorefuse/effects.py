"""Which parts of sentences of a grammar set off refusals, read off the scores that a search has paid for anyway."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from touchstone.language.evorefuse.grammar import Grammar, Slot

__all__ = ["part_effects"]

_SLOTS: tuple[Slot, ...] = ("outburst", "frame", "aside")


def part_effects(scores: Mapping[str, float], grammar: Grammar, *, ridge: float = 1.0) -> pd.DataFrame:
    """Effect of every part on the score, by ridge regression over all scored sentences with one intercept a request.

    Parameters
    ----------
    scores : fitness of sentences; texts that are not of ``grammar`` are passed over.
    ridge : penalty on effects, so that a part that was seen once does not get all the credit.

    Returns
    -------
    frame : ``slot``, ``kind``, ``part``, ``effect`` in the unit of the scores, ``n`` sentences with the part; strongest
        first.
    """
    parsed = [(grammar.parse(text), value) for text, value in scores.items() if np.isfinite(value)]
    rows = [(at, value) for at, value in parsed if at is not None]
    columns = [(slot, i) for slot in _SLOTS for i in range(1, len(grammar.parts(slot)))]
    seen = np.array([[getattr(at, slot) == i for slot, i in columns] for at, _ in rows], dtype=float)
    if not rows or not columns:
        return pd.DataFrame(columns=["slot", "kind", "part", "effect", "n"])
    actions = np.array([at.action for at, _ in rows])
    x, y = seen.copy(), np.array([value for _, value in rows])
    for action in np.unique(actions):
        mine = actions == action
        x[mine] -= x[mine].mean(axis=0)
        y[mine] -= y[mine].mean()
    effect = np.linalg.solve(x.T @ x + ridge * np.eye(len(columns)), x.T @ y)
    parts = [grammar.parts(slot)[i] for slot, i in columns]
    frame = pd.DataFrame(
        {
            "slot": [slot for slot, _ in columns],
            "kind": [part.kind for part in parts],
            "part": [part.text for part in parts],
            "effect": effect,
            "n": seen.sum(axis=0).astype(int),
        }
    )
    return frame[frame["n"] > 0].sort_values("effect", ascending=False, kind="stable", ignore_index=True)
