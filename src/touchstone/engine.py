"""Where plain functions run: in this process, in a pool of processes, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from touchstone.errors import InputError, MissingExtraError

__all__ = ["Engine", "LocalEngine", "PoolEngine", "RayEngine", "engine_named"]

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Maps a plain function over items; yields ``(index, result)`` as results arrive, in any order."""

    @property
    def workers(self) -> int: ...

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]: ...


@dataclass(frozen=True)
class LocalEngine:
    """One item after the other in this process; the model is shared, nothing is copied."""

    workers: int = 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        for i, item in enumerate(items):
            yield i, function(item)


@dataclass(frozen=True)
class PoolEngine:
    """A pool of fresh processes on this machine; ``function`` and items must be picklable."""

    workers: int = 2

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from multiprocessing import get_context

        if not items:
            return
        # Spawned, not forked: forking after torch has started its threads deadlocks.
        # The function may carry a model: it is sent to each process once, not with every item.
        with ProcessPoolExecutor(
            min(self.workers, len(items)), mp_context=get_context("spawn"), initializer=_keep, initargs=(function,)
        ) as pool:
            places = {pool.submit(_apply_kept, item): i for i, item in enumerate(items)}
            try:
                for future in as_completed(places):
                    yield places[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@dataclass(frozen=True)
class RayEngine:
    """Tasks on a Ray cluster, or on a local Ray started for the occasion.

    Parameters
    ----------
    address : address of a running cluster; ``None`` uses ``RAY_ADDRESS`` if it is set, else starts Ray here.
    workers : how many tasks run at once; 0 means one per processor of the cluster.
    """

    address: str | None = None
    workers: int = 0

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("The Ray engine", "ray") from None
        if not items:
            return
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False, include_dashboard=False, configure_logging=False)
        # The function may carry a model: it goes to the object store once, not once per item.
        shared = ray.put(function)
        remote = ray.remote(_apply)
        limit = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        queue = list(enumerate(items))[::-1]
        running: dict[Any, int] = {}
        while queue or running:
            while queue and len(running) < limit:
                i, item = queue.pop()
                running[remote.remote(shared, item)] = i
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                i = running.pop(reference)
                try:
                    yield i, ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None


_kept: list[Callable[[Any], Any]] = []


def _keep(function: Callable[[Any], Any]) -> None:
    """In a process of the pool: remember what to apply."""
    _kept[:] = [function]


def _apply_kept(item: Any) -> Any:
    return _kept[0](item)


def _apply(function: Callable[[T], R], item: T) -> R:
    return function(item)


def engine_named(name: str, workers: int = 0) -> Engine:
    """``local`` (a pool when ``workers`` > 1) or ``ray``; raises :class:`InputError` on any other name."""
    if name == "local":
        return PoolEngine(workers) if workers > 1 else LocalEngine()
    if name == "ray":
        return RayEngine(workers=workers)
    raise InputError(f"engine {name!r}: expected 'local' or 'ray'")
