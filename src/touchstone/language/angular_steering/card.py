"""The side-effect card: what each angle does to neutral text and to unrelated prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.evidence import Measurement
from touchstone.language.angular_steering.arms import Arm, Unsteered
from touchstone.language.angular_steering.prompts import HAPPY_OR_SAD, NEUTRAL_TEXTS, UNRELATED_PROMPTS
from touchstone.language.angular_steering.sweeping import Contrast, sweep

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["side_effects"]


def side_effects(
    model: LanguageModel,
    arm: Arm,
    *,
    texts: Sequence[str] = NEUTRAL_TEXTS,
    prompts: Sequence[str] = UNRELATED_PROMPTS,
    contrast: Contrast = HAPPY_OR_SAD,
    system: str | None = None,
    batch_size: int = 32,
    run: Run | None = None,
) -> pd.DataFrame:
    """Changes against the unsteered model, with 95 % intervals over texts and prompts.

    Parameters
    ----------
    arm : for instance a :class:`~touchstone.language.angular_steering.arms.Rotation` with the angles of interest.
    texts : neutral texts; their change in negative log-likelihood is in nats a token.
    prompts : prompts to which the behaviour does not belong.
    contrast : the tone that is watched on ``prompts``.

    Returns
    -------
    One row a setting: ``value``, ``nll_change``, ``nll_low``, ``nll_high``, ``perplexity_ratio`` (exp of the change a
    token), ``tone_change``, ``tone_low``, ``tone_high``.
    """
    frame = sweep(
        model,
        [Unsteered(), arm],
        prompts,
        contrast=contrast,
        texts=texts,
        system=system,
        batch_size=batch_size,
        run=run,
        label="side effects",
    )
    base = frame[frame["arm"] == "unsteered"]
    plain = {name: base[base["measure"] == name].set_index("item")["score"] for name in ("contrast", "nll")}
    records = []
    for value in arm.values:
        here = frame[(frame["arm"] == arm.name) & (frame["value"] == value)]
        changes = {
            name: (here[here["measure"] == name].set_index("item")["score"] - plain[name]).to_numpy() for name in plain
        }
        tokens = here.loc[here["measure"] == "nll", "tokens"].to_numpy()
        nll, tone = Measurement.mean("", changes["nll"]), Measurement.mean("", changes["contrast"])
        records.append(
            {
                "value": value,
                "nll_change": nll.value,
                "nll_low": nll.low,
                "nll_high": nll.high,
                "perplexity_ratio": float(np.exp(np.average(changes["nll"], weights=tokens))),
                "tone_change": tone.value,
                "tone_low": tone.low,
                "tone_high": tone.high,
            }
        )
    return pd.DataFrame(records)
