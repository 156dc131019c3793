"""The study: chains with a planted bias on real cases, transfer between kinds of bias, and a real model's chains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from touchstone.errors import InputError
from touchstone.evidence import Evidence
from touchstone.language.fairness_reward_model.study_cases import CaseSize, real_cases
from touchstone.language.fairness_reward_model.study_model import ModelSize, real_model
from touchstone.language.fairness_reward_model.study_transfer import TransferSize, transfer

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]


@dataclass(frozen=True)
class Size:
    """Sizes of the three parts."""

    cases: CaseSize
    transfer: TransferSize
    model: ModelSize


_SIZES = {
    "smoke": Size(CaseSize(seeds=2, each=100, chains=16), TransferSize(seeds=1, each=60), ModelSize(2, 1, 6)),
    "cpu": Size(CaseSize(seeds=10, each=250, chains=32), TransferSize(seeds=5, each=250), ModelSize(16, 8, 40)),
    "gpu": Size(CaseSize(seeds=10, each=250, chains=32), TransferSize(seeds=10, each=250), ModelSize(24, 32, 256)),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure what fairness reward models (arXiv 2507.11344) claim.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"``.
    run : seed, device, engine and progress.
    model, dtype : whose chains the last part samples, see :meth:`LanguageModel.load`.

    Raises
    ------
    InputError
        If the scale is unknown, the model cannot be read or the COMPAS data cannot be fetched.
    MissingExtraError
        If fairlearn, which has one of the baselines, is not installed.
    """
    from touchstone.language.model import LanguageModel

    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    findings, tables, figures = real_cases(size.cases, run)
    for more in (transfer(size.transfer, run), real_model(subject, size.model, run)):
        findings, tables, figures = findings + more[0], tables + more[1], figures + more[2]
    return run.evidence(
        f"Fairness reward models, re-measured ({subject.source})",
        "fairness-reward-model",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
        device=str(subject.device),
    )
