"""A real generator's chains on matched cases: do the parts fit, and what are a small model's chains worth?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered, sign
from touchstone.evidence import Figure, Finding, Measurement, Table
from touchstone.language.fairness_reward_model.chains import extract_answer
from touchstone.language.fairness_reward_model.reasoning import built_in, default_reward_model, reason

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["ModelSize", "real_model"]


@dataclass(frozen=True)
class ModelSize:
    """How much is measured: matched pairs, chains of each prompt, tokens of a chain."""

    pairs: int
    chains: int
    tokens: int


def real_model(subject: LanguageModel, size: ModelSize, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Findings on a real model's own chains."""
    found = reason(
        subject,
        built_in(size.pairs),
        default_reward_model(),
        run,
        chains=size.chains,
        tokens=size.tokens,
        label=f"{subject.source}: reasoning about matched cases",
    )
    texts = [" ".join(chain) for case in found.steps for person in case for chain in person]
    said = [extract_answer(text.lower(), r"\b(yes|no)\b") for text in texts]
    parsed = Measurement.rate("chains that say yes or no by themselves", sum(a is not None for a in said), len(said))
    rows = []
    for name, tau in (
        ("majority", math.inf),
        ("fairness-weighted, τ = 0.2", 0.2),
        ("fairness-weighted, τ = 0.01", 0.01),
    ):
        decided = found.decided(tau)
        rows.append(
            {
                "arm": name,
                "accuracy": float(found.accuracy(tau).mean()),
                "flips": float((decided[:, 0] != decided[:, 1]).mean()),
                "yes_rate": float((decided == 1).mean()),
            }
        )
    plain, fair = found.decided(math.inf), found.decided(0.01)
    fewer = (plain[:, 0] != plain[:, 1]).astype(float) - (fair[:, 0] != fair[:, 1])
    right = clustered("decisions that follow the rule", found.accuracy(math.inf), seed=run.seed)
    findings = [
        Finding(
            "generator-accuracy",
            f"Chains of {subject.source} follow the stated rule more often than chance.",
            sign(right, above=0.5),
            right,
            limit="> 0.5",
        ),
        Finding(
            "generator-flips",
            "Weighing its chains at τ = 0.01 decides more pairs alike than a majority does.",
            sign(clustered("fewer flips", fewer, seed=run.seed)),
            Measurement.rate("pairs decided differently, τ = 0.01", int((fair[:, 0] != fair[:, 1]).sum()), len(fair)),
            Measurement.rate(
                "pairs decided differently, majority", int((plain[:, 0] != plain[:, 1]).sum()), len(plain)
            ),
        ),
        Finding(
            "generator-parsed",
            "At least half of its chains come to a yes or no by themselves.",
            "holds" if parsed.value >= 0.5 else "fails",
            parsed,
            limit=">= 0.5",
        ),
    ]
    scores = pd.DataFrame(
        {"steps": [len(found.step_scores)], "below_half": [int((np.array(found.step_scores) < 0.5).sum())]}
    )
    title = f"{subject.source}: decisions on matched cases"
    return findings, [Table("generator", title, pd.DataFrame(rows)), Table("generator-steps", "Its steps", scores)], []
