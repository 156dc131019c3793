"""Decide or say nothing: one predictor for every loss, fair to overlapping groups, with a certified threshold.

python examples/selective-omniprediction.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator

from touchstone.decisions.selective_omniprediction import (
    ChowLoss,
    MulticalibratedClassifier,
    MultigroupSelectiveClassifier,
    SelectiveOmnipredictor,
    audit,
    budget_cost,
    intersections,
)


def main() -> None:
    x, y = make_classification(12_000, 12, n_informative=6, n_redundant=2, flip_y=0.05, class_sep=0.7, random_state=0)
    people = pd.DataFrame({"sex": np.where(x[:, 0] > 0, "f", "m"), "region": np.digitize(x[:, 1], [-1, 1])})
    groups = intersections(people, depth=2)
    # A model that is there: it has seen the first rows, and sees neither sex nor region well.
    forest = RandomForestClassifier(60, max_depth=5, random_state=0).fit(x[:4000], y[:4000])
    fit, fresh, test = slice(4000, 8000), slice(8000, 10_000), slice(10_000, None)

    model = MulticalibratedClassifier(FrozenEstimator(forest)).fit(x[fit], y[fit], groups=groups[fit])
    rules = SelectiveOmnipredictor(model)
    losses = {
        "absolute, 0.1": ChowLoss("l1", 0.1, 0.1),
        "squared, 0.3 / 0.1": ChowLoss("l2", 0.3, 0.1),
        "a missed 1 costs 5": ChowLoss("cost01", 0.3, 0.3, c1=5),
        "own": ChowLoss(lambda outcome, action: (outcome - action) ** 4, 0.05, 0.05),
    }
    raw = SelectiveOmnipredictor(forest).evaluate(x[test], y[test], losses)
    for name, outcome in rules.evaluate(x[test], y[test], losses, groups[test]).items():
        low, high = losses[name].abstention_interval() or (np.nan, np.nan)
        print(
            f"{name:20s} says nothing between {low:.3f} and {high:.3f}: predicts {outcome.predicted_share:.2f}, "
            f"loses {outcome.total:.3f} (the forest {raw[name].total:.3f})"
        )

    selective = MultigroupSelectiveClassifier(0.1, FrozenEstimator(model)).fit(x[fit], y[fit])
    threshold = selective.certify(x[fresh], y[fresh], groups[fresh], group_eps=0.2)
    sets = selective.predict_set(x[test], groups[test])
    covered = sets[np.arange(len(sets)), y[test]]
    decided = 1 - sets.all(axis=1).mean()
    print(f"certified threshold {threshold:.3f}: decides {decided:.2f}, coverage {covered.mean():.3f}")
    print(f"least coverage of a group: {min(covered[inside].mean() for inside in groups[test].to_numpy().T):.3f}")

    h = rules.scores(x[test], groups[test])
    print(f"price at which a fifth is deferred: {budget_cost(ChowLoss('l1'), h, 0.2):.3f}")
    shown = audit(h, y[test], groups[test], n_boot=200).frame
    print(shown[["group", "n", "bias", "ece", "p_calibrated", "abstention", "error"]].round(3).to_string(index=False))


if __name__ == "__main__":
    main()
