"""The remote protocol against a real OpenAI-compatible server on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.endpoint import RemoteModel


@pytest.fixture(scope="module")
def served(make_tiny, tmp_path_factory) -> Iterator[tuple[LanguageModel, str, str]]:
    """A tiny chat model, the URL at which ``transformers serve`` serves it, and its name there."""
    model = make_tiny(chat=True)
    folder: Path = tmp_path_factory.mktemp("served") / "tiny"
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder.parent / "log").open("wb")
    command = [sys.executable, "-c", "import sys; from transformers.cli.transformers import main; sys.exit(main())"]
    command += ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if server.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        else:
            pytest.fail("transformers serve did not come up in two minutes")
        assert server.poll() is None, (folder.parent / "log").read_text()[-2000:]
        yield model, f"{url}/v1", str(folder)
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def test_remote_replies_equal_local_ones(served):
    model, url, name = served
    remote = RemoteModel(url, name)
    prompts = ["w1 w2 w3", "w4", "w5 w6 w7"]
    done: list[int] = []
    assert remote.generate(prompts, max_new_tokens=6, progress=done.append) == model.generate(prompts, max_new_tokens=6)
    assert sum(done) == 3
    assert remote.generate(["w1"], system="w9", max_new_tokens=6) == model.generate(
        ["w1"], system="w9", max_new_tokens=6
    )


def test_remote_streams(served):
    model, url, name = served
    pieces: list[str] = []
    [reply] = RemoteModel(url, name).generate(
        ["w1 w2 w3"], max_new_tokens=6, stream=lambda i, piece: pieces.append(piece)
    )
    assert "".join(pieces) == reply == model.generate(["w1 w2 w3"], max_new_tokens=6)[0]


def test_errors_of_the_server_are_one_line(served):
    _, url, _ = served
    with pytest.raises(InputError, match="answered 4") as caught:
        RemoteModel(url, "no/such-model", retries=0).generate(["w1"])
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there():
    with pytest.raises(InputError, match="cannot be reached"):
        RemoteModel("http://127.0.0.1:9/v1", "m", retries=0).generate(["w1"])
    with pytest.raises(InputError, match="expected a URL"):
        RemoteModel("127.0.0.1:9", "m")
    with pytest.raises(InputError, match="single string"):
        RemoteModel("http://127.0.0.1:9/v1", "m").generate("w1")
