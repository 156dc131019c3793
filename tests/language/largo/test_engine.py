"""The slot, its loss and gradient, reflection, and the meter."""

from __future__ import annotations

import pytest
import torch

from touchstone.errors import InputError
from touchstone.language.largo.latent import Descent, start
from touchstone.language.largo.metering import Meter
from touchstone.language.largo.reflection import Words, reflect
from touchstone.language.largo.slot import Slot, embedded
from touchstone.language.largo.template import Frame, chat_template

KINDS = ["llama", "qwen2", "gemma2", "gemma3_text", "gpt2"]
FRAME = Frame("user w1 w2 w3", " assistant")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_embedded_in_the_slot_costs_what_the_text_costs(make_tiny, kind):
    model = make_tiny(kind)
    slot = Slot(model, FRAME, "w7 w8 w9")
    text = "w4 w5 w6"
    latent = embedded(model, slot.ids(text))
    assert slot.ids(text) == model.encode_continuation(text)
    with torch.no_grad():
        assert float(slot.losses(latent[None])) == pytest.approx(slot.text_losses([text])[0], abs=1e-5)
    # The same by the model's own scoring, which knows nothing of slots.
    whole = model.log_likelihood([FRAME.filled(text)], ["w7 w8 w9"], chat=False).mean
    plain = Slot(model, FRAME, "w7 w8 w9", special=True)
    assert plain.text_losses([text])[0] == pytest.approx(-float(whole[0, 0]), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sharing_the_prefix_changes_neither_loss_nor_gradient(make_tiny, kind):
    model = make_tiny(kind)
    latents = torch.randn(2, 3, model.width, generator=torch.Generator().manual_seed(0))
    found = []
    for share in (True, False):
        z = latents.clone().requires_grad_()
        loss = Slot(model, FRAME, "w7 w8", share_prefix=share).losses(z)
        [gradient] = torch.autograd.grad(loss.sum(), z)
        found.append((loss.detach(), gradient))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    scale = found[1][1].abs().max()
    assert torch.allclose(found[0][1] / scale, found[1][1] / scale, atol=1e-5)


def test_the_gradient_is_that_of_central_differences(make_tiny):
    # The norms of Llama compute in float32 whatever the type of the weights; those of GPT-2 do not.
    model = make_tiny("gpt2")
    model.module.double()
    slot = Slot(model, FRAME, "w7 w8")
    z = torch.randn(1, 2, model.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z.requires_grad_()
    [gradient] = torch.autograd.grad(slot.losses(z).sum(), z)
    entries = [(0, 0, 0), (0, 1, 5), (0, 1, 31), (0, 0, 17)]
    for entry in entries:
        moved = torch.zeros_like(z)
        moved[entry] = 1e-5
        with torch.no_grad():
            slope = float(slot.losses(z + moved) - slot.losses(z - moved)) / 2e-5
        assert slope == pytest.approx(float(gradient[entry]), rel=1e-6, abs=1e-9)


def test_optimising_lowers_the_loss_on_every_seed(make_tiny):
    for seed in range(20):
        model = make_tiny(seed=seed)
        slot = Slot(model, FRAME, "w7 w8")
        latent = start(model, "mean_embedding", 3)
        _, losses = Descent(steps=10, lr=0.05).run(slot, latent)
        assert losses[-1] < losses[0]
        assert len(losses) == 11


def test_from_zeros_the_first_step_is_the_step_size_and_weights_stay(make_tiny):
    model = make_tiny()
    slot = Slot(model, FRAME, "w7 w8")
    before = {name: weight.clone() for name, weight in model.module.named_parameters()}
    latent, _ = Descent(steps=1, lr=0.01).run(slot, start(model, "zeros", 3))
    # Adam's first step is the sign of the gradient, however steep RMSNorm is at zero.
    assert torch.allclose(latent.abs(), torch.full_like(latent, 0.01), atol=1e-4)
    for name, weight in model.module.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None
        assert weight.requires_grad


def test_a_ball_bounds_every_position(make_tiny):
    model = make_tiny()
    latent, _ = Descent(steps=5, lr=1.0, radius=0.5).run(Slot(model, FRAME, "w7"), start(model, "zeros", 3))
    assert float(latent.norm(dim=-1).max()) <= 0.5 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_cached_reflection_says_the_same(make_tiny, kind):
    model = make_tiny(kind)
    latent = torch.randn(3, model.width, generator=torch.Generator().manual_seed(2))
    words = Words(model)
    said = [
        reflect(
            model, FRAME, latent, words, length=6, samples=0, temperature=1.0, generator=torch.Generator(), cached=c
        )
        for c in (True, False)
    ]
    assert said[0] == said[1]
    assert len(said[0][0]) == 6


def test_special_tokens_are_never_said(make_tiny):
    model = make_tiny()
    words = Words(model)
    assert not set(words.ids.tolist()) & {0, 1, 2, 3}
    assert int(words.ids.max()) < len(model.tokenizer)
    assert Words(model, [1, 8, 9]).ids.tolist() == [8, 9]
    with pytest.raises(InputError, match="allowed"):
        Words(model, [1])
    with pytest.raises(InputError, match="allowed"):
        Words(model, [4000])


def test_samples_follow_their_seed_and_keep_to_the_allowed(make_tiny):
    model = make_tiny()
    latent, words = torch.zeros(2, model.width), Words(model, [10, 11, 12])

    def said(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return reflect(model, FRAME, latent, words, length=8, samples=3, temperature=5.0, generator=generator)

    assert said(0) == said(0) != said(1)
    assert {i for row in said(0) for i in row} <= {10, 11, 12}


def test_the_meter_counts_every_token_that_a_hook_on_the_last_block_sees(make_tiny):
    model = make_tiny(chat=True)
    seen = {"read": 0, "learnt": 0}

    def hook(module, arguments, output):
        states = output[0] if isinstance(output, tuple) else output
        tokens = states.shape[0] * states.shape[1]
        seen["read"] += tokens
        seen["learnt"] += tokens * bool(states.requires_grad)

    handle, meter = model.blocks[-1].register_forward_hook(hook), Meter()
    with meter.watching(model):
        slot = Slot(model, FRAME, "w7 w8")
        latent, _ = Descent(steps=2).run(slot, start(model, "zeros", 3))
        reflect(model, FRAME, latent, Words(model), length=4, samples=2, temperature=1.0, generator=torch.Generator())
        slot.text_losses(["w4", "w5 w6"])
        model.generate(["w1"], max_new_tokens=3)
    slot.text_losses(["w4"])
    handle.remove()
    # Slot 3, tail 1 and target 2 − 1 go through both passes, twice.
    assert meter.learnt == seen["learnt"] == 2 * 5
    assert meter.spent == meter.read + 2 * meter.learnt
    assert meter.read == seen["read"] - (len(slot.prompt_ids("w4")) + 1)


def test_chat_templates_are_split_around_the_slot(chat_model, model):
    template = chat_template(chat_model, system="w30", opener="w31 w32")
    frame = template.ask("w1 w2")
    assert frame.filled("w9 w8") == chat_model.render("w1 w2 w9 w8", system="w30")
    assert frame.filled("") == chat_model.render("w1 w2", system="w30")
    assert template.reflect.filled("w9") == chat_model.render(
        [{"role": "user", "content": "w9"}, {"role": "assistant", "content": "w31 w32"}]
    )
    with pytest.raises(InputError, match="no chat template"):
        chat_template(model)
    chat_model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(InputError, match="generation prompt"):
        chat_template(chat_model)


def test_bad_input(make_tiny):
    model = make_tiny()
    for target in ("", "  "):
        with pytest.raises(InputError, match="target"):
            Slot(model, FRAME, target)
    with pytest.raises(InputError, match="suffix_len 200"):
        Slot(model, FRAME, "w7").look_at_length(200)
    with pytest.raises(InputError, match="steps"):
        Descent(steps=0)
    with pytest.raises(InputError, match="lr"):
        Descent(lr=0)
    with pytest.raises(InputError, match="init"):
        start(model, "ones", 2)
    with pytest.raises(InputError, match="budget"):
        Meter(budget=0)


def test_a_model_without_gradients_to_its_inputs_is_refused(make_tiny):
    model = make_tiny()
    handle = model.blocks[0].register_forward_hook(
        lambda m, a, out: (out[0].detach(), *out[1:]) if isinstance(out, tuple) else out.detach()
    )
    with pytest.raises(InputError, match="no gradient reaches"):
        Descent(steps=1).run(Slot(model, FRAME, "w7"), start(model, "zeros", 2))
    handle.remove()
