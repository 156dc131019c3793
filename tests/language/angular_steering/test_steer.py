"""Steering a model: what the hooks do, that they go, and that one angle a prompt equals one prompt at a time."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from touchstone.errors import InputError
from touchstone.language.angular_steering import Graded, SteeringPlane
from touchstone.language.angular_steering.operators import rotate, set_angle

from .conftest import NEGATIVE, POSITIVE, PROMPTS


def logits(model, prompt: str = PROMPTS[1]) -> torch.Tensor:
    with torch.inference_mode():
        return model.module(torch.tensor(model.encode([prompt])), use_cache=False).logits


def hooks(model) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.module.modules())


@pytest.mark.parametrize("adaptive", [True, False, Graded(0.2, 0.5)])
@pytest.mark.parametrize(("form", "operator"), [("set", set_angle), ("rotate", rotate)])
def test_every_norm_output_is_turned_once(model, plane, form, operator, adaptive):
    gate = adaptive if isinstance(adaptive, Graded) else "adaptive" if adaptive else None
    seen, given = {}, {}

    def record(site, module, arguments, output):
        # The norm's own output, before any hook, is computed again from its input.
        given[site] = type(module).forward(module, *arguments)
        seen[site] = output

    with plane.steer(model, 130.0, adaptive=adaptive, form=form):
        handles = [model.site_module(site).register_forward_hook(partial(record, site)) for site in plane.sites]
        logits(model)
        for handle in handles:
            handle.remove()
    assert set(seen) == set(plane.sites)
    for site in plane.sites:
        expected = operator(given[site], plane.b1, plane.b2, 130.0, gate)
        assert torch.allclose(seen[site], expected, atol=1e-5)
        assert not torch.allclose(seen[site], given[site], atol=1e-3) or adaptive is not False


def test_hooks_go_and_generation_is_as_before_bit_for_bit(model, plane):
    before, text = logits(model), model.generate(PROMPTS, max_new_tokens=8)
    with plane.steer(model, 180.0, adaptive=False):
        assert hooks(model) == 6
        steered = model.generate(PROMPTS, max_new_tokens=8)
        assert not torch.allclose(logits(model), before, atol=1e-3)
    assert hooks(model) == 0
    assert steered != text
    assert torch.equal(logits(model), before)
    assert model.generate(PROMPTS, max_new_tokens=8) == text


def test_hooks_go_after_an_exception(model, plane):
    before = logits(model)
    with pytest.raises(RuntimeError, match="stop"), plane.steer(model, [0.0, 90.0]):
        raise RuntimeError("stop")
    assert hooks(model) == 0
    assert torch.equal(logits(model), before)
    assert model.shares_prefixes
    with plane.steer(model, 10.0):
        pass


@pytest.mark.parametrize(
    "options", [{}, {"adaptive": False}, {"form": "rotate"}, {"layers": [1]}, {"layers": "discriminative"}]
)
def test_with_cache_equals_without(model, plane, options):
    with plane.steer(model, 200.0, **options):
        cached = model.generate(PROMPTS, max_new_tokens=8)
        for prompt, reply in zip(PROMPTS, cached, strict=True):
            ids = model.encode([prompt])[0]
            said: list[int] = []
            for _ in range(8):
                with torch.inference_mode():
                    token = int(model.module(torch.tensor([ids + said]), use_cache=False).logits[0, -1].argmax())
                if token in model.stop_ids:
                    break
                said.append(token)
            assert model.decode(said) == reply


@pytest.mark.parametrize("form", ["set", "rotate"])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_one_angle_a_prompt_equals_a_loop(model, plane, form, batch_size):
    angles = [0.0, 100.0, 180.0, 290.0]
    looped, scores = [], []
    for prompt, angle in zip(PROMPTS, angles, strict=True):
        with plane.steer(model, angle, form=form, adaptive=False):
            looped += model.generate([prompt], max_new_tokens=6)
            scores.append(float(model.log_likelihood([prompt], ["w1 w2 w3"]).total[0, 0]))
    with plane.steer(model, angles, form=form, adaptive=False):
        assert model.generate(PROMPTS, max_new_tokens=6, batch_size=batch_size) == looped
        together = model.log_likelihood(PROMPTS, ["w1 w2 w3"], batch_size=batch_size).total[:, 0]
    assert together.tolist() == pytest.approx(scores, abs=1e-4)
    assert len(set(looped)) > 1


def test_prompts_with_a_common_head_are_still_steered_apart(model, plane):
    # Prompts that share a long head are read together, unless an edit treats them differently.
    head = " ".join(f"w{i}" for i in range(20))
    prompts = [f"{head} w30", f"{head} w31 w32"]
    with plane.steer(model, [0.0, 180.0], adaptive=False):
        together = model.log_likelihood(prompts, ["w1"]).total[:, 0]
    alone = []
    for prompt, angle in zip(prompts, [0.0, 180.0], strict=True):
        with plane.steer(model, angle, adaptive=False):
            alone.append(float(model.log_likelihood([prompt], ["w1"]).total[0, 0]))
    assert together.tolist() == pytest.approx(alone, abs=1e-4)


def test_prompt_only_leaves_the_reply_alone(model, plane):
    # By hand: the prompt is read steered into the cache, then the model goes on unsteered.
    from transformers import DynamicCache

    ids = torch.tensor(model.encode([PROMPTS[1]]))
    cache, said = DynamicCache(config=model.module.config), []
    with torch.inference_mode():
        with plane.steer(model, 180.0, adaptive=False):
            token = model.module(ids, past_key_values=cache).logits[0, -1].argmax()
        for _ in range(7):
            said.append(int(token))
            token = model.module(token.view(1, 1), past_key_values=cache).logits[0, -1].argmax()
    with plane.steer(model, 180.0, adaptive=False, prompt_only=True):
        reply = model.generate([PROMPTS[1]], max_new_tokens=7)[0]
        outside = logits(model)
    with plane.steer(model, 180.0, adaptive=False):
        always = model.generate([PROMPTS[1]], max_new_tokens=7)[0]
        assert torch.equal(outside, logits(model))
    stop = next((i for i, token in enumerate(said) if token in model.stop_ids), len(said))
    assert reply == model.decode(said[:stop])
    assert reply != always


def test_raw_module_is_steered_too(model, plane):
    ids = torch.tensor(model.encode([PROMPTS[0]]))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": model.pad_id}
    with plane.steer(model, 180.0, adaptive=False):
        ours = model.generate([PROMPTS[0]], max_new_tokens=6)[0]
        theirs = model.module.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert model.decode(theirs[0, ids.shape[1] :].tolist()) == ours
    # One angle a row needs no help from LanguageModel where the batch is the rows themselves.
    with torch.inference_mode(), plane.steer(model, [0.0, 180.0], adaptive=False):
        both = model.module(ids.repeat(2, 1)).logits
        with pytest.raises(InputError, match="2 values for a batch of 3"):
            model.module(ids.repeat(3, 1))
    assert not torch.allclose(both[0], both[1], atol=1e-3)


def test_attach_set_and_detach(model, plane):
    before = logits(model)
    steered = plane.attach(model, 0.0, adaptive=False)
    first = logits(model)
    steered.set_degrees(180.0)
    second = logits(model)
    steered.set_degrees([180.0])
    assert torch.allclose(logits(model), second, atol=1e-5)
    assert steered.attached
    with pytest.raises(InputError, match="finite"):
        steered.set_degrees(math.nan)
    # A refused angle changes nothing.
    assert torch.allclose(logits(model), second, atol=1e-5)
    steered.detach()
    steered.detach()
    assert not steered.attached
    assert torch.equal(logits(model), before)
    assert not torch.allclose(first, second, atol=1e-3)
    steered.set_degrees(0.0)
    assert torch.equal(logits(model), first)
    steered.detach()


def test_angles_are_modulo_a_turn_and_zero_rotation_is_nothing(model, plane):
    before = logits(model)
    results = []
    for angle in (-90.0, 270.0, 630.0):
        with plane.steer(model, angle):
            results.append(logits(model))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])
    for angle in (0.0, 360.0):
        with plane.steer(model, angle, form="rotate", adaptive=False):
            assert torch.equal(logits(model), before)


def test_bad_input_is_named(model, plane, make_model):
    for angle in (math.nan, math.inf, [0.0, -math.inf]):
        with pytest.raises(InputError, match="degrees"):
            plane.steer(model, angle)
    with pytest.raises(InputError, match="degrees"):
        plane.steer(model, [[0.0], [1.0]])
    with pytest.raises(InputError, match="form"):
        plane.steer(model, 0.0, form="turn")
    with pytest.raises(InputError, match="adaptive"):
        plane.steer(model, 0.0, adaptive="yes")
    with pytest.raises(InputError, match="one value a prompt"), plane.steer(model, [0.0, 1.0]):
        model.generate(PROMPTS, max_new_tokens=1)
    assert hooks(model) == 0
    with plane.steer(model, 0.0), pytest.raises(InputError, match="already steered"):
        plane.steer(model, 90.0)
    # Also by way of another LanguageModel around the same module.
    from touchstone.language import LanguageModel

    twin = LanguageModel(model.module, model.tokenizer, source=model.source)
    with plane.steer(model, 0.0), pytest.raises(InputError, match="already steered"):
        plane.attach(twin, 90.0)
    other = make_model(seed=2)
    with plane.steer(model, 0.0), plane.steer(other, 0.0):
        pass


def test_half_precision_model_is_steered_in_its_own_type(model, plane):
    before = model.module.lm_head.weight.dtype
    model.module.to(torch.bfloat16)
    with plane.steer(model, 180.0, adaptive=False):
        assert logits(model).dtype == torch.bfloat16
        assert len(model.generate(PROMPTS, max_new_tokens=3)) == len(PROMPTS)
    model.module.to(before)


def test_training_through_steering(model, plane):
    # Hooks made while steering was used in inference mode must not taint a later pass with gradients.
    ids = torch.tensor(model.encode([PROMPTS[1]]))
    with plane.steer(model, [180.0], adaptive=False):
        model.generate([PROMPTS[1]], max_new_tokens=2)
        model.module(ids).logits.sum().backward()
    assert model.module.model.embed_tokens.weight.grad.abs().sum() > 0


def test_fit_while_steered_reads_the_steered_model(model, plane):
    with plane.steer(model, 0.0, adaptive=False, layers=["attention_input.0"]):
        steered = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    assert not torch.allclose(steered.candidates, plane.candidates, atol=1e-3)
