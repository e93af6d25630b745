"""The Triton kernels where there is no device: run in Triton's interpreter, and compiled for devices."""

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from deltavc.kernels import devices

ROOT = Path(__file__).parents[2]

triton_is_missing = importlib.util.find_spec("triton") is None
pytestmark = pytest.mark.skipif(triton_is_missing, reason="Triton is not installed")

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
LANES = [1, 2, 4, 8]

# What each kernel takes behind the rows and their owners, and how it is specialised.
SUMS, VALUES = "*i64", "*lanes"
FLAT = [{"FLAT": False}, {"FLAT": True}]
SEGMENTS = [{"LISTED": True, "FLAT": False}, {"LISTED": False, "FLAT": False}, {"LISTED": False, "FLAT": True}]
KERNELS = {
    "loops.fingerprint": ([SUMS], FLAT),
    "loops.count_changed": ([SUMS], FLAT),
    "loops.list_changed": ([SUMS, SUMS, SUMS, VALUES], FLAT),
    "loops.difference": ([SUMS], FLAT),
    "loops.change_all": ([SUMS], FLAT),
    "loops.change_some": ([SUMS], [{"STORE": False}, {"STORE": True}]),
    "list_loops.count_misplaced": ([SUMS], [{}]),
    "list_loops.moved_some": ([SUMS], [{}]),
    "list_loops.match": ([SUMS, SUMS], [{}]),
    "list_loops.emit": ([SUMS, SUMS, SUMS, VALUES], [{}]),
    "swap_loops.gather": ([], [{}]),
    "swap_loops.compare": ([SUMS], SEGMENTS),
    "swap_loops.write": ([SUMS], [kind | {"OLD": old} for kind in SEGMENTS for old in (False, True)]),
}


@pytest.mark.timeout(600)
def test_the_kernels_equal_torch_in_the_interpreter():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/gpu"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout


@pytest.mark.long
def test_the_benchmark_runs_small():
    run = subprocess.run(
        [sys.executable, "bench/gpu.py", "--small", "--rounds", "1"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert all(what in run.stdout for what in ("swap", "dense XOR", "diff", "fingerprint", "copy"))


def test_every_kernel_that_is_launched_is_compiled_here():
    from deltavc.kernels.gpu import list_loops, loops, swap_loops

    launched = {
        f"{module.__name__.rsplit('.', 1)[1]}.{name}"
        for module in (loops, list_loops, swap_loops)
        for name, value in vars(module).items()
        if getattr(value, "arg_names", [])[-1:] == ["CHUNK"] and name != "begin"
    }
    assert launched == set(KERNELS)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_ahead_of_time(kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for lane_bytes in LANES:
        check_compiled(kernel, "sm_90", lane_bytes)
    for target in TARGETS:
        check_compiled(kernel, target, 2)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_every_width_compile_for_every_target(kernel, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for lane_bytes in LANES:
        check_compiled(kernel, target, lane_bytes)


def check_compiled(kernel, target, lane_bytes):
    for constants in KERNELS[kernel][1]:
        compiled = compiled_for(TARGETS[target], kernel, lane_bytes, constants)
        assert compiled.asm["hsaco" if target == "gfx942" else "cubin"].startswith(b"\x7fELF")
        if constants.get("FLAT") and target == "sm_90":
            # Whole blocks are read in loads wider than a lane.
            assert "ld.global.v" in compiled.asm["ptx"] or lane_bytes == 1


def compiled_for(target, kernel, lane_bytes, constants):
    """A kernel as it is compiled at its first launch, for another machine."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from deltavc.kernels.gpu import list_loops, loops, swap_loops, table

    module, name = kernel.split(".")
    function = getattr({"loops": loops, "list_loops": list_loops, "swap_loops": swap_loops}[module], name)
    pointers = ["*i64", "*i32", *KERNELS[kernel][0]]
    types = [f"*i{8 * lane_bytes}" if pointer == VALUES else pointer for pointer in pointers]
    values = {"LANE": table.LANES[lane_bytes], "BLOCK": table.BLOCK, "CHUNK": table.CHUNK} | constants
    signature = {
        argument: types[place] if place < len(types) else "constexpr"
        for place, argument in enumerate(function.arg_names)
    }
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(types))}
    used = {argument: values[argument] for argument in function.arg_names[len(types) :]}
    source = ASTSource(function, signature, used, aligned)
    options = {"num_warps": table.NUM_WARPS, "enable_fp_fusion": False}
    return compile(source, target=GPUTarget(*target), options=options)


def test_torch_stands_in_where_kernels_do_not_run():
    from deltavc.kernels import gpu

    if torch.cuda.is_available():
        pytest.skip("here they do")
    assert devices.gpu(torch.device("cpu")) is None
    assert devices.gpu(torch.device("mps")) is None
    # Outside of the interpreter, Triton has no driver for CPU tensors.
    assert "RuntimeError" in devices.fault(gpu, torch.device("cpu"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert devices.gpu(torch.device("cuda")) is None
    assert [warning.category for warning in said] == [RuntimeWarning]
    devices.gpu.cache_clear()
