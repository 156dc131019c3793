"""The probe: a linear reading of test awareness, its layer chosen and its accuracy taken on groups it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.language.test_awareness.linear import Fit, fit_logistic, fit_sgd
from touchstone.language.test_awareness.validation import checked, fold_numbers, shuffled
from touchstone.tensors import read_tensors, write_tensors

__all__ = ["AwarenessProbe", "Kind", "mean_difference"]

SCHEMA = "touchstone.awareness-probe/1"
Kind = Literal["logistic", "sgd", "mean_difference"]
FEWEST = 20


class AwarenessProbe:
    """A linear probe of test awareness, in scikit-learn's manner.

    Parameters
    ----------
    kind : ``"logistic"``: L2 logistic regression on standardised features, its direction mapped back and of unit
        length. ``"sgd"``: the official code's (a linear layer with two outputs, plain SGD), its direction the
        difference of the two rows. ``"mean_difference"``: from the mean of one class to that of the other.
    layer : which layer to read, ``"auto"`` for the best one above the embedding.
    select : how ``"auto"`` chooses: ``"cv"`` by cross-validation on the training rows, so that the accuracy on test
        rows is not what it was chosen by; ``"test"`` by accuracy on the test rows, as the paper does.
    c : inverse strength of the L2 penalty; scikit-learn's default.
    folds : folds of the cross-validation.
    test_share : share of groups that are held out; the paper's.
    shuffles : probes of shuffled labels that are fitted beside the true one.
    seed : of the split, the folds, the shuffles and the SGD probe's start.

    Attributes
    ----------
    layer_ : the layer it reads.
    direction_ : float32 [d], unit length for ``logistic`` and ``mean_difference``; positive towards awareness.
    coef_, intercept_ : float64 [layers, d] and [layers], discriminants at every layer.
    layers_ : the layers it was fitted on.
    shuffled_direction_ : direction of a probe of shuffled labels at ``layer_``, scaled like ``direction_``.
    row_1_ : for ``sgd``, row 1 of the weight at ``layer_`` as the official code uses it: half of the difference of
        the rows plus half of a random start, which is 5 % of it in late layers and up to 60 % at the embedding.
    test_ : bool [n], the rows that were held out.

    Notes
    -----
    Accuracy alone does not make a probe one of awareness: compare it with
    :func:`~touchstone.language.test_awareness.validation.bag_of_words` and with layer 0.
    """

    def __init__(
        self,
        kind: Kind = "logistic",
        *,
        layer: int | Literal["auto"] = "auto",
        select: Literal["cv", "test"] = "cv",
        c: float = 1.0,
        folds: int = 5,
        test_share: float = 1 / 3,
        shuffles: int = 5,
        seed: int = 0,
    ) -> None:
        if kind not in ("logistic", "sgd", "mean_difference"):
            raise InputError(f"kind {kind!r}: expected 'logistic', 'sgd' or 'mean_difference'")
        if select not in ("cv", "test"):
            raise InputError(f"select {select!r}: expected 'cv' or 'test'")
        if not 0 < test_share < 1:
            raise InputError(f"test_share {test_share}: expected a number between 0 and 1")
        if not c > 0:
            raise InputError(f"c {c}: expected a number above 0")
        if folds < 2 or shuffles < 1:
            raise InputError(f"folds {folds}, shuffles {shuffles}: expected at least 2 and 1")
        self.kind: Kind = kind
        self.layer = layer
        self.select = select
        self.c = c
        self.folds = folds
        self.test_share = test_share
        self.shuffles = shuffles
        self.seed = seed
        self.source = ""

    def fit(
        self,
        x: np.ndarray,
        y: np.ndarray,
        groups: np.ndarray | Sequence[Any],
        *,
        layers: Sequence[int] | None = None,
        test: np.ndarray | None = None,
        source: str = "",
    ) -> AwarenessProbe:
        """Fit a probe at every layer and choose one.

        Parameters
        ----------
        x : features [n, layers, d].
        y : classes [n], 1 for aware.
        groups : group of each row [n].
        layers : the layers that ``x`` holds; 0, 1, … if ``None``.
        test : bool [n], rows to hold out; drawn by group if ``None``.
        source : model that the features come from, for reports.

        Raises
        ------
        InputError
            If there is one class only, fewer than 20 training rows of a class, or a group on both sides of the split.
        """
        x, y, names = checked(x, y, groups)
        self.layers_ = tuple(range(x.shape[1])) if layers is None else tuple(int(layer) for layer in layers)
        if len(self.layers_) != x.shape[1]:
            raise InputError(f"layers: {len(self.layers_)} for features of {x.shape[1]} layers")
        self.test_ = self.split(names, test)
        train = ~self.test_
        _enough(y[train])
        self.source = source
        rng = np.random.default_rng(self.seed)
        folds = fold_numbers(names, self.folds, rng, train)
        held = [train & (folds != k) for k in range(self.folds)]
        labels = np.stack([y] * (self.folds + 1) + [shuffled(y, train, rng) for _ in range(self.shuffles)], axis=1)
        used = np.stack([*held, *[train] * (self.shuffles + 1)], axis=1)
        coef, intercept, starts = self._solve(x, labels, used)
        by_layer = torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))
        decided = Fit(torch.from_numpy(coef), torch.from_numpy(intercept), 0).decide(by_layer).numpy()
        right = (decided > 0) == labels.T
        true, k = self.folds, slice(self.folds + 1, None)
        validated = np.stack([right[:, i, train & (folds == i)].sum(axis=1) for i in range(self.folds)]).sum(axis=0)
        self.coef_, self.intercept_ = coef[:, true], intercept[:, true]
        self.report_ = pd.DataFrame(
            {
                "layer": self.layers_,
                "train_accuracy": right[:, true, train].mean(axis=1),
                "validation_accuracy": validated / train.sum(),
                "test_accuracy": right[:, true, self.test_].mean(axis=1),
                "test_auroc": [_auroc(y[self.test_], row[true, self.test_]) for row in decided],
                # Against the true labels: what a direction that knows nothing scores here.
                "shuffled_accuracy": ((decided[:, k][..., self.test_] > 0) == y[self.test_]).mean(axis=(1, 2)),
                "test_rows": int(self.test_.sum()),
            }
        )
        place = self._place()
        self.layer_ = self.layers_[place]
        self.direction_ = self._direction(coef[place, true])
        self.shuffled_direction_ = self._direction(coef[place, true + 1])
        self.row_1_ = None if starts is None else starts[place, true].astype(np.float32)
        self._place_ = place
        return self

    def split(self, groups: np.ndarray, test: np.ndarray | None = None) -> np.ndarray:
        """The rows that are held out, bool [n]: drawn by group and seed, or ``test`` after a look at it."""
        if test is None:
            names = np.unique(groups)
            rng = np.random.default_rng(self.seed)
            out = rng.permutation(names)[: max(1, round(self.test_share * len(names)))]
            return np.isin(groups, out)
        test = np.asarray(test, dtype=bool)
        if test.shape != groups.shape:
            raise InputError(f"test: shape {test.shape} for {len(groups)} rows")
        both = set(groups[test]) & set(groups[~test])
        if both:
            raise InputError(f"groups: {sorted(both)[0]!r} is in both splits")
        if not test.any():
            raise InputError("test: no row is held out")
        return test

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        """Discriminants [n], above 0 for aware, of features [n, layers, d] as fitted or [n, d] of the chosen layer."""
        x = np.asarray(x)
        if x.ndim == 3:
            if x.shape[1] != len(self.layers_):
                raise InputError(f"x: {x.shape[1]} layers; the probe was fitted on {len(self.layers_)}")
            x = x[:, self._place_]
        if x.ndim != 2 or x.shape[1] != len(self.direction_):
            raise InputError(
                f"x: shape {x.shape}; expected [n, {len(self.direction_)}] or [n, layers, {len(self.direction_)}]"
            )
        found: np.ndarray = x @ self.coef_[self._place_] + self.intercept_[self._place_]
        return found

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Classes [n], 0 or 1."""
        return (self.decision_function(x) > 0).astype(int)

    def score(self, x: np.ndarray, y: np.ndarray) -> float:
        """Accuracy."""
        return float((self.predict(x) == np.asarray(y)).mean())

    def report(self) -> pd.DataFrame:
        """Accuracy and AUROC at every layer: on training rows, validated, on test rows, and of shuffled labels."""
        return self.report_.copy()

    def save(self, path: str | Path) -> Path:
        """Write one ``.safetensors`` file with a JSON header."""
        record = {
            "schema": SCHEMA,
            "kind": self.kind,
            "layer": self.layer_,
            "layers": list(self.layers_),
            "source": self.source,
            "seed": self.seed,
            "report": self.report_.to_dict("list"),
        }
        tensors = {
            "direction": self.direction_,
            "shuffled_direction": self.shuffled_direction_,
            "coef": self.coef_,
            "intercept": self.intercept_,
        }
        return write_tensors(path, tensors, record)

    @classmethod
    def load(cls, path: str | Path) -> AwarenessProbe:
        """Read a file of :meth:`save`; raises :class:`InputError` if it is missing, damaged or something else."""
        tensors, record = read_tensors(path, SCHEMA, "probe")
        try:
            probe = cls(record["kind"], layer=int(record["layer"]), seed=int(record["seed"]))
            probe.layer_, probe.source = int(record["layer"]), str(record["source"])
            probe.layers_ = tuple(map(int, record["layers"]))
            probe.direction_, probe.shuffled_direction_ = tensors["direction"], tensors["shuffled_direction"]
            probe.coef_, probe.intercept_ = tensors["coef"], tensors["intercept"]
            probe.report_ = pd.DataFrame(record["report"])
            probe._place_ = probe.layers_.index(probe.layer_)
            shapes = (probe.coef_.shape, probe.intercept_.shape, probe.shuffled_direction_.shape)
            width = len(probe.direction_)
            if shapes != ((len(probe.layers_), width), (len(probe.layers_),), (width,)):
                raise ValueError("shapes do not agree")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"probe {path}: damaged ({type(error).__name__}: {error})") from None
        return probe

    def _solve(
        self, x: np.ndarray, labels: np.ndarray, used: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Discriminants of all problems at all layers, [L, P, d] and [L, P]; for ``sgd`` also row 1 of each weight."""
        by_layer = torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))
        if self.kind == "logistic":
            fit = fit_logistic(by_layer, torch.from_numpy(labels), torch.from_numpy(used), c=self.c)
            return fit.coef.numpy(), fit.intercept.numpy(), None
        coefs, intercepts, rows = [], [], []
        for p in range(labels.shape[1]):
            keep = used[:, p]
            part, y = by_layer[:, torch.from_numpy(keep)], labels[keep, p]
            if self.kind == "mean_difference":
                coef, intercept = mean_difference(part.numpy().transpose(1, 0, 2), y)
                rows.append(coef)
            else:
                fitted = fit_sgd(part, torch.from_numpy(y), seed=self.seed)
                coef = (fitted.weight[:, 1] - fitted.weight[:, 0]).double().numpy()
                intercept = (fitted.bias[:, 1] - fitted.bias[:, 0]).double().numpy()
                rows.append(fitted.weight[:, 1].numpy())
            coefs.append(coef)
            intercepts.append(intercept)
        return (
            np.stack(coefs, axis=1),
            np.stack(intercepts, axis=1),
            np.stack(rows, axis=1) if self.kind == "sgd" else None,
        )

    def _place(self) -> int:
        if self.layer != "auto":
            if self.layer not in self.layers_:
                raise InputError(f"layer {self.layer}: the features hold layers {list(self.layers_)}")
            return self.layers_.index(self.layer)
        column = self.report_["validation_accuracy" if self.select == "cv" else "test_accuracy"].to_numpy()
        # The embedding knows words and no context: it is what a probe is compared with.
        open_layers = [i for i, layer in enumerate(self.layers_) if layer > 0] or [0]
        return max(open_layers, key=lambda i: column[i])

    def _direction(self, coef: np.ndarray) -> np.ndarray:
        length = float(np.linalg.norm(coef))
        if not length > 0:
            raise InputError(f"x: the features at layer {self.layer_} are the same for both classes")
        return (coef if self.kind == "sgd" else coef / length).astype(np.float32)


def mean_difference(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From one class's mean to the other's at each layer, [layers, d], and the intercept of the plane half way."""
    means = [x[y == value].mean(axis=0, dtype=np.float64) for value in (0, 1)]
    coef = means[1] - means[0]
    return coef, -((means[0] + means[1]) / 2 * coef).sum(axis=-1)


def _enough(y: np.ndarray) -> None:
    for value in (0, 1):
        count = int((y == value).sum())
        if count < FEWEST:
            raise InputError(f"y: {count} training rows of class {value}; a probe needs at least {FEWEST} of each")


def _auroc(y: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, scores)) if len(np.unique(y)) == 2 else float("nan")
