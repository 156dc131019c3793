"""The operators against hand-worked values, their closed forms and what must stay as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language.angular_steering.operators import Graded, rotate, set_angle

E1, E2 = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
H = torch.tensor([[3.0, 4.0, 12.0]])
GATES = [None, "adaptive", Graded(0.3, 0.5)]


def axes(width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))
    return q[:, 0].float(), q[:, 1].float()


def activations(rows: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, 4, width, generator=generator)).to(dtype)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(0, (5, 0, 12)), (90, (0, 5, 12)), (180, (-5, 0, 12)), (270, (0, -5, 12)), (-90, (0, -5, 12))],
)
def test_set_angle_by_hand(degrees, expected):
    assert torch.equal(set_angle(H, E1, E2, degrees), torch.tensor([expected], dtype=torch.float32))


def test_rotate_by_hand():
    assert torch.equal(rotate(H, E1, E2, 90.0), torch.tensor([[-4.0, 3.0, 12.0]]))
    assert torch.equal(rotate(H, E1, E2, 180.0), torch.tensor([[-3.0, -4.0, 12.0]]))
    assert torch.equal(rotate(H, E1, E2, 0.0), H)


@pytest.mark.parametrize("operator", [set_angle, rotate])
def test_adaptive_leaves_the_negative_side_alone(operator):
    rows = torch.tensor([[-3.0, 4.0, 12.0], [0.0, 4.0, 12.0], [3.0, 4.0, 12.0]])
    turned = operator(rows, E1, E2, 180.0, "adaptive")
    assert torch.equal(turned[:2], rows[:2])
    assert not torch.equal(turned[2], rows[2])
    # A single activation goes another way through the code.
    with torch.no_grad():
        for row in rows[:2]:
            assert torch.equal(operator(row.view(1, 3), E1, E2, 180.0, "adaptive"), row.view(1, 3))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("operator", [set_angle, rotate])
def test_the_argument_is_not_changed_and_not_returned(operator, gate):
    for rows in (torch.tensor([[-3.0, 4.0, 12.0]]), torch.tensor([[-3.0, 4.0, 12.0], [3.0, 4.0, 12.0]])):
        before = rows.clone()
        turned = operator(rows, E1, E2, 77.0, gate)
        assert torch.equal(rows, before)
        assert turned.data_ptr() != rows.data_ptr()


@settings(max_examples=60, deadline=None)
@given(
    degrees=st.floats(-1000, 1000),
    seed=st.integers(0, 10_000),
    width=st.integers(3, 80),
    gate=st.sampled_from(GATES),
    operator=st.sampled_from([set_angle, rotate]),
    scale=st.floats(1e-2, 1e3),
)
def test_norm_and_rest_are_kept(degrees, seed, width, gate, operator, scale):
    b1, b2 = axes(width, seed)
    h = activations(3, width, seed) * scale
    turned = operator(h, b1, b2, degrees, gate)
    length = h.double().norm(dim=-1)
    assert torch.all((turned.double().norm(dim=-1) - length).abs() <= 1e-6 * length)
    basis = torch.stack([b1, b2], dim=1).double()
    change = (turned.double() - h.double()) @ (torch.eye(width, dtype=torch.float64) - basis @ basis.T)
    assert torch.all(change.norm(dim=-1) <= 1e-6 * length)


@settings(max_examples=20, deadline=None)
@given(degrees=st.floats(0, 360), seed=st.integers(0, 1000), operator=st.sampled_from([set_angle, rotate]))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_norm_type_and_angle(dtype, degrees, seed, operator):
    b1, b2 = axes(64, seed)
    h = activations(3, 64, seed, dtype)
    turned = operator(h, b1, b2, degrees)
    assert turned.dtype == dtype
    length = h.double().norm(dim=-1)
    assert torch.all((turned.double().norm(dim=-1) - length).abs() <= 1e-2 * length)
    # Coordinates are computed in float32: the result is the exact one, rounded once.
    assert torch.equal(turned, operator(h.float(), b1, b2, degrees).to(dtype))


@settings(max_examples=30, deadline=None)
@given(degrees=st.floats(0, 359.9), seed=st.integers(0, 10_000))
def test_set_angle_reaches_the_angle(degrees, seed):
    b1, b2 = axes(16, seed)
    turned = set_angle(activations(5, 16, seed), b1, b2, degrees).double()
    reached = torch.rad2deg(torch.atan2(turned @ b2.double(), turned @ b1.double()))
    assert torch.all((torch.remainder(reached - degrees + 180, 360) - 180).abs() < 0.05)


@settings(max_examples=30, deadline=None)
@given(degrees=st.floats(-400, 400), seed=st.integers(0, 10_000))
def test_equals_the_projection_matrix_formula(degrees, seed):
    b1, b2 = axes(24, seed)
    h = activations(2, 24, seed)
    b, wide, theta = torch.stack([b1, b2], dim=1).double(), h.double(), math.radians(degrees)
    rotation = torch.tensor(
        [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]], dtype=torch.float64
    )
    inside = wide @ (b @ b.T)
    expected = wide - inside + inside.norm(dim=-1, keepdim=True) * (b @ rotation @ torch.tensor([1.0, 0.0]).double())
    assert torch.all((set_angle(h, b1, b2, degrees) - expected).norm(dim=-1) <= 1e-6 * wide.norm(dim=-1))
    expected = wide + (wide @ b) @ (rotation - torch.eye(2)).T @ b.T
    assert torch.all((rotate(h, b1, b2, degrees) - expected).norm(dim=-1) <= 1e-6 * wide.norm(dim=-1))


@settings(max_examples=30, deadline=None)
@given(a=st.floats(-400, 400), b=st.floats(-400, 400), seed=st.integers(0, 10_000))
def test_rotations_add_up(a, b, seed):
    b1, b2 = axes(12, seed)
    h = activations(2, 12, seed)
    twice, once = rotate(rotate(h, b1, b2, a), b1, b2, b), rotate(h, b1, b2, a + b)
    assert torch.allclose(twice, once, atol=1e-4)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("operator", [set_angle, rotate])
def test_one_angle_a_row_equals_a_loop(operator, gate):
    b1, b2 = axes(16, 1)
    h = activations(6, 16, 2)
    angles = torch.tensor([0.0, 33.0, 90.0, 180.0, 271.0, -15.0])
    looped = torch.cat([operator(h[i : i + 1], b1, b2, float(angle), gate) for i, angle in enumerate(angles)])
    for shape in ((6,), (6, 1, 1)):
        assert torch.allclose(operator(h, b1, b2, angles.view(shape), gate), looped, atol=1e-6)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("operator", [set_angle, rotate])
def test_a_single_activation_is_turned_as_in_a_batch(operator, gate):
    b1, b2 = axes(16, 1)
    h = activations(6, 16, 2).view(-1, 1, 16)
    together = operator(h, b1, b2, 123.0, gate)
    with torch.no_grad():
        alone = torch.cat([operator(row.unsqueeze(0), b1, b2, 123.0, gate) for row in h])
        alone_by_row = torch.cat([operator(row.unsqueeze(0), b1, b2, [123.0], gate) for row in h])
    assert torch.allclose(alone, together, atol=1e-5)
    assert torch.equal(alone, alone_by_row)


def test_ablation_is_a_quarter_turn_on_one_side_only():
    b1, b2 = axes(8, 3)
    for side in (1.0, -1.0):
        h = (2.0 * b1 + side * 0.7 * b2).unsqueeze(0)
        ablated = h - (h @ b1) * b1
        turned = set_angle(h, b1, b2, 90.0)
        cosine = float(torch.cosine_similarity(ablated, turned))
        assert cosine == pytest.approx(side, abs=1e-6)
        assert float(turned.norm()) == pytest.approx(float(h.norm()), rel=1e-6)
        assert float(ablated.norm()) == pytest.approx(0.7, rel=1e-5)


@settings(max_examples=50, deadline=None)
@given(alpha=st.floats(-30, 30), seed=st.integers(0, 1000))
def test_addition_is_a_rotation_towards_the_feature(alpha, seed):
    b1, _ = axes(10, seed)
    h = activations(1, 10, seed)[0, 0].double()
    along = h @ b1.double()
    rest = h - along * b1.double()
    angle = math.degrees(math.atan2(float(rest.norm()), float(along) + alpha))
    assert 0 < angle < 180
    turned = set_angle(h.float(), b1, (rest / rest.norm()).float(), angle).double()
    added = h + alpha * b1.double()
    assert torch.allclose(turned / turned.norm(), added / added.norm(), atol=1e-5)


def test_graded_gate_goes_from_shut_to_open():
    rows = torch.tensor([[-9.0, 1.0, 0.0], [0.5, 1.0, 0.0], [9.0, 1.0, 0.0]])
    gate = Graded(tau=0.5, scale=0.2)
    turned = rotate(rows, E1, E2, 60.0, gate)
    by = np.degrees([math.atan2(t[1], t[0]) - math.atan2(r[1], r[0]) for t, r in zip(turned, rows, strict=True)])
    assert by == pytest.approx([0.0, 30.0, 60.0], abs=1e-3)
    # Towards a scale of 0 it is the hard gate.
    hard, soft = set_angle(rows, E1, E2, 200.0, "adaptive"), set_angle(rows, E1, E2, 200.0, Graded(0.0, 1e-6))
    assert torch.allclose(hard, soft, atol=1e-5)


def test_gradients_pass_through():
    b1, b2 = axes(6, 0)
    for operator in (set_angle, rotate):
        for gate in GATES:
            h = activations(2, 6, 4).double().float().requires_grad_()
            operator(h, b1, b2, 40.0, gate).square().sum().backward()
            # Turning keeps the length, so the gradient of the squared length is twice h.
            assert torch.allclose(h.grad, 2 * h.detach(), atol=1e-3)


@pytest.mark.parametrize("operator", [set_angle, rotate])
def test_bad_input_is_named(operator):
    for angle in (math.nan, math.inf, [0.0, math.nan]):
        with pytest.raises(InputError, match="degrees"):
            operator(torch.ones(2, 1, 3), E1, E2, angle)
    with pytest.raises(InputError, match="3 angles for 2 rows"):
        operator(torch.ones(2, 1, 3), E1, E2, [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="gate"):
        operator(H, E1, E2, 0.0, "soft")
    with pytest.raises(InputError, match="scale"):
        Graded(0.0, 0.0)
    with pytest.raises(InputError, match="tau"):
        Graded(math.nan, 1.0)
