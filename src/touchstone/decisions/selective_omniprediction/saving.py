"""A multicalibrated classifier on disk: its trees as arrays, its parameters as JSON, in one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from touchstone.decisions.selective_omniprediction.calibrating import Step
from touchstone.decisions.selective_omniprediction.trees import Tree
from touchstone.errors import InputError
from touchstone.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from touchstone.decisions.selective_omniprediction.multicalibrated import MulticalibratedClassifier

    C = TypeVar("C", bound=MulticalibratedClassifier)

__all__ = ["SCHEMA", "load", "load_with_extra", "save"]

SCHEMA = "touchstone.multicalibrated/1"
_NODES = ("feature", "threshold", "left", "right", "value")


def save(model: MulticalibratedClassifier, path: str | Path, extra: dict[str, Any] | None = None) -> Path:
    """Write ``model``; ``extra`` is kept in the record."""
    parameters = model.get_params(deep=False)
    kept = {k: v for k, v in parameters.items() if k not in ("base", "concept", "groups", "random_state")}
    steps = model.steps_
    tensors = {name: _joined([getattr(step.tree, name) for step in steps]) for name in _NODES}
    tensors["nodes"] = np.array([len(step.tree.feature) for step in steps], dtype=np.int64)
    tensors["group"] = np.array([step.group for step in steps], dtype=np.int64)
    tensors["moves"] = np.array([(step.low, step.high, step.eta) for step in steps], dtype=float).reshape(-1, 3)
    if model.knots_ is not None:
        tensors["knots"] = model.knots_
    labels = model.classes_
    record = {
        "schema": SCHEMA,
        "parameters": kept,
        "base": model.base if isinstance(model.base, str | int) else None,
        "needs_base": model.base_ is not None,
        "single_precision": model.concept is not None,
        "groups": None if model.groups is None or callable(model.groups) else list(model.groups),
        "group_names": list(model.group_names_),
        "features": model.n_features_in_,
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", ())],
        "classes": {
            "kind": labels.dtype.kind,
            "values": [label.item() if hasattr(label, "item") else label for label in labels],
        },
        "prior": model.prior_,
        "digest": model.digest_,
        "history": model.history_.to_dict("records"),
        "extra": extra or {},
    }
    return write_tensors(path, tensors, record)


def load(cls: type[C], path: str | Path, base: Any = None) -> C:
    """Read what :func:`save` wrote; see :func:`load_with_extra`."""
    return load_with_extra(cls, path, base)[0]


def load_with_extra(cls: type[C], path: str | Path, base: Any = None) -> tuple[C, dict[str, Any]]:
    """Read what :func:`save` wrote, and what was kept with it.

    Raises
    ------
    InputError
        If the file is not of this kind, its arrays do not fit together, or it needs a base that is not given.
    """
    tensors, record = read_tensors(path, SCHEMA, "model")
    try:
        model = cls(base=record["base"], groups=record["groups"], **record["parameters"])
        if record["needs_base"]:
            if not hasattr(base, "predict_proba"):
                raise InputError(f"model {path}: was fitted on a base model; give the fitted estimator as base")
            model.base = base
        model.base_ = base if record["needs_base"] else None
        if record["single_precision"]:
            from sklearn.tree import DecisionTreeRegressor

            model.concept = DecisionTreeRegressor(max_depth=model.max_depth)
        model.classes_ = np.array(record["classes"]["values"])
        model.group_names_ = tuple(record["group_names"])
        model.n_features_in_ = int(record["features"])
        if record["feature_names"]:
            model.feature_names_in_ = np.array(record["feature_names"], dtype=object)
        model.prior_, model.digest_ = float(record["prior"]), record["digest"]
        model.history_ = pd.DataFrame(record["history"])
        model.n_iter_ = max(1, len(model.history_))
        model.knots_ = tensors.get("knots")
        model.steps_ = _steps(tensors, model.n_features_in_, len(model.group_names_))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"model {path}: its parts do not fit together ({error})") from None
    return model, dict(record.get("extra") or {})


def _steps(tensors: dict[str, np.ndarray], features: int, groups: int) -> list[Step]:
    nodes = tensors["nodes"]
    ends = np.cumsum(nodes)
    if any(len(tensors[name]) != nodes.sum() for name in _NODES) or len(tensors["moves"]) != len(nodes):
        raise ValueError("nodes and trees differ in number")
    if (nodes < 1).any() or tensors["feature"].max(initial=-1) > features or tensors["group"].max(initial=-1) >= groups:
        raise ValueError("a tree names a feature or group that is not there")
    found = []
    for k, (end, size) in enumerate(zip(ends, nodes, strict=True)):
        parts = {name: tensors[name][end - size : end] for name in _NODES}
        inner = parts["feature"] >= 0
        # Nodes come after the one above them; anything else could go round in a circle.
        for side in ("left", "right"):
            if not ((parts[side] > np.arange(size)) & (parts[side] < size))[inner].all():
                raise ValueError("a tree's nodes are out of order")
        low, high, eta = (float(x) for x in tensors["moves"][k])
        found.append(Step(int(tensors["group"][k]), low, high, eta, Tree(**parts)))
    return found


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0)
