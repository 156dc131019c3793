"""The study: what the search and the training are worth, on a known refuser, on model organisms and on a real model.

Part A runs the search and its ablations on refusers whose optimum is found by enumeration. Part B grows organisms that
refuse by how a request sounds, finds their false alarms and trains them away, beside training on random benign prompts.
Part C takes a real model under a strict system message. The paper's table of nine models needs those models, a model
that writes and one that judges: ``touchstone language over-refusal search --model … --writer …``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Table
from touchstone.language.evorefuse.study_real import RealSize, real_model
from touchstone.language.evorefuse.study_search import SearchSize, search_arms
from touchstone.language.evorefuse.study_shortcut import ShortcutSize, shortcut
from touchstone.language.model import LanguageModel

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]

_SEARCH = {"smoke": SearchSize(2, 6, budget=60), "cpu": SearchSize(10, 30), "gpu": SearchSize(30, 36)}
_SHORTCUT = {
    "smoke": ShortcutSize(1, 100, prompts=60, alarms=8, tuning=10),
    "cpu": ShortcutSize(6, None, prompts=400),
    "gpu": ShortcutSize(20, None, prompts=1000),
}
_REAL = {"smoke": RealSize(1, 1, mutants=3, tokens=8), "cpu": RealSize(6, 3), "gpu": RealSize(12, 5, tokens=128)}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure the paper's claims (arXiv 2505.23473).

    Parameters
    ----------
    scale : ``"smoke"`` (seconds, a briefly trained organism), ``"cpu"`` (minutes) or ``"gpu"``.
    run : seed, device, engine and progress.
    model, dtype : subject of part C, see :meth:`LanguageModel.load`.

    Raises
    ------
    InputError
        If the scale is unknown or the model cannot be read.
    MissingExtraError
        If ``lexicalrichness`` is not installed.
    """
    if scale not in _SEARCH:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    findings: list[Finding] = []
    tables: list[Table] = []
    figures: list[Figure] = []

    def add(new: tuple[list[Finding], list[Table], list[Figure]]) -> None:
        findings.extend(new[0])
        tables.extend(new[1])
        figures.extend(new[2])

    add(search_arms(_SEARCH[scale], run))
    add(shortcut(_SHORTCUT[scale], run))
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    add(real_model(subject, _REAL[scale], run))
    shortened = ", organism trained briefly" if _SHORTCUT[scale].steps else ""
    return run.evidence(
        f"EvoRefuse, re-measured ({subject.source}{shortened})",
        "evorefuse",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
        device=str(subject.device),
    )
