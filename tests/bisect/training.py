"""A hundred real steps of training, one of which is spoiled by a thousand times the learning rate."""

import contextlib

import torch
from torch.nn.functional import cross_entropy

import deltavc

BAD = 57
CONFIG = b'{"layers": 2}'


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Tanh(), torch.nn.Linear(24, 4))


def data():
    inputs = torch.randn(128, 16, generator=torch.Generator().manual_seed(4))
    return inputs, inputs[:, :4].argmax(1)


def loss_of(forward):
    inputs, labels = data()
    with torch.no_grad():
        return float(cross_entropy(forward(inputs), labels))


@contextlib.contextmanager
def one_thread():
    """Operations this small take ten times as long on several threads where other tests run beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(url, steps=100):
    """Train and commit steps 0 to `steps`; the trained model."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    inputs, labels = data()
    with one_thread(), deltavc.init(url) as repo, repo.writer("main") as writer:
        writer.commit(trained, step=0, metrics={"loss": loss_of(trained)}, files={"config.json": CONFIG})
        for step in range(1, steps + 1):
            optimizer.param_groups[0]["lr"] = 1.0 if step == BAD else 1e-3
            optimizer.zero_grad()
            cross_entropy(trained(inputs), labels).backward()
            optimizer.step()
            writer.commit(trained, step=step, metrics={"loss": loss_of(trained)}, files={"config.json": CONFIG})
    return trained
