"""Monitoring: which items of a benchmark look most like a test to a model, and which of their tokens say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.test_awareness.probe import AwarenessProbe
from touchstone.language.test_awareness.reading import layer_sites, project_tokens, tokens_of

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["monitor"]


def monitor(
    model: LanguageModel,
    probe: AwarenessProbe,
    items: Sequence[str],
    *,
    reference: Sequence[str] = (),
    words: int = 5,
    system: str | None = None,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Score items by the probe's mean over their tokens, most test-like first.

    Parameters
    ----------
    model : the model that the items are for.
    probe : a probe fitted on that model.
    items : prompts of a benchmark; no cue and no label is needed.
    reference : everyday prompts to compare with; the items themselves if none.
    words : how many of the tokens that drive an item's score to name.
    system, batch_size, progress : see :meth:`LanguageModel.generate`.

    Returns
    -------
    One row an item: ``item`` (its index), ``text``, ``score`` (the probe's discriminant, mean over the item's
    tokens), ``z`` (score in standard deviations above the mean of the reference), ``tokens`` (number) and ``drivers``
    (tokens that stand furthest above the reference's mean token).

    Notes
    -----
    A probe finds what it was trained on. Read the drivers before the ranking: where they are layout or rare words,
    the score is about those. The tokens' scores come from context, so that a driver may be the place where a cue has
    been read, not the cue.
    """
    if isinstance(items, str) or len(items) == 0:
        raise InputError("items: expected a list of at least one prompt")
    if len(probe.direction_) != model.width:
        raise InputError(f"probe of width {len(probe.direction_)}: model {model.source} is {model.width} wide")
    texts = [*items, *reference]
    ids, spans, pieces = [], [], []
    for text in texts:
        rendered = model.render(text, system=system)
        at = rendered.rfind(text)
        if at < 0:
            raise InputError(f"item {text[:40]!r}: the chat template changes it, so its tokens cannot be found")
        row, offsets = tokens_of(model, rendered, templated=model.tokenizer.chat_template is not None)
        inside = [i for i, (a, b) in enumerate(offsets) if a < b and b > at and a < at + len(text)]
        if not inside:
            raise InputError(f"item {text[:40]!r}: holds no token")
        ids.append(row)
        spans.append((inside[0], inside[-1] + 1))
        pieces.append([rendered[slice(*offsets[i])].strip() for i in range(*spans[-1])])
    place = probe.layers_.index(probe.layer_)
    site = layer_sites(model)[probe.layer_]
    found = project_tokens(model, ids, site, probe.coef_[place], batch_size=batch_size, progress=progress)
    scores = [values[a:b] + probe.intercept_[place] for values, (a, b) in zip(found, spans, strict=True)]
    means = np.array([values.mean() for values in scores])
    compared = slice(len(items), None) if reference else slice(None)
    middle, spread = float(means[compared].mean()), float(means[compared].std())
    usual = float(np.concatenate(scores[compared]).mean())
    rows = []
    for i in range(len(items)):
        order = np.argsort(-scores[i], kind="stable")[:words]
        rows.append(
            {
                "item": i,
                "text": texts[i],
                "score": float(means[i]),
                "z": (float(means[i]) - middle) / spread if spread > 0 else 0.0,
                "tokens": len(scores[i]),
                "drivers": ", ".join(f"{pieces[i][j]} ({scores[i][j] - usual:+.1f})" for j in order),
            }
        )
    return pd.DataFrame(rows).sort_values("score", ascending=False, ignore_index=True)
