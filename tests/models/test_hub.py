"""Downloads from the hub, which is never reached from here."""

from __future__ import annotations

import re

import huggingface_hub
import pytest
from huggingface_hub import errors

from specjax.models import hub


@pytest.fixture
def snapshot_download(monkeypatch):
    """Replaces the hub's client; `answer` is what it returns or raises, `calls` what it was asked."""

    class Fake:
        def __init__(self):
            self.calls, self.answer = [], "/snapshot"

        def __call__(self, name, **options):
            self.calls.append((name, options))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    fake = Fake()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def fails(*fragments):
    return pytest.raises(RuntimeError, match="(?s)" + ".*".join(map(re.escape, fragments)))


def test_what_is_downloaded(snapshot_download, tmp_path):
    snapshot_download.answer = str(tmp_path / "snapshot")
    assert hub.download("some-org/tiny-model", cache_dir=tmp_path) == tmp_path / "snapshot"
    [(name, options)] = snapshot_download.calls
    assert (name, options["cache_dir"]) == ("some-org/tiny-model", tmp_path)
    patterns = options["allow_patterns"]
    assert {"*.json", "*.safetensors", "*.jinja"} <= set(patterns)
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in patterns)


def test_the_cache_of_the_client_is_the_default(snapshot_download):
    hub.download("some-org/tiny-model")
    [(_, options)] = snapshot_download.calls
    assert options["cache_dir"] is None


@pytest.mark.parametrize(
    "error",
    [
        errors.LocalEntryNotFoundError("cannot find the snapshot in the cache"),
        errors.OfflineModeIsEnabled("offline mode is enabled"),
        errors.HFValidationError("bad name"),
        OSError("disk full"),
    ],
)
def test_a_failure_says_what_and_what_to_do(snapshot_download, error):
    snapshot_download.answer = error
    with fails("'some-org/tiny-model'", str(error), "pass its path to specjax.load"):
        hub.download("some-org/tiny-model")


def test_offline_mode_of_the_client_is_honoured(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with fails("'some-org/tiny-model'", "pass its path"):
        hub.download("some-org/tiny-model", cache_dir=tmp_path)


@pytest.mark.parametrize(
    "name, expected",
    [("org/model-1.5_b", True), ("model", False), ("a/b/c", False), ("/abs", False), ("./x", False)],
)
def test_the_form_of_a_hub_id(name, expected):
    assert hub.is_hub_id(name) is expected
