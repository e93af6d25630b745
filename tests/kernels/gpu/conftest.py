"""Tests of the Triton kernels on tensors: on a device, or in Triton's interpreter.

    pytest tests/kernels/gpu                         where there is a device
    TRITON_INTERPRET=1 pytest tests/kernels/gpu      anywhere

The interpreter has to be chosen before Triton is imported, so without a device these run only in a process of
their own; `tests/kernels/test_gpu.py` starts one.
"""

import importlib.util
import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if importlib.util.find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]
elif not torch.cuda.is_available():
    collect_ignore_glob = ["test_allocator.py"]
