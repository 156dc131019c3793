"""Unlearning losses against autograd of their formulas, and the loop: order, resume, noise, adapters."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from touchstone.errors import InputError
from touchstone.language.unlearning import (
    METHODS,
    Example,
    Objective,
    Rows,
    Training,
    epochs,
    examples,
    fine_tune,
    unlearn,
)

FORGET = [Example((1, 5, 6, 7, 2), 3), Example((1, 8, 9), 2), Example((3, 4, 4, 5, 6, 9), 4)]
RETAIN = [Example((1, 10, 11, 12), 3), Example((2, 3, 4, 11), 2), Example((1, 2, 13), 2), Example((4, 4, 9, 9, 1), 4)]


@pytest.fixture
def pair(make_tiny):
    """A policy and a reference that differ, both tiny."""
    policy, reference = make_tiny(), make_tiny()
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy, reference


def rows(model, chosen):
    return Rows.of(chosen, model.pad_id, model.device)


def by_hand(model, one: Example) -> torch.Tensor:
    """log p of the learnt tokens of one example, without batches or padding, [learnt, V] and [learnt]."""
    ids = torch.tensor([one.ids])
    logits = model.module(input_ids=ids).logits[0].float()
    places = range(len(one.ids) - one.learnt - 1, len(one.ids) - 1)
    logs = torch.stack([logits[t].log_softmax(-1) for t in places])
    return logs, torch.stack([logs[k, one.ids[t + 1]] for k, t in enumerate(places)])


def test_labels_are_shifted_once_and_padding_never_counts(pair):
    policy, _ = pair
    batch = rows(policy, FORGET)
    assert batch.targets.tolist() == [6, 7, 2, 8, 9, 4, 5, 6, 9]
    values = torch.arange(1.0, 10.0)
    assert batch.by_sequence(values).tolist() == [6.0, 9.0, 30.0]
    expected = torch.cat([by_hand(policy, one)[1] for one in FORGET])
    found = -F.cross_entropy(batch.logits(policy.module), batch.targets, reduction="none")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def formula(name: str, policy, reference) -> torch.Tensor:
    """Every method as its paper writes it, one sequence after the other."""
    f, r = ([by_hand(policy, one) for one in data] for data in (FORGET, RETAIN))
    with torch.no_grad():
        f0, r0 = ([by_hand(reference, one) for one in data] for data in (FORGET, RETAIN))
    ce_f, ce_r = (-torch.cat([one[1] for one in data]).mean() for data in (f, r))

    def kl(before, now):
        each = [(a[0].exp() * (a[0] - b[0])).sum(-1) for a, b in zip(before, now, strict=True)]
        return torch.cat(each).mean()

    ratio = torch.stack([b[1].sum() - a[1].sum() for a, b in zip(f0, f, strict=True)])
    npo = (2 / 0.1) * torch.log(1 + ratio.exp() ** 0.1).mean()
    return {
        "ga": -ce_f,
        "ga+gd": -ce_f + ce_r,
        "ga+kl": -ce_f + kl(r0, r),
        "npo": npo,
        "npo+gd": npo + ce_r,
        "npo+kl": npo + kl(r0, r),
        "neggrad+": 0.999 * ce_r - 0.001 * ce_f,
        "scrub": 0.999 * kl(r0, r) + ce_r - 0.99 * kl(f0, f),
    }[name]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "rl"])
def test_losses_and_gradients_are_those_of_the_formulas(pair, name):
    policy, reference = pair
    one = METHODS[name]
    parameters = [p for p in policy.module.parameters() if p.requires_grad or not p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(True)
    loss = one.loss(
        policy.module,
        reference.module,
        rows(policy, FORGET) if one.forgets else None,
        rows(policy, RETAIN) if one.retains else None,
        torch.Generator(),
    )
    expected = formula(name, policy, reference)
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    ours = torch.autograd.grad(loss, parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_npo_turns_into_gradient_ascent_as_beta_goes_to_zero(pair):
    policy, reference = pair
    same = [one for one in FORGET if one.learnt == 3]
    weight = policy.module.lm_head.weight.requires_grad_(True)

    def gradient(objective):
        loss = objective.loss(policy.module, reference.module, rows(policy, same), None, torch.Generator())
        return torch.autograd.grad(loss, weight)[0].flatten()

    ascent = gradient(METHODS["ga"])
    angles = [float(F.cosine_similarity(gradient(Objective(npo=1, beta=b)), ascent, dim=0)) for b in (2.0, 1e-4)]
    assert angles[1] > 0.99999
    # Sequence probabilities: the gradient is that of the sum over tokens, three times the mean.
    torch.testing.assert_close(gradient(Objective(npo=1, beta=1e-4)), 3 * ascent, rtol=1e-2, atol=1e-5)


def test_random_labels_leave_padding_and_prompts_alone(pair):
    policy, reference = pair
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(policy.module.config.vocab_size, (9,), generator=generator)
    expected = F.cross_entropy(rows(policy, FORGET).logits(policy.module), drawn)
    loss = METHODS["rl"].loss(
        policy.module, reference.module, rows(policy, FORGET), None, torch.Generator().manual_seed(3)
    )
    torch.testing.assert_close(loss, expected)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.module.parameters()])


def test_forgetting_lowers_what_it_should_and_the_base_stays(make_tiny):
    base = make_tiny()
    before = weights(base).clone()

    def likelihood(model, data):
        with torch.no_grad():
            return -F.cross_entropy(rows(model, data).logits(model.module), rows(model, data).targets)

    learnt = fine_tune(base, FORGET + RETAIN, training=Training(epochs=30, lr=1e-2, batch_size=4))
    assert likelihood(learnt, FORGET) > likelihood(base, FORGET) + 0.5
    for method in ("ga+gd", "npo+kl", "rl"):
        after = unlearn(learnt, method, FORGET, RETAIN, training=Training(epochs=5, lr=3e-3, batch_size=3))
        drop = [float(likelihood(learnt, data) - likelihood(after, data)) for data in (FORGET, RETAIN)]
        assert drop[0] > 0.1, method
        if method != "rl":
            assert drop[1] < drop[0], method
    assert torch.equal(weights(base), before)


def test_a_run_that_stops_continues_as_if_it_had_not(make_tiny, tmp_path):
    training = Training(epochs=4, lr=1e-2, batch_size=2, noise=0.01, cosine=True)
    whole = [epoch.copy() for epoch in epochs(make_tiny(), "npo+gd", forget=FORGET, retain=RETAIN, training=training)]
    place = tmp_path / "run.safetensors"
    run = epochs(make_tiny(), "npo+gd", forget=FORGET, retain=RETAIN, training=training, checkpoint=place)
    assert [next(run).number, next(run).number] == [1, 2]
    run.close()
    steps: list[int] = []
    rest = list(
        epochs(
            make_tiny(), "npo+gd", forget=FORGET, retain=RETAIN, training=training, checkpoint=place,
            progress=steps.append,
        )
    )  # fmt: skip
    assert [epoch.number for epoch in rest] == [2, 3, 4]
    assert sum(steps) == 8
    torch.testing.assert_close(weights(rest[-1].model), weights(whole[-1]))
    with pytest.raises(InputError, match="of another run"):
        list(epochs(make_tiny(), "npo", forget=FORGET, training=training, checkpoint=place))


def test_leaving_examples_out_keeps_the_order_of_the_others(make_tiny, monkeypatch):
    from touchstone.language import unlearning

    seen = []
    original = unlearning._step
    monkeypatch.setattr(
        unlearning,
        "_step",
        lambda m, p, o, f, r, *rest: seen.append([x.ids for x in r]) or original(m, p, o, f, r, *rest),
    )
    data = [Example((1, i, i + 1), 2) for i in range(1, 11)]
    training = Training(epochs=2, batch_size=3)
    fine_tune(make_tiny(), data, training=training)
    every = [ids for batch in seen for ids in batch]
    seen.clear()
    fine_tune(make_tiny(), data, training=training, leave_out=[0, 4])
    assert [ids for batch in seen for ids in batch] == [ids for ids in every if ids not in (data[0].ids, data[4].ids)]
    assert every[:10] != every[10:]


def test_accumulation_is_the_same_step_in_more_passes(make_tiny):
    data = [Example((1, 5, 6, 7), 3), Example((1, 8, 9, 3), 3), Example((2, 2, 4, 6), 3), Example((9, 8, 7, 6), 3)]
    one = fine_tune(make_tiny(), data, training=Training(epochs=3, lr=1e-3, batch_size=4))
    two = fine_tune(make_tiny(), data, training=Training(epochs=3, lr=1e-3, batch_size=4, accumulate=2))
    torch.testing.assert_close(weights(one), weights(two), atol=1e-5, rtol=1e-4)


def test_noise_changes_the_steps_and_follows_the_seed(make_tiny):
    runs = [
        weights(fine_tune(make_tiny(), RETAIN, training=Training(epochs=1, noise=noise, seed=seed, lr=1e-3)))
        for noise, seed in ((0.0, 0), (0.5, 0), (0.5, 0), (0.5, 1))
    ]
    assert torch.equal(runs[1], runs[2])
    assert not torch.allclose(runs[0], runs[1])
    assert not torch.allclose(runs[1], runs[3])


def test_adapters_are_folded_in_and_only_last_blocks_move(make_tiny):
    base = make_tiny()
    lora = fine_tune(base, RETAIN, training=Training(epochs=2, lr=1e-2, trainable="lora", rank=2, alpha=4))
    assert {name for name, _ in lora.module.named_parameters()} == {name for name, _ in base.module.named_parameters()}
    assert not torch.equal(weights(lora), weights(base))
    last = fine_tune(base, RETAIN, training=Training(epochs=1, lr=1e-2, trainable="last:1"))
    changed = {
        name for (name, a), (_, b) in
        zip(base.module.named_parameters(), last.module.named_parameters(), strict=True) if not torch.equal(a, b)
    }  # fmt: skip
    tail = f"{base.layout.blocks}.{len(base.blocks) - 1}."
    assert changed
    assert all(name.startswith(tail) for name in changed)


def test_examples_of_texts_and_of_answers(make_tiny):
    model = make_tiny()
    stop = min(model.stop_ids)
    text, pair = examples(model, ["a b c", ("a b", " c")])
    assert text.learnt == len(text.ids) - 1
    assert text.ids[-1] == pair.ids[-1] == stop
    assert pair.ids == (*model.encode(["a b"], chat=False)[0], *model.encode_continuation(" c"), stop)
    assert pair.learnt == len(model.encode_continuation(" c")) + 1
    assert examples(model, [("a b", " c")], end=False)[0].learnt == pair.learnt - 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"method": "sparse"}, "method 'sparse': expected one of ga"),
        ({"retain": []}, "retain: no examples"),
        ({"forget": []}, "forget: no examples"),
        ({"training": {"trainable": "first"}}, "trainable 'first'"),
        ({"training": {"epochs": 0}}, "epochs 0"),
        ({"training": {"lr": 0}}, "lr 0"),
        ({"training": {"noise": -1}}, "noise -1"),
    ],
)
def test_what_cannot_be_is_one_error(make_tiny, change, match):
    with pytest.raises(InputError, match=match):
        unlearn(
            make_tiny(),
            change.get("method", "ga+gd"),
            change.get("forget", FORGET),
            change.get("retain", RETAIN),
            training=Training(**change.get("training", {})),
        )


def test_the_base_is_read_in_the_precision_it_has(make_tiny):
    base = make_tiny()
    half = copy.deepcopy(base)
    half.module.to(torch.bfloat16)
    after = unlearn(half, "npo", FORGET, training=Training(epochs=1, lr=1e-3))
    assert next(after.module.parameters()).dtype == torch.float32
    assert next(half.module.parameters()).dtype == torch.bfloat16
    assert np.isfinite(weights(after).numpy()).all()
