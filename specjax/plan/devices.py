"""Devices that programs can be compiled for without having them, and what their makers publish about them."""

from __future__ import annotations

import dataclasses
import importlib.resources
import importlib.util
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from specjax.models.sharding import check_axes

_TPU_NAME = re.compile(r"(v\d\w+):([1-9]\d*(?:x[1-9]\d*)+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One chip, as published.

    Attributes:
        memory_bytes: main memory; None where it is the machine's affair.
        bandwidth: bytes a second of main memory; None where nobody publishes it.
        peak_flops: floating-point operations a second in bfloat16, without sparsity.
        link_bandwidth: bytes a second that a chip sends to others, all of its links together.
        cache_bytes: of a cache that hardware manages; 0 where the compiler places data on the chip.
        dimensions: of the torus that a TPU's chips form.
        source: where the numbers are from.
    """

    kind: str
    memory_bytes: float | None = None
    bandwidth: float | None = None
    peak_flops: float | None = None
    link_bandwidth: float | None = None
    cache_bytes: float = 0
    dimensions: int = 0
    source: str = ""


# Interconnects are published for both directions together; a chip sends at half of that.
DEVICES = {
    "v5e": Device(
        kind="tpu",
        memory_bytes=16e9,
        bandwidth=819e9,
        peak_flops=197e12,
        link_bandwidth=200e9,
        dimensions=2,
        source="Google Cloud documentation, TPU v5e: 16 GB, 819 GB/s, 197 TFLOP/s, 400 GB/s both ways",
    ),
    "v6e": Device(
        kind="tpu",
        memory_bytes=32e9,
        bandwidth=1600e9,
        peak_flops=918e12,
        link_bandwidth=400e9,
        dimensions=2,
        source="Google Cloud documentation, TPU v6e: 32 GB, 1600 GB/s, 918 TFLOP/s, 800 GB/s both ways",
    ),
    "v5p": Device(
        kind="tpu",
        memory_bytes=95e9,
        bandwidth=2765e9,
        peak_flops=459e12,
        link_bandwidth=600e9,
        dimensions=3,
        source="Google Cloud documentation, TPU v5p: 95 GB, 2765 GB/s, 459 TFLOP/s, 1200 GB/s both ways",
    ),
    "h200": Device(
        kind="gpu",
        memory_bytes=141e9,
        bandwidth=4800e9,
        peak_flops=989e12,
        link_bandwidth=450e9,
        cache_bytes=50e6,
        source="NVIDIA H200 data sheet, SXM: 141 GB, 4.8 TB/s, 1979 TFLOP/s with sparsity (half without), "
        "900 GB/s both ways; NVIDIA H100 architecture paper, of the same chip: 50 MB of second-level cache",
    ),
    "cpu": Device(kind="cpu", source="this machine; nobody publishes its figures, so no time is predicted"),
}
_EXTRAS = {"tpu": ("libtpu", "specjax[tpu]"), "gpu": ("jax_cuda13_plugin", "specjax[cuda-compiler]")}


def describe(name: str) -> Device:
    """What is published about a device.

    Args:
        name: `"h200"`, `"cpu"`, or a TPU generation with its topology, such as `"v5e:2x4"`.

    Raises:
        ValueError: there is no such device.
    """
    found = _TPU_NAME.fullmatch(name)
    family = found.group(1) if found else name
    device = DEVICES.get(family)
    if device is None or (device.kind == "tpu") != bool(found):
        raise ValueError(
            f"device is {name!r}; expected h200, cpu, or a TPU (v5e, v6e, v5p) with its topology: v5e:2x4"
        )
    # libtpu ends the process, without a word, where it is asked for chips in a dimension that is not there.
    if found and found.group(2).count("x") + 1 != device.dimensions:
        example = f"{family}:{'x'.join('2' * device.dimensions)}"
        raise ValueError(
            f"device is {name!r}; expected {device.dimensions} dimensions for {family}, such as {example}"
        )
    return device


def compiler_installed(name: str) -> bool:
    """Whether the compiler for a device is installed."""
    kind = describe(name).kind
    return kind == "cpu" or importlib.util.find_spec(_EXTRAS[kind][0]) is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where arrays lie.

    Attributes:
        mesh: the mesh; None: one device.
        default: the sharding of arrays that belong on every device, or on the one.
    """

    mesh: Mesh | None
    default: Sharding

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size


def placement(name: str, mesh: Mapping[str, int]) -> Placement:
    """A mesh of described devices, or the first of them.

    Args:
        mesh: devices along the axes `data` and `model`; empty: one device.

    Raises:
        ValueError: no such device, not so many of it, or an axis of another name.
        ImportError: the compiler for it is not installed; the message says how to install it.
    """
    check_axes(mesh)
    devices = _devices(name)
    if not mesh:
        return Placement(mesh=None, default=SingleDeviceSharding(devices[0]))
    count = math.prod(mesh.values())
    if count > len(devices):
        raise ValueError(f"mesh is {dict(mesh)}, of {count} devices; {name} has {len(devices)}")
    grid = np.array(devices[:count]).reshape(tuple(mesh.values()))
    made = Mesh(grid, tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    return Placement(mesh=made, default=NamedSharding(made, PartitionSpec()))


def _devices(name: str) -> list[Any]:
    kind = describe(name).kind
    if kind == "cpu":
        return jax.devices("cpu")
    if not compiler_installed(name):
        raise ImportError(
            f"planning for {name} needs its compiler, {_EXTRAS[kind][0]}; "
            f"install: pip install '{_EXTRAS[kind][1]}'"
        )
    try:
        if kind == "tpu":
            return list(topologies.get_topology_desc(name, platform="tpu").devices)
        description = importlib.resources.files("specjax.plan").joinpath(f"{name}.txtpb").read_text()
        return list(
            topologies.get_topology_desc(platform="cuda", target_config=description, topology="1x1x1").devices
        )
    except RuntimeError as error:
        hints = {
            "gpu": "set JAX_PLATFORMS=cpu before JAX is imported",
            "tpu": "if another process has libtpu loaded, set ALLOW_MULTIPLE_LIBTPU_LOAD=1",
        }
        raise ValueError(
            f"device is {name!r}, which its compiler refuses ({hints[kind]}): {error}"
        ) from error
