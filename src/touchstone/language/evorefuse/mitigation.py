"""Teach a model to refuse less: LoRA by supervised fine-tuning or DPO on an alignment set, with ``trl`` and ``peft``.

An alignment set alone flips the shortcut: where all harmless prompts carry alarming words and all harmful ones do too,
a model learns to refuse the plain ones. So plain harmless and unsafe prompts are always mixed in, and without them
nothing is trained.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from touchstone.errors import InputError, MissingExtraError
from touchstone.files import read_text, written_folder
from touchstone.language.evorefuse.align import Preference

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Mitigated", "Recipe", "load_adapter", "mitigate"]

_RECORD = "mitigation.json"
_WEIGHTS = "adapter_model.safetensors"
_SCHEMA = "touchstone.evorefuse.adapter/1"


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes
    ----------
    rate : peak learning rate, cosine schedule.
    epochs, batch, accumulation : passes over the data, records at once, and batches a step.
    longest : tokens after which a text is cut.
    warmup : share of the steps in which the rate rises.
    rank, alpha, dropout : of LoRA, on all linear layers; rank and alpha are those of LLaMA-Factory.
    beta : of DPO.
    validation : share of the records that is held out.
    max_steps : steps in all; 0 leaves it to ``epochs``.
    """

    rate: float
    epochs: float = 5.0
    batch: int = 4
    accumulation: int = 8
    longest: int = 2048
    warmup: float = 0.03
    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    beta: float = 0.1
    validation: float = 0.1
    max_steps: int = 0

    @classmethod
    def of(cls, method: str) -> Recipe:
        """The official code's settings for ``sft`` or ``dpo``."""
        if method == "sft":
            return cls(rate=2e-5)
        if method == "dpo":
            return cls(rate=1e-5, batch=1, longest=1024)
        raise InputError(f"method {method!r}: expected 'sft' or 'dpo'")


@dataclass(frozen=True)
class Mitigated:
    """A trained model.

    Attributes
    ----------
    model : a copy of the model with the adapter merged into its weights.
    history : losses by step and epoch, as the trainer logged them.
    records : number of records trained on, by kind.
    adapter : folder of the adapter; ``None`` if none was asked for.
    """

    model: LanguageModel
    history: list[dict[str, float]]
    records: dict[str, int] = field(default_factory=dict)
    adapter: Path | None = None


def mitigate(
    model: LanguageModel,
    records: Sequence[Preference],
    method: Literal["sft", "dpo"] = "sft",
    *,
    benign: Sequence[Preference],
    unsafe: Sequence[Preference],
    recipe: Recipe | None = None,
    system: str | None = None,
    out: str | Path | None = None,
    replace: bool = False,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Mitigated:
    """Train a LoRA adapter; the model itself stays as it is.

    Parameters
    ----------
    records : the alignment set, see :func:`build_align`.
    method : ``"sft"`` learns the chosen replies; ``"dpo"`` prefers them to the rejected ones. In the paper DPO refuses
        least and loses the most safety.
    benign : plain harmless prompts with answers, see :func:`benign_pairs`.
    unsafe : prompts that must go on being refused, see :func:`unsafe_pairs`. They are yours; none are shipped.
    recipe : ``None`` takes the official code's for the method.
    system : system message of all prompts.
    out : folder for the adapter (safetensors and JSON); ``None`` writes nothing.
    replace : whether a folder that is there is replaced.
    seed : of the adapter's start, the order of the data and the held-out part.
    options : further arguments of ``trl``'s ``SFTConfig`` or ``DPOConfig``, such as ``{"bf16": True}``.

    Raises
    ------
    InputError
        If there are no records, or no benign or no unsafe ones.
    MissingExtraError
        If ``trl`` or ``peft`` is not installed.
    """
    kinds = {"align": list(records), "benign": list(benign), "unsafe": list(unsafe)}
    for kind, mine in kinds.items():
        if not mine:
            why = (
                "" if kind == "align" else ": training on false alarms alone can turn the model to refuse plain prompts"
            )
            raise InputError(f"{'records' if kind == 'align' else kind}: none given{why}")
    recipe = recipe or Recipe.of(method)
    Recipe.of(method)
    if not 0 < recipe.validation < 1:
        raise InputError(f"validation {recipe.validation}: expected a share between 0 and 1")
    if out is not None and Path(out).exists() and not replace:
        raise InputError(f"{out}: already exists; nothing was trained")
    try:
        import datasets  # noqa: F401
        import peft  # noqa: F401
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtraError("Training with trl and peft", "training") from None
    with tempfile.TemporaryDirectory() as scratch:
        trained, history = _trained(model, kinds, method, recipe, system, seed, options or {}, scratch)
        counts = {kind: len(mine) for kind, mine in kinds.items()}
        note = {"schema": _SCHEMA, "method": method, "recipe": asdict(recipe), "seed": seed, "records": counts}
        folder = Path(scratch) / "adapter" if out is None else Path(out)
        _save(trained, folder, note | {"model": model.source, "history": history}, replace)
        return Mitigated(load_adapter(model, folder), history, counts, None if out is None else folder)


def load_adapter(model: LanguageModel, folder: str | Path) -> LanguageModel:
    """A copy of ``model`` with the adapter in ``folder`` merged into its weights.

    Raises
    ------
    InputError
        If the folder holds no adapter of this kind, or one of another architecture.
    """
    try:
        import torch
        from peft import PeftModel
        from safetensors import SafetensorError
    except ImportError:
        raise MissingExtraError("Loading an adapter", "training") from None
    from touchstone.language.model import LanguageModel

    place = Path(folder)
    try:
        note = json.loads(read_text(place / _RECORD, "adapter"))
        if note["schema"] != _SCHEMA:
            raise InputError(f"adapter {place}: expected schema {_SCHEMA!r}")
        if not (place / _WEIGHTS).is_file():
            raise InputError(f"adapter {place}: no {_WEIGHTS} there")
        with torch.random.fork_rng(), warnings.catch_warnings():
            # About names of arguments between peft and transformers.
            warnings.simplefilter("ignore", FutureWarning)
            module = PeftModel.from_pretrained(copy.deepcopy(model.module), str(place)).merge_and_unload()
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        detail = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"adapter {place}: does not fit {model.source} ({detail[:160]})") from None
    return LanguageModel(module, model.tokenizer, source=f"{model.source} + {place.name}", threads=model.threads)


def _save(trained: Any, folder: Path, note: dict[str, Any], replace: bool) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Not save_pretrained: it looks the base model up on the hub and writes a model card.
    state = get_peft_model_state_dict(trained, save_embedding_layers=False)
    config = copy.deepcopy(trained.peft_config["default"])
    config.inference_mode = True
    config.base_model_name_or_path = note["model"]
    with written_folder(folder, replace=replace) as new:
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in state.items()}, new / _WEIGHTS, metadata={"format": "pt"}
        )
        config.save_pretrained(str(new))
        # Private by default, unlike the files beside it.
        (new / _WEIGHTS).chmod(0o644)
        (new / _RECORD).write_text(json.dumps(note, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _trained(
    model: LanguageModel,
    kinds: dict[str, list[Preference]],
    method: str,
    recipe: Recipe,
    system: str | None,
    seed: int,
    options: Mapping[str, Any],
    scratch: str,
) -> tuple[Any, list[dict[str, float]]]:
    """The model with its adapter, and the trainer's log."""
    from datasets import Dataset
    from peft import LoraConfig

    from touchstone.language import threads

    rows = [_row(model, record, method, system) for mine in kinds.values() for record in mine]
    order = np.random.default_rng(seed).permutation(len(rows))
    held = max(1, round(recipe.validation * len(rows)))
    with _quietly(), threads.suiting(model):
        trainer_class, config_class, own = _trainer(method, recipe)
        arguments: dict[str, Any] = {
            "output_dir": scratch,
            "learning_rate": recipe.rate,
            "num_train_epochs": recipe.epochs,
            "max_steps": recipe.max_steps or -1,
            "per_device_train_batch_size": recipe.batch,
            "per_device_eval_batch_size": recipe.batch,
            "gradient_accumulation_steps": recipe.accumulation,
            "lr_scheduler_type": "cosine",
            "warmup_steps": recipe.warmup,
            "max_length": recipe.longest,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "report_to": "none",
            "push_to_hub": False,
            "disable_tqdm": True,
            "seed": seed,
            "use_cpu": model.device.type == "cpu",
            "bf16": False,
            "gradient_checkpointing": model.device.type != "cpu",
            **own,
            **options,
        }
        # Copies, because trainers rewrite the forward pass of the model and the padding of the tokenizer.
        trainer = trainer_class(
            model=copy.deepcopy(model.module),
            args=config_class(**arguments),
            train_dataset=Dataset.from_list([rows[i] for i in order[held:]]),
            eval_dataset=Dataset.from_list([rows[i] for i in order[:held]]),
            processing_class=copy.deepcopy(model.tokenizer),
            peft_config=LoraConfig(
                r=recipe.rank,
                lora_alpha=recipe.alpha,
                lora_dropout=recipe.dropout,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )
        # The log is in the result; it would also be printed.
        from transformers.trainer_callback import PrinterCallback

        trainer.remove_callback(PrinterCallback)
        trainer.train()
    numbers = [
        {key: float(value) for key, value in entry.items() if isinstance(value, int | float) and np.isfinite(value)}
        for entry in trainer.state.log_history
    ]
    return trainer.model, numbers


def _trainer(method: str, recipe: Recipe) -> tuple[Any, Any, dict[str, Any]]:
    """Trainer, its configuration and the arguments of this method alone."""
    if method == "sft":
        from trl import SFTConfig, SFTTrainer

        return SFTTrainer, SFTConfig, {"completion_only_loss": True}
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer, DPOConfig, {"beta": recipe.beta, "loss_type": ["sigmoid"]}


def _row(model: LanguageModel, record: Preference, method: str, system: str | None) -> dict[str, Any]:
    """A record as ``trl`` reads it: messages where the model has a chat template, texts where not."""

    def reply(text: str) -> Any:
        return [{"role": "assistant", "content": text}] if templated else text

    templated = getattr(model.tokenizer, "chat_template", None) is not None
    prompt: Any = model.render(record.prompt, system=system)
    if templated:
        first = [] if system is None else [{"role": "system", "content": system}]
        prompt = [*first, {"role": "user", "content": record.prompt}]
    if method == "sft":
        return {"prompt": prompt, "completion": reply(record.chosen)}
    return {"prompt": prompt, "chosen": reply(record.chosen), "rejected": reply(record.rejected)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Nothing is sent anywhere, no bar is drawn, and global random states are as before at the end."""
    import datasets
    import torch
    from huggingface_hub import constants

    told, bars = constants.HF_HUB_DISABLE_TELEMETRY, datasets.is_progress_bar_enabled()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    datasets.disable_progress_bars()
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            # About names of arguments between trl and transformers.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        constants.HF_HUB_DISABLE_TELEMETRY = told
        if bars:
            datasets.enable_progress_bars()
