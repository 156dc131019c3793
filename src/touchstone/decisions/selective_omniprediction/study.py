"""The study: one predictor for all losses, fair abstention of overlapping groups, and reliable learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from touchstone.decisions.selective_omniprediction.study_blobs import BlobSize, blobs
from touchstone.decisions.selective_omniprediction.study_census import CensusSize, census
from touchstone.decisions.selective_omniprediction.study_certify import certificates
from touchstone.decisions.selective_omniprediction.study_losses import LossSize, losses
from touchstone.errors import InputError
from touchstone.evidence import Evidence

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]


@dataclass(frozen=True)
class Size:
    """Sizes of the three parts."""

    losses: LossSize
    census: CensusSize
    blobs: BlobSize
    certificates: int


_SIZES = {
    "smoke": Size(
        LossSize(seeds=2, train=3000, calibrate=2000, test=2000, trees=30, triples=20),
        CensusSize(splits=1, rows=3000, rounds=40),
        BlobSize(seeds=1, train=1000, calibrate=500, test=500, trees=12),
        certificates=60,
    ),
    "cpu": Size(
        LossSize(seeds=5, train=6000, calibrate=2000, test=2000, trees=100, triples=200),
        CensusSize(splits=5, rows=8000, rounds=60),
        BlobSize(seeds=5, train=3000, calibrate=1000, test=1000, trees=60),
        certificates=1000,
    ),
    "gpu": Size(
        LossSize(seeds=20, train=60_000, calibrate=20_000, test=20_000, trees=100, triples=1000),
        CensusSize(splits=20, rows=16_000, rounds=200),
        BlobSize(seeds=20, train=30_000, calibrate=10_000, test=10_000, trees=60),
        certificates=10_000,
    ),
}


def study(scale: Literal["smoke", "cpu", "gpu"], run: Run) -> Evidence:
    """Re-measure what "Selective Omniprediction and Fair Abstention" claims.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"``: the same on more data, which needs no GPU.
    run : seed, engine and progress.

    Raises
    ------
    InputError
        If the scale is unknown or Adult cannot be fetched.
    """
    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    findings, tables, figures = losses(size.losses, run)
    for more in (census(size.census, run), blobs(size.blobs, run), certificates(size.certificates, run)):
        findings, tables, figures = findings + more[0], tables + more[1], figures + more[2]
    return run.evidence(
        "Selective omniprediction, re-measured",
        "selective-omniprediction",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
    )
