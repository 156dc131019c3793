"""Every example runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory) -> Iterator[dict[Path, Future[Done]]]:
    """Those examples that were asked for, two at a time: most of an example is reading the model."""
    wanted = [item.callspec.params["example"] for item in request.session.items if item.fspath == request.node.fspath]

    def run(example: Path) -> Done:
        folder = tmp_path_factory.mktemp(example.stem, numbered=True)
        one = os.environ | {"TOUCHSTONE_THREADS": "1"}
        return subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=folder, env=one)

    with ThreadPoolExecutor(2) as pool:
        yield {example: pool.submit(run, example) for example in wanted}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, runs):
    done = runs[example].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
