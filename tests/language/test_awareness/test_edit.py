"""The edit: which rows it takes, what it does to them, and that it can be taken back bit by bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.test_awareness.arms import Arm, ResidualSteering, build_arms
from touchstone.language.test_awareness.edit import (
    FRACTION,
    GateEdit,
    default_k,
    gate_weights,
    random_like,
    rank_rows,
)

PROMPTS = ["w3 w9", "w5 w38 w7 w8", "w1 w39 w2 w3 w4"]


def states(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def scores(model: LanguageModel) -> np.ndarray:
    return model.log_likelihood(PROMPTS, ["w1 w2", "w7"]).total


# Ranking


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["global", "layer"]))
@settings(max_examples=60, deadline=None)
def test_ranking_is_a_sort_by_cosine(seed: int, k: int, rank: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Small whole numbers, so that ties are common.
    weights = [torch.randint(-1, 2, (6, 3), generator=generator).float() for _ in range(2)]
    direction = torch.tensor([1.0, 2.0, 0.0])
    layers, rows, cosines = rank_rows(weights, direction, k, rank)  # type: ignore[arg-type]
    every = []
    for layer, weight in enumerate(weights):
        lengths = weight.norm(dim=1).clamp(min=1e-30)
        values = ((weight @ (direction / direction.norm())) / lengths).tolist()
        every.append(sorted((-value, layer, row) for row, value in enumerate(values)))
    if rank == "global":
        expected = sorted(every[0] + every[1])[:k]
    else:
        expected = sorted(every[0][: k // 2 + k % 2] + every[1][: k // 2])
    assert list(zip(layers.tolist(), rows.tolist(), strict=True)) == [(layer, row) for _, layer, row in expected]
    assert cosines.tolist() == pytest.approx([-value for value, _, _ in expected], abs=1e-6)


def test_the_papers_share_of_rows(random_model: LanguageModel) -> None:
    assert round(FRACTION * 64 * 27_648) == 800
    assert default_k(random_model) == 16


def test_a_planted_row_is_found_and_its_gate_rises_by_alpha_m_squared(
    random_model: LanguageModel, unit: np.ndarray
) -> None:
    m = torch.from_numpy(unit) * 3
    weights = gate_weights(random_model)
    with torch.no_grad():
        for weight in weights:
            # Every row orthogonal to m, but one.
            weight -= torch.outer(weight @ m, m) / m.square().sum()
        weights[1][17] = m
    before = weights[1][17] @ m
    edit = GateEdit(random_model, m, k=1, alpha=0.25)
    assert (edit.layers.tolist(), edit.rows.tolist()) == ([1], [17])
    assert edit.cosines[0].item() == pytest.approx(1.0, abs=1e-6)
    with edit:
        rise = weights[1][17] @ m - before
    assert rise.item() == pytest.approx(0.25 * m.square().sum().item(), rel=1e-5)
    assert edit.layer_histogram.tolist() == [0, 1, 0]


# Applying and undoing


def test_undo_is_exact_and_so_is_the_end_of_a_block(random_model: LanguageModel, unit: np.ndarray) -> None:
    before, said = states(random_model), scores(random_model)
    edit = GateEdit(random_model, unit, k=20, strength=2.0)
    edit.apply()
    assert edit.applied
    assert not same(before, states(random_model))
    assert not np.allclose(scores(random_model), said, atol=1e-4)
    edit.undo()
    assert same(before, states(random_model))
    assert np.array_equal(scores(random_model), said)
    with pytest.raises(ZeroDivisionError):
        fail_while_edited(random_model, edit, before)
    assert same(before, states(random_model))
    assert not edit.applied


def fail_while_edited(model: LanguageModel, edit: GateEdit, before: dict[str, torch.Tensor]) -> None:
    with edit:
        assert not same(before, states(model))
        raise ZeroDivisionError


def test_only_the_chosen_rows_move_and_by_the_strength(random_model: LanguageModel, unit: np.ndarray) -> None:
    before = states(random_model)
    for sign in (1, -1):
        edit = GateEdit(random_model, 7 * unit, k=10, strength=0.5, sign=sign)
        with edit:
            after = states(random_model)
        moved = 0
        norms = []
        for name, value in after.items():
            change = value - before[name]
            rows = change.flatten(1).norm(dim=1) if change.dim() > 1 else change.abs()
            if "gate_proj" not in name:
                assert not change.any()
                continue
            moved += int((rows > 0).sum())
            for row in (rows > 0).nonzero().flatten().tolist():
                norms.append(before[name][row].norm().item())
                assert change[row].numpy() / rows[row].item() == pytest.approx(sign * unit, abs=1e-4)
                assert rows[row].item() == pytest.approx(0.5 * edit.row_norm, rel=1e-4)
        assert moved == 10
        assert edit.row_norm == pytest.approx(np.mean(norms), rel=1e-5)
        assert edit.alpha == pytest.approx(sign * 0.5 * edit.row_norm / 7, rel=1e-5)


def test_alpha_may_be_given_as_the_paper_does(random_model: LanguageModel, unit: np.ndarray) -> None:
    raised = GateEdit(random_model, 2 * unit, alpha=0.05)
    lowered = GateEdit(random_model, 2 * unit, alpha=0.3, sign=-1)
    assert (raised.alpha, lowered.alpha) == (0.05, -0.3)
    assert raised.strength == pytest.approx(0.1 / raised.row_norm, rel=1e-6)
    assert GateEdit(random_model, 2 * unit, alpha=-0.3, sign=-1).alpha == -0.3


def test_strength_zero_changes_nothing(random_model: LanguageModel, unit: np.ndarray) -> None:
    before, said = states(random_model), scores(random_model)
    with GateEdit(random_model, unit, strength=0.0):
        assert same(before, states(random_model))
        assert np.array_equal(scores(random_model), said)


def test_an_edit_is_not_applied_twice_nor_undone_twice(random_model: LanguageModel, unit: np.ndarray) -> None:
    edit = GateEdit(random_model, unit)
    with pytest.raises(InputError, match="not applied"):
        edit.undo()
    edit.apply()
    with pytest.raises(InputError, match="applied already"):
        edit.apply()
    edit.undo()
    with pytest.raises(InputError, match="not applied"):
        edit.undo()


def test_weights_that_changed_in_between_are_not_overwritten(random_model: LanguageModel, unit: np.ndarray) -> None:
    before = states(random_model)
    first, second = GateEdit(random_model, unit, k=8), GateEdit(random_model, unit, k=8)
    first.apply()
    second.apply()
    with pytest.raises(InputError, match="undo later edits first"):
        first.undo()
    second.undo()
    first.undo()
    assert same(before, states(random_model))
    first.apply()
    with torch.no_grad():
        gate_weights(random_model)[int(first.layers[0])][int(first.rows[0]), 0] += 1
    with pytest.raises(InputError, match="have changed since"):
        first.undo()
    first.undo(force=True)
    assert same(before, states(random_model))


def test_half_precision_is_edited_in_float32_and_warned_of(random_model: LanguageModel, unit: np.ndarray) -> None:
    random_model.module.to(torch.bfloat16)
    before = states(random_model)
    with GateEdit(random_model, unit, k=8, strength=1.0) as edit:
        row = gate_weights(random_model)[int(edit.layers[0])][int(edit.rows[0])]
        old = before[f"model.layers.{int(edit.layers[0])}.mlp.gate_proj.weight"][int(edit.rows[0])]
        expected = (old.float() + edit.alpha * torch.from_numpy(unit)).to(torch.bfloat16)
        assert torch.equal(row, expected)
    assert same(before, states(random_model))
    with pytest.warns(UserWarning, match="entries did not change"):
        GateEdit(random_model, unit, k=8, strength=1e-4).apply()


# Controls


def test_random_directions_are_as_long(unit: np.ndarray) -> None:
    for scale in (1.0, 8.2):
        drawn = random_like(scale * unit, 3)
        assert np.linalg.norm(drawn) == pytest.approx(scale, abs=1e-6 * scale)
        assert np.array_equal(drawn, random_like(scale * unit, 3))
        assert abs(drawn @ unit) / scale < 0.8


def test_the_same_rows_may_move_along_another_direction(random_model: LanguageModel, unit: np.ndarray) -> None:
    other = random_like(unit, 1)
    true, control = GateEdit(random_model, unit), GateEdit(random_model, other, select=unit)
    assert torch.equal(true.rows, control.rows)
    assert torch.equal(true.layers, control.layers)
    assert true.row_norm == control.row_norm
    assert not torch.equal(GateEdit(random_model, other).rows, true.rows)
    with control:
        weight = gate_weights(random_model)[int(control.layers[0])]
        moved = weight[int(control.rows[0])].detach().clone()
    back = gate_weights(random_model)[int(control.layers[0])][int(control.rows[0])]
    change = (moved - back).detach().numpy()
    assert change @ other / np.linalg.norm(change) == pytest.approx(1.0, abs=1e-4)


def test_arms_hold_all_controls(random_model: LanguageModel, unit: np.ndarray) -> None:
    arms = build_arms(random_model, unit, shuffled=random_like(unit, 9), lines=("This is a test.",), randoms=2)
    kinds = [arm.kind for arm in arms]
    assert kinds.count("base") == kinds.count("prompt") == 1
    assert [kinds.count(kind) for kind in ("edit", "random", "same_rows", "shuffled")] == [2, 4, 4, 2]
    assert len({arm.name for arm in arms}) == len(arms)
    before = states(random_model)
    for arm in arms:
        with arm.on(random_model) as done:
            assert same(before, states(random_model)) == (arm.kind in ("base", "prompt"))
            assert (done["alpha"] > 0) == (arm.strength > 0)
        assert same(before, states(random_model))
    assert {arm.system for arm in arms} == {None, "This is a test."}
    for options, message in (
        ({"controls": ("none",)}, "control 'none'"),
        ({"controls": ("shuffled",)}, "shuffled: the control needs"),
        ({"controls": ("prompt",)}, "lines"),
        ({"controls": (), "strengths": (0.0,)}, "strengths"),
    ):
        with pytest.raises(InputError, match=message):
            build_arms(random_model, unit, **options)


def test_residual_steering_adds_shares_of_each_tokens_norm(random_model: LanguageModel, unit: np.ndarray) -> None:
    plain = random_model.activations(PROMPTS, ["output.1"], positions="all")
    with ResidualSteering(random_model, 3 * unit, 2, strength=0.2, sign=-1):
        steered = random_model.activations(PROMPTS, ["output.1"], positions="all")
    for before, after in zip(*(next(iter(found.values())) for found in (plain, steered)), strict=True):
        expected = before - 0.2 * before.norm(dim=-1, keepdim=True) * torch.from_numpy(unit)
        assert torch.allclose(after, expected, atol=1e-5)
    with ResidualSteering(random_model, unit, 2, ablate=True):
        ablated = next(iter(random_model.activations(PROMPTS, ["output.1"]).values()))
    assert (ablated @ torch.from_numpy(unit)).abs().max() < 1e-4
    assert np.array_equal(scores(random_model), scores(random_model))
    for options, message in (({"layer": 9}, "layer 9"), ({"layer": 1, "sign": 0}, "sign 0")):
        with pytest.raises(InputError, match=message), ResidualSteering(random_model, unit, **options):
            pass


def test_a_model_without_gates_is_steered_in_its_stream(make_tiny, unit: np.ndarray) -> None:
    model = make_tiny("gpt2")
    with pytest.raises(InputError, match="no gate projection to edit; steer the residual stream"):
        GateEdit(model, unit)
    with pytest.raises(InputError, match="no gate projection"):
        build_arms(model, unit, controls=())
    said = scores(model)
    with Arm("r", "residual", 0.5, unit, how="residual", layer=2).on(model):
        assert not np.allclose(scores(model), said)
    assert np.array_equal(scores(model), said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sign": 2}, "sign 2"),
        ({"strength": -1.0}, "strength -1"),
        ({"strength": float("nan")}, "strength nan"),
        ({"rank": "block"}, "rank 'block'"),
        ({"k": 0}, "k 0: expected 1 to 144"),
        ({"k": 145}, "k 145"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"direction": np.ones(5)}, r"shape \(5,\); model .* is 32 wide"),
        ({"direction": np.zeros(32)}, "not all zero"),
        ({"select": np.ones(3)}, r"shape \(3,\)"),
    ],
)
def test_wrong_input_is_named(options: dict, message: str, random_model: LanguageModel, unit: np.ndarray) -> None:
    arguments = {"direction": unit} | options
    with pytest.raises(InputError, match=message):
        GateEdit(random_model, **arguments)


# On disk


def test_the_adapter_is_the_edit(random_model: LanguageModel, unit: np.ndarray, tmp_path: Path) -> None:
    edit = GateEdit(random_model, unit, k=12, strength=1.5, sign=-1)
    folder = edit.export_lora(tmp_path / "adapter", base="owner/name")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert (config["r"], config["lora_alpha"]) == (1, 1)
    assert config["target_modules"] == ["gate_proj"]
    assert config["base_model_name_or_path"] == "owner/name"
    tensors = load_file(folder / "adapter_model.safetensors")
    edited = [int(layer) for layer in np.flatnonzero(edit.layer_histogram)]
    assert config["layers_to_transform"] == edited
    prefix, suffix = "base_model.model.model.layers.", ".mlp.gate_proj"
    assert {name.removesuffix(".weight").rsplit(".", 1)[0] for name in tensors} == {
        f"{prefix}{layer}{suffix}" for layer in edited
    }
    before = states(random_model)
    with edit:
        after = states(random_model)
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.gate_proj.weight"
        change = torch.zeros_like(before[name])
        if layer in edited:
            a, b = (tensors[f"{prefix}{layer}{suffix}.lora_{half}.weight"] for half in "AB")
            assert (a.shape, b.shape) == ((1, 32), (48, 1))
            change = config["lora_alpha"] / config["r"] * (b @ a)
        assert torch.allclose(before[name] + change, after[name], atol=1e-5)
    with pytest.raises(InputError, match="already exists"):
        edit.export_lora(folder)
    edit.export_lora(folder, replace=True)


def test_peft_reads_the_adapter_as_the_edit(random_model: LanguageModel, unit: np.ndarray, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    edit = GateEdit(random_model, unit, k=2, strength=4.0)
    assert np.count_nonzero(edit.layer_histogram) < 3
    folder = edit.export_lora(tmp_path / "adapter")
    plain = scores(random_model)
    with edit:
        wanted = scores(random_model)
    adapted = peft.PeftModel.from_pretrained(copy.deepcopy(random_model.module), str(folder)).merge_and_unload()
    found = scores(LanguageModel(adapted, random_model.tokenizer, source="adapted", threads=1))
    assert np.allclose(found, wanted, atol=1e-4)
    assert not np.allclose(plain, wanted, atol=1e-2)


def test_an_edited_model_is_read_back(random_model: LanguageModel, unit: np.ndarray, tmp_path: Path) -> None:
    before = states(random_model)
    edit = GateEdit(random_model, unit, k=12)
    folder = edit.save_model(tmp_path / "edited")
    assert same(before, states(random_model))
    loaded = LanguageModel.load(folder, threads=1)
    with edit:
        assert np.allclose(scores(loaded), scores(random_model), atol=1e-5)
    record = json.loads((folder / "awareness_edit.json").read_text())
    assert record["alpha"] == edit.alpha
    assert record["layer_histogram"] == edit.layer_histogram.tolist()
    assert len(record["rows"]) == 12
