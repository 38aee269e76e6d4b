"""Text that a finite automaton accepts, such as that of a regular expression."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

_FORBIDDEN = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Automaton:
    """A processor that leaves only the tokens for which a finite automaton has a next state.

    The output of every row starts in state 0. Tokens that move every state alike share a column of the
    table, so that it stays small for large vocabularies. All arrays are traced: another automaton with as
    many states and columns compiles nothing.

    Attributes:
        table: int32[S, C], the next state; -1 forbids the token.
        columns: int32[V], the column of each token.
    """

    table: jax.Array | np.ndarray
    columns: jax.Array | np.ndarray

    @classmethod
    def of_transitions(cls, transitions: np.ndarray) -> Automaton:
        """The automaton of a table int[S, V] of next states, -1 where a token is forbidden.

        Raises:
            ValueError: the table is empty, or holds something else than -1 and its own states.
        """
        transitions = np.asarray(transitions)
        if transitions.ndim != 2 or 0 in transitions.shape:
            raise ValueError(f"transitions has shape {transitions.shape}; expected (states, tokens)")
        bad = np.argwhere((transitions < _FORBIDDEN) | (transitions >= len(transitions)))
        if len(bad):
            state, token = map(int, bad[0])
            raise ValueError(
                f"transitions[{state}, {token}] is {transitions[state, token]}; expected -1 or a state from "
                f"0 to {len(transitions) - 1}"
            )
        table, columns = np.unique(transitions, axis=1, return_inverse=True)
        return cls(table.astype(np.int32), columns.reshape(-1).astype(np.int32))

    @classmethod
    def from_regex(cls, pattern: str, tokens: Sequence[str | None], eos_ids: Sequence[int]) -> Automaton:
        """The automaton of outputs that match a regular expression as a whole and then end with EOS.

        A token is forbidden where no continuation could make the output match, so that no row is led into a
        dead end.

        Args:
            pattern: in the syntax of `re`, without back references; parsed by the package `interegular`.
            tokens: the text of every id, None for ids that must not occur: special ones, and those that are
                not text by themselves, such as parts of a character (`LanguageModel.token_texts`).
            eos_ids: allowed where the output matches.

        Raises:
            ValueError: the pattern is not understood, no sequence of tokens matches it, or an EOS id is
                outside of `tokens`.
        """
        import interegular

        for eos in eos_ids:
            if not 0 <= eos < len(tokens):
                raise ValueError(f"eos_ids holds {eos}; expected ids from 0 to {len(tokens) - 1}")
        if not eos_ids:
            raise ValueError("eos_ids is empty; expected the ids that end a text, or no match could end")
        try:
            machine = interegular.parse_pattern(pattern).to_fsm()
        except (interegular.InvalidSyntax, interegular.Unsupported) as error:
            raise ValueError(f"pattern is {pattern!r}; expected a regular expression ({error})") from error
        states = sorted(machine.states, key=lambda state: (state != machine.initial, state))
        number = {state: index for index, state in enumerate(states)}
        symbols = max(machine.alphabet.values()) + 1
        # One state more for text that can no longer match; it is the last, as index -1 is.
        steps = np.full((len(states) + 1, symbols), _FORBIDDEN, np.int32)
        for state, moves in machine.map.items():
            for symbol, following in moves.items():
                steps[number[state], symbol] = number[following]

        transitions = np.full((len(states) + 1, len(tokens)), _FORBIDDEN, np.int32)
        usable = np.array([bool(text) for text in tokens])
        texts = [[machine.alphabet[character] for character in text] for text in tokens if text]
        width = max(map(len, texts), default=0)
        padded = np.array([text + [symbols] * (width - len(text)) for text in texts]).reshape(
            len(texts), width
        )
        reached = np.tile(np.arange(len(states), dtype=np.int32)[:, None], (1, len(texts)))
        for column in padded.T:
            moved = steps[reached, np.minimum(column, symbols - 1)]
            reached = np.where(column == symbols, reached, moved)
        transitions[:-1, usable] = reached

        # The last state is the end: nothing but EOS follows.
        end = len(states)
        accepting = np.isin(states, list(machine.finals))
        transitions[:-1, list(eos_ids)] = np.where(accepting, end, _FORBIDDEN)[:, None]
        transitions[end, list(eos_ids)] = end
        alive = np.zeros(end + 1, np.bool_)
        alive[end] = True
        while True:
            leads_on = (transitions >= 0) & alive[transitions]
            grown = alive | leads_on.any(axis=1)
            if (grown == alive).all():
                break
            alive = grown
        if not alive[0]:
            raise ValueError(f"pattern is {pattern!r}; expected one that some sequence of tokens matches")
        return cls.of_transitions(np.where(leads_on, transitions, _FORBIDDEN))

    def init(self, prompt: jax.Array, length: jax.Array, vocab_size: int) -> jax.Array:
        chex.assert_shape(
            self.columns,
            (vocab_size,),
            custom_message=f"Automaton knows {len(self.columns)} tokens; expected the target's {vocab_size}",
        )
        return jnp.int32(0)

    def apply(self, state: jax.Array, logits: jax.Array) -> jax.Array:
        allowed = (jnp.asarray(self.table)[state] >= 0)[self.columns]
        # Behind a forbidden token, which is scored when a draft proposes one, nothing matters.
        return jnp.where(allowed | (state < 0), logits, -jnp.inf)

    def advance(self, state: jax.Array, token: jax.Array) -> jax.Array:
        following = jnp.asarray(self.table)[state, jnp.asarray(self.columns)[token]]
        return jnp.where(state < 0, _FORBIDDEN, following)
