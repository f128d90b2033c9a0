# SPDX-License-Identifier: BSD-3-Clause
"""Commands that the first of several processes reads, for all of them."""

import sys

import torch.distributed as dist


def tell(command):
    """What rank 0 says, on all."""
    told = [command]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def commands(rank):
    if rank == 0:
        for line in sys.stdin:
            yield tell(line)
        tell(None)
    else:
        while (line := tell(None)) is not None:
            yield line
