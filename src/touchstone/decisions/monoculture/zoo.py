"""Model zoos on Adult: many kinds of model on one task, and one kind of model under many encodings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.monoculture.adult import ADULT, Task
from touchstone.decisions.monoculture.table import DecisionTable, fit_threshold

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["Parts", "encodings", "kinds"]

_GAINS = ("capital_gain", "capital_loss")
_NUMBERS = ("age", "education_num", "hours_per_week", *_GAINS)


@dataclass(frozen=True)
class Parts:
    """Rows to learn from, rows for thresholds, and rows to decide."""

    train: Task
    validation: Task
    test: Task


def kinds() -> dict[str, Callable[[int], Any]]:
    """Sixteen kinds of classifier, by name; each takes a seed."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import BernoulliNB, GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    found: dict[str, Callable[[int], Any]] = {
        "Gaussian naive Bayes": lambda seed: GaussianNB(),
        "Bernoulli naive Bayes": lambda seed: BernoulliNB(),
        "linear discriminant": lambda seed: LinearDiscriminantAnalysis(),
    }
    for c in (0.01, 1.0):
        found[f"logistic C={c:g}"] = partial(_without_seed, LogisticRegression, C=c, max_iter=1000)
    for k in (15, 51):
        found[f"{k} neighbours"] = partial(_without_seed, KNeighborsClassifier, n_neighbors=k)
    for depth in (3, 5, 8):
        found[f"tree depth {depth}"] = partial(_with_seed, DecisionTreeClassifier, max_depth=depth)
    for name, forest in (("forest", RandomForestClassifier), ("extra trees", ExtraTreesClassifier)):
        for depth in (6, 12):
            found[f"{name} depth {depth}"] = partial(_with_seed, forest, n_estimators=40, max_depth=depth)
    for rate in (0.05, 0.2):
        found[f"boosting rate {rate:g}"] = partial(_with_seed, HistGradientBoostingClassifier, learning_rate=rate)
    return found


def _with_seed(kind: Any, seed: int, **options: Any) -> Any:
    return kind(random_state=seed, **options)


def _without_seed(kind: Any, seed: int, **options: Any) -> Any:
    return kind(**options)


def across_models(parts: Parts, run: Run, names: tuple[str, ...] | None = None) -> DecisionTable:
    """Every kind of classifier (or those named), with and without capital gains and losses."""
    jobs = list(product(names or tuple(kinds()), (True, False)))
    found = run.map("fitting models", partial(_fit_kind, parts, run.seed), jobs)
    labels = [f"{name}{'' if gains else ', no gains'}" for name, gains in jobs]
    return _table(parts.test, labels, found)


def encodings() -> list[tuple[str, str, int]]:
    """Twelve ways to write a row for one model: granularity, encoding, and an order of the columns."""
    return list(product(("original", "coarse"), ("one-hot", "ordinal"), (0, 1, 2)))


def across_encodings(parts: Parts, run: Run, variants: list[tuple[str, str, int]] | None = None) -> DecisionTable:
    """One random forest (40 trees, depth 10) under every encoding."""
    chosen = variants or encodings()
    found = run.map("fitting one model under encodings", partial(_fit_encoding, parts, run.seed), chosen)
    return _table(parts.test, [f"{g}, {e}, order {o}" for g, e, o in chosen], found)


def _table(test: Task, labels: list[str], found: list[str]) -> DecisionTable:
    votes = np.stack([np.frombuffer(text.encode(), dtype=np.uint8) - ord("0") for text in found], axis=1)
    groups = {"sex": test.frame["sex"].to_numpy(), "race": test.frame["race"].to_numpy()}
    return DecisionTable(pd.DataFrame(votes, columns=labels), test.y, groups)


def _fit_kind(parts: Parts, seed: int, job: tuple[str, bool]) -> str:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    name, gains = job
    frames = [_one_hot(task.frame, gains) for task in (parts.train, parts.validation, parts.test)]
    columns = frames[0].columns
    x = [frame.reindex(columns=columns, fill_value=0.0).to_numpy() for frame in frames]
    model = kinds()[name](seed)
    # Trees do not look at scale, and naive Bayes on bits looks at zero.
    if not name.startswith(("tree", "forest", "extra", "boosting", "Bernoulli")):
        model = make_pipeline(StandardScaler(), model)
    return _decide(model, x, parts)


def _fit_encoding(parts: Parts, seed: int, variant: tuple[str, str, int]) -> str:
    from sklearn.ensemble import RandomForestClassifier

    granularity, encoding, order = variant
    frames = [_granular(task.frame, granularity) for task in (parts.train, parts.validation, parts.test)]
    if encoding == "one-hot":
        dummies = [pd.get_dummies(frame, dtype=float) for frame in frames]
        x = [frame.reindex(columns=dummies[0].columns, fill_value=0.0).to_numpy() for frame in dummies]
    else:
        named = [c for c in frames[0].columns if not pd.api.types.is_numeric_dtype(frames[0][c])]
        codes = {c: {v: k for k, v in enumerate(sorted(set(frames[0][c])))} for c in named}
        x = [frame.assign(**{c: frame[c].map(codes[c]).fillna(-1) for c in named}).to_numpy(float) for frame in frames]
    columns = np.random.default_rng(order).permutation(x[0].shape[1]) if order else np.arange(x[0].shape[1])
    model = RandomForestClassifier(40, max_depth=10, random_state=seed + order)
    return _decide(model, [part[:, columns] for part in x], parts)


def _decide(model: Any, x: list[NDArray[np.float64]], parts: Parts) -> str:
    """Decisions on the test rows as a string of digits, by the threshold that is best on the validation rows."""
    model.fit(x[0], parts.train.y)
    validation, test = (model.predict_proba(part)[:, 1] for part in x[1:])
    bound = fit_threshold(validation, parts.validation.y)
    return "".join("1" if score >= bound else "0" for score in test)


def _one_hot(frame: pd.DataFrame, gains: bool) -> pd.DataFrame:
    kept = frame if gains else frame.drop(columns=list(_GAINS))
    return pd.get_dummies(kept, dtype=float).astype(float)


def _granular(frame: pd.DataFrame, granularity: str) -> pd.DataFrame:
    """The nine features that prompts show, with gains; coarse ones in the broad classes of the schema."""
    if granularity == "original":
        return frame
    found = frame.copy()
    for column in ADULT.columns:
        if column.step:
            found[column.name] = found[column.name] // column.step * column.step
        elif column.coarse:
            found[column.name] = found[column.name].map(lambda v, c=column: c.word(v, True))
    found["education_num"] = found["education_num"] // 4
    return found
