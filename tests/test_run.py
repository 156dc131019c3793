"""Engines, the journal and files: same results everywhere, nothing computed twice, nothing half-written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from touchstone.engine import LocalEngine, PoolEngine, RayEngine, engine_named
from touchstone.errors import InputError
from touchstone.files import cache_folder, locked, read_text, write_text, written_folder
from touchstone.run import Run


def square(x: int) -> dict[str, int]:
    return {"square": x * x, "process": os.getpid()}


def refuse(x: int) -> int:
    raise InputError(f"item {x}: refused")


def count(log: str, x: int) -> int:
    with Path(log).open("a") as stream:
        stream.write(f"{x}\n")
    if x == 3 and not Path(log + ".second").exists():
        raise KeyboardInterrupt
    return x * 10


@pytest.fixture(scope="module")
def ray_engine():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, configure_logging=False)
    yield RayEngine(workers=2)
    ray.shutdown()


@pytest.mark.parametrize("name", ["local", "pool", "ray"])
def test_engines_agree_and_keep_order(name, request):
    engine = {"local": LocalEngine, "pool": PoolEngine}.get(name, lambda: request.getfixturevalue("ray_engine"))()
    results = Run(engine=engine).map("squares", square, list(range(7)))
    assert [r["square"] for r in results] == [x * x for x in range(7)]
    here = {r["process"] for r in results} == {os.getpid()}
    assert here is (name == "local")
    assert list(engine.map(square, [])) == []
    with pytest.raises(InputError, match="item 1: refused"):
        Run(engine=engine).map("refusals", refuse, [1])


def test_engine_names():
    assert isinstance(engine_named("local"), LocalEngine)
    assert engine_named("local", 3) == PoolEngine(3)
    assert isinstance(engine_named("ray"), RayEngine)
    with pytest.raises(InputError, match="'local' or 'ray'"):
        engine_named("cloud")


def test_the_journal_continues_where_a_run_stopped(tmp_path):
    log = str(tmp_path / "log")
    run = Run(journal=tmp_path / "journal")
    with pytest.raises(KeyboardInterrupt):
        run.map("step", partial(count, log), [1, 2, 3, 4])
    Path(log + ".second").touch()
    assert run.map("step", partial(count, log), [1, 2, 3, 4]) == [10, 20, 30, 40]
    assert Path(log).read_text().split() == ["1", "2", "3", "3", "4"]
    assert run.map("another step", partial(count, log), [1]) == [10]


def test_progress_counts_every_item_once(tmp_path):
    from contextlib import contextmanager

    class Counting:
        moved = 0

        @contextmanager
        def bar(self, label, total):
            assert (label, total) == ("squares", 5)

            def advance(steps=1):
                self.moved += steps

            yield advance

    for _ in range(2):
        progress = Counting()
        Run(journal=tmp_path / "journal", progress=progress).map("squares", square, list(range(5)))
        assert progress.moved == 5


def test_a_folder_is_whole_or_absent(tmp_path):
    with pytest.raises(InputError), written_folder(tmp_path / "f") as new:
        (new / "half").write_text((new / "missing").read_text())
    assert list(tmp_path.iterdir()) == []
    with written_folder(tmp_path / "f") as new:
        (new / "whole").touch()
        assert not (tmp_path / "f").exists()
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["whole"]
    with pytest.raises(RuntimeError), written_folder(tmp_path / "f", replace=True):
        raise RuntimeError
    assert (tmp_path / "f" / "whole").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_text_files(tmp_path):
    write_text(tmp_path / "a" / "t.txt", "é\n")
    assert read_text(tmp_path / "a" / "t.txt") == "é\n"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["t.txt"]
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"prompts .*latin: not UTF-8 text \(byte 3\)"):
        read_text(tmp_path / "latin", "prompts")
    with pytest.raises(InputError, match="cannot be read"):
        read_text(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "latin" / "t.txt", "x")


def test_two_runs_cannot_hold_one_folder(tmp_path):
    import subprocess
    import sys

    code = f"from touchstone.files import locked\nwith locked({str(tmp_path / 'out')!r}): print('held')"
    with locked(tmp_path / "out"):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "another run is writing there" in second.stderr
    third = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert third.stdout == "held\n"


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("TOUCHSTONE_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("TOUCHSTONE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/touchstone")
