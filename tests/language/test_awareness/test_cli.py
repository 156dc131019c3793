"""The commands, with good and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.test_awareness.cli import app
from touchstone.language.test_awareness.features import Features
from touchstone.language.test_awareness.pairs import build_pairs, load_pairs, save_pairs
from touchstone.language.test_awareness.probe import AwarenessProbe


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(match: str, *arguments: str) -> None:
    with pytest.raises(InputError, match=match):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory, real_model) -> Path:
    """A probe of the embedded model, fitted by the command."""
    folder = tmp_path_factory.mktemp("probe")
    save_pairs(build_pairs(n=40, tokenise=real_model.encode_continuation), folder / "pairs.json")
    out = folder / "awareness.safetensors"
    said = call("probe", "--pairs", str(folder / "pairs.json"), "--out", str(out), "--json")
    record = json.loads(said)
    assert record["probe"] == str(out)
    assert record["words_accuracy"] == 0.5
    assert len(record["layers"]) == 31
    assert max(layer["test_accuracy"] for layer in record["layers"]) > 0.85
    return out


def test_help_lists_the_verbs() -> None:
    said = call("--help")
    assert all(verb in said for verb in ("pairs", "probe", "edit", "monitor", "run"))
    assert all(verb in call("edit", "--help") for verb in ("apply", "export"))


def test_pairs_are_built_looked_at_and_crossed(tmp_path: Path) -> None:
    file = tmp_path / "pairs.json"
    assert "12 pairs" in call("pairs", "--n", "12", "--out", str(file))
    assert len(load_pairs(file)) == 12
    assert json.loads(call("pairs", str(file), "--json"))["schema"] == "touchstone.pairs/1"
    assert len(json.loads(call("pairs", str(file), "--grid", "--json"))) == 48
    fails("lengths differ by more than 0 tokens", "pairs", str(file), "--max-gap", "0")
    fails("make only", "pairs", "--n", "500")
    fails("cannot be read", "pairs", str(tmp_path / "none.json"))


def test_templates_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "templates.json"
    file.write_text(json.dumps([{"text": "Call {who} now, please.", "real": ["Anna"], "hypothetical": ["Foo"]}]))
    assert "Call Anna now" in call("pairs", "--templates", str(file), "--n", "1", "--max-gap", "5")
    for content, message in (
        ("{", "expected a JSON list"),
        ("[]", "holds none"),
        ('[{"text": "x"}]', "expected a JSON"),
    ):
        file.write_text(content)
        fails(message, "pairs", "--templates", str(file))
    file.write_text('[{"text": "no slot", "real": ["a"], "hypothetical": ["b"]}]')
    fails("at least one slot", "pairs", "--templates", str(file))


def test_the_edit_is_exported_and_applied(probe: Path, tmp_path: Path) -> None:
    adapter, edited = tmp_path / "adapter", tmp_path / "edited"
    assert "21 rows moved" in call("edit", "export", str(probe), "--out", str(adapter), "--base", "owner/name")
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "owner/name"
    record = json.loads(
        call(
            "edit", "apply", str(probe), "--out", str(edited), "--sign", "-1", "--k", "30", "--rank", "layer", "--json"
        )
    )
    assert record["k"] == sum(record["layer_histogram"]) == 30
    assert record["layer_histogram"] == [1] * 30
    assert record["alpha"] < 0
    assert (edited / "model.safetensors").is_file()
    fails("already exists", "edit", "apply", str(probe), "--out", str(edited))
    fails("--rank 'x'", "edit", "export", str(probe), "--out", str(tmp_path / "x"), "--rank", "x")
    fails("sign 3", "edit", "export", str(probe), "--out", str(tmp_path / "x"), "--sign", "3")
    fails("probe", "edit", "export", str(tmp_path / "none"), "--out", str(tmp_path / "x"))


def test_a_benchmark_is_watched(probe: Path, tmp_path: Path) -> None:
    items, out = tmp_path / "items.txt", tmp_path / "table.csv"
    items.write_text("Book a table at Foo Bar for two.\nBook a table at Borchardt for two.\n")
    said = call("monitor", str(probe), str(items), "--top", "1", "--out", str(out))
    assert "Foo Bar" in said
    assert "Borchardt" not in said
    assert len(out.read_text().splitlines()) == 3
    rows = json.loads(call("monitor", str(probe), str(items), "--reference", str(items), "--json"))
    assert [row["item"] for row in rows] == [0, 1]
    fails("items .*cannot be read", "monitor", str(probe), str(tmp_path / "none.txt"))
    fails("probe", "monitor", str(items), str(items))


def test_the_pipeline_is_run_on_a_local_folder(organism, organism_pairs, tmp_path: Path) -> None:
    # An organism's folder is a model like any other; its language knows no system lines, so that the run ends there.
    one = organism("a")
    one.model.module.save_pretrained(tmp_path / "model")
    one.model.tokenizer.save_pretrained(tmp_path / "model")
    pairs = save_pairs(organism_pairs(30), tmp_path / "pairs.json")
    fails(
        "no aware trace",
        *("run", "--model", str(tmp_path / "model"), "--pairs", str(pairs), "--out", str(tmp_path / "run")),
        *("--max-new-tokens", "10", "--temperature", "1"),
    )
    assert (tmp_path / "run" / "labels.jsonl").is_file()


def test_a_model_that_does_not_reason_is_run_by_its_cues(real_model, tmp_path: Path) -> None:
    pairs = build_pairs(n=32, tokenise=real_model.encode_continuation)
    file, few = save_pairs(pairs, tmp_path / "pairs.json"), save_pairs(pairs[:1], tmp_path / "few.json")
    said = call(
        *("run", "--source", "cues", "--end", "", "--pairs", str(file), "--actions", str(few), "--randoms", "1"),
        *("--max-new-tokens", "2", "--temperature", "0", "--out", str(tmp_path / "run"), "--json"),
    )
    found = json.loads(said)
    assert {"probe-accuracy", "executed-raised"} <= {finding["id"] for finding in found["findings"]}
    assert (tmp_path / "run" / "evidence" / "report.html").is_file()
    assert isinstance(Features.load(tmp_path / "run" / "features.safetensors"), Features)
    assert AwarenessProbe.load(tmp_path / "run" / "probe.safetensors").layer_ > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("probe", "--out", "x.bin"), "ends in .safetensors"),
        (("probe", "--pairs", "a", "--labels", "b"), "not both"),
        (("probe", "--kind", "svm"), "kind 'svm'"),
        (("run", "--how", "x"), "--how 'x': expected auto, edit or residual"),
        (("run", "--judge", "me"), "--judge 'me'"),
        (("run", "--judge", "http://localhost:1/v1"), "--judge-model"),
        (("run", "--source", "x"), "--source 'x'"),
        (("run", "--pairs", "none.json"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    fails(message, *arguments)
