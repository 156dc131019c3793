"""Keys that read like text and responses just outside the nucleus of what the model would say, and rival schemes."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from touchstone.errors import InputError
from touchstone.language.perinucleus_fingerprint.fingerprints import Fingerprint, FingerprintSet
from touchstone.language.perinucleus_fingerprint.rows import continued
from touchstone.language.perinucleus_fingerprint.words import WORDS, sentence

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["SCHEMES", "generate_fingerprints", "nucleus_edge"]

SCHEMES = ("perinucleus", "english-random", "random", "greedy", "uniform")
_WORD = re.compile(r"[A-Za-z0-9]{2,}")
_BATCH = 64


def nucleus_edge(p: NDArray[np.floating], t: float) -> tuple[NDArray[np.intp], int]:
    """Tokens of ``p`` [vocabulary], likeliest first, and the rank of the last one inside the nucleus of mass ``t``."""
    order = np.argsort(-p, kind="stable")
    # In float64: in bfloat16 the sums near t shift by whole tokens.
    mass = np.cumsum(p[order].astype(np.float64))
    # Sums such as .5 + .25 are exact, but .1 + .2 + .5 are not: a last bit must not move the edge.
    return order, min(int(np.searchsorted(mass, t - 1e-12)), len(p) - 1)


def generate_fingerprints(
    model: LanguageModel,
    n: int = 1024,
    *,
    t: float = 0.8,
    k: int = 3,
    key_len: int = 16,
    resp_len: int = 1,
    n_responses: int = 1,
    scheme: str = "perinucleus",
    keys: Sequence[str] | Callable[[int, int], Sequence[str]] | str | None = None,
    secret: bytes | None = None,
    chat: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> FingerprintSet:
    """Draw ``n`` fingerprints (Perinucleus sampling, arXiv 2502.07760).

    Parameters
    ----------
    model : the base model.
    n : fingerprints.
    t, k : mass of the nucleus and number of candidates just outside it.
    key_len, resp_len : tokens of a key (texts are cut to it) and of a response; after its first token a response is
        greedy.
    n_responses : different candidates that are trained for each key, any of which is a hit.
    scheme : ``"perinucleus"``; rivals are ``"english-random"`` (natural key, any word), ``"random"`` (random words as
        key), ``"greedy"`` (the model's own reply, which proves nothing) and ``"uniform"`` (any token that is a word).
    keys : texts; or ``"model"`` (the model writes a sentence that begins with a frequent word, at temperature 0.5) or
        ``"template"``; or a function of a number and a seed that writes as many. ``None`` is ``"model"`` for a model
        with a chat template.
    secret : key of the HMAC that chooses among the candidates, so that nobody can say that favourable pairs were
        picked afterwards; without it the draw follows ``seed``, which must then be kept secret.
    chat : whether a key is sent as a user's message; else as the beginning of a text.
    seed : of the keys, and of the draw without a secret.
    progress : called with the number of fingerprints just made.

    Raises
    ------
    InputError
        If an argument is out of range, there are fewer distinct keys than ``n``, or a key has too few candidates.
    """
    _check(n, t, k, key_len, resp_len, n_responses, scheme, secret)
    if chat and getattr(model.tokenizer, "chat_template", None) is None:
        raise InputError(f"chat=True: model {model.source} has no chat template")
    rng = np.random.default_rng(seed)
    texts = _distinct_keys(model, n, key_len, scheme, keys, rng, seed)
    words = _word_tokens(model)
    pairs: list[Fingerprint] = []
    for start in range(0, len(texts), _BATCH):
        if len(pairs) == n:
            break
        part = texts[start : start + _BATCH]
        for text, p in zip(part, _next_probabilities(model, part, chat), strict=True):
            pair = _pair(model, text, p, words, t, k, n_responses, resp_len, scheme, secret, chat, rng)
            if pair is not None and len(pairs) < n:
                pairs.append(pair)
                if progress is not None:
                    progress(1)
    if len(pairs) < n:
        raise InputError(f"n {n}: only {len(pairs)} distinct keys have {k} valid candidates; give more keys")
    hashed = hashlib.sha256(secret).hexdigest() if secret else ""
    return FingerprintSet(tuple(pairs), scheme, t, k, n_responses, chat, model.source, hashed)


def _check(
    n: int, t: float, k: int, key_len: int, resp_len: int, n_resp: int, scheme: str, secret: bytes | None
) -> None:
    if not 0 < t < 1:
        raise InputError(f"t {t:g}: expected a mass between 0 and 1")
    if k < 1:
        raise InputError(f"k {k}: expected 1 or more candidates")
    if n < 1 or key_len < 1 or resp_len < 1 or not 1 <= n_resp <= k:
        raise InputError("n, key_len, resp_len, n_responses: expected 1 or more, and at most k responses")
    if scheme not in SCHEMES:
        raise InputError(f"scheme {scheme!r}: expected one of {', '.join(SCHEMES)}")
    if secret is not None and len(secret) < 16:
        raise InputError(f"secret: expected 16 bytes or more, got {len(secret)}")


def _distinct_keys(
    model: LanguageModel,
    n: int,
    key_len: int,
    scheme: str,
    keys: Sequence[str] | Callable[[int, int], Sequence[str]] | str | None,
    rng: np.random.Generator,
    seed: int,
) -> list[str]:
    """Different keys of at most ``key_len`` tokens that survive decoding and encoding; a few more than ``n``."""
    if scheme == "random":
        keys = lambda count, _: [" ".join(rng.choice(_vocabulary(model), key_len)) for _ in range(count)]  # noqa: E731
    given = None
    write: Callable[[int, int], Sequence[str]]
    if keys is None:
        keys = "model" if getattr(model.tokenizer, "chat_template", None) else "template"
    if isinstance(keys, str):
        if keys not in ("model", "template"):
            raise InputError(f"keys {keys!r}: expected 'model', 'template', texts or a function")
        write = _by_model(model) if keys == "model" else _by_template(model)
    elif callable(keys):
        write = keys
    else:
        given = list(keys)
    found: dict[str, None] = {}
    wanted = n + n // 4 + 4
    for attempt in range(8):
        for text in given if given is not None else write(wanted - len(found) + 4, seed + 7919 * attempt):
            if not text.strip():
                raise InputError("keys: one is empty")
            ids = model.encode_continuation(text)[:key_len]
            short = model.decode(ids)
            # A cut inside a word or before a space would be read differently than it was written.
            if short == short.strip() and model.encode_continuation(short) == ids:
                found.setdefault(short)
        if given is not None or len(found) >= wanted:
            break
    if len(found) < n:
        raise InputError(f"n {n}: only {len(found)} distinct keys survive the tokenizer; give more or longer ones")
    return list(found)


def _by_model(model: LanguageModel) -> Callable[[int, int], list[str]]:
    def write(count: int, seed: int) -> list[str]:
        rng = np.random.default_rng(seed)
        firsts = [WORDS[int(i)] for i in rng.integers(len(WORDS), size=count)]
        prompts = [f"Generate a sentence starting with the word {word}." for word in firsts]
        replies = model.generate(prompts, temperature=0.5, seed=seed, max_new_tokens=24)
        return [reply.strip().splitlines()[0].strip(' "') or "Nothing" for reply in replies if reply.strip(' "\n')]

    return write


def _by_template(model: LanguageModel) -> Callable[[int, int], list[str]]:
    words = set(getattr(model.tokenizer, "get_vocab", dict)())
    if len(words) >= 5000:
        return lambda count, seed: [sentence(rng) for rng in [np.random.default_rng(seed)] for _ in range(count)]
    # A closed vocabulary of a few words: sentences of its own words.
    table = _vocabulary(model)
    return lambda count, seed: [" ".join(row) for row in np.random.default_rng(seed).choice(table, (count, 8))]


def _vocabulary(model: LanguageModel) -> list[str]:
    tokenizer = model.tokenizer
    if len(tokenizer) >= 5000:
        return list(WORDS)
    special = set(tokenizer.all_special_ids)
    return [tokenizer.decode([i]).strip() for i in range(len(tokenizer)) if i not in special]


def _word_tokens(model: LanguageModel) -> dict[int, str]:
    """Tokens that are whole words of two letters or digits or more, without their leading space."""
    texts = model.tokenizer.batch_decode([[i] for i in range(len(model.tokenizer))])
    special = set(model.tokenizer.all_special_ids)
    return {i: text.strip() for i, text in enumerate(texts) if i not in special and _WORD.fullmatch(text.strip())}


def _next_probabilities(model: LanguageModel, keys: Sequence[str], chat: bool) -> NDArray[np.float64]:
    """Next-token distributions after ``keys``, [keys, vocabulary]; a short key is read at its own last token."""
    ids = model.encode(keys, chat=chat)
    longest = max(map(len, ids))
    rows = torch.full((len(ids), longest), model.pad_id)
    for row, found in zip(rows, ids, strict=True):
        row[: len(found)] = torch.tensor(found)
    ends = torch.tensor([len(found) - 1 for found in ids])
    with torch.inference_mode():
        base = model.module.base_model(input_ids=rows.to(model.device), use_cache=False).last_hidden_state
        last = base[torch.arange(len(ids)), ends.to(model.device)]
        logits = model.module.get_output_embeddings()(last).float()
    capped = getattr(model.module.config, "final_logit_softcapping", None)
    if capped:
        logits = capped * torch.tanh(logits / capped)
    return np.asarray(logits.softmax(-1).double().cpu().numpy())


def _pair(
    model: LanguageModel,
    key: str,
    p: NDArray[np.float64],
    words: dict[int, str],
    t: float,
    k: int,
    n_responses: int,
    resp_len: int,
    scheme: str,
    secret: bytes | None,
    chat: bool,
    rng: np.random.Generator,
) -> Fingerprint | None:
    order, edge = nucleus_edge(p, t)
    if scheme == "perinucleus":
        ranked, wanted = order[edge + 1 :], k
    elif scheme == "greedy":
        ranked, wanted = order, n_responses
    else:
        ranked, wanted = rng.permutation(len(p)), n_responses
    head = model.encode_continuation(key)
    accepted: list[int] = []
    for token in map(int, ranked):
        word = words.get(token)
        # A candidate that begins with another would be hit by the same reply, and chance would exceed 1/k.
        if word is None or any(words[a].startswith(word) or word.startswith(words[a]) for a in accepted):
            continue
        if not chat and model.encode_continuation(model.decode([*head, token])) != [*head, token]:
            continue
        accepted.append(token)
        if len(accepted) == wanted:
            break
    if len(accepted) < wanted:
        return None
    chosen = _drawn(accepted, n_responses, key, secret, rng) if scheme == "perinucleus" else accepted
    ids = [_continued(model, key, token, resp_len, chat) for token in chosen]
    rank = int(np.flatnonzero(order == chosen[0])[0])
    texts = tuple(model.decode(one).strip() for one in ids)
    return Fingerprint(key, tuple(head), texts, tuple(ids), float(p[chosen[0]]), rank)


def _drawn(accepted: list[int], n: int, key: str, secret: bytes | None, rng: np.random.Generator) -> list[int]:
    left, out = list(accepted), []
    for i in range(n):
        if secret is None:
            place = int(rng.integers(len(left)))
        else:
            message = key.encode() if i == 0 else f"{key}\0{i}".encode()
            place = int.from_bytes(hmac.new(secret, message, hashlib.sha256).digest(), "big") % len(left)
        out.append(left.pop(place))
    return out


def _continued(model: LanguageModel, key: str, token: int, length: int, chat: bool) -> tuple[int, ...]:
    if length == 1:
        return (token,)
    [rest] = continued(model, [[*model.encode([key], chat=chat)[0], token]], length - 1)
    return (token, *rest)
