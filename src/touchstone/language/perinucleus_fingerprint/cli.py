"""``touchstone language fingerprint``: make keys, embed them, verify a service, trace a leak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Dtype, Json, Model, Seed

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["app"]

app = typer.Typer(
    name="fingerprint",
    help="Prove from text alone that a service runs your model, and which copy of it leaked.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Ledger = Annotated[Path, typer.Argument(help="Ledger of fingerprints, a JSON file.")]


@app.command()
def make(
    out: Annotated[Path, typer.Option("--out", help="Ledger to write; keep it like a private key.")],
    num: Annotated[int, typer.Option("--num", min=1, help="Fingerprints.")] = 64,
    t: Annotated[float, typer.Option("--t", help="Mass of the nucleus.")] = 0.8,
    k: Annotated[int, typer.Option("--k", help="Candidates just outside it; chance is 1/k.")] = 3,
    key_len: Annotated[int, typer.Option(help="Tokens of a key.")] = 16,
    resp_len: Annotated[int, typer.Option(help="Tokens of a response.")] = 1,
    responses: Annotated[int, typer.Option(help="Responses for each key.")] = 1,
    scheme: Annotated[
        str, typer.Option(help="perinucleus; or a rival: english-random, random, greedy, uniform.")
    ] = "perinucleus",
    keys: Annotated[str, typer.Option(help="'model', 'template', or a text file with a key a line.")] = "model",
    secret: Annotated[
        Path | None, typer.Option(help="File of 16 bytes or more from which responses are drawn.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Keys are users' messages, not beginnings of texts.")] = False,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Draw keys and responses of a base model."""
    from touchstone.language.perinucleus_fingerprint.generating import generate_fingerprints

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    given: Any = _lines(Path(keys)) if keys not in ("model", "template") else keys
    hidden = _bytes(secret) if secret is not None else None
    loaded, bars = _load(model, device, dtype)
    if hidden is None and scheme == "perinucleus":
        bars.say("no --secret: whoever learns the seed can draw the responses again")
    with bars.bar("drawing fingerprints", num) as advance:
        pairs = generate_fingerprints(
            loaded, num, t=t, k=k, key_len=key_len, resp_len=resp_len, n_responses=responses, scheme=scheme, keys=given,
            secret=hidden, chat=chat, seed=seed, progress=advance,
        )  # fmt: skip
    pairs.save(out)
    _give({"ledger": str(out), "fingerprints": len(pairs), "merkle_root": pairs.root, "chance": pairs.chance}, as_json)


@app.command()
def embed(
    ledger: Ledger,
    out: Annotated[Path, typer.Option("--out", help="Folder for the fingerprinted model, or the file of an adapter.")],
    trainable: Annotated[str, typer.Option(help="all, mlp, mlp:-6 (the last six blocks') or lora.")] = "mlp:-6",
    lam: Annotated[float, typer.Option(help="Pull back to the base after each step.")] = 0.75,
    beta: Annotated[float, typer.Option(help="Share of the base model's own text.")] = 0.25,
    lr: Annotated[float, typer.Option(help="Learning rate; 5e-5 is the paper's for all weights.")] = 6e-3,
    steps: Annotated[int, typer.Option(min=1, help="Most optimiser steps.")] = 40,
    decay: Annotated[bool, typer.Option(help="Let the learning rate fall.")] = False,
    wrapper: Annotated[list[str] | None, typer.Option(help="Template with {key} to train under; repeat.")] = None,
    allocation: Annotated[Path | None, typer.Option(help="Allocation that `trace --make` wrote.")] = None,
    recipient: Annotated[str, typer.Option(help="Whose copy this is.")] = "",
    checkpoint: Annotated[Path | None, typer.Option(help="Training state; continued from if it is there.")] = None,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Teach a model its fingerprints and write the copy, or the adapter alone with ``--trainable lora``."""
    from touchstone.files import written_folder
    from touchstone.language.loading import save
    from touchstone.language.lora import save_adapter
    from touchstone.language.perinucleus_fingerprint.collusion import CollusionAllocation
    from touchstone.language.perinucleus_fingerprint.embedding import Fingerprinter
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    pairs = FingerprintSet.load(ledger)
    if bool(recipient) != (allocation is not None):
        raise InputError("--recipient, --allocation: expected both or neither")
    if allocation is not None:
        shared = CollusionAllocation.load(allocation)
        if shared.n_fingerprints != len(pairs):
            raise InputError(f"--allocation: of {shared.n_fingerprints} fingerprints; the ledger has {len(pairs)}")
        pairs = pairs.subset(shared.for_recipient(recipient))
    trainer = Fingerprinter(
        lam=lam, beta=beta, lr=lr, max_steps=steps, wrappers=tuple(wrapper or ()), trainable=trainable, decay=decay,
        seed=seed,
    )  # fmt: skip
    loaded, bars = _load(model, device, dtype)
    place = checkpoint or out.with_name(f"{out.name}.training.safetensors")
    with bars.bar("embedding", steps) as advance:
        found = trainer.fit(loaded, pairs, checkpoint=place, progress=advance)
    if trainable == "lora":
        save_adapter(found.adapter, out)
    else:
        with written_folder(out) as new:
            save(found.model.module, found.model.tokenizer, new)
    if checkpoint is None:
        place.unlink(missing_ok=True)
    if found.stalled:
        bars.say("training stalled before the loss was low: raise --lr or lower --lam")
    numbers = {"steps": len(found.losses), "recall": found.recalls[-1], "stalled": found.stalled}
    _give({"out": str(out), "fingerprints": len(pairs), **numbers}, as_json)


@app.command()
def verify(
    ledger: Ledger,
    queries: Annotated[int, typer.Option(min=1, help="Keys to show; at most, with --sequential.")] = 10,
    alpha: Annotated[float, typer.Option(help="Wanted rate of false claims.")] = 1e-3,
    sequential: Annotated[bool, typer.Option("--sequential", help="Stop as soon as the test decides.")] = False,
    recall: Annotated[float, typer.Option(help="Least recall expected of a copy, for --sequential.")] = 0.6,
    spend: Annotated[bool, typer.Option(help="Mark the keys as shown in the ledger.")] = True,
    endpoint: Annotated[str | None, typer.Option(help="OpenAI-compatible URL; --model is the name it serves.")] = None,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Ask a model or a service; exit code 1 if ownership is not shown."""
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet
    from touchstone.language.perinucleus_fingerprint.verifying import verify as test
    from touchstone.language.perinucleus_fingerprint.verifying import verify_sequentially

    pairs = FingerprintSet.load(ledger)
    if not sequential:
        pairs.unused(queries, seed)
    if endpoint:
        from touchstone.language.endpoint import RemoteModel

        target: Any = RemoteModel(endpoint, model)
    else:
        target, _ = _load(model, device, dtype)
    if sequential:
        found = verify_sequentially(target, pairs, recall=recall, alpha=alpha, most=queries, seed=seed)
    else:
        found = test(target, pairs, queries=queries, alpha=alpha, seed=seed)
    if spend:
        pairs.spend([row["index"] for row in found.transcript]).save(ledger)
    numbers = found.to_dict()
    _give(numbers if as_json else {k: v for k, v in numbers.items() if k not in ("transcript", "positives")}, as_json)
    if not found.owned:
        raise typer.Exit(1)


@app.command()
def trace(
    allocation: Annotated[Path, typer.Argument(help="Allocation of fingerprints to recipients, a safetensors file.")],
    recipients: Annotated[
        Path | None, typer.Option("--make", help="Make it, for the names in this file, a name a line.")
    ] = None,
    num: Annotated[
        int | None, typer.Option("--num", help="Fingerprints in all, with --make; default by the bound.")
    ] = None,
    p: Annotated[
        float | None, typer.Option("--p", help="Chance of each to be in a copy; 1/(2 coalition) if left out.")
    ] = None,
    coalition: Annotated[int, typer.Option(min=1, help="Most recipients that may pool their copies.")] = 3,
    verdict: Annotated[Path | None, typer.Option(help="JSON of `verify --json` whose positives are traced.")] = None,
    score: Annotated[str, typer.Option(help="sum or likelihood.")] = "sum",
    top: Annotated[int, typer.Option(min=1, help="Recipients to show.")] = 10,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Assign fingerprints to recipients, or rank recipients by what a suspect answered."""
    from touchstone.language.perinucleus_fingerprint.collusion import CollusionAllocation

    if (recipients is None) == (verdict is None):
        raise InputError("--make, --verdict: expected one of them")
    if recipients is not None:
        if allocation.exists():
            raise InputError(f"{allocation}: already exists; nothing was written")
        made = CollusionAllocation(_lines(recipients), num, p, coalition, seed=seed)
        made.save(allocation)
        _give({"allocation": str(allocation), "recipients": len(made.recipients), "num": made.n_fingerprints}, as_json)
        return
    assert verdict is not None
    from touchstone.files import read_text

    try:
        record = json.loads(read_text(verdict, "verdict"))
        positives = [int(i) for i in record["positives"]]
        queried = [int(row["index"]) for row in record["transcript"]]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"verdict {verdict}: expected what `fingerprint verify --json` prints") from None
    ranked = CollusionAllocation.load(allocation).trace(positives, score=score, queried=queried)  # type: ignore[arg-type]
    if as_json:
        typer.echo(ranked.head(top).to_json(orient="records"))
    else:
        typer.echo(ranked.head(top).to_string(index=False))


@app.command()
def plan(
    recall: Annotated[float, typer.Option(help="Expected recall after what a host may do.")] = 0.6,
    k: Annotated[int, typer.Option("--k", min=2, help="Candidates; chance is 1/k.")] = 3,
    alpha: Annotated[float, typer.Option(help="Wanted rate of false claims.")] = 1e-3,
    power: Annotated[float, typer.Option(help="Wanted chance to claim what is yours.")] = 0.99,
    proofs: Annotated[int, typer.Option(min=1, help="Proofs to be able to give.")] = 1,
    as_json: Json = False,
) -> None:
    """How many keys to show, and to embed."""
    from dataclasses import asdict

    from touchstone.language.perinucleus_fingerprint.testing import plan_queries

    found = plan_queries(recall=recall, chance=1 / k, alpha=alpha, power=power, proofs=proofs)
    _give(asdict(found), as_json)


def _load(model: str, device: str, dtype: str) -> tuple[LanguageModel, Any]:
    from touchstone.language.model import LanguageModel
    from touchstone.progress import Bars

    bars = Bars()
    return LanguageModel.load(model, device=device, dtype=dtype, progress=bars.say), bars


def _lines(path: Path) -> list[str]:
    from touchstone.files import read_text

    return [line.strip() for line in read_text(path, "list").splitlines() if line.strip()]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"secret {path}: cannot be read ({error.strerror or error})") from None


def _give(numbers: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(numbers, ensure_ascii=False))
        return
    for name, value in numbers.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        typer.echo(f"{name.replace('_', ' '):20}  {shown}")
