"""A calibrated router as one JSON file; an infinite threshold is the text "inf", for JSON has no infinity."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.decisions.conformal_arbitrage.arbitrage import ConformalArbitrage
from touchstone.decisions.conformal_arbitrage.costs import Costs
from touchstone.errors import InputError
from touchstone.files import read_text, write_text

__all__ = ["VERSION", "load", "save"]

VERSION = "touchstone.conformal-arbitrage/1"


def save(router: ConformalArbitrage, path: str | Path) -> Path:
    """Write a calibrated router; nothing of the calibration queries goes in but 1,000 margins and a digest.

    Raises
    ------
    InputError
        If it is not calibrated, or the file cannot be written.
    """
    if math.isnan(router.lam_):
        raise InputError("the router is not calibrated: call calibrate before save")
    record = {
        "version": VERSION,
        "alpha": router.alpha,
        "lam": "inf" if math.isinf(router.lam_) else router.lam_,
        "risk": router.risk,
        "B": router.B,
        "delta": router.delta,
        "normalise": router.normalise,
        "reduce": router.reduce,
        "jitter": router.jitter,
        "seed": router.seed,
        "costs": asdict(router.costs),
        "n": router.n_,
        "empirical_risk": router.empirical_risk_,
        "alpha_min": router.alpha_min_,
        "tolerance": router.tolerance_,
        "digest": router.digest_,
        "margins": router.margins_.tolist(),
    }
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return Path(path)


def load(path: str | Path, *, normalise: str | None = None, reduce: str | None = None) -> ConformalArbitrage:
    """Read what :func:`save` wrote.

    Parameters
    ----------
    normalise, reduce : if given, how the scores at hand were made; they must be what the router was calibrated on.

    Raises
    ------
    InputError
        If the file is not a router of this version, is damaged, or was calibrated on scores made otherwise.
    """
    try:
        data = json.loads(read_text(path, "router"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"router {path}: not JSON ({error})") from None
    found = data.get("version") if isinstance(data, dict) else type(data).__name__
    if found != VERSION:
        raise InputError(f"router {path}: expected version {VERSION!r}, found {found!r}")
    try:
        router = _built(data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"router {path}: damaged ({type(error).__name__}: {error})") from None
    for name, wanted in (("normalise", normalise), ("reduce", reduce)):
        own = getattr(router, name)
        if wanted is not None and wanted != own:
            raise InputError(f"{name} {wanted!r}: the router {path} was calibrated with {own!r}")
    return router


def _built(data: dict[str, Any]) -> ConformalArbitrage:
    router = ConformalArbitrage(
        data["alpha"],
        data["risk"],
        data["B"],
        data["normalise"],
        Costs(**data["costs"]),
        delta=data["delta"],
        jitter=data["jitter"],
        seed=data["seed"],
    )
    lam = math.inf if data["lam"] == "inf" else float(data["lam"])
    margins = np.asarray(data["margins"], dtype=float)
    tolerance = float(data["tolerance"])
    if not lam >= 0 or not 0 <= tolerance < math.inf or margins.ndim != 1 or not np.isfinite(margins).all():
        raise ValueError("lam, tolerance or margins are not numbers of at least 0")
    reduce, digest = data["reduce"], data["digest"]
    if not (reduce is None or isinstance(reduce, str)) or not isinstance(digest, str):
        raise ValueError("reduce and digest must be texts")
    router.lam_, router.tolerance_, router.margins_ = lam, tolerance, np.sort(margins)
    router.n_, router.digest_, router.reduce = int(data["n"]), digest, reduce
    router.empirical_risk_, router.alpha_min_ = float(data["empirical_risk"]), float(data["alpha_min"])
    return router
