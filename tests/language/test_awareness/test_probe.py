"""The probe: what it finds, what it is held out from, and what words and shuffled labels find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from touchstone.errors import InputError
from touchstone.language.test_awareness.probe import AwarenessProbe, mean_difference
from touchstone.language.test_awareness.validation import bag_of_words, cross_validate, fold_numbers, per_group

WIDTH, LAYERS, GOOD = 12, 4, 2


def planted(n: int = 240, seed: int = 0, gap: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noise everywhere, and one layer that knows the class along its first feature; rows in pairs."""
    rng = np.random.default_rng(seed)
    y = np.tile([0, 1], n // 2)
    x = rng.normal(size=(n, LAYERS, WIDTH)).astype(np.float32)
    x[:, GOOD, 0] += gap * y
    return x, y, np.repeat(np.arange(n // 2), 2)


@pytest.mark.parametrize("kind", ["logistic", "sgd", "mean_difference"])
def test_the_planted_layer_and_direction_are_found(kind: str) -> None:
    x, y, groups = planted()
    probe = AwarenessProbe(kind).fit(x, y, groups)  # type: ignore[arg-type]
    assert probe.layer_ == GOOD
    assert probe.direction_[0] / np.linalg.norm(probe.direction_) > 0.85
    if kind != "sgd":
        assert np.linalg.norm(probe.direction_) == pytest.approx(1.0, abs=1e-6)
    report = probe.report().set_index("layer")
    assert report["test_accuracy"].loc[GOOD] > 0.93
    assert report["test_auroc"].loc[GOOD] > 0.97
    assert report["test_accuracy"].drop(GOOD).max() < 0.7
    assert probe.score(x, y) == probe.score(x[:, GOOD], y) > 0.9
    assert set(probe.predict(x)) == {0, 1}
    assert probe.decision_function(x).shape == (240,)


def test_shuffled_labels_are_at_chance() -> None:
    x, y, groups = planted(600)
    report = AwarenessProbe(shuffles=10).fit(x, y, groups).report()
    held = report["test_rows"].iloc[0]
    assert held == 200
    assert abs(report["shuffled_accuracy"].loc[0] - 0.5) < 3 / np.sqrt(held)
    # The planted layer's shuffled probes have random signs, so that only their mean is at chance.
    assert abs(report["shuffled_accuracy"].mean() - 0.5) < 3 / np.sqrt(held)


def test_no_group_is_on_both_sides() -> None:
    x, y, groups = planted()
    probe = AwarenessProbe().fit(x, y, groups)
    assert not set(groups[probe.test_]) & set(groups[~probe.test_])
    assert probe.test_.mean() == pytest.approx(1 / 3, abs=0.01)
    leaking = probe.test_.copy()
    leaking[np.flatnonzero(leaking)[0]] = False
    with pytest.raises(InputError, match="is in both splits"):
        AwarenessProbe().fit(x, y, groups, test=leaking)


@given(st.lists(st.integers(0, 12), min_size=30, max_size=60), st.integers(2, 5))
@settings(max_examples=50)
def test_folds_keep_groups_whole(groups: list[int], folds: int) -> None:
    names = np.array(groups)
    if len(set(groups)) < folds:
        with pytest.raises(InputError, match="expected at least one a fold"):
            fold_numbers(names, folds, np.random.default_rng(0))
        return
    numbers = fold_numbers(names, folds, np.random.default_rng(0))
    assert set(numbers) == set(range(folds))
    assert all(len(set(numbers[names == name])) == 1 for name in set(groups))


def test_the_sgd_probe_uses_the_difference_of_its_rows() -> None:
    x, y, groups = planted()
    probe = AwarenessProbe("sgd", layer=GOOD).fit(x, y, groups)
    assert probe.row_1_ is not None
    # Row 1 is half of the difference plus half of what the start put into both rows.
    leftover = probe.row_1_ - probe.direction_ / 2
    assert 0.01 < np.linalg.norm(leftover) < np.linalg.norm(probe.row_1_)
    assert probe.decision_function(x) == pytest.approx(x[:, GOOD] @ probe.direction_ + probe.intercept_[GOOD], abs=1e-4)


def test_the_embedding_is_never_chosen_for_you() -> None:
    x, y, groups = planted()
    x[:, 0], x[:, GOOD] = x[:, GOOD].copy(), x[:, 0].copy()
    assert AwarenessProbe().fit(x, y, groups).layer_ > 0
    assert AwarenessProbe(layer=0).fit(x, y, groups).layer_ == 0


def test_layers_may_be_a_choice_of_the_models() -> None:
    x, y, groups = planted()
    probe = AwarenessProbe().fit(x[:, [GOOD, 3]], y, groups, layers=(7, 9))
    assert probe.layer_ == 7
    with pytest.raises(InputError, match="1 for features of 2 layers"):
        AwarenessProbe().fit(x[:, :2], y, groups, layers=(1,))
    with pytest.raises(InputError, match="layer 4"):
        AwarenessProbe(layer=4).fit(x, y, groups)


def test_choosing_by_test_accuracy_is_the_papers_way() -> None:
    x, y, groups = planted(gap=0.0)
    report = AwarenessProbe(select="test").fit(x, y, groups).report().set_index("layer")["test_accuracy"]
    chosen = AwarenessProbe(select="test").fit(x, y, groups).layer_
    assert report.loc[chosen] == report.drop(0).max()


def test_mean_difference_by_hand() -> None:
    x = np.array([[[0.0, 0.0]], [[2.0, 0.0]], [[4.0, 6.0]], [[6.0, 6.0]]])
    coef, intercept = mean_difference(x, np.array([0, 0, 1, 1]))
    assert coef.tolist() == [[4.0, 6.0]]
    assert intercept.tolist() == [-(3 * 4.0 + 3 * 6.0)]


def test_a_probe_is_read_back(tmp_path: Path) -> None:
    x, y, groups = planted()
    probe = AwarenessProbe().fit(x, y, groups, source="a model")
    again = AwarenessProbe.load(probe.save(tmp_path / "probe.safetensors"))
    assert np.array_equal(again.decision_function(x), probe.decision_function(x))
    assert np.array_equal(again.direction_, probe.direction_)
    assert np.array_equal(again.shuffled_direction_, probe.shuffled_direction_)
    assert (again.layer_, again.layers_, again.source) == (GOOD, probe.layers_, "a model")
    assert again.report().equals(probe.report())


@pytest.mark.parametrize("damage", ["missing", "garbage", "other", "shape"])
def test_damaged_probes_are_named(damage: str, tmp_path: Path) -> None:
    x, y, groups = planted()
    file = tmp_path / "probe.safetensors"
    probe = AwarenessProbe().fit(x, y, groups)
    probe.save(file)
    if damage == "missing":
        file.unlink()
    elif damage == "garbage":
        file.write_bytes(file.read_bytes()[:50])
    elif damage == "other":
        save_file({"x": np.zeros(2)}, file)
    else:
        probe.direction_ = probe.direction_[:-1]
        probe.save(file)
    with pytest.raises(InputError, match=r"^probe "):
        AwarenessProbe.load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, g: (x, y * 0, g), r"classes \[0\]"),
        (lambda x, y, g: (x, y + 1, g), "needs both 0 and 1"),
        (lambda x, y, g: (x[:30], y[:30], g[:30]), "at least 20 of each"),
        (lambda x, y, g: (x[:, 0], y, g), "expected"),
        (lambda x, y, g: (x, y[:-1], g), "classes"),
        (lambda x, y, g: (x * np.nan, y, g), "not all finite"),
    ],
)
def test_wrong_features_are_named(change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AwarenessProbe().fit(*change(*planted()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "svm"}, "kind 'svm'"),
        ({"select": "best"}, "select 'best'"),
        ({"test_share": 1.0}, "test_share"),
        ({"c": 0.0}, "c 0.0"),
        ({"folds": 1}, "folds 1"),
    ],
)
def test_wrong_settings_are_named(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AwarenessProbe(**options)


def test_another_width_is_named() -> None:
    x, y, groups = planted()
    probe = AwarenessProbe().fit(x, y, groups)
    with pytest.raises(InputError, match="3 layers"):
        probe.decision_function(x[:, :3])
    with pytest.raises(InputError, match=r"expected \[n, 12\]"):
        probe.decision_function(x[:, 0, :5])


# Cross-validation


def test_cross_validation_holds_groups_out_and_chooses_inside() -> None:
    x, y, groups = planted(gap=2.5)
    found = cross_validate(x, y, groups)
    table = found.layers.set_index("layer")
    assert found.chosen == (GOOD,) * 5
    assert np.array_equal(found.nested, found.right[GOOD])
    assert table["accuracy"].loc[GOOD] == found.right[GOOD].mean() > 0.8
    assert table["accuracy"].drop(GOOD).max() < 0.65
    assert abs(table["shuffled_accuracy"] - 0.5).max() < 0.1


def test_what_only_tells_groups_apart_is_worth_nothing() -> None:
    # Each group has its own feature, and both of its rows are of one class: only leakage could read it.
    n = 40
    x = np.zeros((n, 1, n // 2), dtype=np.float32)
    groups = np.repeat(np.arange(n // 2), 2)
    x[np.arange(n), 0, groups] = 5.0
    y = (groups % 2).astype(int)
    assert cross_validate(x, y, groups, shuffles=1).right[0].mean() <= 0.6
    assert cross_validate(x, y, np.arange(n), shuffles=1).right[0].mean() > 0.8


def test_cross_validation_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, groups = planted(gap=1.5)
    found = cross_validate(x, y, groups, folds=4, seed=3)
    fold = fold_numbers(groups, 4, np.random.default_rng(3))
    expected = np.zeros(len(y), dtype=bool)
    for k in range(4):
        model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8)).fit(x[fold != k, GOOD], y[fold != k])
        expected[fold == k] = model.predict(x[fold == k, GOOD]) == y[fold == k]
    assert (found.right[GOOD] == expected).mean() > 0.99


def test_words_alone() -> None:
    groups = np.repeat(np.arange(20), 2)
    y = np.tile([0, 1], 20)
    telling = [(7, 8) if label else (7, 9) for label in y]
    assert bag_of_words(telling, y, groups).all()
    # Both rows of a pair hold the same words: one of the two is always wrong.
    silent = [(int(g), 5) for g in groups]
    assert bag_of_words(silent, y, groups).mean() == 0.5
    assert per_group(bag_of_words(silent, y, groups), groups).tolist() == [0.5] * 20
