# SPDX-License-Identifier: BSD-3-Clause
"""The rnn example as a torch RPC program: a language model on a parameter server and a trainer.

The counterpart of examples/rnn, and the program of torch's RPC tutorial as it stands there: the
embedding table and the decoder are on the parameter server, the LSTM is on the trainer, and one
distributed backward pass and one step of a distributed optimizer go through both. Its data is
random numbers where the tutorial's is memory that nobody wrote. The last line it prints is
"iterations per second: ...", of --iterations batches after the --warmup.

Everything travels over TCP, in the connection of the call (the shm transport and the cma channel
are left out), as weft's calls do.
"""

import argparse
import os
import signal
import socket
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn, optim
from torch.distributed.optim import DistributedOptimizer

BATCH, NTOKEN, NINP, NHID, NINDICES, NLAYERS = 5, 10, 2, 3, 3, 4
BATCHES = 5  # of an epoch
SHUTDOWN_TIMEOUT = 60  # seconds


def _call_method(method, rref, *args, **kwargs):
    return method(rref.local_value(), *args, **kwargs)


def _remote_method(method, rref, *args, **kwargs):
    return rpc.rpc_sync(rref.owner(), _call_method, args=[method, rref, *args], kwargs=kwargs)


def _parameter_rrefs(module):
    return [rpc.RRef(parameter) for parameter in module.parameters()]


class EmbeddingTable(nn.Module):
    def __init__(self, ntoken, ninp, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.encoder.weight.data.uniform_(-0.1, 0.1)

    def forward(self, input):
        return self.drop(self.encoder(input))


class Decoder(nn.Module):
    def __init__(self, ntoken, nhid, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-0.1, 0.1)

    def forward(self, output):
        return self.decoder(self.drop(output))


class RNNModel(nn.Module):
    def __init__(self, ps, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.emb_table_rref = rpc.remote(ps, EmbeddingTable, args=(ntoken, ninp, dropout))
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder_rref = rpc.remote(ps, Decoder, args=(ntoken, nhid, dropout))

    def forward(self, input, hidden):
        emb = _remote_method(EmbeddingTable.forward, self.emb_table_rref, input)
        output, hidden = self.rnn(emb, hidden)
        decoded = _remote_method(Decoder.forward, self.decoder_rref, output)
        return decoded, hidden

    def parameter_rrefs(self):
        return [
            *_remote_method(_parameter_rrefs, self.emb_table_rref),
            *_parameter_rrefs(self.rnn),
            *_remote_method(_parameter_rrefs, self.decoder_rref),
        ]


class Trainer:
    def __init__(self, dropout, seed):
        torch.manual_seed(seed)
        self.batches = [
            (torch.randint(NTOKEN, (BATCH, NINDICES)), torch.randint(NINDICES, (BATCH, NTOKEN)))
            for _ in range(BATCHES)
        ]
        self.hidden = tuple(torch.randn(NLAYERS, NINDICES, NHID) for _ in range(2))
        self.model = RNNModel("ps", NTOKEN, NINP, NHID, NLAYERS, dropout)
        self.opt = DistributedOptimizer(optim.SGD, self.model.parameter_rrefs(), lr=0.05)
        self.criterion = nn.CrossEntropyLoss()

    def train(self, iterations):
        """Returns the seconds it took."""
        start = time.perf_counter()
        for iteration in range(iterations):
            data, target = self.batches[iteration % BATCHES]
            with dist_autograd.context() as context_id:
                self.hidden[0].detach_()
                self.hidden[1].detach_()
                output, self.hidden = self.model(data, self.hidden)
                loss = self.criterion(output, target)
                dist_autograd.backward(context_id, [loss])
                self.opt.step(context_id)
            if iteration % BATCHES == BATCHES - 1:
                print(f"Training epoch {iteration // BATCHES}", flush=True)
        return time.perf_counter() - start


def run_worker(rank, port, args):
    signal.alarm(args.timeout)  # bounds every wait of this process, those in C++ too
    torch.set_num_threads(args.threads)
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"], _channels=["basic"]
    )
    name = ["ps", "trainer"][rank]
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        trainer = Trainer(args.dropout, args.seed)
        trainer.train(args.warmup)
        seconds = trainer.train(args.iterations)
    rpc.shutdown(timeout=SHUTDOWN_TIMEOUT)
    if rank == 1:
        print(f"iterations per second: {args.iterations / seconds:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=200, help="iterations to measure")
    parser.add_argument("--warmup", type=int, default=20, help="iterations before them")
    parser.add_argument("--dropout", type=float, default=0.5, help="of all three parts")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch's operators")
    parser.add_argument("--timeout", type=int, default=600, help="seconds until it gives up")
    args = parser.parse_args()
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOG_minloglevel", "2")
    signal.alarm(args.timeout + 30)  # the workers have their own
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.spawn(run_worker, args=(port, args), nprocs=2)


if __name__ == "__main__":
    main()
