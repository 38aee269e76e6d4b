"""Files that results go to: found out about before anything runs, and written one by one."""

import os
import pathlib

import pytest

from specjax.text.output import check_writable, write_outputs


def test_what_cannot_be_written_is_found_and_nothing_is_left_behind(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("kept")
    check_writable(old, tmp_path / "new.json", None, figure=tmp_path / "new.png")
    assert os.listdir(tmp_path) == ["old.json"]
    assert old.read_text() == "kept"
    check_writable(pathlib.Path(os.devnull))
    for paths, message in (
        ((tmp_path,), "it is a folder"),
        ((tmp_path / "no" / "x",), "there is no folder"),
        ((old / "x",), "there is no folder"),
        ((old, old), "written twice"),
    ):
        with pytest.raises(ValueError, match=message):
            check_writable(*paths)


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="there is no /proc")
def test_file_systems_that_take_no_files_are_found():
    with pytest.raises(ValueError, match=r"/proc/x.json cannot be written"):
        check_writable(pathlib.Path("/proc/x.json"))


def test_one_file_that_fails_keeps_no_other_from_being_written(tmp_path):
    def fails(path):
        raise KeyError

    first, second = tmp_path / "first", tmp_path / "second"
    failures = write_outputs([(first, fails), (None, fails), (second, lambda path: path.write_text("x"))])
    assert failures == [f"{first} was not written: KeyError"]
    assert second.read_text() == "x"
