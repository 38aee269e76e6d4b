"""The package as it is installed: versions, floors, imports."""

import importlib
import importlib.metadata
import itertools
import pkgutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import specjax

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINTERS = {"ruff", "pyrefly"}  # run on one Python only, so their floors are not claims about the library


def floors():
    """The `>=` bound of every requirement, core and extras."""
    extras = PROJECT["optional-dependencies"].values()
    for requirement in map(Requirement, itertools.chain(PROJECT["dependencies"], *extras)):
        name = canonicalize_name(requirement.name)
        if name != "specjax" and name not in LINTERS:
            [floor] = [bound.version for bound in requirement.specifier if bound.operator == ">="]
            yield name, floor


def test_every_floor_is_the_version_that_the_oldest_run_pins():
    lines = (ROOT / "tests/oldest-constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {canonicalize_name(name): version for name, version in pins.items()} == dict(floors())


def test_every_floor_of_one_package_is_the_same():
    assert len(set(floors())) == len(dict(floors()))


@pytest.mark.parametrize("module", [m.name for m in pkgutil.walk_packages(specjax.__path__, "specjax.")])
def test_every_module_imports(module):
    if module != "specjax.__main__":  # runs the command line
        importlib.import_module(module)


def test_the_installed_version_is_the_one_in_pyproject():
    assert importlib.metadata.version("specjax") == PROJECT["version"]
