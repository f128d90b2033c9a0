# SPDX-License-Identifier: BSD-3-Clause
"""The members of a Gloo group that reduce together: torch_reduce.py MEMBERS RENDEZVOUS.

Rank 0 prints "ready" and answers commands, "BYTES COUNT" per line, with one number each: the median
time of an all_reduce, in microseconds. It tells the others, which are copies of this process and do
the same at the same time. All leave when rank 0's input ends.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch_commands import commands

WARMUP = 3


def reduce_microseconds(size, count):
    tensor = torch.ones(size // 4)
    for _ in range(WARMUP):
        dist.all_reduce(tensor)
    dist.barrier()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def be_member(rank, members, rendezvous):
    torch.set_num_threads(1)  # a process for each core
    dist.init_process_group("gloo", rank=rank, world_size=members, init_method=rendezvous)
    if rank == 0:
        print("ready", flush=True)
    for line in commands(rank):
        size, count = map(int, line.split())
        answer = reduce_microseconds(size, count)
        if rank == 0:
            print(answer, flush=True)
    dist.destroy_process_group()


def main():
    members, rendezvous = int(sys.argv[1]), sys.argv[2]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    others = []
    for rank in range(1, members):  # torch is loaded once, and has started no thread
        pid = os.fork()
        if pid == 0:
            be_member(rank, members, rendezvous)
            os._exit(0)
        others.append(pid)
    be_member(0, members, rendezvous)
    for pid in others:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
