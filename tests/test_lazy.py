"""Names that are imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from touchstone.errors import MissingExtraError
from touchstone.lazy import exports


def test_a_name_is_imported_from_its_module():
    resolve = exports("touchstone", {"InputError": "errors"})
    from touchstone.errors import InputError

    assert resolve("InputError") is InputError
    with pytest.raises(AttributeError, match="module 'touchstone' has no attribute 'nothing'"):
        resolve("nothing")


def test_a_missing_library_names_the_extra_and_a_missing_module_of_ours_does_not(tmp_path, monkeypatch):
    package = tmp_path / "demo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "heavy.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.syspath_prepend(str(tmp_path))
    resolve = exports("demo", {"Thing": "heavy", "Gone": "gone"})
    with pytest.raises(MissingExtraError, match=r"touchstone-ml\[language\]"):
        resolve("Thing")
    with pytest.raises(ModuleNotFoundError, match="gone"):
        resolve("Gone")


def test_importing_the_methods_loads_neither_torch_nor_scikit_learn():
    methods = ["angular_steering", "test_awareness", "evorefuse", "deep_value_benchmark", "isolation_continuity"]
    methods += ["largo", "perinucleus_fingerprint", "loro", "fairness_reward_model", "unlearned_extraction"]
    methods += ["knowledge_unlearning_eval"]
    lines = [f"import touchstone.language.{name}" for name in methods]
    script = "; ".join(
        [*lines, "import sys", "print([m for m in ('torch', 'sklearn', 'transformers') if m in sys.modules])"]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
