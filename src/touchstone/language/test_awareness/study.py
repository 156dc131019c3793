"""The study: the paper's claims on organisms whose truth is planted, on a real small model, and at scale on a
reasoning one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.evidence import Evidence, Figure, Finding, Scale, Table
from touchstone.language.test_awareness.organism import OrganismSize
from touchstone.language.test_awareness.study_organism import organisms
from touchstone.language.test_awareness.survey import SurveySize

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]

REASONER = "Qwen/Qwen3-32B"
"""The reasoning model of the ``gpu`` scale, one of the paper's three."""

_ORGANISMS: dict[str, OrganismSize] = {
    "smoke": OrganismSize(40, 240, 60, prompts=1, strengths=(1.0, 2.0), residual=(0.2, 0.8), randoms=2),
    "cpu": OrganismSize(),
    "gpu": OrganismSize(traces=2400, held_out=800, prompts=8, randoms=20),
}


def study(scale: Scale, run: Run) -> Evidence:
    """Re-measure the claims.

    Parameters
    ----------
    scale : ``"smoke"``: both organisms, hardly trained, which shows that the study runs. ``"cpu"``: both organisms,
        and the embedded model. ``"gpu"``: the same with more of everything, and the whole pipeline on :data:`REASONER`.
    run : seed, device and engine.
    """
    findings, tables, figures = organisms(_ORGANISMS[scale], run)
    if scale != "smoke":
        more: tuple[list[Finding], list[Table], list[Figure]] = _model(scale, run)
        findings, tables, figures = findings + more[0], tables + more[1], figures + more[2]
    if scale == "gpu":
        from touchstone.language.test_awareness.pipeline import reasoner

        more = reasoner(REASONER, run)
        findings, tables, figures = findings + more[0], tables + more[1], figures + more[2]
    title = "Test awareness: can it be read and steered, and does that change what a model does?"
    return run.evidence(title, "test-awareness", "study", findings, tables=tables, figures=figures, scale=scale)


def _model(scale: Scale, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    from touchstone.language.model import LanguageModel
    from touchstone.language.test_awareness.study_model import real_model

    model = LanguageModel.load(device=run.device)
    size = SurveySize() if scale == "cpu" else SurveySize(pairs=90, randoms=99, cost_randoms=20, requests=60)
    return real_model(model, size, 40 if scale == "cpu" else 90, run)
