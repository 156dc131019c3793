"""The provider ``touchstone/<path>`` in Inspect's own runner: replies, batches, steering, bad arguments."""

from __future__ import annotations

from functools import partial

import anyio
import numpy as np
import pytest

pytest.importorskip("inspect_ai")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message
from inspect_ai.tool import tool

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.angular_steering import SteeringPlane
from touchstone.language.inspection import TouchstoneAPI

PROMPTS = ["w1 w2", "w3", "w4 w5 w6 w7", "w8 w9"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, make_tiny):
    """A folder with a tiny chat model, as a user's own."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    model = make_tiny(chat=True)
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plane(saved, tmp_path_factory):
    model = LanguageModel.load(str(saved))
    rng = np.random.default_rng(0)
    points = len(model.sites("attention_input", "mlp_input"))
    shape = (6, points, model.width)
    fitted = SteeringPlane.from_activations(
        rng.normal(size=shape) + 1.0,
        rng.normal(size=shape) - 1.0,
        sites=model.sites("attention_input", "mlp_input"),
        model=model.source,
    )
    return fitted.save(tmp_path_factory.mktemp("plane") / "plane.safetensors")


def ask(name, tmp_path, model_args=None, solver=None):
    task = Task([Sample(input=p, target="w") for p in PROMPTS], solver=solver or generate(), scorer=includes())
    [log] = eval(
        task, model=name, model_args=model_args or {}, max_tokens=6, log_dir=str(tmp_path / "logs"), display="none"
    )
    assert log.status == "success", log.error
    return [sample.output for sample in sorted(log.samples, key=lambda s: s.id)]


def test_replies_are_those_of_the_model_and_tokens_are_counted(saved, tmp_path):
    model = LanguageModel.load(str(saved))
    outputs = ask(f"touchstone/{saved}", tmp_path)
    assert [o.completion for o in outputs] == model.generate(PROMPTS, max_new_tokens=6)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.usage.input_tokens == len(model.encode([prompt])[0])
        assert output.usage.output_tokens == len(model.encode_continuation(output.completion))


def test_tokens_are_counted_without_fetching_anything(saved):
    api = TouchstoneAPI(str(saved))
    assert anyio.run(api.count_text_tokens, "w1 w2 w3") == 3


def test_a_system_message_reaches_the_model(saved, tmp_path):
    model = LanguageModel.load(str(saved))
    outputs = ask(f"touchstone/{saved}", tmp_path, solver=[system_message("w30 w31"), generate()])
    assert [o.completion for o in outputs] == model.generate(PROMPTS, system="w30 w31", max_new_tokens=6)


def test_waiting_calls_are_one_batch(saved, tmp_path, monkeypatch):
    sizes = []
    original = LanguageModel.generate

    def counted(self, prompts, **options):
        sizes.append(len(prompts))
        return original(self, prompts, **options)

    monkeypatch.setattr(LanguageModel, "generate", counted)
    ask(f"touchstone/{saved}", tmp_path)
    assert sum(sizes) == len(PROMPTS)
    assert len(sizes) < len(PROMPTS)


def test_a_plane_as_path_steers_the_model_it_was_fitted_on(saved, plane, tmp_path):
    model = LanguageModel.load(str(saved))
    with SteeringPlane.load(plane).steer(model, 120.0):
        steered = model.generate(PROMPTS, max_new_tokens=6)
    assert steered != model.generate(PROMPTS, max_new_tokens=6)
    for name, arguments in [
        (f"touchstone/{plane}", {"angle": 120, "base": str(saved)}),
        (f"touchstone/{saved}", {"angle": 120.0, "plane": str(plane)}),
    ]:
        assert [o.completion for o in ask(name, tmp_path, arguments)] == steered


def test_closing_undoes_the_steering(saved, plane):
    api = TouchstoneAPI(str(plane), angle=120, base=str(saved))
    plain = LanguageModel.load(str(saved)).generate(PROMPTS, max_new_tokens=6)
    assert api.language_model.generate(PROMPTS, max_new_tokens=6) != plain
    api.close()
    assert api.language_model.generate(PROMPTS, max_new_tokens=6) == plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"angel": 3}, "-M angel: unknown; expected one of angle, base"),
        ({"angle": 3}, "-M angle and a steering plane go together"),
        ({"batch_size": 0}, "-M batch_size=0: expected a whole number"),
        ({"base": "x"}, "-M base: only where the path is a steering plane"),
    ],
)
def test_bad_arguments_are_named(saved, arguments, message):
    with pytest.raises(InputError, match=message):
        TouchstoneAPI(str(saved), **arguments)


def test_a_plane_needs_an_angle(plane):
    with pytest.raises(InputError, match="give both or neither"):
        TouchstoneAPI(str(plane))
    with pytest.raises(InputError, match="expected degrees, a number"):
        TouchstoneAPI(str(plane), angle="up")
    with pytest.raises(InputError, match=r"model 'tiny': .* name the model .* -M base=PATH"):
        TouchstoneAPI(str(plane), angle=1)
    with pytest.raises(InputError, match="already is a plane"):
        TouchstoneAPI(str(plane), plane=str(plane), angle=1)


def test_tools_are_refused_by_name(saved):
    @tool
    def look():
        async def execute(what: str) -> str:
            """Look.

            Args:
                what: what to look at.
            """
            return what

        return execute

    model = get_model(f"touchstone/{saved}")
    with pytest.raises(InputError, match="replies with text only"):
        anyio.run(partial(model.generate, "w1", tools=[look()], config=GenerateConfig(max_tokens=2)))


def test_stop_sequences_end_a_reply(saved):
    model = get_model(f"touchstone/{saved}")

    def ask_once(prompt, **config):
        return anyio.run(partial(model.generate, prompt, config=GenerateConfig(max_tokens=8, **config)))

    # Random weights like to repeat themselves: take a reply with a word that is not its first.
    replies = {p: ask_once(p).completion.split() for p in PROMPTS}
    prompt, words = next((p, r) for p, r in replies.items() if len(set(r)) > 1)
    stop = next(word for word in words if word != words[0])
    cut = ask_once(prompt, stop_seqs=[stop])
    assert cut.completion.split() == words[: words.index(stop)]
    assert cut.stop_reason == "stop"
