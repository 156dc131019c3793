"""From activations to axes: planted directions, points without one, and the sign of the second axis."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.angular_steering import SteeringPlane, geometry


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def planted(
    seed: int, points: int = 12, samples: int = 40, width: int = 32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """h = ±a v + noise at each point, v turned by a small random angle from point to point."""
    rng = np.random.default_rng(seed)
    v = unit(rng.standard_normal(width))
    classes = []
    turns = [unit(v + 0.1 * unit(rng.standard_normal(width))) for _ in range(points)]
    for sign in (1.0, -1.0):
        noise = 0.3 * rng.standard_normal((points, samples, width))
        classes.append(sign * 3.0 * np.array(turns)[:, None] + noise)
    return classes[0], classes[1], v


@pytest.mark.parametrize("select", ["max_sim", "max_norm", "mean"])
@pytest.mark.parametrize("seed", range(5))
def test_planted_direction_is_found(seed, select):
    positive, negative, v = planted(seed)
    plane = SteeringPlane.from_activations(positive, negative, select=select)
    assert float(plane.b1.double().numpy() @ v) > 0.99
    assert abs(float(plane.b1 @ plane.b2)) < 1e-6
    assert float(plane.b1.norm()) == pytest.approx(1, abs=1e-6)
    assert float(plane.b2.norm()) == pytest.approx(1, abs=1e-6)


def test_a_random_axis_is_not_the_planted_one():
    positive, negative, v = planted(0)
    plane = SteeringPlane.from_activations(positive, negative, select="random", seed=1)
    assert abs(float(plane.b1.double().numpy() @ v)) < 0.9
    assert plane.chosen is None


def test_candidates_are_differences_of_mean_directions_by_hand():
    positive = np.array([[[3.0, 0.0], [0.0, 5.0]]])
    negative = np.array([[[0.0, 2.0], [0.0, 9.0]]])
    # Mean directions (1, 1)/√2 and (0, 1): lengths of activations don't count.
    expected = np.array([[np.sqrt(0.5), np.sqrt(0.5) - 1]])
    assert geometry.candidates_of(positive, negative) == pytest.approx(expected)


def test_max_sim_by_hand():
    # Cosines: 0–1: 0.8, 0–2: 0.6, 1–2: 0.96; mean with oneself: 0.8, 0.92, 0.8533.
    candidates = np.array([[2.0, 0.0], [0.8, 0.6], [0.3, 0.4]])
    assert geometry.mean_cosines(candidates) == pytest.approx([0.8, 0.92, 0.85333], abs=1e-4)
    axis, point = geometry.feature_axis(candidates, "max_sim")
    assert point == 1
    assert axis == pytest.approx([0.8, 0.6])
    assert geometry.feature_axis(candidates, "max_norm")[1] == 0


@pytest.mark.parametrize("where", [0, 5, 12])
def test_a_zero_candidate_changes_nothing_among_the_rest(where):
    positive, negative, _ = planted(3)
    candidates = geometry.candidates_of(positive, negative)
    for nothing in (np.zeros(32), 1e-9 * np.ones(32)):
        more = np.insert(candidates, where, nothing, axis=0)
        for select in ("max_sim", "max_norm", "mean"):
            axis, point = geometry.feature_axis(candidates, select)
            other, moved = geometry.feature_axis(more, select)
            assert other == pytest.approx(axis)
            assert moved == (None if point is None else point + (point >= where))
        assert geometry.second_axis(more, axis) == pytest.approx(geometry.second_axis(candidates, axis))
        assert np.isnan(geometry.mean_cosines(more)[where])


def test_identical_classes_raise():
    same = np.ones((4, 3, 8))
    with pytest.raises(InputError, match="do not differ"):
        SteeringPlane.from_activations(same, same)


def test_sign_of_the_second_axis_is_fixed():
    positive, negative, _ = planted(4)
    candidates = geometry.candidates_of(positive, negative)
    axis, _ = geometry.feature_axis(candidates)
    b2 = geometry.second_axis(candidates, axis)
    late = candidates[-3:] @ b2
    assert late.mean() >= 0
    # An SVD that returned the mirror image would give the same.
    components, share = geometry.principal_components(candidates)
    original = geometry.principal_components
    try:
        geometry.principal_components = lambda rows: (-components, share)
        assert geometry.second_axis(candidates, axis) == pytest.approx(b2)
    finally:
        geometry.principal_components = original


def test_second_component_where_the_first_is_the_feature():
    # All candidates on a line through b1, but for a small step along another axis.
    candidates = np.array([[1.0, 0, 0], [2.0, 0, 0], [3.0, 0.0, 0], [4.0, 0, 0]])
    candidates[:, 1] = [1e-3, -1e-3, -1e-3, 1e-3]
    b1 = np.array([1.0, 0, 0])
    components, _ = geometry.principal_components(candidates)
    assert abs(components[0] @ b1) == pytest.approx(1)
    b2 = geometry.second_axis(candidates, b1)
    assert abs(b2) == pytest.approx([0, 1, 0], abs=1e-6)


def test_no_second_direction_raises():
    line = np.array([[1.0, 0, 0], [2.0, 0, 0], [3.0, 0, 0]])
    with pytest.raises(InputError, match="span no second direction"):
        geometry.second_axis(line, np.array([1.0, 0, 0]))
    with pytest.raises(InputError, match="span no second direction"):
        geometry.second_axis(line[:1], np.array([1.0, 0, 0]))


def test_second_axis_from_a_vector_and_at_random():
    b1 = np.array([1.0, 0, 0])
    candidates = np.eye(3)
    assert geometry.second_axis(candidates, b1, np.array([5.0, 3.0, 4.0])) == pytest.approx([0, 0.6, 0.8])
    first, again = (geometry.second_axis(candidates, b1, "random", np.random.default_rng(7)) for _ in range(2))
    assert first == pytest.approx(again)
    assert first @ b1 == pytest.approx(0, abs=1e-12)
    for wrong, match in (([2.0, 0, 0], "parallel"), ([1.0, 2.0], "expected 3"), ([np.nan, 1, 1], "finite")):
        with pytest.raises(InputError, match=match):
            geometry.second_axis(candidates, b1, np.array(wrong))
    with pytest.raises(InputError, match="second"):
        geometry.second_axis(candidates, b1, "third")
    with pytest.raises(InputError, match="select"):
        geometry.feature_axis(candidates, "best")


def test_diagnostics_by_hand():
    # Class means at 3 and −1 along e1 at the first point, 2 and 1 at the second.
    positive = np.array([[[2.0, 0.1], [4.0, -0.1]], [[2.0, 1.0], [2.0, 1.0]]])
    negative = np.array([[[-1.0, 0.1], [-1.0, -0.1]], [[1.0, 2.0], [1.0, 2.0]]])
    plane = SteeringPlane.from_activations(positive, negative, second=[0.0, 1.0])
    table = plane.diagnostics
    b1 = plane.b1.double().numpy()
    assert table["positive_mean"].tolist() == pytest.approx((positive @ b1).mean(axis=1).tolist(), abs=1e-6)
    assert table["negative_spread"].tolist() == pytest.approx((negative @ b1).std(axis=1).tolist(), abs=1e-6)
    lengths = np.linalg.norm(np.concatenate([positive, negative], axis=1), axis=2).mean(axis=1)
    assert table["activation_norm"].tolist() == pytest.approx(lengths.tolist())
    assert [str(site) for site in plane.points("discriminative")] == ["attention_input.0"]


def test_bad_activations_are_named():
    good = np.random.default_rng(0).standard_normal((3, 4, 5))
    with pytest.raises(InputError, match="positive"):
        SteeringPlane.from_activations(good[0], good)
    with pytest.raises(InputError, match="same number of points"):
        SteeringPlane.from_activations(good, good[:2])
    with pytest.raises(InputError, match="finite"):
        SteeringPlane.from_activations(good * np.inf, good)
    with pytest.raises(InputError, match="sites"):
        SteeringPlane.from_activations(good, -good, sites=[("output", 0)])
