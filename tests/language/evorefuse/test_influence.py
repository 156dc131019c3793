"""Attribution: a linear model by hand, finite differences, and attention flow from its definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from touchstone.errors import InputError
from touchstone.language.evorefuse import attribution
from touchstone.language.evorefuse.influence import Attribution, gradient_scores


class Bag(nn.Module):
    """Logits are sums of embeddings, each weighed by a matrix of its place."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, weights.shape[2])
        self.weights = weights

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, inputs_embeds: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        logits = torch.einsum("tvd,btd->bv", self.weights, inputs_embeds)
        return SimpleNamespace(logits=logits.unsqueeze(1))


def test_scores_of_a_linear_model_are_norms_of_its_weights():
    # Only the refusal token 1 has weights, so the gradient at place t is −(1 − p) w_t.
    weights = torch.zeros(4, 5, 3)
    rows = torch.tensor([[0.1, 0.0, 0.0], [0.0, 3.0, 4.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])
    weights[:, 1] = rows
    module = Bag(weights)
    ids = torch.tensor([[0, 2, 3, 4]])
    scores, loss = gradient_scores(module, ids, torch.tensor([1]))
    p = torch.exp(-loss)
    assert scores[0].tolist() == pytest.approx(((1 - p) * rows.norm(dim=1)).tolist(), abs=1e-6)
    assert (scores / scores.max())[0].tolist() == pytest.approx([0.02, 1.0, 0.04, 0.0], abs=1e-6)


def test_gradients_are_those_of_finite_differences(model):
    # transformers' norms compute in float32 whatever the weights are: the steps must not be too small.
    module = model.module.double()
    ids = torch.tensor(model.encode(["w1 w2 w3 w4"]))
    scores, loss = gradient_scores(module, ids, torch.tensor([9]))
    embedded = module.get_input_embeddings()(ids).detach()
    numeric = torch.zeros_like(embedded[0])
    with torch.no_grad():
        for t in range(embedded.shape[1]):
            for d in range(embedded.shape[2]):
                values = []
                for sign in (1, -1):
                    moved = embedded.clone()
                    moved[0, t, d] += sign * 2e-3
                    values.append(-torch.log_softmax(module(inputs_embeds=moved).logits[0, -1], -1)[9])
                numeric[t, d] = (values[0] - values[1]) / 4e-3
    assert scores[0].tolist() == pytest.approx(numeric.norm(dim=-1).tolist(), rel=1e-2)
    exact = -torch.log_softmax(module(input_ids=ids).logits[0, -1], -1)[9]
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_padded_rows_are_scored_as_alone(model):
    from touchstone.language.batching import pad_left

    rows = model.encode(["w1 w2 w3 w4", "w5 w6"])
    ids, mask = pad_left(rows, model.pad_id, model.device)
    both, _ = gradient_scores(model.module, ids, torch.tensor([9, 9]), mask)
    alone, _ = gradient_scores(model.module, torch.tensor([rows[1]]), torch.tensor([9]))
    assert both[1, -len(rows[1]) :].tolist() == pytest.approx(alone[0].tolist(), rel=1e-3)


def test_flow_is_attention_times_its_gradient(model):
    module = model.module
    before = module.config._attn_implementation
    found = attribution(model, "w1 w2 w3 w4", "w9", layer=1)
    assert module.config._attn_implementation == before
    module.set_attn_implementation("eager")
    output = module(input_ids=torch.tensor(model.encode(["w1 w2 w3 w4"])), output_attentions=True)
    weights = output.attentions[1]
    weights.retain_grad()
    loss = -torch.log_softmax(output.logits[0, -1], -1)[model.encode_continuation("w9")[0]]
    loss.backward()
    flow = (weights * weights.grad).abs()[0].mean(dim=0)
    expected = torch.stack([flow[t:, t].mean() for t in range(4)]).detach()
    assert found.scores.tolist() == pytest.approx((expected / expected.max()).tolist(), rel=1e-3)
    assert found.layer == 1
    module.set_attn_implementation(before)


def test_only_the_prompt_is_looked_at_and_nothing_is_left_behind(chat_model):
    found = attribution(chat_model, "w1 w2 w3", "w9", system="w7")
    assert [found.tokens[i] for i in np.flatnonzero(found.of_prompt)] == ["w1", "w2", "w3"]
    assert len(found.tokens) > 3
    assert found.scores[found.of_prompt].max() == 1.0
    assert found.table()["token"].tolist() == ["w1", "w2", "w3"]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in chat_model.module.parameters())


def test_share_and_words():
    found = Attribution(
        ["<s>", "ki", "ll", " it", " now"],
        np.array([9.0, 1.0, 0.5, 0.25, 0.25]),
        np.array([0, 1, 1, 1, 1], dtype=bool),
        1.0,
    )
    assert found.share([True, True, True, False, False]) == pytest.approx(0.75)
    words = found.words()
    assert words["word"].tolist() == ["kill", "it", "now"]
    assert words["score"].tolist() == [1.0, 0.25, 0.25]


def test_bad_input(model):
    with pytest.raises(InputError, match="layer 7: the model has blocks 0 to 2"):
        attribution(model, "w1", "w2", layer=7)
    with pytest.raises(InputError, match="opener ''"):
        attribution(model, "w1", "")
