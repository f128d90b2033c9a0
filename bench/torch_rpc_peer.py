# SPDX-License-Identifier: BSD-3-Clause
"""One of two torch RPC workers: torch_rpc_peer.py RANK RENDEZVOUS CHANNEL.

Both print "ready". Rank 0 then answers commands, "NAME COUNT" per line, with one number each, and
rank 1 serves; both leave when their input ends. Only builtin operators are called (but for the
parameters of the optimizer), so the callee runs them in C++ without Python's lock. CHANNEL is the way tensors take:
"basic", in the connection of the call, "mpt_uv", in parallel over several of their own, or "cma", copied from the
other process. Calls travel over TCP; with "shm/" before the channel, through shared memory.
"""

import statistics
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer

OUTSTANDING = 200
SMALL = torch.ones(4)
LARGE = torch.ones(16 << 20)  # 64 MiB


def median_seconds(count, function, *args):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        rpc.rpc_sync("callee", function, args=args)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def calls_per_second(count):
    def issue():
        return rpc.rpc_async("callee", torch.add, args=(SMALL, SMALL))

    window = min(count, OUTSTANDING)
    start = time.perf_counter()
    ring = [issue() for _ in range(window)]
    for i in range(window, count):
        ring[i % window].wait()
        ring[i % window] = issue()
    for future in ring:
        future.wait()
    return count / (time.perf_counter() - start)


def cycles_per_second(count):
    start = time.perf_counter()
    for _ in range(count):
        rpc.remote("callee", torch.add, args=(SMALL, SMALL)).to_here()
    return count / (time.perf_counter() - start)


def step_seconds(count):
    x, w = (torch.ones(4, requires_grad=True) for _ in range(2))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("callee", torch.mul, args=(x, w)).sum()
            dist_autograd.backward(context, [loss])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


PARAMETERS = [torch.ones(4, requires_grad=True) for _ in range(100)]


def own_references():
    return [rpc.RRef(each) for each in PARAMETERS]


def own_sum():
    return torch.stack(PARAMETERS).sum()


def optimizer_seconds(count):
    references = own_references() + rpc.rpc_sync("callee", own_references)
    optimizer = DistributedOptimizer(torch.optim.SGD, references, lr=1e-3)
    times = []
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [own_sum() + rpc.rpc_sync("callee", own_sum)])
        for _ in range(count):
            start = time.perf_counter()
            optimizer.step(context)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


COMMANDS = {
    "sync": lambda count: 1e6 * median_seconds(count, torch.add, SMALL, SMALL),
    "async": calls_per_second,
    "churn": cycles_per_second,
    "optimizer": lambda count: 1e6 * optimizer_seconds(count),
    "chain": lambda count: 1e6 * step_seconds(count),
    "neg": lambda count: 1e3 * median_seconds(count, torch.neg, LARGE),
    "positive": lambda count: 1e3 * median_seconds(count, torch.positive, LARGE),
}


def echo_microseconds(size):
    tensor = torch.ones(size, dtype=torch.int8)
    return lambda count: 1e6 * median_seconds(count, torch.positive, tensor)


def command_of(name):
    return echo_microseconds(int(name[4:])) if name.startswith("echo") else COMMANDS[name]


def main():
    rank, rendezvous, channel = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    transport = "shm" if channel.startswith("shm/") else "uv"
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=rendezvous, _transports=[transport], _channels=[channel.removeprefix("shm/")]
    )
    rpc.init_rpc(["caller", "callee"][rank], rank=rank, world_size=2, rpc_backend_options=options)
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(command_of(name)(int(count)), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
