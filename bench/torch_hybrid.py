# SPDX-License-Identifier: BSD-3-Clause
"""The hybrid example as a torch program: RPC to a parameter server, DDP over Gloo between trainers.

The counterpart of examples/hybrid --unordered, and the program of torch's tutorial as it stands
there, but on CPUs: the embedding table is on the parameter server, the linear layer is replicated
on two trainers, and a master drives them. The last line it prints is "iterations per second: ...",
of each trainer, for --iterations batches after the --warmup.

Calls travel over TCP, in the connection of the call (the shm transport and the cma channel are left
out), as weft's do. Operators have one thread in every process: the four share a few cores.
"""

import argparse
import os
import random
import signal
import socket
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn, optim
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.nn.parallel import DistributedDataParallel

NUM_EMBEDDINGS, EMBEDDING_DIM, CLASSES = 100, 16, 8
BATCHES = 10  # of an epoch
SHUTDOWN_TIMEOUT = 60  # seconds
NAMES = ["trainer0", "trainer1", "master", "ps"]


class HybridModel(nn.Module):
    def __init__(self, remote_emb_module):
        super().__init__()
        self.remote_emb_module = remote_emb_module
        self.fc = DistributedDataParallel(nn.Linear(EMBEDDING_DIM, CLASSES))

    def forward(self, indices, offsets):
        return self.fc(self.remote_emb_module.forward(indices, offsets))


def _next_batch():
    num_indices = random.randint(20, 50)
    indices = torch.LongTensor(num_indices).random_(0, NUM_EMBEDDINGS)
    offsets, start = [], 0
    while start < num_indices:
        offsets.append(start)
        start += random.randint(1, 10)
    target = torch.LongTensor(len(offsets)).random_(CLASSES)
    return indices, torch.LongTensor(offsets), target


def _train(model, opt, criterion, iterations):
    """Returns the seconds it took."""
    name, losses = rpc.get_worker_info().name, 0.0
    start = time.perf_counter()
    for iteration in range(iterations):
        indices, offsets, target = _next_batch()
        with dist_autograd.context() as context_id:
            loss = criterion(model(indices, offsets), target)
            dist_autograd.backward(context_id, [loss])
            opt.step(context_id)
        losses += loss.item()
        if iteration % BATCHES == BATCHES - 1:
            epoch = iteration // BATCHES
            print(f"{name}\tTraining done for epoch {epoch}\tmean loss: {losses / BATCHES:.9g}", flush=True)
            losses = 0.0
    return time.perf_counter() - start


def _run_trainer(remote_emb_module, rank, args):
    torch.manual_seed(args.seed + rank)
    random.seed(args.seed + rank)
    model = HybridModel(remote_emb_module)
    parameters = model.remote_emb_module.remote_parameters()
    parameters += [rpc.RRef(parameter) for parameter in model.fc.parameters()]
    opt = DistributedOptimizer(optim.SGD, parameters, lr=0.05)
    criterion = nn.CrossEntropyLoss()
    _train(model, opt, criterion, args.warmup)
    return args.iterations / _train(model, opt, criterion, args.iterations)


def _run_master(args):
    """Returns the rate of the slower trainer."""
    table = RemoteModule("ps", nn.EmbeddingBag, args=(NUM_EMBEDDINGS, EMBEDDING_DIM), kwargs={"mode": "sum"})
    futures = [  # without the tutorial's default timeout of 60 s: it takes as long as it takes
        rpc.rpc_async(NAMES[rank], _run_trainer, args=(table, rank, args), timeout=0) for rank in range(2)
    ]
    return min(future.wait() for future in futures)


def run_worker(rank, rpc_port, group_port, args):
    signal.alarm(args.timeout)  # bounds every wait of this process, those in C++ too
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed + rank)
    if rank < 2:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{group_port}")
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{rpc_port}", _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=4, rpc_backend_options=options)
    rate = _run_master(args) if NAMES[rank] == "master" else None
    rpc.shutdown(timeout=SHUTDOWN_TIMEOUT)
    if rate is not None:
        print(f"iterations per second: {rate:.1f}", flush=True)


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=1000, help="iterations to measure")
    parser.add_argument("--warmup", type=int, default=20, help="iterations before them")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch's operators")
    parser.add_argument("--timeout", type=int, default=600, help="seconds until it gives up")
    args = parser.parse_args()
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOG_minloglevel", "2")
    signal.alarm(args.timeout + 30)  # the workers have their own
    rpc_port, group_port = _free_ports(2)
    mp.spawn(run_worker, args=(rpc_port, group_port, args), nprocs=4)


if __name__ == "__main__":
    main()
