"""Which embedding tables are split over the workers of a run. Importing this file imports no framework."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from training.loader.memory import total_bytes
from training.world import World


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Which tables are split, and over whom.

    Attributes:
        world: the workers.
        above_bytes: tables that take more than this are split; the same for all workers.
    """

    world: World
    above_bytes: int

    @classmethod
    def of(cls, share: float, world: World) -> "Splitting | None":
        """Split tables that take more than a share of a worker's memory; all workers have to call this.

        Args:
            share: of the memory of that worker's machine which has least; 0 splits none.
            world: the workers.
        """
        return cls(world=world, above_bytes=int(share * min(world.all_gather_object(total_bytes())))) if share else None


_current: ContextVar[Splitting | None] = ContextVar("splitting", default=None)


@contextmanager
def splitting(choice: Splitting | None) -> Iterator[None]:
    """In the block models are built with a choice; None splits none, as without the block."""
    token = _current.set(choice)
    try:
        yield
    finally:
        _current.reset(token)


def current_splitting() -> Splitting | None:
    """The choice of the block."""
    return _current.get()
