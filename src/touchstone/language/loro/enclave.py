"""The trusted side: factors, key and corrections; in this process, or in another one behind a pipe.

Run as a module it is the other process: it is sent the secrets once, then answers inputs with corrections.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.loro.factors import Choice, MaskKind, Pool
from touchstone.language.loro.hadamard import HadamardMask

__all__ = ["InProcess", "Subprocess", "TEEBackend", "TEESecrets"]


@dataclass(frozen=True)
class TEESecrets:
    """All that is secret.

    Attributes
    ----------
    pool : shared factors and the key.
    scales : by which each layer's mask is multiplied; they follow from public weights and are no secret.
    shapes : input and output width of each layer.
    mask_kind : ``"lowrank"``, from the pool, or ``"fwht"``, of full rank, from signs that follow from the key.
    """

    pool: Pool
    scales: Mapping[str, float]
    shapes: Mapping[str, tuple[int, int]]
    mask_kind: MaskKind = "lowrank"

    def choice(self, layer: str) -> Choice:
        """What a layer's mask is made of."""
        return self.pool.choice(layer, self.scales[layer])

    def signs(self, layer: str) -> HadamardMask:
        """A layer's mask of full rank."""
        n, m = self.shapes[layer]
        return HadamardMask(self.pool.key, layer, n, m, scale=self.scales[layer])

    def mask(self, layer: str) -> np.ndarray:
        """A layer's mask D, [n, m]."""
        if self.mask_kind == "fwht":
            return self.signs(layer).matrix().astype(np.float32)
        return self.pool.mask(*self.shapes[layer], self.choice(layer))


class TEEBackend(Protocol):
    """Answers an input x [tokens, n] of a layer with its correction xD [tokens, m]."""

    def correct(self, layer: str, x: Tensor) -> Tensor: ...

    def close(self) -> None: ...


class InProcess:
    """The trusted side in this process: fast, and no boundary at all.

    Products of an input with factors are kept until another input comes, for query, key and value read the same one.
    """

    def __init__(self, secrets: TEESecrets) -> None:
        self._secrets = secrets
        self._choices = {name: secrets.choice(name) for name in secrets.shapes}
        whole = secrets.mask_kind == "fwht"
        self._signs = {name: secrets.signs(name) for name in secrets.shapes} if whole else {}
        self._left = {n: torch.from_numpy(a) for n, a in secrets.pool.left.items()}
        self._right = {m: torch.from_numpy(a) for m, a in secrets.pool.right.items()}
        self._input: Tensor | None = None
        self._version = -1
        self._products: dict[int, Tensor] = {}
        self.flops = 0

    def correct(self, layer: str, x: Tensor) -> Tensor:
        """See :class:`TEEBackend`."""
        if layer not in self._choices:
            raise InputError(f"layer {layer}: not protected")
        n, m = self._secrets.shapes[layer]
        if self._secrets.mask_kind == "fwht":
            return self._signs[layer].apply(x)
        chosen, rank = self._choices[layer], self._secrets.pool.rank
        # The very same tensor, unchanged since: an equal one elsewhere is multiplied anew.
        version = 0 if x.is_inference() else x._version
        if self._input is None or self._input is not x or self._version != version:
            self._input, self._version, self._products = x, version, {}
        missing = [j for j in dict.fromkeys(chosen.left) if j not in self._products]
        if missing:
            factors = torch.cat([self._left[n][j] for j in missing], dim=1).to(x)
            for j, part in zip(missing, (x @ factors).split(rank, dim=1), strict=True):
                self._products[j] = part
            self.flops += 2 * x.shape[0] * n * rank * len(missing)
        # One product of all terms: their weights go to the narrow side.
        parts = [weight * self._products[j] for j, weight in zip(chosen.left, chosen.weight, strict=True)]
        right = [self._right[m][i] for i in chosen.right]
        self.flops += 2 * x.shape[0] * rank * m * len(parts)
        return torch.cat(parts, dim=1) @ (torch.cat(right) if len(right) > 1 else right[0]).to(x)

    def close(self) -> None:
        """Forget the last input."""
        self._input, self._products = None, {}


class Subprocess:
    """The trusted side in another process, which holds the secrets; inputs and corrections cross a pipe.

    A stand-in for an enclave that shows the boundary and counts what crosses it. It protects nothing on a machine whose
    owner can read the other process.

    Attributes
    ----------
    sent, received : bytes that crossed the pipe, the secrets at the start not counted.
    """

    def __init__(self, secrets: TEESecrets) -> None:
        self.sent = self.received = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name if __spec__ else __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        pool = secrets.pool
        start = {
            "key": pool.key.hex(),
            "shapes": {name: list(shape) for name, shape in secrets.shapes.items()},
            "scales": dict(secrets.scales),
            "mask_kind": secrets.mask_kind,
            "options": {
                "rank": pool.rank, "size": pool.size, "terms": pool.terms, "distribution": pool.distribution,
            },
        }  # fmt: skip
        _write(self._stdin, start, b"")
        if _read(self._stdout)[0].get("ready") is not True:
            raise InputError("enclave: did not start")

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def correct(self, layer: str, x: Tensor) -> Tensor:
        """See :class:`TEEBackend`."""
        given = x.detach().to("cpu", torch.float32).contiguous().numpy()
        try:
            self.sent += _write(self._stdin, {"layer": layer, "shape": list(given.shape)}, given.tobytes())
            header, body = _read(self._stdout)
        except (BrokenPipeError, EOFError):
            raise InputError("enclave: its process has ended") from None
        self.received += len(body)
        if "error" in header:
            raise InputError(header["error"])
        found = np.frombuffer(body, dtype=np.float32).reshape(header["shape"]).copy()
        return torch.from_numpy(found).to(x)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._stdin.close()
            self._process.wait(timeout=10)
        self._stdout.close()

    def __enter__(self) -> Subprocess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(stream: IO[bytes], header: dict[str, Any], body: bytes) -> int:
    """One frame: two lengths, a JSON header, raw bytes."""
    text = json.dumps(header).encode()
    stream.write(struct.pack(">II", len(text), len(body)) + text + body)
    stream.flush()
    return len(body)


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    size, length = struct.unpack(">II", head)
    text, body = stream.read(size), stream.read(length)
    if len(text) < size or len(body) < length:
        raise EOFError
    header: dict[str, Any] = json.loads(text)
    return header, body


def serve(given: IO[bytes], out: IO[bytes]) -> None:
    """Answer until the other side closes the pipe."""
    start, _ = _read(given)
    shapes = {name: (int(n), int(m)) for name, (n, m) in start["shapes"].items()}
    pool = Pool(
        bytes.fromhex(start["key"]),
        [n for n, _ in shapes.values()],
        [m for _, m in shapes.values()],
        **start["options"],
    )
    backend = InProcess(TEESecrets(pool, start["scales"], shapes, start["mask_kind"]))
    _write(out, {"ready": True}, b"")
    with torch.inference_mode():
        while True:
            try:
                header, body = _read(given)
            except EOFError:
                return
            try:
                x = torch.from_numpy(np.frombuffer(body, dtype=np.float32).reshape(header["shape"]).copy())
                found = backend.correct(header["layer"], x).numpy()
            except (InputError, ValueError, RuntimeError) as error:
                _write(out, {"error": str(error)}, b"")
                continue
            _write(out, {"shape": list(found.shape)}, found.tobytes())


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
