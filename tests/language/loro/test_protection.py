"""Masks, pads, permutations and the boundary: the protected model is the plain one, and its secrets stay inside."""

from __future__ import annotations

import copy
import os
import stat
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.loro import InProcess, LoROConfig, PadStore, Protected, Subprocess, protect
from touchstone.language.loro.enclave import TEESecrets
from touchstone.language.loro.factors import Choice, Pool, Stream, bytes_per_layer, bytes_pooled
from touchstone.language.loro.layers import find, unprotected

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def _seeds_warn():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="seed")
        yield


def config(**options) -> LoROConfig:
    return LoROConfig(**({"rank": 4, "seed": 0} | options))


# Factors


def test_the_worked_case():
    pool = Pool(KEY, [2], [2], rank=1, size=1, terms=1)
    pool.left[2][0] = [[1.0], [2.0]]
    pool.right[2][0] = [[3.0, -1.0]]
    mask = pool.mask(2, 2, Choice((0,), (0,), (1.0,)))
    hidden = np.eye(2) + mask
    assert hidden.tolist() == [[4, -1], [6, -1]]
    x = torch.ones(1, 2)
    secrets = TEESecrets(pool, {"a": 1.0}, {"a": (2, 2)})
    backend = InProcess(secrets)
    backend._choices["a"] = Choice((0,), (0,), (1.0,))
    backend._left = {2: torch.from_numpy(pool.left[2])}
    backend._right = {2: torch.from_numpy(pool.right[2])}
    seen = x.numpy() @ hidden
    assert seen.tolist() == [[10, -2]]
    correction = backend.correct("a", x)
    assert correction.tolist() == [[9, -3]]
    assert (seen - correction.numpy()).tolist() == [[1, 1]]


def test_masks_follow_from_the_key_and_the_name_and_are_dense_and_of_low_rank():
    pool = Pool(KEY, [40], [30], rank=3, size=4, terms=2)
    again = Pool(KEY, [40], [30], rank=3, size=4, terms=2)
    other = Pool(KEY[::-1], [40], [30], rank=3, size=4, terms=2)
    first = pool.mask(40, 30, pool.choice("a"))
    assert np.array_equal(first, again.mask(40, 30, again.choice("a")))
    for mask in (other.mask(40, 30, other.choice("a")), pool.mask(40, 30, pool.choice("b"))):
        assert not np.allclose(first, mask)
    assert abs(np.corrcoef(first.ravel(), other.mask(40, 30, other.choice("a")).ravel())[0, 1]) < 0.15
    assert np.linalg.matrix_rank(first) <= 6
    assert (first != 0).all()
    large = Pool(KEY, [200], [160], rank=8, size=8, terms=2)
    choices = [large.choice(f"l{i}", 0.7) for i in range(40)]
    spread = np.mean([large.mask(200, 160, one).std() / large.spread(200, 160, one) for one in choices])
    assert spread == pytest.approx(1, abs=0.1)


def test_the_stream_is_even_and_never_repeats_itself():
    stream = Stream(KEY, "x")
    values = stream.integers(3, 3000)
    assert np.bincount(values) == pytest.approx([1000] * 3, abs=110)
    normal = np.array(Stream(KEY, "y").normal((4000,)))
    assert (normal.mean(), normal.std()) == (pytest.approx(0, abs=0.06), pytest.approx(1, abs=0.05))
    assert Stream(KEY, "x").take(40) == Stream(KEY, "x").take(40)
    assert Stream(KEY, "x").take(64)[:32] != Stream(KEY, "x").take(64)[32:]
    with pytest.raises(InputError, match="32"):
        Stream(b"short", "x")


def test_memory_is_what_the_formulas_say():
    shapes = {"q": (64, 64), "k": (64, 32), "up": (64, 128), "down": (128, 64)}
    pool = Pool(KEY, [64, 64, 64, 128], [64, 32, 128, 64], rank=5, size=3)
    assert pool.bytes == bytes_pooled(shapes, 5, 3) == 4 * 3 * 5 * (64 + 128 + 64 + 32 + 128) + 32
    assert bytes_per_layer(shapes, 5) == 4 * 5 * (128 + 96 + 192 + 192)
    with pytest.raises(InputError, match="rank 70"):
        Pool(KEY, [64], [64], rank=70)
    for options in ({"rank": 0}, {"size": 0}, {"terms": 0}, {"distribution": "x"}):
        with pytest.raises(InputError, match=next(iter(options)).replace("size", "pool")):
            Pool(KEY, [64], [64], **options)


# Layers and whole models


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 9), nn.Linear(9, 5, bias=False)
        self.point = nn.Conv2d(5, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.relu(self.first(x)))
        return self.point(hidden.movedim(-1, 1)[:, :, :, None])


@pytest.mark.parametrize("policy", ["weights_only", "full"])
@pytest.mark.parametrize("ndim", [2, 3])
def test_layers_with_and_without_bias_give_the_plain_output(ndim, policy):
    torch.manual_seed(0)
    model = Mixed() if ndim == 3 else nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5, bias=False))
    x = torch.randn(*((2, 4, 6) if ndim == 3 else (4, 6)))
    if policy == "full":
        with pytest.raises(InputError, match="policy 'full'"):
            protect(model, config(policy="full"))
        return
    hidden = protect(model, config())
    assert torch.allclose(hidden(x), model(x), atol=1e-5)
    with hidden.ree_only() as stolen:
        assert not torch.allclose(stolen(x), model(x), atol=0.05)
    assert torch.allclose(hidden(x), model(x), atol=1e-5)


@pytest.mark.parametrize("policy", ["weights_only", "full"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_a_language_model_is_the_same_to_its_user(make_tiny, kind, policy):
    model = make_tiny(kind)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    hidden = protect(model.module, config(policy=policy))
    ids = torch.randint(8, 40, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain, ours = model.module(ids).logits, hidden(ids).logits
    assert torch.allclose(plain, ours, atol=2e-4)
    wrapped = LanguageModel(hidden.ree, model.tokenizer, source="protected", threads=1)
    prompts = ["w1 w2 w3", "w4"]
    assert wrapped.generate(prompts, max_new_tokens=6) == model.generate(prompts, max_new_tokens=6)
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_tied_head_is_left_out_and_named(make_tiny):
    model = make_tiny("llama")
    model.module.tie_weights()
    model.module.lm_head.weight = model.module.model.embed_tokens.weight
    hidden = protect(model.module, config())
    assert "lm_head" not in {layer.name for layer in hidden.layers}
    plain = hidden.summary()["plain_parameters"]
    assert any("embed_tokens" in name for name in plain)
    assert any("norm" in name for name in plain)
    with pytest.raises(InputError, match="shares its weights"):
        protect(model.module, config(targets=["lm_head"]))


def test_targets(make_tiny):
    module = make_tiny("llama").module
    assert {layer.name.rsplit(".", 1)[-1] for layer in find(module, ["q_proj", "v_proj"])} == {"q_proj", "v_proj"}
    assert len(find(module, r".*\.0\.mlp\..*")) == 3
    with pytest.raises(InputError, match="no linear layer"):
        find(module, ["nothing"])
    with pytest.raises(InputError, match="regular expression"):
        find(module, "(")
    assert "model.layers.0.mlp.up_proj.weight" not in unprotected(module, find(module))


def test_products_are_shared_by_layers_that_read_one_input(make_tiny):
    module = make_tiny("llama").module
    hidden = protect(module, config(pool=1, terms=1, targets=["q_proj", "k_proj", "v_proj"]))
    backend = hidden.backend
    with torch.inference_mode():
        hidden(torch.randint(8, 40, (1, 5)))
    rank, n, blocks = 4, 32, 3
    outputs = sum(layer.m for layer in hidden.layers)
    # With one factor in the pool, each block multiplies its input once for query, key and value.
    assert backend.flops == 2 * 5 * rank * (blocks * n + outputs)


def test_half_precision_is_told(make_tiny):
    module = make_tiny("llama").module.to(torch.bfloat16)
    with pytest.warns(UserWarning, match="half precision"):
        protect(module, config())
    with pytest.raises(InputError, match="half precision"):
        protect(module, config(strict=True))


def test_a_seed_warns_and_none_gives_a_new_key_each_time():
    model = nn.Sequential(nn.Linear(8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (protect(model, LoROConfig(rank=2)) for _ in range(2))
        assert first.tee.pool.key != second.tee.pool.key
        with pytest.raises(UserWarning, match="seed"):
            protect(model, LoROConfig(rank=2, seed=1))


# Pads and permutations


def test_a_pad_is_used_once_and_never_again():
    store = PadStore()
    weight = torch.randn(6, 3)
    store.refill("a", weight, tokens=4, count=2)
    first, second = store.take("a"), store.take("a")
    x = torch.randn(2, 6)
    assert not torch.equal(first._noise, second._noise)
    assert torch.allclose(second.taken_from(second.hide(x) @ weight), x @ weight, atol=1e-5)
    with pytest.raises(InputError, match="none left"):
        store.take("a")
    with pytest.raises(InputError, match="was used before"):
        second.hide(x)
    store.refill("a", weight, tokens=1, count=1)
    with pytest.raises(InputError, match="made for 1 tokens"):
        store.take("a").hide(x)
    with pytest.raises(InputError, match="tokens 0"):
        store.refill("a", weight, tokens=0, count=1)


def test_what_the_untrusted_side_sees_of_the_same_input_differs_each_time(make_tiny):
    hidden = protect(make_tiny("llama").module, config(policy="full"))
    ids = torch.randint(8, 40, (1, 6))
    with torch.inference_mode(), hidden.watched() as first:
        hidden(ids)
    with torch.inference_mode(), hidden.watched() as second:
        hidden(ids)
    for name in first:
        assert not torch.allclose(first[name][0], second[name][0], atol=0.1)
    plain = protect(make_tiny("llama").module, config(policy="weights_only"))
    with torch.inference_mode(), plain.watched() as bare:
        plain(ids)
    with torch.inference_mode(), plain.watched() as again:
        plain(ids)
    assert all(torch.equal(bare[name][0], again[name][0]) for name in bare)


def test_heads_are_permuted_by_secret_orders(make_tiny):
    module = make_tiny("llama").module
    hidden = protect(module, config(policy="full"))
    parts = [part for part in hidden.ree.modules() if hasattr(part, "_loro_orders")]
    assert len(parts) == 3
    for part in parts:
        part._loro_seen = []
    with torch.inference_mode():
        hidden(torch.randint(8, 40, (1, 6)))
    first = [part._loro_orders[0].tolist() for part in parts]
    assert first[0] != first[1]
    assert all(sorted(order) == list(range(8)) for order in first)
    assert all(len(part._loro_seen) == 1 for part in parts)


# The boundary


def test_the_other_process_gives_the_same_corrections_and_counts_bytes(make_tiny):
    module = make_tiny("llama").module
    hidden = protect(module, config())
    ids = torch.randint(8, 40, (2, 5))
    with torch.inference_mode():
        plain = module(ids).logits
        with Subprocess(hidden.tee) as enclave, hidden.through(enclave):
            ours = hidden(ids).logits
    assert torch.allclose(plain, ours, atol=2e-4)
    assert enclave.sent == 4 * 10 * sum(layer.n for layer in hidden.layers)
    assert enclave.received == 4 * 10 * sum(layer.m for layer in hidden.layers)


def test_errors_cross_the_boundary_and_a_dead_process_is_told():
    hidden = protect(nn.Sequential(nn.Linear(8, 8)), config())
    enclave = Subprocess(hidden.tee)
    with pytest.raises(InputError, match="not protected"):
        enclave.correct("other", torch.ones(1, 8))
    assert torch.allclose(
        enclave.correct("0", torch.ones(1, 8)), InProcess(hidden.tee).correct("0", torch.ones(1, 8)), atol=1e-6
    )
    enclave._process.kill()
    enclave._process.wait()
    with pytest.raises(InputError, match="has ended"):
        enclave.correct("0", torch.ones(1, 8))
    enclave.close()


def test_secrets_are_kept_apart_and_come_back(make_tiny, tmp_path):
    module = make_tiny("llama").module
    hidden = protect(module, config())
    folder = hidden.save(tmp_path / "p")
    files = {path.name for path in folder.iterdir()}
    assert files == {"ree.safetensors", "config.json", "secrets.safetensors"}
    assert stat.S_IMODE(os.stat(folder / "secrets.safetensors").st_mode) == 0o600
    pool = hidden.tee.pool
    public = (folder / "ree.safetensors").read_bytes() + (folder / "config.json").read_bytes()
    assert pool.key not in public
    assert pool.key.hex().encode() not in public
    assert all(factor[0, 0].tobytes() not in public for part in (pool.left, pool.right) for factor in part.values())
    again = Protected.load(folder, copy.deepcopy(module))
    ids = torch.randint(8, 40, (2, 5))
    with torch.inference_mode():
        assert torch.allclose(again(ids).logits, module(ids).logits, atol=2e-4)
    with pytest.raises(InputError, match="exists"):
        hidden.save(folder)
    with pytest.raises(InputError, match="another architecture"):
        Protected.load(folder, make_tiny("gpt2").module)
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        Protected.load(folder, module)


def test_the_report_counts_what_is_there(make_tiny):
    hidden = protect(make_tiny("llama").module, config())
    frame, summary = hidden.report(), hidden.summary()
    assert len(frame) == summary["layers"] == 3 * 7 + (1 if "lm_head" in set(frame["layer"]) else 0)
    assert summary["secret_bytes"] == hidden.tee.pool.bytes < summary["secret_bytes_per_layer_factors"] * 10
    assert (frame["rank"] == 8).all()
    low, high = summary["predicted_error_of_spectral_attack"]
    assert 0 < low <= high <= 1


def test_bad_settings():
    for options, name in (({"mask_ratio": 0.0}, "mask_ratio"), ({"policy": "none"}, "policy")):
        with pytest.raises(InputError, match=name):
            LoROConfig(**options)


def test_end_to_end_on_the_embedded_model(real_model):
    hidden = protect(real_model.module, LoROConfig(seed=0))
    [ids] = real_model.encode(["Name three colours."])
    given = torch.tensor([ids])
    with torch.inference_mode():
        plain, ours = real_model.module(given).logits, hidden(given).logits
        assert float((plain - ours).abs().max()) <= 2e-3
        with hidden.ree_only() as stolen:
            wrong = stolen(given).logits
    target = given[0, 1:]
    loss, lost = (float(torch.nn.functional.cross_entropy(logits[0, :-1], target)) for logits in (plain, wrong))
    assert np.exp(lost - loss) > 100
