"""Small networks: the theory in closed form, and a short training."""

from __future__ import annotations

import pytest
import torch

from touchstone.errors import InputError
from touchstone.language.isolation_continuity.tiny import Architecture, TinyTransformer, build
from touchstone.language.isolation_continuity.twin import (
    Patterns,
    Recall,
    pattern_scores,
    recall_scores,
    train_patterns,
    train_recall,
)

_EVERY = [
    Architecture(),
    Architecture("sinusoidal"),
    Architecture("nope"),
    Architecture("index"),
    Architecture("alibi"),
    Architecture("rope", "logn"),
    Architecture(recurrent=True),
]


def _network(architecture: Architecture) -> TinyTransformer:
    network = build(architecture, trained_length=24)
    assert isinstance(network, TinyTransformer)
    return network


def test_uniform_attention_moves_in_proportion_to_the_share_of_changes() -> None:
    """Weights of zero for queries and keys give uniform attention; values 0 and 1 then average to k/n."""
    block = _network(Architecture("nope", layers=1, width=6)).blocks[0]
    with torch.no_grad():
        block.qkv.weight.zero_()
        block.qkv.bias.zero_()
        block.qkv.weight[12:] = torch.eye(6)
        block.out.weight.copy_(torch.eye(6))
        block.out.bias.zero_()
        n = 40
        base = torch.zeros(1, n, 6)
        for k in (1, 3, 10, 20):
            changed = base.clone()
            changed[0, :k, 0] = 1.0
            moved = block._attend(changed, torch.arange(n)) - block._attend(base, torch.arange(n))
            assert float(moved[0, -1, 0]) == pytest.approx(k / n, abs=1e-6)


def test_one_layer_without_positions_does_not_see_the_order_of_the_prefix() -> None:
    ids = torch.tensor([[3, 1, 0, 0, 1, 1, 2]])
    shuffled = torch.tensor([[1, 0, 1, 3, 1, 0, 2]])
    with torch.no_grad():
        nope, rope = (_network(Architecture(p, layers=1)) for p in ("nope", "rope"))  # type: ignore[arg-type]
        assert torch.allclose(nope(ids)[:, -1], nope(shuffled)[:, -1], atol=1e-5)
        assert not torch.allclose(rope(ids)[:, -1], rope(shuffled)[:, -1], atol=1e-3)


@pytest.mark.parametrize("architecture", _EVERY, ids=lambda a: a.name)
def test_predictions_depend_on_what_came_before_only(architecture: Architecture) -> None:
    network = build(architecture, trained_length=24)
    ids = torch.randint(0, 4, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = network(ids)
        assert torch.allclose(whole[:, :12], network(ids[:, :12]), atol=1e-5)
        assert torch.allclose(whole[:, -1:], network(ids, last_only=True), atol=1e-5)
        assert torch.equal(whole, build(architecture, trained_length=24)(ids))
    assert 50_000 < sum(p.numel() for p in network.parameters()) < 70_000


def test_log_n_scaling_at_the_trained_length_is_plain_attention() -> None:
    """log n / log(trained length) is 1 there: the last token of that length attends as without scaling."""
    plain, scaled = (_network(Architecture("rope", a, layers=1)) for a in ("softmax", "logn"))  # type: ignore[arg-type]
    ids = torch.randint(0, 4, (1, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = plain(ids), scaled(ids)
    assert torch.allclose(a[:, -1], b[:, -1], atol=1e-5)
    assert not torch.allclose(a[:, 5], b[:, 5], atol=1e-5)


def test_which_are_covered() -> None:
    assert [a.name for a in _EVERY if a.covered] == ["rope", "sinusoidal", "nope"]


def test_a_short_training_learns_short_prompts() -> None:
    recipe = Recall(longest=6, steps=120)
    network = train_recall(Architecture(), recipe)
    rows = recall_scores(network, (4, 6, 96), rows=64).set_index("bits")
    assert rows.loc[4, "tv"] > 0.9
    assert rows.loc[4, "hits"] == 64
    assert rows.loc[96, "tv"] < rows.loc[6, "tv"]
    again = recall_scores(train_recall(Architecture(), recipe), (4, 6, 96), rows=64).set_index("bits")
    assert again.equals(rows)


def test_patterns_with_and_without_training() -> None:
    recipe = Patterns(periods=(2, 4), length=24, steps=120)
    network = train_patterns(Architecture(), recipe)
    rows = pattern_scores(network, recipe, periods=(0, 2, 4), times=(1,)).set_index("period")
    assert rows["learned"].all()
    fresh = build(Architecture(), trained_length=24).eval()
    assert not pattern_scores(fresh, recipe, periods=(0, 2, 4), times=(1,))["learned"].all()


def test_bad_input() -> None:
    with pytest.raises(InputError, match="positions 'rotary'"):
        Architecture(positions="rotary")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="attention 'hard'"):
        Architecture(attention="hard")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="even multiple"):
        Architecture(width=45)
    with pytest.raises(InputError, match="shortest <= longest"):
        Recall(shortest=8, longest=4)
    with pytest.raises(InputError, match="half of the length"):
        Patterns(periods=(64,))
