"""Validation: accuracy of probes on groups that they never saw, against words alone and against shuffled labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.language.test_awareness.linear import fit_logistic

__all__ = ["CrossValidation", "bag_of_words", "checked", "cross_validate", "fold_numbers", "per_group", "shuffled"]


@dataclass(frozen=True)
class CrossValidation:
    """Accuracy on rows whose groups were never trained on.

    Attributes
    ----------
    layers : one row a layer: ``layer``, ``accuracy``, ``shuffled_accuracy`` (labels shuffled before fitting).
    right : bool [layers, n], whether each row was decided rightly.
    nested : bool [n], the same where each fold's layer was chosen on the other folds.
    chosen : layer that each fold chose.
    """

    layers: pd.DataFrame
    right: np.ndarray
    nested: np.ndarray
    chosen: tuple[int, ...]


def cross_validate(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | Sequence[Any],
    *,
    layers: Sequence[int] | None = None,
    folds: int = 5,
    shuffles: int = 5,
    c: float = 1.0,
    seed: int = 0,
) -> CrossValidation:
    """Cross-validate the logistic probe at all layers, all folds and all shuffles in one solve.

    The layer is chosen anew in each fold, by cross-validation within its training rows: the accuracy of ``nested`` is
    what a user who picks the best layer may expect on new groups, while the best of ``layers`` is not.

    Parameters
    ----------
    x, y, groups, layers : see :meth:`AwarenessProbe.fit`.
    folds : number of folds; groups are never divided.
    shuffles : how often the labels are shuffled, for the accuracy that chance gives.
    c : see :class:`AwarenessProbe`.
    seed : of folds and shuffles.
    """
    x, y, names = checked(x, y, groups)
    numbers = tuple(range(x.shape[1])) if layers is None else tuple(layers)
    rng = np.random.default_rng(seed)
    fold = fold_numbers(names, folds, rng)
    outer = [fold != i for i in range(folds)]
    inner = [(i, j) for i in range(folds) for j in range(folds) if i != j]
    problems = [(y, keep) for keep in outer] + [(y, outer[i] & outer[j]) for i, j in inner]
    for _ in range(shuffles):
        mixed = shuffled(y, np.ones(len(y), dtype=bool), rng)
        problems += [(mixed, keep) for keep in outer]
    labels, used = np.stack([p[0] for p in problems], axis=1), np.stack([p[1] for p in problems], axis=1)
    by_layer = torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))
    fit = fit_logistic(by_layer, torch.from_numpy(labels), torch.from_numpy(used), c=c)
    right = ((fit.decide(by_layer).numpy() > 0) == labels.T).transpose(1, 0, 2)
    whole = np.zeros((len(numbers), len(y)), dtype=bool)
    nested, chosen = np.zeros(len(y), dtype=bool), []
    open_layers = [i for i, layer in enumerate(numbers) if layer > 0] or [0]
    for i in range(folds):
        test = ~outer[i]
        whole[:, test] = right[i][:, test]
        inside = sum(right[folds + k][:, ~outer[j]].sum(axis=1) for k, (o, j) in enumerate(inner) if o == i)
        best = max(open_layers, key=lambda layer, scores=inside: scores[layer])  # type: ignore[misc]
        nested[test] = right[i][best, test]
        chosen.append(numbers[best])
    start = folds + len(inner)
    chance = np.zeros(len(numbers))
    for k in range(shuffles):
        for i in range(folds):
            chance += right[start + k * folds + i][:, ~outer[i]].sum(axis=1)
    table = pd.DataFrame(
        {
            "layer": numbers,
            "accuracy": whole.mean(axis=1),
            "shuffled_accuracy": chance / (len(y) * shuffles) if shuffles else np.nan,
        }
    )
    return CrossValidation(table, whole, nested, tuple(chosen))


def bag_of_words(
    tokens: Sequence[Sequence[int]], y: np.ndarray, groups: np.ndarray | Sequence[Any], *, folds: int = 5, seed: int = 0
) -> np.ndarray:
    """Whether a logistic regression on counts of words decides each row rightly, bool [n], cross-validated by group.

    What a probe scores above this, it does not read off the words it pools.
    """
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    names = np.asarray(groups, dtype=str)
    y = np.asarray(y)
    words = {word: i for i, word in enumerate(sorted({word for row in tokens for word in row}))}
    rows = np.repeat(np.arange(len(tokens)), [len(row) for row in tokens])
    columns = np.array([words[word] for row in tokens for word in row], dtype=int)
    counts = csr_matrix((np.ones(len(columns)), (rows, columns)), shape=(len(tokens), max(1, len(words))))
    fold = fold_numbers(names, folds, np.random.default_rng(seed))
    right = np.zeros(len(y), dtype=bool)
    for i in range(folds):
        train, test = fold != i, fold == i
        if len(np.unique(y[train])) < 2:
            raise InputError("y: a fold's training rows are all of one class")
        model = LogisticRegression(max_iter=1000).fit(counts[train], y[train])
        right[test] = model.predict(counts[test]) == y[test]
    return right


def per_group(right: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Share of right decisions in each group: groups are independent of each other, rows of one are not."""
    names, place = np.unique(groups, return_inverse=True)
    found: np.ndarray = np.bincount(place, weights=right.astype(float), minlength=len(names)) / np.bincount(place)
    return found


def fold_numbers(
    groups: np.ndarray, folds: int, rng: np.random.Generator, among: np.ndarray | None = None
) -> np.ndarray:
    """A fold for each row, groups whole and folds of about one size; −1 outside ``among``."""
    inside = np.ones(len(groups), dtype=bool) if among is None else among
    names, counts = np.unique(groups[inside], return_counts=True)
    if len(names) < folds:
        raise InputError(f"groups: {len(names)} for {folds} folds; expected at least one a fold")
    sizes = np.zeros(folds, dtype=int)
    number: dict[Any, int] = {}
    order = rng.permutation(len(names))
    for i in order[np.argsort(-counts[order], kind="stable")]:
        smallest = int(sizes.argmin())
        number[names[i]] = smallest
        sizes[smallest] += counts[i]
    return np.array([number[name] if here else -1 for name, here in zip(groups, inside, strict=True)])


def checked(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray | Sequence[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes and groups as arrays; raises :class:`InputError` if they do not fit or a class is missing."""
    x, y, names = np.asarray(x), np.asarray(y).astype(int), np.asarray(groups)
    if x.dtype != np.float64:
        x = x.astype(np.float32, copy=False)
    if x.ndim != 3 or len(x) != len(y) or len(names) != len(y):
        raise InputError(f"x: shape {x.shape} for {len(y)} classes and {len(names)} groups; expected [n, layers, d]")
    if not np.isfinite(x).all():
        raise InputError("x: not all finite")
    if set(np.unique(y)) != {0, 1}:
        raise InputError(f"y: classes {sorted(set(y.tolist()))}; a probe needs both 0 and 1")
    return x, y, names


def shuffled(y: np.ndarray, among: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The classes with those of the rows ``among`` dealt anew."""
    mixed = y.copy()
    mixed[among] = rng.permutation(y[among])
    return mixed
