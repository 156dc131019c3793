"""Files are whole or absent, and nothing but what was written is read."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.files import read_jsonl, write_bytes, write_jsonl
from touchstone.tensors import read_tensors, write_tensors


def test_bytes_replace_a_file_and_leave_nothing_beside_it(tmp_path):
    place = tmp_path / "new" / "state.bin"
    write_bytes(place, b"one")
    write_bytes(place, b"two")
    assert place.read_bytes() == b"two"
    assert [item.name for item in place.parent.iterdir()] == ["state.bin"]


def test_a_place_that_cannot_be_written_is_one_error_and_changes_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="taken: cannot be written"):
        write_bytes(tmp_path / "taken", b"x")
    assert [item.name for item in tmp_path.iterdir()] == ["taken"]


def test_arrays_and_their_record_come_back_exactly(tmp_path):
    pytest.importorskip("safetensors")
    arrays = {"w": np.arange(6.0).reshape(2, 3).T, "n": np.array([1, 2], dtype=np.int64)}
    place = write_tensors(tmp_path / "a.safetensors", arrays, {"schema": "x/1", "site": "block 3"})
    found, record = read_tensors(place, "x/1", "probe")
    assert record["site"] == "block 3"
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_other_schemas_and_damaged_files_are_refused_by_name(tmp_path):
    pytest.importorskip("safetensors")
    place = write_tensors(tmp_path / "a.safetensors", {"w": np.zeros(2)}, {"schema": "x/1"})
    with pytest.raises(InputError, match=r"probe .*not of schema 'x/2'"):
        read_tensors(place, "x/2", "probe")
    place.write_bytes(place.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"probe .*cannot be read as safetensors"):
        read_tensors(place, "x/1", "probe")
    with pytest.raises(InputError, match=r"probe .*cannot be read"):
        read_tensors(tmp_path / "none", "x/1", "probe")


def test_objects_come_back_line_by_line(tmp_path):
    place = tmp_path / "a.jsonl"
    write_jsonl(place, [{"text": "ö"}, {"text": "b", "n": 1.5}])
    place.write_text(place.read_text(encoding="utf-8").replace("\n", "\n\n"), encoding="utf-8")
    assert read_jsonl(place, texts=["text"]) == [{"text": "ö"}, {"text": "b", "n": 1.5}]
    with pytest.raises(ValueError, match="Out of range"):
        write_jsonl(place, [{"x": float("nan")}])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"text": "a"}\n{', r"notes .*, line 2: not JSON"),
        ("[1]", "line 1: expected a JSON object"),
        ('{"text": " "}', "line 1: expected an object with the text 'text'"),
        ('\n{"text": 3}', "line 2: expected an object with the text 'text'"),
        ("\n\n", "holds no record"),
    ],
)
def test_lines_that_are_not_such_objects_are_named(tmp_path, content, match):
    place = tmp_path / "a.jsonl"
    place.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=match):
        read_jsonl(place, "notes", texts=["text"])
