"""What the verbs of ``touchstone language over-refusal`` share: options, and how models and prompts are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from touchstone.language.evorefuse.align import Preference
    from touchstone.language.evorefuse.judging import Judge
    from touchstone.language.evorefuse.mutants import Writers
    from touchstone.language.refusal import RefusalJudge
    from touchstone.progress import Bars

Model = Annotated[
    str, typer.Option("--model", help="A folder, a .gguf file, a Hugging Face id, 'default', or a served name.")
]
Endpoint = Annotated[
    str, typer.Option("--endpoint", help="Base URL of an OpenAI-compatible server that serves --model.")
]
System = Annotated[str | None, typer.Option("--system", help="System message.")]
Tokens = Annotated[int, typer.Option("--max-new-tokens", help="Length of a reply.")]
JudgeName = Annotated[
    str, typer.Option("--refusal-judge", help="tfidf, prefix, substring, or a classifier's folder or id.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace what is in --out.")]


def bars() -> Bars:
    from touchstone.progress import Bars

    return Bars()


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def load(name: str, endpoint: str, device: str, bars: Bars) -> Any:
    if endpoint:
        from touchstone.language.endpoint import RemoteModel

        return RemoteModel(endpoint, name)
    from touchstone.language import LanguageModel

    return LanguageModel.load(name, device=device, progress=bars.say)


def local(model: Any, option: str) -> Any:
    if not hasattr(model, "module"):
        raise InputError(f"{option}: needs the model itself, not an endpoint")
    return model


def judge(name: str) -> RefusalJudge:
    from touchstone.language.refusal import RefusalJudge

    if name in ("tfidf", "prefix", "substring"):
        return RefusalJudge(name)  # type: ignore[arg-type]
    return RefusalJudge("classifier", classifier=name)


def writers(
    given: Sequence[str] | None,
    writer: str,
    judges: list[str],
    endpoint: str,
    device: str,
    bars: Bars,
    *,
    drift: bool,
    seed: int,
) -> tuple[list[str], Writers]:
    """Seeds, and what rewrites and judges them: rules, or language models where a writer is named."""
    from touchstone.language.evorefuse.grammar import default_grammar
    from touchstone.language.evorefuse.judging import TargetWordJudge
    from touchstone.language.evorefuse.llm import AskedJudge, asker, llm_writers
    from touchstone.language.evorefuse.rules import default_rules

    grammar = default_grammar()
    if not writer:
        if judges:
            raise InputError("--judge: judges what --writer writes; rules need none")
        if given is None:
            return grammar.seeds(), default_rules(grammar, drift=drift)
        own = grammar.with_requests(given)
        return own.seeds(), default_rules(own, drift=False)
    if not judges:
        raise InputError("--writer: needs --judge, a model that judges harmlessness")
    models = {name: load(name, endpoint, device, bars) for name in dict.fromkeys([writer, *judges])}
    asked = [AskedJudge(asker(models[name], temperature=0.0, max_new_tokens=8), name) for name in dict.fromkeys(judges)]
    panel: list[Judge] = [*asked] if len(asked) > 1 else [*asked, TargetWordJudge()]
    return list(given or grammar.seeds()), llm_writers(asker(models[writer], seed=seed), panel)


def prompts(path: Path) -> list[str]:
    """Prompts of a JSONL file under ``instruction`` or ``prompt``, or of a text file, one a line."""
    from touchstone.files import read_jsonl
    from touchstone.language.prompt import read_prompts

    if path.suffix != ".jsonl":
        return read_prompts(path, "prompts")
    rows = [row | {"instruction": row.get("instruction", row.get("prompt"))} for row in read_jsonl(path)]
    wrong = next((i for i, row in enumerate(rows, start=1) if not isinstance(row["instruction"], str)), None)
    if wrong is not None:
        raise InputError(f"{path}, record {wrong}: expected the text 'instruction' or 'prompt'")
    return [row["instruction"] for row in rows]


def benign(path: Path, model: Any, system: str | None, tokens: int, bars: Bars) -> list[Preference]:
    from touchstone.files import read_jsonl
    from touchstone.language.evorefuse.align import REFUSAL, Preference, answers_of, benign_pairs

    if path.suffix == ".jsonl":
        rows = read_jsonl(path, texts=("prompt", "chosen"))
        return [Preference(row["prompt"], row["chosen"], row.get("rejected") or REFUSAL) for row in rows]
    plain = prompts(path)
    bars.say(f"answering {len(plain)} plain prompts with the model itself")
    return benign_pairs(plain, answers_of(model, system=system, max_new_tokens=tokens))


def remarks(found: Any) -> list[str]:
    lines = [f"no harmless instruction was found from: {text}" for text in found.without]
    if found.disagreements:
        lines.append(
            f"{len(found.disagreements)} candidates on which the judges differ were dropped; --json shows them"
        )
    return lines
