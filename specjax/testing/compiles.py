"""Counting compilations, to hold a program to one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator

from jax import monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass
class CompileCount:
    """How many programs XLA has compiled so far; `count` grows while the context is open."""

    count: int = 0


@contextlib.contextmanager
def count_compiles() -> Generator[CompileCount]:
    """Counts the programs that XLA compiles inside the `with` block, whatever asked for them.

    Small operations outside of `jit` compile too, once for each shape: warm them up first.

    Examples:
        >>> with count_compiles() as compiles:
        ...     decoder.generate(prompts, lengths)
        >>> assert compiles.count == 0
    """
    compiles = CompileCount()

    def on_event(event: str, duration_secs: float, **_: object) -> None:
        compiles.count += event == _COMPILED

    monitoring.register_event_duration_secs_listener(on_event)
    try:
        yield compiles
    finally:
        monitoring.unregister_event_duration_listener(on_event)
