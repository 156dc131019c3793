"""The baselines, by hand, and applied as rotation is: with one setting a prompt; and two dials at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from touchstone.errors import InputError
from touchstone.language import Site
from touchstone.language.angular_steering import Ablation, Addition, Dials, Prompting, Rotation, SteeringPlane
from touchstone.language.angular_steering.arms import residual_plane, selective
from touchstone.language.angular_steering.dials import orthogonalised

from .conftest import NEGATIVE, POSITIVE, PROMPTS
from .test_steer import hooks, logits


@pytest.fixture
def small(model) -> SteeringPlane:
    """b1 = e1 in three dimensions, mean activation norms 5 and 13."""
    positive = np.array([[[5.0, 0, 0], [3.0, 4, 0]], [[12.0, 3, 4], [5.0, 12, 0]]])
    negative = np.array([[[-5.0, 0, 0], [-3.0, 4, 0]], [[-12.0, 3, 4], [-5.0, 12, 0]]])
    plane = SteeringPlane.from_activations(positive, negative, second=[0.0, 1.0, 0.0])
    assert plane.b1.tolist() == pytest.approx([1, 0, 0], abs=1e-6)
    return plane


H = torch.tensor([[[3.0, 4.0, 12.0]], [[-1.0, 2.0, 2.0]]])


def test_addition_by_hand_in_units_of_the_mean_norm(model, small):
    edits = Addition(small, (0.2,)).edits(model, [0.2, -0.4])
    first, second = (edits[site](H) for site in small.sites)
    assert torch.allclose(first, torch.tensor([[[4.0, 4, 12]], [[-3.0, 2, 2]]]))
    assert torch.allclose(second, torch.tensor([[[5.6, 4, 12]], [[-6.2, 2, 2]]]))


def test_ablation_by_hand(model, small):
    edits = Ablation(small).edits(model, [1.0, 1.0])
    assert torch.allclose(edits[small.sites[0]](H), torch.tensor([[[0.0, 4, 12]], [[0.0, 2, 2]]]))


def test_own_directions_are_each_points_candidate(model):
    positive = np.array([[[1.0, 0]], [[0.0, 1]], [[1.0, 1]]])
    negative = np.array([[[-1.0, 0]], [[0.0, -1]], [[1.0, 1]]])
    plane = SteeringPlane.from_activations(positive, negative, second="random")
    edits = Addition(plane, (1.0,), own=True).edits(model, [1.0])
    # The third point has no direction: it is left alone.
    assert list(edits) == list(plane.sites[:2])
    nothing = torch.zeros(1, 1, 2)
    assert torch.allclose(edits[plane.sites[0]](nothing), torch.tensor([[[1.0, 0]]]), atol=1e-6)
    assert torch.allclose(edits[plane.sites[1]](nothing), torch.tensor([[[0.0, 1]]]), atol=1e-6)


def test_residual_plane_acts_on_the_blocks_outputs(model):
    plane = residual_plane(model, POSITIVE, NEGATIVE)
    assert [str(site) for site in plane.sites] == ["output.0", "output.1", "output.2"]
    layer = plane.sites[1]
    acts = [model.activations(prompts, [layer])[layer] for prompts in (POSITIVE, NEGATIVE)]
    expected = torch.cat(acts).norm(dim=1).mean()
    assert plane.diagnostics["activation_norm"][1] == pytest.approx(float(expected), rel=1e-5)
    (edited,) = Addition(plane, (0.5,), layers=[layer], own=True).edits(model, [0.5])
    assert edited == Site("output", 1)


@pytest.mark.parametrize("arm", ["addition", "ablation", "selective", "graded"])
def test_arms_take_one_setting_a_prompt(model, plane, arm):
    from touchstone.language.angular_steering import Graded

    made = {
        "addition": Addition(plane, (0.0,)),
        "ablation": Ablation(plane),
        "selective": selective(plane),
        "graded": Rotation(plane, adaptive=Graded(0.1, 0.5)),
    }[arm]
    values = [0.0, 1.0, 0.5, -0.3] if arm in ("addition", "ablation") else [0.0, 45.0, 180.0, 300.0]
    with model.edited(made.edits(model, values), by_row=True):
        together = model.log_likelihood(PROMPTS, ["w1 w2"]).total[:, 0]
    alone = []
    for prompt, value in zip(PROMPTS, values, strict=True):
        with model.edited(made.edits(model, [value]), by_row=True):
            alone.append(float(model.log_likelihood([prompt], ["w1 w2"]).total[0, 0]))
    assert together.tolist() == pytest.approx(alone, abs=1e-4)
    plain = model.log_likelihood(PROMPTS, ["w1 w2"]).total[:, 0]
    if arm != "graded":
        assert together[0] == pytest.approx(plain[0], abs=1e-4)
    assert not np.allclose(together[1:], plain[1:], atol=1e-3)


def test_ablation_removes_the_direction_everywhere(model, plane):
    seen = []
    with model.edited(Ablation(plane).edits(model, [1.0]), by_row=True):
        acts = model.activations(PROMPTS[:1], plane.sites, positions="all")
        seen = [float((acts[site][0] @ plane.b1).abs().max()) for site in plane.sites]
    assert max(seen) < 1e-5


def test_selective_steering_is_rotation_where_classes_lie_apart(plane):
    arm = selective(plane, (0.0, 90.0))
    assert (arm.form, arm.layers, arm.adaptive, arm.values) == ("rotate", "discriminative", False, (0.0, 90.0))


def test_prompting_needs_lines():
    for lines in ((), ("be happy", "")):
        with pytest.raises(InputError, match="lines"):
            Prompting(lines)


def test_orthogonalised_planes(model, plane):
    other = SteeringPlane.fit(model, ["w20 w1", "w21 w2"], ["w30 w1", "w31 w2"])
    first, second = orthogonalised([plane, other])
    assert first is plane
    basis = torch.stack([first.b1, first.b2, second.b1, second.b2])
    assert torch.allclose(basis @ basis.T, torch.eye(4), atol=1e-5)
    # As near to the old axis as orthogonality allows.
    assert float(second.b1 @ other.b1) > 0
    with pytest.raises(InputError, match="lies in the span"):
        orthogonalised([plane, plane])
    narrow = SteeringPlane.from_activations(np.random.default_rng(0).standard_normal((6, 3, 16)), np.ones((6, 3, 16)))
    with pytest.raises(InputError, match="one width"):
        orthogonalised([plane, narrow])


def test_two_dials_turn_at_once_and_in_any_order(model, plane):
    other = SteeringPlane.fit(model, ["w20 w1", "w21 w2"], ["w30 w1", "w31 w2"])
    before = logits(model)
    with Dials([plane, other], model, [90.0, 200.0], adaptive=False) as dials:
        both = logits(model)
        site = plane.sites[2]
        h = model.activations(PROMPTS[:1], [site])[site][0]
        for turned, angle in zip(dials.planes, (90.0, 200.0), strict=True):
            reached = np.degrees(np.arctan2(float(h @ turned.b2), float(h @ turned.b1))) % 360
            assert reached == pytest.approx(angle, abs=0.01)
    assert hooks(model) == 0
    assert torch.equal(logits(model), before)
    first, second = orthogonalised([plane, other])
    with model.edited(Rotation(second, adaptive=False).edits(model, 200.0)), first.steer(model, 90.0, adaptive=False):
        assert torch.allclose(logits(model), both, atol=1e-3)
    with Dials([plane, other], model, [None, 200.0], adaptive=False):
        one = logits(model)
    with second.steer(model, 200.0, adaptive=False):
        assert torch.allclose(logits(model), one, atol=1e-5)
    with pytest.raises(InputError, match="already steered"), plane.steer(model, 0.0):
        Dials([other], model, [0.0]).__enter__()
    with pytest.raises(InputError, match="1 for 2 planes"):
        Dials([plane, other], model, [0.0])
