"""White-box read-out: is a value not represented, or represented and not used?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.language.deep_value_benchmark.attributes import Attribute, Attributes, default_attributes

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["read_out"]


def read_out(
    model: LanguageModel,
    attributes: Attributes | None = None,
    *,
    blocks: Sequence[int] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy of linear probes for values and for traits at the last token of an option.

    A probe tells all values (or all poles) apart; counted is whether it prefers the right one to the one it is paired
    with, on families of phrases that it never saw, so that 0.5 is chance.

    Parameters
    ----------
    model : the model.
    attributes : what options carry; ``None`` for the built-in ones.
    blocks : blocks to read; ``None`` for five, evenly spread, the last among them.
    seed : draws which phrases stand together.

    Returns
    -------
    Columns ``block``, ``kind`` (``value`` or ``trait``), ``accuracy``, ``low``, ``high`` (bootstrap over attributes)
    and ``n`` (attributes).
    """
    table = attributes or default_attributes()
    last = len(model.blocks) - 1
    chosen = list(blocks) if blocks is not None else sorted({round(last * k / 4) for k in range(5)})
    sites = [model.as_site(f"output.{block}") for block in chosen]
    rng = np.random.default_rng(seed)
    rows = []
    for kind, mine, other in (("value", table.deep, table.shallow), ("trait", table.shallow, table.deep)):
        texts, labels, families = _texts(mine, other, rng)
        states = model.activations(texts, sites, positions="last", chat=False)
        for block, site in zip(chosen, sites, strict=True):
            wins = _wins(states[site].numpy(), labels, families, mine)
            # An attribute's phrases say the same thing: attributes are what is drawn again.
            of = [float(wins[labels == label].mean()) for label in range(len(mine))]
            found = clustered(kind, of, seed=seed)
            rows.append((block, kind, found.value, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=["block", "kind", "accuracy", "low", "high", "n"])


def _texts(
    mine: Sequence[Attribute], other: Sequence[Attribute], rng: np.random.Generator
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Options with every phrase of ``mine``; it comes first, so that the last token is one of the other kind."""
    beside = [phrase for attribute in other for phrase in attribute.phrases]
    texts, labels, families = [], [], []
    for label, attribute in enumerate(mine):
        for f, family in enumerate(attribute.families):
            for phrase in family:
                texts.append(f"An assistant that {phrase} and {beside[rng.integers(len(beside))]}.")
                labels.append(label)
                families.append(f)
    return texts, np.array(labels), np.array(families)


def _wins(x: np.ndarray, labels: np.ndarray, families: np.ndarray, mine: Sequence[Attribute]) -> np.ndarray:
    """For every text, the share of its attribute's pairs in which the probe prefers it to the other."""
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    partners = [[j for j, b in enumerate(mine) if b is not a and b.group == a.group] for a in mine]
    wins = np.zeros(len(labels))
    for held in np.unique(families):
        train = families != held
        probe = make_pipeline(StandardScaler(), RidgeClassifier(alpha=100.0)).fit(x[train], labels[train])
        scores = np.atleast_2d(probe.decision_function(x[~train]))
        if scores.shape[0] == 1:
            scores = np.stack([-scores[0], scores[0]], axis=1)
        for i, row in zip(np.flatnonzero(~train), scores, strict=True):
            own = labels[i]
            wins[i] = np.mean(row[own] > row[partners[own]])
    return wins
