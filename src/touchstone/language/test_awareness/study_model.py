"""Study, part B: a real small model, which does not reason: the probe against words, the edit against random
directions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from touchstone.evidence import Figure, Finding, Measurement, Table, Verdict
from touchstone.language.test_awareness import figures
from touchstone.language.test_awareness.check import findings_of, tables_of
from touchstone.language.test_awareness.features import build_grid, cell_features
from touchstone.language.test_awareness.linear import fit_logistic
from touchstone.language.test_awareness.monitoring import monitor
from touchstone.language.test_awareness.survey import Survey, SurveySize, survey
from touchstone.language.test_awareness.templates import FORMATS
from touchstone.language.test_awareness.validation import fold_numbers, per_group

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["real_model"]

_FOLDS = 5


def real_model(
    model: LanguageModel, size: SurveySize, grid_pairs: int, run: Run
) -> tuple[list[Finding], list[Table], list[Figure]]:
    """All that the check measures, the 2 × 2 of cue and format, and monitoring without cues."""
    found = survey(model, size, run)
    findings = [replace(finding, id=f"model-{finding.id}") for finding in findings_of(found)]
    with run.progress.bar("cue and format crossed", 1) as advance:
        crossed, table = _grid(model, found, grid_pairs, run.seed)
        advance()
    with run.progress.bar("monitoring", 1) as advance:
        watched, ranking = _monitoring(model, found)
        advance()
    tables = [replace(one, name=f"model-{one.name}") for one in tables_of(found)]
    tables += [Table("model-grid", "Cue and format: accuracy by design and cell", table)]
    tables += [Table("model-monitor", "Held-out requests, most test-like first", ranking)]
    return [*findings, crossed, watched], tables, [figures.layers(found), figures.shifts(found)]


def _grid(model: LanguageModel, found: Survey, pairs: int, seed: int) -> tuple[Finding, pd.DataFrame]:
    """Train on crossed cells or on confounded ones, as many rows of each; test on the cells of unseen pairs."""
    chosen = found.pairs[:pairs]
    # Pairs are what is held out here: an entity may come again, a request with its entity may not.
    cells = build_grid([replace(pair, group=pair.id) for pair in chosen], FORMATS)
    features = cell_features(model, cells, layers=[found.probe.layer_])
    made_up = np.array([cell.hypothetical for cell in cells])
    layout = np.array([cell.format for cell in cells])
    agrees = made_up == (layout == len(FORMATS) - 1)
    rng = np.random.default_rng(seed)
    fold = fold_numbers(features.groups, _FOLDS, rng)
    designs = ("crossed", "confounded")
    used = []
    for k in range(_FOLDS):
        train = fold != k
        # Half of the pairs, so that both designs train on as many prompts.
        names = np.unique(features.groups[train])
        half = np.isin(features.groups, rng.permutation(names)[: len(names) // 2])
        used += [train & half, train & agrees]
    x = torch.from_numpy(np.ascontiguousarray(features.x.transpose(1, 0, 2)))
    fit = fit_logistic(x, torch.from_numpy(features.y), torch.from_numpy(np.stack(used, axis=1)))
    right = (fit.decide(x).numpy()[0] > 0) == features.y
    decided = {design: np.choose(fold, [right[2 * k + d] for k in range(_FOLDS)]) for d, design in enumerate(designs)}
    rows = [
        {
            "design": design,
            "format": int(f),
            "made_up": bool(side),
            "accuracy": float(decided[design][(layout == f) & (made_up == side)].mean()),
            "prompts": int(((layout == f) & (made_up == side)).sum()),
        }
        for design in designs
        for f in range(len(FORMATS))
        for side in (False, True)
    ]
    measured, against = (
        Measurement.mean(f"accuracy, {design}", per_group(decided[design][~agrees], features.groups[~agrees]))
        for design in designs
    )
    finding = Finding(
        "model-crossed-design",
        "Where cue and format disagree, a probe trained on the crossed design is right more often than one trained "
        "where they always go together.",
        _apart(measured, against),
        measured,
        against=against,
    )
    return finding, pd.DataFrame(rows)


def _monitoring(model: LanguageModel, found: Survey) -> tuple[Finding, pd.DataFrame]:
    """Score held-out requests without telling where their cues are; a made-up one should stand above its real twin."""
    held = {str(group) for group in found.features.groups[found.probe.test_]}
    pairs = [pair for pair in found.pairs if pair.id in held]
    items = [text for pair in pairs for text in (pair.real, pair.hypothetical)]
    table = monitor(model, found.probe, items)
    score, length = (table.sort_values("item")[name].to_numpy() for name in ("score", "tokens"))
    above = score[1::2] > score[::2]
    longer = length[1::2] > length[::2]
    measured = Measurement.rate("pairs ranked rightly", int(above.sum()), len(pairs))
    against = Measurement.rate("pairs ranked rightly by length", int(longer.sum()), len(pairs))
    table["made_up"] = table["item"] % 2 == 1
    finding = Finding(
        "model-monitor-ranking",
        "Without cues or labels, monitoring ranks a made-up request above its real-looking twin.",
        "holds" if (measured.low or 0) > 0.5 else "fails" if measured.value <= 0.5 else "undecided",
        measured,
        against=against,
    )
    return finding, table


def _apart(measured: Measurement, against: Measurement) -> Verdict:
    if measured.value <= against.value:
        return "fails"
    return "holds" if (measured.low or 0) > (1 if against.high is None else against.high) else "undecided"
