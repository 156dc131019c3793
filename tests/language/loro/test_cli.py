"""`touchstone language obfuscate`: every verb with good input, and bad input of each kind."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.loro.cli import app


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_tiny) -> Path:
    folder = tmp_path_factory.mktemp("obfuscate")
    public = make_tiny(chat=True)
    public.module.save_pretrained(folder / "public")
    private = make_tiny(chat=True)
    with torch.no_grad():
        for name, weight in private.module.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.add_(1e-4 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))
    private.module.save_pretrained(folder / "private")
    for name in ("public", "private"):
        public.tokenizer.save_pretrained(folder / name)
    return folder


def run(*arguments: object):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_protect_run_and_audit(place, tmp_path):
    out = tmp_path / "p"
    options = ["--rank", "2", "--policy", "weights_only", "--seed", "0"]
    shown = json.loads(run("protect", place / "private", "--out", out, *options, "--json").stdout)
    assert shown["layers"] >= 21
    assert {path.name for path in out.iterdir()} == {
        "ree.safetensors", "config.json", "secrets.safetensors", "THREATS.md",
    }  # fmt: skip
    ask = ["run", out, "w1 w2", "--model", place / "private", "--max-new-tokens", "4", "--json"]
    inside = json.loads(run(*ask).stdout)
    assert inside["bytes"]["sent"] > 0 < inside["bytes"]["received"]
    assert json.loads(run(*ask, "--in-process").stdout)["replies"] == inside["replies"]
    assert json.loads(run(*ask, "--alone").stdout)["replies"] != inside["replies"]

    rows = json.loads(
        run("audit", out, "--model", place / "private", "--public", place / "public", "--most", "3", "--json").stdout
    )
    assert len(rows) == 3
    assert all(row["error"] == pytest.approx(row["predicted"], rel=0.3) for row in rows)
    assert "relative error" in run("audit", out, "--model", place / "private", "--public", place / "public").output


def test_rank_for_an_error():
    shown = json.loads(run("rank", "576", "576", "--error", "0.286", "--json").stdout)
    assert shown["rank"] == pytest.approx(24, abs=1)
    assert "fwht" in run("rank", "64", "64", "--error", "1.0").output


def test_bad_input(place, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="already exists"):
        run("protect", place / "private", "--out", tmp_path / "there")
    with pytest.raises(InputError, match="rank 4000"):
        run("protect", place / "private", "--out", tmp_path / "x", "--rank", "4000")
    with pytest.raises(InputError, match="mask 'no'"):
        run("protect", place / "private", "--out", tmp_path / "x", "--mask", "no")
    assert not (tmp_path / "x").exists()
    with pytest.raises(InputError, match="protected model"):
        run("run", tmp_path / "none", "w1", "--model", place / "private")
    run("protect", place / "private", "--out", tmp_path / "p", "--rank", "2", "--policy", "weights_only", "--seed", "0")
    with pytest.raises(InputError, match="--public"):
        run("audit", tmp_path / "p", "--model", place / "private", "--public", place / "private")
