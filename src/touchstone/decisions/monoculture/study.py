"""The study: models and one model's encodings on real data, tables of known truth, and a language model's prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from touchstone.decisions.monoculture.adult import load
from touchstone.decisions.monoculture.study_known import KnownSize, known_truth
from touchstone.decisions.monoculture.study_prompts import PromptSize, prompted
from touchstone.decisions.monoculture.study_zoo import ZooSize, real_data
from touchstone.errors import InputError
from touchstone.evidence import Evidence

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]


@dataclass(frozen=True)
class Size:
    """Sizes of the three parts."""

    zoo: ZooSize
    known: KnownSize
    prompts: PromptSize


_FEW = ("logistic C=1", "tree depth 5", "forest depth 6", "Bernoulli naive Bayes", "linear discriminant")
_SIZES = {
    "smoke": Size(
        ZooSize(train=800, validation=800, test=2500, names=_FEW, encodings=4, draws=100),
        KnownSize(cases=4000, draws=50),
        PromptSize(validation=2, test=4, styles=2, both_orders=1),
    ),
    "cpu": Size(
        ZooSize(train=4000, validation=2000, test=6000, names=None, encodings=12, draws=500),
        KnownSize(cases=20_000, draws=300),
        PromptSize(validation=48, test=48, styles=4, both_orders=40),
    ),
    "gpu": Size(
        ZooSize(train=4000, validation=2000, test=30_000, names=None, encodings=12, draws=500),
        KnownSize(cases=200_000, draws=300),
        PromptSize(validation=2000, test=6000, styles=90, both_orders=2000),
    ),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str = "default",
    models: str = "",
    dtype: str = "float32",
    shots: int = 0,
) -> Evidence:
    """Re-measure what "Monoculture or Multiplicity: Which Is It?" claims.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"``.
    run : seed, device, engine and progress.
    model : the language model whose prompts the last part varies.
    models : more of them, separated by commas; with three or more in all, models are compared with prompts.
    dtype : see :meth:`LanguageModel.load`.
    shots : solved examples in front of every prompt (the paper: 0 and 10).

    Raises
    ------
    InputError
        If the scale is unknown, a model cannot be read or Adult cannot be fetched.
    """
    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size, task = _SIZES[scale], load()
    sources = [name.strip() for name in (model, *models.split(",")) if name.strip()]
    findings, tables, figures = real_data(task, size.zoo, run)
    for more in (known_truth(size.known, run), prompted(task, size.prompts, sources, run, dtype=dtype, shots=shots)):
        findings, tables, figures = findings + more[0], tables + more[1], figures + more[2]
    return run.evidence(
        "Monoculture or multiplicity, re-measured",
        "monoculture",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
        device=run.device if run.device != "auto" else "cpu",
    )
