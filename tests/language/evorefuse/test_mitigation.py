"""Training with trl and peft, end to end on a tiny chat model: offline, in nobody's folder, and what it learns."""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from touchstone.errors import InputError, MissingExtraError
from touchstone.language.evorefuse import load_adapter, mitigate
from touchstone.language.evorefuse.align import Preference
from touchstone.language.evorefuse.mitigation import Recipe

YES, NO = "w30 w31", "w35 w36"
ALIGN = [Preference(f"w{i} w20", YES, NO) for i in range(6)]
BENIGN = [Preference(f"w{i} w21", YES, NO) for i in range(6)]
UNSAFE = [Preference(f"w{i} w22", NO, YES) for i in range(6)]
QUICK = {
    "sft": replace(Recipe.of("sft"), rate=2e-2, epochs=4, batch=8, accumulation=1, longest=64),
    "dpo": replace(Recipe.of("dpo"), rate=1e-2, epochs=2, batch=4, accumulation=1, longest=64),
}


@pytest.fixture(scope="module", params=["sft", "dpo"])
def trained(request, make_tiny, tmp_path_factory):
    """The model before, what training gave, the folder it wrote, and the method."""
    place = tmp_path_factory.mktemp("mitigation")
    model = make_tiny(chat=True)
    weights = [parameter.detach().clone() for parameter in model.module.parameters()]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        # Nothing may be sent: any use of a socket is an error.
        patch.setattr("socket.socket.connect", lambda *a: pytest.fail("training reached for the network"))
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        done = mitigate(
            model,
            ALIGN,
            request.param,
            benign=BENIGN,
            unsafe=UNSAFE,
            recipe=QUICK[request.param],
            out=place / "adapter",
        )
    assert all(torch.equal(a, b) for a, b in zip(weights, model.module.parameters(), strict=True))
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(states[2], torch.get_rng_state())
    return model, done, place, request.param


def margin(model, prompts):
    total = model.log_likelihood(prompts, [YES, NO]).total
    return (total[:, 0] - total[:, 1]).mean()


def test_training_moves_what_it_should(trained):
    model, done, _, method = trained
    alarms, unsafe = [r.prompt for r in ALIGN], [r.prompt for r in UNSAFE]
    assert margin(done.model, alarms) > margin(model, alarms) + 0.5
    losses = [entry["eval_loss"] for entry in done.history if "eval_loss" in entry]
    assert len(losses) == QUICK[method].epochs
    if method == "sft":
        assert losses[-1] < losses[0]
    # The mix holds both: unsafe prompts gain less than false alarms do.
    gains = [margin(done.model, some) - margin(model, some) for some in (alarms, unsafe)]
    assert gains[1] < gains[0]


def test_dpo_starts_at_log_two(trained):
    _, done, _, method = trained
    first = next(entry for entry in done.history if "loss" in entry)
    # At equal log-ratios, before the adapter does anything; cross-entropy starts wherever the model is.
    assert (abs(first["loss"] - math.log(2)) < 1e-6) == (method == "dpo")


def test_only_the_adapter_is_written(trained):
    _, done, place, method = trained
    assert sorted(path.name for path in place.iterdir()) == ["adapter"]
    names = sorted(path.name for path in (place / "adapter").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", "mitigation.json"]
    note = json.loads((place / "adapter" / "mitigation.json").read_text())
    assert note["method"] == method
    assert note["records"] == done.records == {"align": 6, "benign": 6, "unsafe": 6}
    assert str(place) not in (place / "adapter" / "adapter_config.json").read_text()


def test_a_saved_adapter_is_the_trained_model(trained):
    model, done, place, _ = trained
    again = load_adapter(model, place / "adapter")
    prompts = ["w1 w20", "w2 w22"]
    same = again.log_likelihood(prompts, [YES, NO]).total
    assert same == pytest.approx(done.model.log_likelihood(prompts, [YES, NO]).total, abs=1e-6)
    assert again.source.endswith("+ adapter")


def test_adapters_that_do_not_fit_are_one_line(trained, make_tiny, tmp_path):
    model, _, place, _ = trained
    with pytest.raises(InputError, match="cannot be read"):
        load_adapter(model, tmp_path / "nowhere")
    with pytest.raises(InputError, match="does not fit"):
        load_adapter(make_tiny("gpt2", chat=True), place / "adapter")
    broken = tmp_path / "broken"
    shutil.copytree(place / "adapter", broken)
    (broken / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="does not fit"):
        load_adapter(model, broken)
    (broken / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no adapter_model\.safetensors"):
        load_adapter(model, broken)
    (broken / "mitigation.json").write_text('{"schema": "other"}')
    with pytest.raises(InputError, match="schema"):
        load_adapter(model, broken)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"records": []}, "records: none given"),
        ({"benign": []}, "benign: none given: training on false alarms alone"),
        ({"unsafe": []}, "unsafe: none given"),
        ({"method": "ppo"}, "method 'ppo': expected 'sft' or 'dpo'"),
        ({"recipe": replace(QUICK["sft"], validation=1.0)}, "validation"),
    ],
)
def test_nothing_is_trained_on_false_alarms_alone_or_by_another_method(chat_model, changed, message):
    settings = {"records": ALIGN, "method": "sft", "benign": BENIGN, "unsafe": UNSAFE} | changed
    with pytest.raises(InputError, match=message):
        mitigate(chat_model, **settings)


def test_a_folder_that_is_there_is_seen_before_training(chat_model, tmp_path):
    with pytest.raises(InputError, match="already exists; nothing was trained"):
        mitigate(chat_model, ALIGN, benign=BENIGN, unsafe=UNSAFE, out=tmp_path)


def test_a_missing_extra_is_named(chat_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(MissingExtraError, match=r"touchstone-ml\[training\]"):
        mitigate(chat_model, ALIGN, benign=BENIGN, unsafe=UNSAFE)


def test_recipes_are_the_official_ones():
    sft, dpo = Recipe.of("sft"), Recipe.of("dpo")
    assert (sft.rate, sft.epochs, sft.batch * sft.accumulation, sft.longest, sft.warmup) == (2e-5, 5, 32, 2048, 0.03)
    assert (dpo.rate, dpo.epochs, dpo.batch * dpo.accumulation, dpo.longest, dpo.beta) == (1e-5, 5, 8, 1024, 0.1)
