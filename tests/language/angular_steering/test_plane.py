"""Fitting a plane on a model, its points, and its file."""

from __future__ import annotations

import json
import struct
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from touchstone.errors import InputError
from touchstone.language import Site
from touchstone.language.angular_steering import SteeringPlane
from touchstone.language.angular_steering.geometry import candidates_of

from .conftest import NEGATIVE, POSITIVE


def test_fit_reads_both_norms_of_every_block_at_the_last_token(model, plane):
    assert [str(site) for site in plane.sites] == [
        f"{kind}.{block}" for block in range(3) for kind in ("attention_input", "mlp_input")
    ]
    acts = [model.activations(prompts, plane.sites) for prompts in (POSITIVE, NEGATIVE)]
    stacked = [torch.stack([each[site] for site in plane.sites]).numpy() for each in acts]
    assert plane.candidates.numpy() == pytest.approx(candidates_of(*stacked), abs=1e-5)
    assert plane.model == model.source
    assert plane.architecture == "llama"
    assert (plane.select, plane.second, plane.space) == ("max_sim", "pca", "post_norm")


def test_a_point_without_a_direction_is_dropped(plane):
    # All prompts end in a word of their own but none differs by class there: only what attention brings differs.
    assert plane.diagnostics["kept"].tolist() == [False, *[True] * 5]
    assert np.isnan(plane.diagnostics["mean_cosine"][0])
    assert plane.chosen != 0


def test_spaces_differ_by_the_norms_gain(model, make_model):
    before = SteeringPlane.fit(model, POSITIVE, NEGATIVE, space="pre_norm")
    after = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    assert before.space == "pre_norm"
    assert not torch.allclose(before.candidates, after.candidates, atol=1e-3)
    # RMSNorm only scales, so with gains of 1 the directions before and after it are the same.
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
    before = SteeringPlane.fit(model, POSITIVE, NEGATIVE, space="pre_norm")
    after = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    assert torch.allclose(before.candidates, after.candidates, atol=1e-5)
    # Where the plane is used is after the norm in both, and so are the class projections.
    assert before.diagnostics["activation_norm"].tolist() == pytest.approx(
        after.diagnostics["activation_norm"].tolist()
    )


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt2"])
def test_every_known_architecture_can_be_fitted_and_steered(make_model, kind):
    model = make_model(kind)
    plane = SteeringPlane.fit(model, POSITIVE, NEGATIVE)
    plain = model.generate(["w3 w9", "w4"], max_new_tokens=6)
    with plane.steer(model, 180.0, adaptive=False):
        steered = model.generate(["w3 w9", "w4"], max_new_tokens=6)
    assert steered != plain
    assert model.generate(["w3 w9", "w4"], max_new_tokens=6) == plain


def test_padding_side_and_batch_size_do_not_matter(model):
    uneven = [*POSITIVE, "w1 w2 w3 w38 w7 w9"]
    first = SteeringPlane.fit(model, uneven, NEGATIVE, batch_size=1)
    model.tokenizer.padding_side = "right"
    second = SteeringPlane.fit(model, uneven, NEGATIVE, batch_size=32)
    assert torch.allclose(first.b1, second.b1, atol=1e-5)
    assert torch.allclose(first.b2, second.b2, atol=1e-4)


def test_the_same_seed_gives_the_same_controls(model, plane):
    for kind in ("plane", "second"):
        one, two, other = (plane.control(kind, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.b2, two.b2)
        assert not torch.equal(one.b2, other.b2)
        assert abs(float(one.b1 @ one.b2)) < 1e-6
    assert torch.equal(plane.control("second").b1, plane.b1)
    assert not torch.allclose(plane.control("plane").b1, plane.b1, atol=0.1)
    with pytest.raises(InputError, match="kind"):
        plane.control("third")


def test_points(plane):
    assert plane.points() == plane.sites
    assert plane.points([1]) == (Site("attention_input", 1), Site("mlp_input", 1))
    assert plane.points(["mlp_input.2", Site("attention_input", 0)]) == (
        Site("attention_input", 0),
        Site("mlp_input", 2),
    )
    table = plane.diagnostics
    opposite = table["positive_cosine"] * table["negative_cosine"] < 0
    assert [str(site) for site in plane.points("discriminative")] == table["site"][opposite].tolist()
    for wrong in ("some", [7], ["output.1"], ["nonsense"], []):
        with pytest.raises(InputError):
            plane.points(wrong)


def test_save_and_load(tmp_path, model, plane):
    path = plane.save(tmp_path / "new" / "plane.safetensors")
    again = SteeringPlane.load(path, model)
    for name in ("b1", "b2", "candidates"):
        assert torch.equal(getattr(again, name), getattr(plane, name))
        assert getattr(again, name).dtype == torch.float32
    pd.testing.assert_frame_equal(again.diagnostics, plane.diagnostics)
    for name in ("sites", "chosen", "explained_variance", "cos_b1_pc0", "model", "architecture", "select", "version"):
        assert getattr(again, name) == getattr(plane, name)
    assert [file.name for file in path.parent.iterdir()] == ["plane.safetensors"]
    # The header is plain JSON, also where a mean cosine is not a number.
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    record = json.loads(header["__metadata__"]["touchstone"], parse_constant=lambda text: pytest.fail(text))
    assert record["schema"] == "touchstone.steering-plane/1"
    plane.save(path)


def test_loading_what_does_not_fit(tmp_path, model, make_model, plane):
    path = plane.save(tmp_path / "plane.safetensors")
    wide = make_model("gpt2")
    wide.source = plane.model
    SteeringPlane.load(path, wide)
    narrow = SteeringPlane.from_activations(np.random.default_rng(0).standard_normal((6, 3, 16)), np.ones((6, 3, 16)))
    with pytest.raises(InputError, match="width 16"):
        SteeringPlane.load(narrow.save(tmp_path / "narrow.safetensors"), model)
    other = make_model(seed=1)
    other.source = "another model"
    with pytest.warns(UserWarning, match="fitted on tiny llama, not on another model"):
        SteeringPlane.load(path, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SteeringPlane.load(path, model)
    deep = SteeringPlane.from_activations(np.random.default_rng(0).standard_normal((8, 3, 32)), np.ones((8, 3, 32)))
    with pytest.raises(InputError, match="blocks 0 to 2"):
        deep.steer(model, 0.0)


def test_damaged_files_are_named(tmp_path, plane):
    with pytest.raises(InputError, match="cannot be read"):
        SteeringPlane.load(tmp_path / "absent.safetensors")
    path = plane.save(tmp_path / "plane.safetensors")
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        SteeringPlane.load(path)
    path.write_bytes(raw.replace(b"touchstone.steering-plane/1", b"touchstone.steering-plane/9"))
    with pytest.raises(InputError, match="schema"):
        SteeringPlane.load(path)
    path.write_bytes(raw.replace(b"attention_input.1", b"attention_input.x"))
    with pytest.raises(InputError, match="damaged"):
        SteeringPlane.load(path)
    broken = bytearray(raw)
    # The last tensor's bytes: axes that are no longer of unit length.
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    broken[start : start + 8] = struct.pack("<2f", 9.0, 9.0)
    path.write_bytes(bytes(broken))
    with pytest.raises(InputError, match="not orthonormal"):
        SteeringPlane.load(path)
    from safetensors.torch import save_file

    save_file({"b1": torch.ones(3)}, path)
    with pytest.raises(InputError, match="not a steering plane"):
        SteeringPlane.load(path)


def test_unwritable_place_is_named(tmp_path, plane):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        plane.save(tmp_path / "file" / "plane.safetensors")


def test_bad_input_of_fit(model):
    for positive, negative, match in (
        ([], NEGATIVE, "positive"),
        (POSITIVE, [], "negative"),
        ("w1", NEGATIVE, "positive"),
    ):
        with pytest.raises(InputError, match=match):
            SteeringPlane.fit(model, positive, negative)
    with pytest.raises(InputError, match="do not differ"):
        SteeringPlane.fit(model, POSITIVE, POSITIVE)
    with pytest.raises(InputError, match="space"):
        SteeringPlane.fit(model, POSITIVE, NEGATIVE, space="mid_norm")
    with pytest.raises(InputError, match="pre_norm"):
        SteeringPlane.fit(model, POSITIVE, NEGATIVE, space="pre_norm", sites=["output.1"])
    with pytest.raises(InputError, match="second"):
        SteeringPlane.fit(model, POSITIVE, NEGATIVE, second=np.ones(7))
    with pytest.raises(InputError, match="select"):
        SteeringPlane.fit(model, POSITIVE, NEGATIVE, select="first")


def test_unknown_architecture_is_named(model):
    from touchstone.language import LanguageModel

    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    with pytest.raises(InputError, match="no decoder blocks"):
        LanguageModel(Other(), model.tokenizer)  # type: ignore[arg-type]


def test_progress_counts_prompts(model):
    seen: list[int] = []
    SteeringPlane.fit(model, POSITIVE, NEGATIVE, batch_size=3, progress=seen.append)
    assert sum(seen) == 16
