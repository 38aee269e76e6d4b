"""Pair files: a target, its draft and how the two are run, one TOML file each."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from specjax.decoding import DecodeConfig
from specjax.drafts.names import check_name, model_of
from specjax.models.sharding import check_axes

Dtype = Literal["auto", "float32", "bfloat16"]
Rule = Literal["auto", "token", "block", "coupled"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A target, its draft and how they are run.

    Attributes:
        target: what `specjax.load` takes: a directory, a `.gguf` file, a hub id or the default model's name.
        draft: as `drafts.names.draft_named` takes it: `"ngram"`, `"none"`, what `specjax.load` takes, ...
        dtype: of the weights: `"auto"`, `"float32"` or `"bfloat16"`.
        policy: as `specjax.policies.policy_named` takes it.
        gamma, verify_widths, rule, max_new_tokens, capacity: as in `DecodeConfig`.
        batch: rows B.
        prompt_width: tokens P that prompts are padded to.
        mesh: devices along the axes `data` and `model`, such as `{"model": 8}`; empty: one device.
        devices: what the pair is planned for, names that `specjax plan --device` takes.
        speculate: whether to draft at all; `specjax tune` writes False where plain decoding was faster.

    Raises:
        ValueError: names the field, its value and what was expected.
    """

    target: str
    draft: str = "ngram"
    dtype: Dtype = "auto"
    gamma: int = 4
    verify_widths: tuple[int, ...] = ()
    rule: Rule = "auto"
    policy: str = "fixed"
    batch: int = 1
    prompt_width: int = 512
    max_new_tokens: int = 128
    capacity: int | None = None
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    devices: tuple[str, ...] = ()
    speculate: bool = True

    def __post_init__(self) -> None:
        for name, expected in (("target", "a model"), ("draft", "a model"), ("policy", "a policy")):
            value = getattr(self, name)
            self._require(name, isinstance(value, str) and value.strip() != "", f"the name of {expected}")
        check_name(self.draft)
        dtypes = get_args(Dtype)
        self._require("dtype", self.dtype in dtypes, f"one of {', '.join(dtypes)}")
        for name in ("batch", "prompt_width"):
            self._require(name, _is_count(getattr(self, name)), "an integer of at least 1")
        self._require(
            "mesh",
            isinstance(self.mesh, Mapping)
            and all(isinstance(axis, str) and _is_count(size) for axis, size in self.mesh.items()),
            "axis names with a number of devices each",
        )
        check_axes(self.mesh)
        self._require(
            "devices",
            isinstance(self.devices, tuple) and all(isinstance(name, str) for name in self.devices),
            "names of devices",
        )
        self._require("speculate", isinstance(self.speculate, bool), "true or false")
        try:
            config = self.config
        except ValueError as error:
            raise ValueError(str(error).removeprefix("DecodeConfig.")) from error
        self._require(
            "capacity",
            config.row_capacity(self.prompt_width) >= self.prompt_width + self.max_new_tokens,
            f"at least prompt_width + max_new_tokens, {self.prompt_width + self.max_new_tokens}",
        )

    @property
    def config(self) -> DecodeConfig:
        """What is static in the program."""
        return DecodeConfig(
            max_new_tokens=self.max_new_tokens,
            gamma=self.gamma,
            verify_widths=self.verify_widths,
            rule=self.rule,
            policy=self.policy,
            capacity=self.capacity,
        )

    def _require(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ValueError(f"{name} is {getattr(self, name)!r}; expected {expected}")


def read_pair(path: str | os.PathLike[str]) -> Pair:
    """The pair in a TOML file whose keys are the fields of `Pair`.

    A `target` or `draft` that exists relative to the file is a path; anything else is a name.

    Raises:
        ValueError: the file is missing or no TOML, or a key is unknown, missing or has a bad value; the
            message names the file, the key, its value and what was expected.
    """
    path = pathlib.Path(path)
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as TOML: {error}") from error
    fields = [field.name for field in dataclasses.fields(Pair)]
    for key, value in values.items():
        if key not in fields:
            raise ValueError(f"{path}: unknown key {key} = {value!r}; expected {', '.join(fields)}")
        if isinstance(value, list):
            values[key] = tuple(value)
    if "target" not in values:
        raise ValueError(f"{path}: target is missing; expected the name of a model")
    for key in ("target", "draft"):
        if isinstance(values.get(key), str):
            search, name = _parts(key, values[key])
            if name and (beside := path.parent / name).exists():
                values[key] = search + os.path.normpath(beside)
    try:
        return Pair(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_pair(pair: Pair, path: str | os.PathLike[str], *, comment: str = "") -> None:
    """Writes a pair, as `read_pair` reads it; the file is whole or not there, whatever interrupts.

    Args:
        comment: lines that go before the first key.
    """
    path = pathlib.Path(path)
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    for field in dataclasses.fields(pair):
        value = getattr(pair, field.name)
        if field.name in ("target", "draft"):
            search, name = _parts(field.name, value)
            if name and pathlib.Path(name).exists():
                value = search + os.path.relpath(name, path.parent)
        if value is not None and not (field.name == "mesh" and not value):
            lines.append(f"{field.name} = {_toml(value)}")
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # Temporary files are private; a pair file is like any other, and keeps the mode that it had.
        os.chmod(temporary, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask())
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """What this process takes from the mode of new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _parts(key: str, name: str) -> tuple[str, str]:
    """What is no path of a target's or a draft's name, and what may be one."""
    return model_of(name) if key == "draft" else ("", name)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _toml(value: Any) -> str:
    """A string, number, truth value, list or flat table. All but the table are written as in JSON."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value.items())} }}"
    # JSON leaves DEL as it is, which TOML forbids.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
