"""Pair files: what is read is what was written, and a mistake is named."""

from __future__ import annotations

import dataclasses

import pytest

from specjax.pairs import Pair, read_pair, write_pair

WHOLE = Pair(
    target='organisation/"large"',
    draft="ngram+organisation/small",
    dtype="bfloat16",
    gamma=8,
    verify_widths=(2, 3),
    rule="coupled",
    policy="confidence:0.6",
    batch=32,
    prompt_width=1024,
    max_new_tokens=256,
    capacity=4096,
    mesh={"model": 4, "data": 2},
    devices=("v5e:2x4", "h200"),
    speculate=False,
)


@pytest.mark.parametrize("pair", [WHOLE, Pair(target="größe/ü\x7f\\\n")])
def test_what_is_written_is_read(tmp_path, pair):
    path = tmp_path / "pair.toml"
    write_pair(pair, path, comment="found by hand\n\nin a test")
    assert read_pair(path) == pair
    assert path.read_text(encoding="utf-8").startswith("# found by hand\n#\n# in a test\ntarget = ")
    assert list(tmp_path.iterdir()) == [path]


def test_directories_are_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "models" / "large").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pair.toml").write_text('target = "../models/large"\ndraft = "models/large"\n')
    monkeypatch.chdir(tmp_path / "a")
    pair = read_pair(tmp_path / "a" / "pair.toml")
    assert pair.target == str(tmp_path / "models" / "large")
    assert pair.draft == "models/large"  # nothing is there, so it is a name
    write_pair(pair, tmp_path / "copy.toml")
    assert 'target = "models/large"' in (tmp_path / "copy.toml").read_text()
    assert read_pair(tmp_path / "copy.toml").target == pair.target
    behind_a_search = dataclasses.replace(pair, draft=f"ngram+{pair.target}")
    write_pair(behind_a_search, tmp_path / "copy.toml")
    assert 'draft = "ngram+models/large"' in (tmp_path / "copy.toml").read_text()
    assert read_pair(tmp_path / "copy.toml") == behind_a_search


@pytest.mark.parametrize(
    "text, message",
    [
        ('target = "a"\ngama = 4', "unknown key gama = 4; expected target, draft"),
        ("gamma = 4", "target is missing"),
        ("target = 3", "target is 3; expected the name of a model"),
        ('target = ""', "target is ''; expected the name of a model"),
        ('target = "a"\ndtype = "int8"', "dtype is 'int8'; expected one of auto, float32, bfloat16"),
        ('target = "a"\ngamma = -1', "gamma is -1; expected an integer of at least 0"),
        ('target = "a"\ngamma = 2.0', "gamma is 2.0; expected an integer"),
        ('target = "a"\nverify_widths = [3, 2]', "verify_widths is .3, 2.; expected ascending"),
        ('target = "a"\nverify_widths = 3', "verify_widths is 3; expected a tuple of integers"),
        ('target = "a"\nrule = ["x"]', "rule is "),
        ('target = "a"\npolicy = 3', "policy is 3; expected the name of a policy"),
        ('target = "a"\npolicy = "brave"', "policy: 'brave' is no length policy; expected one of fixed"),
        ('target = "a"\ndraft = "layers:1-x"', "draft is 'layers:1-x'; expected early-exit:N or layers:"),
        ('target = "a"\nrule = "best"', "rule is 'best'; expected one of 'auto'"),
        ('target = "a"\nbatch = true', "batch is True; expected an integer of at least 1"),
        (
            'target = "a"\ncapacity = 600',
            "capacity is 600; expected at least .*, 640",
        ),
        ('target = "a"\nmesh = 8', "mesh is 8; expected axis names"),
        ('target = "a"\nmesh = { modle = 8 }', "mesh has the axes modle; expected data, model or both"),
        ('target = "a"\nmesh = { model = 0 }', "mesh is {'model': 0}; expected axis names"),
        ('target = "a"\ndevices = "v5e"', "devices is 'v5e'; expected names"),
        ('target = "a"\nspeculate = "no"', "speculate is 'no'; expected true or false"),
        ("target = ", "not readable as TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path, text, message):
    path = tmp_path / "pair.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_pair(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: not readable"):
        read_pair(tmp_path / "none.toml")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "pair.toml"
    write_pair(WHOLE, path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("specjax.pairs.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_pair(Pair(target="other"), path)
    assert read_pair(path) == WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_a_pair_file_is_as_readable_as_others_and_keeps_its_mode(tmp_path):
    path, other = tmp_path / "pair.toml", tmp_path / "other"
    other.touch()
    write_pair(Pair(target="a"), path)
    assert path.stat().st_mode == other.stat().st_mode
    path.chmod(0o640)
    write_pair(Pair(target="a"), path)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["ngram", "none", "recycling", "early-exit:2", "ngram+recycling"])
def test_folders_do_not_change_what_reserved_names_mean(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sub" / "pair.toml"
    path.parent.mkdir()
    (path.parent / name).mkdir()
    write_pair(Pair(target="a", draft=name), path)
    assert read_pair(path).draft == name
