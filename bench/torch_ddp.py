# SPDX-License-Identifier: BSD-3-Clause
"""One of two processes that train together with torch's DDP over Gloo: torch_ddp.py RANK RENDEZVOUS.

Both print "ready". Rank 0 then answers commands, "NAME COUNT" per line, with one number each; it
tells rank 1, which does the same things at the same time. Both leave when rank 0's input ends. The
networks and the commands are those of data_parallel.cpp.
"""

import gc
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_commands import commands

WARMUP = 3  # DDP makes its buckets anew after the first pass

# width, layers, rows of a batch, MiB of a bucket
SMALL = (256, 2, 16, 25)
LARGE = (512, 8, 16, 2)
BUCKETS_MIB = [1, 2, 2, 2, 1]  # of the large network


def median_microseconds(count, function):
    for _ in range(WARMUP):
        function()
    dist.barrier()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def step_microseconds(network, together, count):
    width, layers, rows, bucket = network
    torch.manual_seed(1)
    model = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if together:
        model = DistributedDataParallel(model, bucket_cap_mb=bucket)
    data = torch.randn(rows, width)

    def step():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return median_microseconds(count, step)


def reduce_microseconds(sizes, count):
    """Of several sizes at the same time."""
    tensors = [torch.ones(size // 4) for size in sizes]

    def reduce():
        for work in [dist.all_reduce(each, async_op=True) for each in tensors]:
            work.wait()

    return median_microseconds(count, reduce)


COMMANDS = {
    "small_alone": lambda count: step_microseconds(SMALL, False, count),
    "small_together": lambda count: step_microseconds(SMALL, True, count),
    "large_alone": lambda count: step_microseconds(LARGE, False, count),
    "large_together": lambda count: step_microseconds(LARGE, True, count),
    "large_reductions": lambda count: reduce_microseconds([each << 20 for each in BUCKETS_MIB], count),
    "all_reduce_4K": lambda count: reduce_microseconds([4 << 10], count),
    "all_reduce_512K": lambda count: reduce_microseconds([512 << 10], count),
    "all_reduce_8M": lambda count: reduce_microseconds([8 << 20], count),
    "all_reduce_25M": lambda count: reduce_microseconds([25 << 20], count),
}


def main():
    rank, rendezvous = int(sys.argv[1]), sys.argv[2]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)  # a process for each core
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=rendezvous)
    print("ready", flush=True)
    for line in commands(rank):
        name, count = line.split()
        answer = COMMANDS[name](int(count))
        gc.collect()  # replicas are in cycles
        if rank == 0:
            print(answer, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
