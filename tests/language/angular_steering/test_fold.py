"""Folding a rotation into the weights: the same logits as hooks, undone to the bit."""

from __future__ import annotations

import math

import pytest
import torch

from touchstone.errors import InputError
from touchstone.language.angular_steering import SteeringPlane
from touchstone.language.angular_steering.fold import fold

from .conftest import NEGATIVE, POSITIVE, PROMPTS
from .test_steer import logits


@pytest.mark.parametrize("layers", ["all", "discriminative", [0, 2], ["mlp_input.1"]])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "gemma2"])
def test_folded_weights_equal_hooks(make_model, kind, layers):
    model = make_model(kind)
    plane = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    plain = logits(model)
    with plane.steer(model, 70.0, adaptive=False, form="rotate", layers=layers):
        hooked, text = logits(model), model.generate(PROMPTS, max_new_tokens=5)
    with plane.fold(model, 70.0, layers=layers):
        folded = logits(model)
        assert model.generate(PROMPTS, max_new_tokens=5) == text
    assert (folded - hooked).abs().max() <= 1e-4 * hooked.abs().max()
    assert (folded - plain).abs().max() > 1e-2 * plain.abs().max()
    assert torch.equal(logits(model), plain)


def test_undo_restores_every_bit_and_may_be_repeated(model, plane):
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    folded = fold(plane, model, 33.0)
    changed = [name for name, weight in model.module.state_dict().items() if not torch.equal(weight, before[name])]
    assert len(changed) == 3 * 5
    assert not any(word in name for name in changed for word in ("norm", "o_proj", "down_proj", "embed", "head"))
    folded.undo()
    folded.undo()
    assert all(torch.equal(weight, before[name]) for name, weight in model.module.state_dict().items())


def test_biases_stay(make_model):
    model = make_model("gpt2")
    plane = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    before = {name: weight.clone() for name, weight in model.module.state_dict().items() if name.endswith("bias")}
    with plane.fold(model, 90.0):
        assert all(torch.equal(model.module.state_dict()[name], bias) for name, bias in before.items())


def test_zero_degrees_change_nothing_and_exceptions_undo(model, plane):
    plain = logits(model)
    with plane.fold(model, 0.0):
        assert torch.equal(logits(model), plain)
    with pytest.raises(RuntimeError), plane.fold(model, 50.0):
        raise RuntimeError
    assert torch.equal(logits(model), plain)


def test_a_folded_model_can_be_saved(tmp_path, model, plane):
    from transformers import AutoModelForCausalLM

    with plane.fold(model, 120.0):
        model.module.save_pretrained(tmp_path)
        folded = logits(model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        assert torch.allclose(loaded(torch.tensor(model.encode([PROMPTS[1]]))).logits, folded, atol=1e-5)


def test_bad_input_is_named(model, plane, make_model):
    with pytest.raises(InputError, match="finite"):
        plane.fold(model, math.inf)
    with pytest.raises(InputError, match="one angle"):
        plane.fold(model, [0.0, 1.0])
    with plane.steer(model, 0.0), pytest.raises(InputError, match="already steered"):
        plane.fold(model, 10.0)
    with plane.fold(model, 10.0), pytest.raises(InputError, match="already steered"):
        plane.fold(model, 10.0)
    residual = SteeringPlane.fit(model, POSITIVE, NEGATIVE, sites=model.sites("output"))
    with pytest.raises(InputError, match="not known"):
        residual.fold(model, 10.0)
    for name in ("q_proj",):
        layer = getattr(model.blocks[1].self_attn, name)
        layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(InputError, match="quantised"):
        plane.fold(model, 10.0)
