"""How long does a live model on a GPU pause, and how far is that from copying its bytes once?

Input: bf16 weights as a model has them (matrices of 8192 x 4096, and a vector for each), in memory of their own
end to end, and a copy in which a share of the lanes has another value (seed 0). Measured on the device that is
there, until it is through, medians of the rounds after one that compiles:

    copy                 the same bytes, read once and written once: the limit for anything dense
    swap                 a staged change compared and written: the pause of a live update
    dense XOR            the pause of systems that XOR whole tensors, when the XOR is there already
    nvCOMP decode + XOR  the same, from blocks of Snappy on the device (with the package nvidia-nvcomp)
    diff, fingerprint    what a writer does for a commit, and a reader to verify
    replica, pause       all of it as a user has it: staged from a repository in memory, compared, written, through
    replica, stage       fetched, checked, decoded, gathered and proven beside serving

Takes under five minutes. Sizes that do not fit are left out. `--small` shrinks all of it, to show that it runs:
without a device in Triton's interpreter, whose times mean nothing.

    python bench/gpu.py [--gb 8 32 55] [--density 0.00085 0.01] [--rounds 5] [--small]
"""

import argparse
import importlib.util
import itertools
import os
import statistics
import time

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import deltavc
from deltavc.change import Box, Dense
from deltavc.delta.codecs import codec
from deltavc.delta.codecs.base import FrameHeader
from deltavc.kernels import Part, Segment, gpu

BLOCK = 64 << 10  # bytes decoded at a time
ALIGNMENT = 16  # of every block on the device
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, nargs="+", default=[8, 32, 55], help="GB of weights")
    parser.add_argument("--density", type=float, nargs="+", default=[0.00085, 0.01], help="share of lanes changed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a few hundred kB, to see that it runs")
    options = parser.parse_args()
    if DEVICE.type == "cpu" and not options.small:
        parser.error("there is no GPU here; --small runs in Triton's interpreter")

    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "no GPU: Triton's interpreter, times mean nothing"
    print(f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, medians of {options.rounds} rounds")
    print(f"{'GB':>7} {'density':>8} {'what':<20} {'ms':>10} {'GB/s':>8} {'of copy':>8}")
    shape = (64, 512) if options.small else (8192, 4096)
    for gb in [0.0003] if options.small else options.gb:
        num_matrices = max(round(gb * 1e9 / 2 / (shape[0] * shape[1] + shape[0])), 1)
        num_lanes = num_matrices * (shape[0] * shape[1] + shape[0])
        if DEVICE.type == "cuda" and torch.cuda.mem_get_info()[0] < 4.4 * num_lanes:
            print(f"{gb:7.4g} does not fit twice into the {torch.cuda.mem_get_info()[0] / 1e9:.0f} GB that are free")
            continue
        for density in options.density:
            seconds = measure(num_matrices, shape, density, options.rounds)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
            seconds |= move(num_matrices, shape, density, options.rounds)
            for what, median in seconds.items():
                speed, ratio = num_lanes * 2 / median / 1e9, median / seconds["copy"]
                row = f"{what:<20} {median * 1e3:10.3f} {speed:8.1f} {ratio:8.3f}"
                print(f"{num_lanes * 2 / 1e9:7.4g} {density:8.3%} {row}", flush=True)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()


def measure(num_matrices, shape, density, rounds):
    """Median seconds of everything, for one model and one density."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    matrix, vector = shape[0] * shape[1], shape[0]
    num_lanes = num_matrices * (matrix + vector)
    live = torch.empty(num_lanes, dtype=torch.int16, device=DEVICE)
    sizes = [matrix, vector] * num_matrices
    tensors = torch.split(live, sizes)
    for tensor in tensors:
        tensor.random_(-(2**15), 2**15, generator=generator)
    image = live.clone()
    segments, changed = [], 0
    for old, new in zip(tensors, torch.split(image, sizes), strict=True):
        at = torch.nonzero(torch.rand(old.shape, device=DEVICE, generator=generator) < density).view(-1)
        before = old[at]
        new[at] = before + 1
        segments.append(Segment(old, at, before, before + 1))
        changed += len(at)

    shapes = [(matrix,), (vector,)] * num_matrices
    olds = [Part(old, Box.whole(size), size) for old, size in zip(tensors, shapes, strict=True)]
    news = [Part(new, Box.whole(size), size) for new, size in zip(torch.split(image, sizes), shapes, strict=True)]
    check(olds, news, changed)
    there = gpu.Swap(segments)
    back = gpu.Swap([Segment(one.memory, one.at, one.new, one.old) for one in segments])
    swap = itertools.cycle([there.swap, back.swap])
    runs = {
        "swap": lambda swap=swap: next(swap)(),
        "diff": lambda: gpu.diff_all(tensors, news, [size // 4 for size in sizes], "add", False),
        "fingerprint": lambda: gpu.fingerprint_all(olds),
        "dense XOR": lambda: torch.bitwise_xor(live, image, out=live),
        "copy": lambda: image.copy_(live),
    }
    seconds = {what: median(run, rounds) for what, run in runs.items()}
    del runs, there, back, swap, segments
    if DEVICE.type == "cuda" and importlib.util.find_spec("nvidia.nvcomp") is not None:
        try:
            seconds["nvCOMP decode + XOR"] = decode_and_xor(live, image, density, rounds)
        except Exception as error:  # a peer that fails must not take the other figures along
            print(f"nvCOMP failed: {type(error).__name__}: {error}")
    return {what: seconds[what] for what in ("copy", *(what for what in seconds if what != "copy"))}


def move(num_matrices, shape, density, rounds):
    """Median seconds of a replica's pause and of its staging, to and fro between two versions."""
    state = {f"{n}.weight": torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for n in range(num_matrices)}
    state |= {f"{n}.bias": torch.zeros(shape[0], dtype=torch.bfloat16, device=DEVICE) for n in range(num_matrices)}
    generator = torch.Generator(DEVICE).manual_seed(0)
    with deltavc.init(f"memory://gpu-{num_matrices}-{density}") as repo:
        with repo.writer("main") as writer:  # zeros are soon committed; what is live makes no difference to a swap
            writer.commit(state)
            for tensor in state.values():
                lanes = tensor.view(torch.int16)
                lanes += torch.rand(lanes.shape, device=DEVICE, generator=generator) < density
            writer.commit(state, snapshot=False)
        room = int(32 * density * sum(tensor.nbytes for tensor in state.values())) + (64 << 20)
        with repo.replica(state, at="main", staging_bytes=room) as replica:
            moves = [replica.move(f"main~{(number + 1) % 2}") for number in range(rounds + 1)][1:]
            replica.verify()
    return {
        "replica, pause": statistics.median(applied.pause_seconds for applied in moves),
        "replica, stage": statistics.median(applied.stage_seconds for applied in moves),
    }


def check(olds, news, changed):
    """What is about to be measured gives the right results."""
    found = gpu.diff_all([part.lanes for part in olds], news, [part.lanes.numel() for part in news], "add", False)
    assert sum(change.num_changes for change, _ in found) == changed
    before, after = gpu.fingerprint_all(olds), gpu.fingerprint_all(news)
    assert all((old + moved) % 2**64 == new for old, new, (_, moved) in zip(before, after, found, strict=True))


def median(run, rounds):
    times = []
    for _ in range(rounds + 1 + (rounds + 1) % 2):  # an even number: what was swapped is swapped back
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def decode_and_xor(live, image, density, rounds):
    """Decode as many bytes as the model has, from blocks that lie on the device, and XOR them into it."""
    from nvidia import nvcomp

    # One frame of 64 MiB, encoded on the CPU, once for every 64 MiB of the model.
    frame = 1 << 25
    delta = (torch.rand(frame, generator=torch.Generator().manual_seed(0)) < density).to(torch.int16)
    scheme, header = codec("xor-snappy-zstd"), FrameHeader(frame, 2, "xor", frame)
    peeled = scheme.peel(scheme.encode(Dense("xor", delta), frame), header)
    ends = scheme.block_ends(peeled, header)
    sizes = np.diff(ends)
    room = -(-sizes // ALIGNMENT) * ALIGNMENT
    starts = np.cumsum(room) - room
    blocks = np.zeros(room.sum(), np.uint8)
    for start, size, first in zip(starts, sizes, ends, strict=False):
        blocks[start : start + size] = np.frombuffer(peeled, np.uint8)[first : first + size]

    num_frames = live.numel() // frame
    stored = torch.from_numpy(blocks).to(DEVICE).repeat(num_frames)
    starts = (np.arange(num_frames)[:, None] * len(blocks) + starts).ravel().tolist()
    sizes = np.tile(sizes, num_frames).tolist()
    stream = torch.cuda.Stream()
    tool = nvcomp.Codec(
        algorithm=scheme.algorithm,
        device_id=torch.cuda.current_device(),
        cuda_stream=stream.cuda_stream,
        uncomp_chunk_size=BLOCK,
        bitstream_kind=nvcomp.BitstreamKind.RAW,
    )
    source = nvcomp.as_arrays(stored, starts, sizes, stream.cuda_stream)
    places = [n * BLOCK for n in range(len(sizes))]
    target = nvcomp.as_arrays(image.view(torch.uint8), places, [BLOCK] * len(sizes), stream.cuda_stream)

    def run():
        with torch.cuda.stream(stream):
            tool.decode(source, out=target)
            torch.bitwise_xor(live, image, out=live)

    return median(run, rounds)


if __name__ == "__main__":
    main()
