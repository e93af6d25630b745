"""What tests with trainers share."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Models of a few thousand weights only wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
