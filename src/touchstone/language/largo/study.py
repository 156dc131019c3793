"""The study: attacks at one budget on a planted bypass, and what an optimised latent can do to a real model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.language.largo.study_bypass import BypassSize, bypass
from touchstone.language.largo.study_model import ModelSize, real_model

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]


@dataclass(frozen=True)
class Size:
    """Sizes of the two parts."""

    bypass: BypassSize
    model: ModelSize


_SIZES = {
    "smoke": Size(
        BypassSize(topics=2, seeds=1, budget=300, epochs=2), ModelSize(1, 1, 1, 4, swaps=4, reply=4, benign=4)
    ),
    "cpu": Size(BypassSize(topics=6, seeds=3, budget=4000, epochs=10), ModelSize(3, steps=15, rounds=2, length=16)),
    "gpu": Size(BypassSize(topics=6, seeds=5, budget=12000, epochs=25), ModelSize(12, steps=20, rounds=15, length=32)),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    behaviours: str | Path | None = None,
    system: str | None = None,
    dtype: str = "float32",
) -> Evidence:
    """Re-measure LARGO (arXiv 2505.10838) on harmless stand-ins; its own data are harmful requests.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"``.
    run : seed, device, engine and progress.
    model, dtype : the real model, see :meth:`LanguageModel.load`; to run the study on it is to say that it is yours.
    behaviours, system : JSONL of behaviours of your own and the system message with their rule; a harmless house rule
        if left out.

    Raises
    ------
    InputError
        If the scale is unknown, or a file or the model cannot be read.
    """
    from touchstone.language.model import LanguageModel

    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    findings, tables, figures = bypass(size.bypass, run)
    more, also = real_model(subject, size.model, run, behaviours, system)
    return run.evidence(
        f"LARGO, re-measured ({subject.source})",
        "largo",
        "study",
        [*findings, *more],
        tables=[*tables, *also],
        figures=figures,
        scale=scale,
        device=str(subject.device),
    )
