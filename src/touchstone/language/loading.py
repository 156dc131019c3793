"""Where models come from: the embedded default, a local folder, a GGUF file, a Hugging Face id."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from touchstone.errors import InputError, MissingExtraError, TouchstoneError
from touchstone.language import embedded

__all__ = ["device_named", "dtype_named", "load", "save", "save_dequantised"]

Say = Callable[[str], None]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def load(
    source: str | Path, *, device: str = "auto", dtype: str = "float32", progress: Say | None = None
) -> tuple[Any, Any, str]:
    """Model, tokenizer and name of ``source``; see :meth:`LanguageModel.load`."""
    say = progress or (lambda line: None)
    place, kind = device_named(device), dtype_named(dtype)
    text = str(source)
    if text in embedded.NAMES:
        folder = embedded.fetch(progress=say)
        try:
            return *_load_folder(folder, place, kind), embedded.NAME
        except InputError:
            # The cache is ours to mend: a disk that filled up or a power cut must not need a person.
            say("the cached default model is damaged; making it anew")
            return *_load_folder(embedded.fetch(force=True, progress=say), place, kind), embedded.NAME
    path = Path(source).expanduser()
    if path.suffix.lower() in _PICKLES:
        raise InputError(f"model {text}: a pickled file; expected safetensors or GGUF (pickles can run code)")
    if path.suffix.lower() == ".gguf" or path.is_file():
        return *_load_gguf(path, place, kind, say), path.name
    if path.is_dir():
        return *_load_folder(path, place, kind), path.name
    if text.startswith((".", "/", "~")) or text.count("/") > 1 or not text or "/" not in text:
        known = ", ".join(embedded.NAMES)
        raise InputError(f"model {text!r}: no such file or folder, and not a Hugging Face id or one of: {known}")
    say(f"loading {text}")
    return *_load_hub(text, place, kind), text


def device_named(name: str) -> torch.device:
    """``"auto"`` is the GPU where there is one; raises :class:`InputError` if ``name`` is not here."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device {name!r}: not available here; expected 'auto', 'cpu', 'cuda' or 'mps'") from None
    return device


def dtype_named(name: str) -> torch.dtype:
    """The torch type called ``name``; raises :class:`InputError` if it is not one to load a model in."""
    if name not in _DTYPES:
        raise InputError(f"dtype {name!r}: expected one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _load_folder(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    _look_at(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _reading(str(folder)):
        module, notes = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if notes["missing_keys"]:
        # transformers fills them with random numbers and goes on.
        raise InputError(f"model {folder}: the weights lack {sorted(notes['missing_keys'])[0]}")
    return module.to(device), tokenizer


def _look_at(folder: Path) -> None:
    """Name what is wrong with a model folder before transformers describes it at length."""
    if not (folder / "config.json").is_file():
        raise InputError(f"model {folder}: no config.json there; expected a folder saved by transformers")
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"model {folder}: config.json is damaged") from None
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = [file.name for file in folder.iterdir() if file.suffix in _PICKLES]
        if pickles:
            raise InputError(f"model {folder}: holds {sorted(pickles)[0]}, a pickle; expected model.safetensors")
        raise InputError(f"model {folder}: no model.safetensors there")
    from safetensors import SafetensorError, safe_open

    for file in weights:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise InputError(f"model {folder}: {file.name} is damaged or cut short ({error})") from None


def _load_gguf(path: Path, device: torch.device, dtype: torch.dtype, say: Say) -> tuple[Any, Any]:
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise InputError(f"model {path}: cannot be read ({error.strerror or error})") from None
    if magic != b"GGUF":
        raise InputError(f"model {path}: not a GGUF file (it does not start with 'GGUF')")
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtraError("Loading a GGUF file", "language") from None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    say(f"dequantising {path.name}")
    with _reading(str(path)):
        module = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    _forget_quantisation(module)
    return module.to(device), tokenizer


def _forget_quantisation(module: Any) -> None:
    """Drop the record of quantisation: the weights are plain floats now, and with it they cannot be saved."""
    for holder in (module, module.config):
        for name in ("quantization_config", "hf_quantizer", "is_quantized", "quantization_method"):
            if name in vars(holder):
                delattr(holder, name)


def save(module: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer into a folder that is there, as safetensors that ``from_pretrained`` reads.

    Unlike ``save_pretrained`` it draws no bar. Weights that share their memory are written once: a head that is tied to
    the embedding is made of it when the model is read.
    """
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in module.state_dict().items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            weights[name] = value.detach().cpu().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    module.config.save_pretrained(folder)
    module.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_dequantised(gguf_file: Path, folder: Path, say: Say) -> None:
    """Dequantise a GGUF file and save it as float32 safetensors with its tokenizer."""
    module, tokenizer = _load_gguf(gguf_file, torch.device("cpu"), torch.float32, say)
    from transformers import AutoModelForCausalLM

    # transformers refuses to save a model that it has loaded from GGUF: move the weights into a fresh one.
    with torch.device("meta"):
        fresh = AutoModelForCausalLM.from_config(module.config)
    fresh.load_state_dict(module.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = module.generation_config
    say("saving it as safetensors")
    from safetensors import SafetensorError

    with _quiet():
        try:
            fresh.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{folder.parent}: cannot be written ({error})") from None


def _load_hub(name: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _reading(name):
        module = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, use_safetensors=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return module.to(device), tokenizer


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn what transformers raises while it reads ``name`` into one clear line."""
    try:
        with _quiet():
            yield
    except TouchstoneError:
        raise
    except Exception as error:
        # A damaged file can make its reader raise anything, bare Exception included.
        offline = "" if os.path.exists(name) else " (no network, or no such model)"
        detail = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"model {name}: cannot be loaded{offline}: {type(error).__name__}: {detail[:200]}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the bars and advice of transformers off the terminal."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        # The GGUF reader's bar ignores that switch.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        if bars:
            logging.enable_progress_bar()
        logging.set_verbosity(level)
