"""The study: what continuity and isolation look like in practice (arXiv 2505.10606).

Part A measures the curve of a real model against rounding, against the untrained network and with attention scaled by
log n; part B the periods it holds and the edits it does not see; part C trains small networks with positions and
attention that the theorem covers, and others. The theorem is a statement about all lengths: none of this can refute it,
and what is measured is where its consequences are already visible.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Table
from touchstone.language.isolation_continuity.study_model import ModelSize, curves, decisive, patterns
from touchstone.language.isolation_continuity.study_twin import ARCHITECTURES, TwinSize, twin
from touchstone.language.isolation_continuity.twin import Patterns, Recall
from touchstone.language.model import LanguageModel

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]

_PERIODS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MODEL = {
    "smoke": ModelSize(
        (16, 64),
        (16, 64),
        (0.1,),
        2,
        2,
        (2, 8, 32),
        64,
        functions=3,
        most=250,
        texts=1,
        shares=(0.1,),
        baseline_shares=(0.1,),
        points=10,
        profile_length=24,
        text_lines=(2,),
        full=False,
    ),
    "cpu": ModelSize(
        (16, 64, 256),
        (16, 64, 256, 1024),
        (0.02, 0.05, 0.1, 0.2, 0.4),
        8,
        4,
        _PERIODS,
        256,
        functions=24,
        most=1000,
        texts=1,
        baseline_shares=(0.1,),
    ),
    "gpu": ModelSize(
        (16, 64, 256, 1024),
        (16, 64, 256, 1024, 4096),
        (0.02, 0.05, 0.1, 0.2, 0.4),
        32,
        16,
        (*_PERIODS, 96, 128, 192, 256),
        1024,
        functions=150,
        most=2600,
        texts=12,
    ),
}
_TWIN = {
    "smoke": TwinSize(Recall(longest=6, steps=40), ("rope", "gru"), 1, (4, 6, 12, 24), 16, None),
    "cpu": TwinSize(
        Recall(), tuple(ARCHITECTURES), 1, (8, 16, 24, 48, 96, 192, 384, 768, 1536), 64, Patterns(steps=200)
    ),
    "gpu": TwinSize(
        Recall(), tuple(ARCHITECTURES), 5, (8, 16, 24, 48, 96, 192, 384, 768, 1536), 256, Patterns(steps=2000)
    ),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure the theory's consequences.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"`` (longer prompts, more draws and seeds).
    run : seed, device, engine and progress.
    model : subject of parts A and B, see :meth:`LanguageModel.load`.
    dtype : of the model.

    Raises
    ------
    InputError
        If the scale is unknown, or the model cannot be read.
    """
    if scale not in _MODEL:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    findings: list[Finding] = []
    tables: list[Table] = []
    figures: list[Figure] = []
    for part in (
        curves(subject, _MODEL[scale], run),
        patterns(subject, _MODEL[scale], run),
        decisive(subject, _MODEL[scale], run),
        twin(_TWIN[scale], run),
    ):
        findings.extend(part[0])
        tables.extend(part[1])
        figures.extend(part[2])
    return run.evidence(
        f"Continuity and isolation, re-measured ({subject.source})",
        "isolation-continuity",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
        device=str(subject.device),
    )
