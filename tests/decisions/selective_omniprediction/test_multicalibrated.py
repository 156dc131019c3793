"""The loop and the classifier around it."""

from __future__ import annotations

import json
import struct
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator

from touchstone.decisions.selective_omniprediction import MulticalibratedClassifier
from touchstone.decisions.selective_omniprediction.calibrating import EVERYONE, Part, level_sets, replay
from touchstone.errors import InputError


@pytest.fixture(scope="module")
def data():
    x, y = make_classification(3000, 8, n_informative=4, flip_y=0.05, class_sep=0.7, random_state=1)
    return x, y, np.column_stack([x[:, 0] > 0, x[:, 1] > 0.5])


@pytest.fixture(scope="module")
def fitted(data):
    x, y, groups = data
    return MulticalibratedClassifier().fit(x[:2000], y[:2000], groups=groups[:2000])


@pytest.mark.parametrize(
    "estimator", [MulticalibratedClassifier(), MulticalibratedClassifier(mode="calibrated_multiaccuracy", step="line")]
)
def test_scikit_learn_accepts_it(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator)


def test_each_accepted_round_lowers_the_error(data, fitted):
    log = fitted.history_
    taken = log[log["accepted"]]
    assert len(taken) > 5
    assert (taken["mse"] < taken["mse_before"]).all()
    assert log.loc[~log["accepted"], "held_out"].max() <= 2e-4
    assert taken["held_out"].min() > 2e-4


def test_on_fixed_halves_the_error_falls_from_round_to_round(data):
    x, y, groups = data
    log = MulticalibratedClassifier(halves="fixed").fit(x, y, groups=groups).history_
    assert (np.diff(log.loc[log["accepted"], "mse"]) < 0).all()


@pytest.mark.parametrize("halves", ["redrawn", "fixed"])
def test_it_stops_when_no_correlation_is_left(data, halves):
    x, y, _ = data
    model = MulticalibratedClassifier(tol=2e-3, halves=halves).fit(x, y)
    last = model.history_.tail(model.patience if halves == "redrawn" else 1)
    assert not last["accepted"].any()
    assert (last["held_out"] <= 2e-3).all()
    assert len(model.history_) < model.max_iter


@pytest.mark.parametrize("halves", ["redrawn", "fixed"])
@pytest.mark.parametrize("concept", [None, DecisionTreeRegressor(max_depth=3, min_samples_leaf=20)])
@pytest.mark.parametrize("update", ["joint", "per_bin"])
def test_replay_repeats_the_fit(data, halves, concept, update):
    """h after the replay is h after the fit, whose errors the last round logged."""
    x, y, groups = data
    model = MulticalibratedClassifier(halves=halves, concept=concept, update=update, max_iter=8, held_out=0.4)
    model.fit(x, y, groups=groups)
    h = model.predict_proba(x, groups)[:, 1]
    log = model.history_.iloc[-1]
    whole = np.mean((y - h) ** 2)
    assert whole == pytest.approx(0.6 * log["mse"] + 0.4 * log["held_out_mse"], abs=1e-12)


def test_replay_is_in_order_and_inside_groups(data, fitted):
    x, _, groups = data
    columns = [np.ascontiguousarray(x[:, f]) for f in range(x.shape[1])]
    part = Part(columns, np.zeros(len(x)), groups, np.full(len(x), fitted.prior_))
    for step in fitted.steps_:
        before = part.h.copy()
        replay([step], part)
        if step.group != EVERYONE:
            assert np.array_equal(before[~groups[:, step.group]], part.h[~groups[:, step.group]])
    assert part.h == pytest.approx(fitted.predict_proba(x, groups)[:, 1], abs=1e-12)


def test_lazy_search_is_as_good_as_a_full_one(data):
    x, y, groups = data
    errors = {}
    for search in ("lazy", "full"):
        model = MulticalibratedClassifier(search=search).fit(x[:2000], y[:2000], groups=groups[:2000])
        errors[search] = np.mean((y[2000:] - model.predict_proba(x[2000:], groups[2000:])[:, 1]) ** 2)
    assert errors["lazy"] == pytest.approx(errors["full"], rel=0.05)


def test_overlapping_groups_with_opposite_biases():
    """Base 0.5 everywhere; outcomes of 0.9 on A only, 0.1 on B only, 0.5 on both: h finds those rates."""
    rng = np.random.default_rng(0)
    n = 20_000
    inside = rng.random((n, 2)) < 0.5
    inside = inside[inside.any(axis=1)]
    rate = np.where(inside.all(axis=1), 0.5, np.where(inside[:, 0], 0.9, 0.1))
    y = (rng.random(len(inside)) < rate).astype(int)
    x = np.column_stack([inside, np.full(len(inside), 0.5)]).astype(float)
    model = MulticalibratedClassifier(base=2).fit(x, y, groups=inside)
    h = model.predict_proba(x, inside)[:, 1]
    for here, expected in ((~inside[:, 1], 0.9), (~inside[:, 0], 0.1), (inside.all(axis=1), 0.5)):
        assert h[here].mean() == pytest.approx(expected, abs=0.02)
        assert h[here].std() < 0.02


def test_a_group_whose_bias_the_features_hide_is_repaired():
    """The features say nothing about the group; only a tree on the group's own rows can find its bias."""
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(6000, 3)), rng.random(6000) < 0.2
    y = (rng.random(6000) < np.where(group, 0.8, 0.3)).astype(int)
    blind = MulticalibratedClassifier().fit(x, y).predict_proba(x)[:, 1]
    model = MulticalibratedClassifier().fit(x, y, groups=group)
    seen = model.predict_proba(x, group)[:, 1]
    assert abs(y[group].mean() - blind[group].mean()) > 0.3
    assert abs(y[group].mean() - seen[group].mean()) < 0.03


def test_isotonic_and_histogram_recalibration(data):
    x, y, _ = data
    for kind in ("isotonic", "histogram"):
        model = MulticalibratedClassifier(recalibrate=kind, halves="fixed").fit(x, y)
        assert (np.diff(model.knots_[0]) > 0).all()
        h = model.predict_proba(x)[:, 1]
        assert abs(h.mean() - y.mean()) < 0.03
        assert h.min() >= 0
        assert h.max() <= 1
    assert len(np.unique(h)) <= 10 + 1


def test_level_sets_cover_everything():
    assert level_sets(0.1) == pytest.approx(np.arange(10) / 10)
    assert level_sets(0.3) == pytest.approx([0, 0.3, 0.6, 0.9])
    part = Part([], np.zeros(4), np.zeros((4, 0), bool), np.array([0.0, 0.1, 0.95, 1.0]))
    ends = [*level_sets(0.1), np.inf]
    found = np.concatenate([np.flatnonzero(part.inside(EVERYONE, *pair)) for pair in pairwise(ends)])
    assert sorted(found) == [0, 1, 2, 3]


def test_every_kind_of_base(data):
    x, y, _ = data
    plain = LogisticRegression().fit(x[:1000], y[:1000])
    scores = plain.predict_proba(x)[:, 1]
    frame = pd.DataFrame(x, columns=[f"f{k}" for k in range(8)]).assign(score=scores)
    by_name = MulticalibratedClassifier("score").fit(frame[1000:], y[1000:])
    by_number = MulticalibratedClassifier(8).fit(frame.to_numpy()[1000:], y[1000:])
    assert np.array_equal(by_name.predict_proba(frame), by_number.predict_proba(frame.to_numpy()))
    frozen = MulticalibratedClassifier(FrozenEstimator(plain)).fit(x[1000:], y[1000:])
    assert frozen.base_ is not None
    own = MulticalibratedClassifier(LogisticRegression()).fit(x[1000:], y[1000:])
    assert not hasattr(own.base, "coef_")
    with pytest.raises(InputError, match="base column"):
        MulticalibratedClassifier(0).fit(x, y)
    with pytest.raises(InputError, match="predict_proba"):
        MulticalibratedClassifier(DecisionTreeRegressor()).fit(x, y)
    with pytest.raises(InputError, match="nowhere"):
        MulticalibratedClassifier("nowhere").fit(frame, y)


def test_groups_as_columns_function_and_table(data):
    x, y, groups = data
    wide = np.column_stack([x, groups])
    given = MulticalibratedClassifier(max_iter=20).fit(wide, y, groups=groups)
    columns = MulticalibratedClassifier(groups=[8, 9], max_iter=20).fit(wide, y)
    function = MulticalibratedClassifier(groups=lambda a: a[:, 8:], max_iter=20).fit(wide, y)
    assert np.array_equal(given.predict_proba(wide, groups), columns.predict_proba(wide))
    assert np.array_equal(columns.predict_proba(wide), function.predict_proba(wide))
    table = pd.DataFrame(groups, columns=["a", "b"])
    named = MulticalibratedClassifier(max_iter=20).fit(wide, y, groups=table)
    assert named.group_names_ == ("a", "b")
    with pytest.raises(InputError, match="fitted with"):
        named.predict_proba(wide, table[["b", "a"]])
    with pytest.raises(InputError, match="fitted with"):
        named.predict_proba(wide)


def test_small_groups_are_left_out_with_a_warning(data):
    x, y, groups = data
    few = np.zeros(len(x), bool)
    few[:20] = True
    with pytest.warns(UserWarning, match="group 2"):
        model = MulticalibratedClassifier(max_iter=10).fit(x, y, groups=np.column_stack([groups, few]))
    assert "group 2" not in set(model.history_["group"])


def test_row_order_does_not_matter_to_predictions(data, fitted):
    x, _, groups = data
    order = np.random.default_rng(0).permutation(len(x))
    assert np.array_equal(fitted.predict_proba(x, groups)[order], fitted.predict_proba(x[order], groups[order]))


def test_the_same_seed_gives_the_same_model(data):
    x, y, groups = data
    first, again, other = (
        MulticalibratedClassifier(random_state=seed, max_iter=10).fit(x, y, groups=groups).predict_proba(x, groups)
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_save_and_load(data, fitted, tmp_path):
    x, y, groups = data
    path = fitted.save(tmp_path / "model.safetensors")
    again = MulticalibratedClassifier.load(path)
    assert np.array_equal(fitted.predict_proba(x, groups), again.predict_proba(x, groups))
    assert np.array_equal(fitted.predict(x, groups), again.predict(x, groups))
    assert again.get_params()["disc"] == fitted.disc
    assert again.save(tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert len(again.history_) == len(fitted.history_)
    assert clone(again).fit(x, y, groups=groups).group_names_ == fitted.group_names_


def test_a_base_model_is_given_when_loading(data, tmp_path):
    x, y, _ = data
    labels = np.where(y == 1, "yes", "no")
    model = MulticalibratedClassifier(
        LogisticRegression(), concept=DecisionTreeRegressor(max_depth=2), recalibrate="isotonic"
    ).fit(x, labels)
    path = model.save(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="base"):
        MulticalibratedClassifier.load(path)
    again = MulticalibratedClassifier.load(path, base=model.base_)
    assert np.array_equal(model.predict_proba(x), again.predict_proba(x))
    assert set(again.predict(x)) == {"yes", "no"}


def test_damaged_files(fitted, tmp_path):
    path = fitted.save(tmp_path / "model.safetensors")
    data = path.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-100])
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    record = json.loads(header["__metadata__"]["touchstone"])
    for name, change in {
        "features": record | {"features": 2},
        "groups": record | {"group_names": ["one"]},
        "missing": {k: v for k, v in record.items() if k != "classes"},
        "schema": record | {"schema": "other/1"},
    }.items():
        header["__metadata__"]["touchstone"] = json.dumps(change)
        new = json.dumps(header).encode()
        (tmp_path / name).write_bytes(struct.pack("<Q", len(new)) + new + data[8 + size :])
    for name in ("cut", "features", "groups", "missing", "schema", "absent"):
        with pytest.raises(InputError, match="model"):
            MulticalibratedClassifier.load(tmp_path / name)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"disc": 0}, "disc"),
        ({"step": 1.5}, "step"),
        ({"step": "big"}, "step"),
        ({"mode": "magic"}, "mode"),
        ({"update": "once"}, "update"),
        ({"recalibrate": "platt"}, "recalibrate"),
        ({"held_out": 1}, "held_out"),
        ({"bins": 1}, "bins"),
        ({"patience": 0}, "patience"),
        ({"groups": [99]}, "column 99"),
    ],
)
def test_bad_parameters(data, arguments, named):
    with pytest.raises(InputError, match=named):
        MulticalibratedClassifier(**arguments).fit(*data[:2])


def test_bad_rows(data):
    x, y, groups = data
    with pytest.raises(InputError, match="binary"):
        MulticalibratedClassifier().fit(x, np.arange(len(y)) % 3)
    with pytest.raises(InputError, match="one class"):
        MulticalibratedClassifier().fit(x, np.ones(len(y)))
    with pytest.raises(InputError, match="groups"):
        MulticalibratedClassifier().fit(x, y, groups=groups[:-1])
    with pytest.raises(InputError, match="indicators"):
        MulticalibratedClassifier().fit(x, y, groups=x)
    with pytest.raises(InputError, match="indicators"):
        MulticalibratedClassifier().fit(x, y, groups=np.array(["a"] * len(y)))
