"""Probe 5: decisive edits, small changes of a prompt that turn its right answer round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.batching import batches, prefill
from touchstone.language.isolation_continuity import divergence
from touchstone.language.isolation_continuity.reading import computing
from touchstone.language.isolation_continuity.report import Report
from touchstone.run import Run

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["DecisiveEdit", "decisive_edits", "last_log_probs", "length_slope", "restated"]

_PAIRS_TOGETHER = 4


@dataclass(frozen=True)
class DecisiveEdit:
    """Two prompts that differ little and have different right answers.

    Attributes
    ----------
    kind : for tables, such as ``"bracket"``.
    before, after : the prompts.
    answer_before, answer_after : their right answers; the first tokens of the two must differ.
    decisive_before, decisive_after : the sentence that decides, for :func:`restated`; empty where there is none.
    """

    kind: str
    before: str
    after: str
    answer_before: str
    answer_after: str
    decisive_before: str = ""
    decisive_after: str = ""


def decisive_edits(
    model: LanguageModel,
    edits: Sequence[DecisiveEdit],
    *,
    seed: int = 0,
    label: str = "decisive edits",
    run: Run | None = None,
) -> Report:
    """How far each edit moves the answer, and whether it turns it (arXiv 2505.10606, its test of syntax).

    The answer is read, not generated: P of the first token of each of the two, after the chat template.

    Returns
    -------
    Report with ``rows`` of ``kind``, ``tokens`` (of the prompt before), ``distance`` (share of tokens, aligned),
    ``p_before``, ``p_after`` (P of ``answer_before`` against ``answer_after``), ``delta`` (their difference; positive
    is the right way), ``tv`` (of the whole distribution), ``mass`` (P of the two answers together, before),
    ``flipped``, ``right_before``, ``right_after``. ``numbers``: ``flip_rate``, ``accuracy`` (balanced: mean of the
    shares that are right before and after), ``delta``, ``slope`` (of log |delta| on log tokens) and ``mass``.

    Raises
    ------
    InputError
        If there are no edits, two prompts are the same, or two answers begin with the same token.
    """
    if not edits:
        raise InputError("edits: expected at least one")
    for i, edit in enumerate(edits):
        if edit.before == edit.after:
            raise InputError(f"edit {i}: its two prompts are the same")
        _first_tokens(model, edit, i)
    items = [list(range(i, min(i + _PAIRS_TOGETHER, len(edits)))) for i in range(0, len(edits), _PAIRS_TOGETHER)]
    found = (run or Run()).map(label, partial(_unit, model, [asdict(edit) for edit in edits]), items)
    rows = pd.DataFrame([row for part in found for row in part])
    numbers = {
        "flip_rate": float(rows["flipped"].mean()),
        "accuracy": float((rows["right_before"].mean() + rows["right_after"].mean()) / 2),
        "delta": float(rows["delta"].mean()),
        "slope": length_slope(rows["tokens"].to_numpy(), rows["delta"].to_numpy()),
        "mass": float(rows["mass"].mean()),
    }
    return Report("edit", model.source, "", seed, rows, numbers, {"edits": len(edits)})


def restated(edit: DecisiveEdit, times: int = 1) -> DecisiveEdit:
    """The same pair with the sentence that decides said again, ``times`` times, in front of the question.

    The question is taken to be the last line of the prompt.

    Raises
    ------
    InputError
        If the edit names no sentence that decides.
    """
    if not edit.decisive_before or not edit.decisive_after:
        raise InputError(f"edit of kind {edit.kind!r}: names no sentence that decides")
    if times < 1:
        raise InputError(f"times {times}: expected 1 or more")

    def repair(prompt: str, sentence: str) -> str:
        head, _, question = prompt.rpartition("\n")
        again = "\n".join([sentence] * times)
        return f"{head}\n{again}\n{question}"

    return DecisiveEdit(
        f"{edit.kind}, said again {times}×",
        repair(edit.before, edit.decisive_before),
        repair(edit.after, edit.decisive_after),
        edit.answer_before,
        edit.answer_after,
        edit.decisive_before,
        edit.decisive_after,
    )


def length_slope(tokens: np.ndarray, delta: np.ndarray) -> float:
    """Slope of log |delta| on log tokens; NaN where all prompts are of one length."""
    x, y = np.log(np.asarray(tokens, dtype=float)), np.log(np.maximum(np.abs(delta), 1e-6))
    if np.ptp(x) < 1e-9:
        return float("nan")
    return float(np.polyfit(x, y, 1)[0])


def last_log_probs(model: LanguageModel, prompts: Sequence[Sequence[int]], batch_size: int = 8) -> np.ndarray:
    """log p of the next token after prompts of any length, float32 [prompts, vocabulary]."""
    found: list[np.ndarray | None] = [None] * len(prompts)
    with computing(model):
        for rows in batches([len(p) for p in prompts], batch_size, budget=4096):
            logits = prefill(model, [prompts[i] for i in rows], rows).logits
            values = logits.float().log_softmax(-1).cpu().numpy()
            for i, value in zip(rows, values, strict=True):
                found[i] = value
    return np.stack([value for value in found if value is not None])


def _first_tokens(model: LanguageModel, edit: DecisiveEdit, i: int) -> tuple[int, int]:
    pieces = [model.encode_continuation(text) for text in (edit.answer_before, edit.answer_after)]
    if not all(pieces) or pieces[0][0] == pieces[1][0]:
        raise InputError(
            f"edit {i}: answers {edit.answer_before!r} and {edit.answer_after!r} must begin with different tokens"
        )
    return pieces[0][0], pieces[1][0]


def _unit(model: LanguageModel, records: list[dict[str, str]], chosen: list[int]) -> list[dict[str, Any]]:
    edits = [DecisiveEdit(**records[i]) for i in chosen]
    ids = model.encode([text for edit in edits for text in (edit.before, edit.after)])
    logp = last_log_probs(model, ids)
    rows = []
    for i, edit in enumerate(edits):
        before, after = logp[2 * i], logp[2 * i + 1]
        a, b = _first_tokens(model, edit, chosen[i])
        p_before, p_after = (_share(values[a], values[b]) for values in (before, after))
        rows.append(
            {
                "kind": edit.kind,
                "tokens": len(ids[2 * i]),
                "distance": divergence.aligned_distance(ids[2 * i], ids[2 * i + 1]),
                "p_before": p_before,
                "p_after": p_after,
                "delta": p_before - p_after,
                "tv": float(divergence.total_variation(before, after)),
                "mass": float(np.exp(before[a]) + np.exp(before[b])),
                "flipped": float((p_before > 0.5) != (p_after > 0.5)),
                "right_before": float(p_before > 0.5),
                "right_after": float(p_after < 0.5),
            }
        )
    return rows


def _share(a: float, b: float) -> float:
    return float(1.0 / (1.0 + np.exp(float(b) - float(a))))
