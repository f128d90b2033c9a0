# SPDX-License-Identifier: BSD-3-Clause
"""The cartpole example as a torch RPC program: one agent and one observer learn CartPole-v1.

The counterpart of examples/cartpole without --batch, and of the program of torch's RPC tutorial:
for every step of its environment the observer asks the agent for an action and then reports the
reward, both by rpc_sync() through an RRef; after every episode the agent trains its policy. Whole
episodes are played until --steps steps were made after the --warmup. The last line it prints is
"steps per second: ...", training included.

torch chooses its transports and channels itself (shared memory between two processes of a
machine), unless --tcp keeps everything in the TCP connection of the call.
"""

import argparse
import math
import os
import random
import signal
import socket
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn

EPISODE_TIMEOUT = 300.0  # seconds
SHUTDOWN_TIMEOUT = 60


class CartPole:
    """The physics and limits of Gym's CartPole-v1."""

    GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
    TOTAL_MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
    FORCE, TAU = 10.0, 0.02
    POSITION_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360
    MOST_STEPS = 500

    def __init__(self, seed):
        self.random = random.Random(seed)

    def reset(self):
        self.state = tuple(self.random.uniform(-0.05, 0.05) for _ in range(4))
        self.steps = 0
        return self.state

    def step(self, action):
        """Action 1 pushes to the right, 0 to the left; returns (state, reward, done)."""
        x, speed, angle, turn = self.state
        force = self.FORCE if action == 1 else -self.FORCE
        cosine, sine = math.cos(angle), math.sin(angle)
        pushed = (force + self.POLE_MOMENT * turn * turn * sine) / self.TOTAL_MASS
        turning = (self.GRAVITY * sine - cosine * pushed) / (
            self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * cosine * cosine / self.TOTAL_MASS)
        )
        moving = pushed - self.POLE_MOMENT * turning * cosine / self.TOTAL_MASS
        x += self.TAU * speed  # Euler, positions before velocities, as in Gym
        speed += self.TAU * moving
        angle += self.TAU * turn
        turn += self.TAU * turning
        self.state = x, speed, angle, turn
        self.steps += 1
        fallen = abs(x) > self.POSITION_LIMIT or abs(angle) > self.ANGLE_LIMIT
        return self.state, 1.0, fallen or self.steps >= self.MOST_STEPS


class Policy(nn.Module):
    HIDDEN, DROPOUT = 128, 0.6

    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, self.HIDDEN)
        self.affine2 = nn.Linear(self.HIDDEN, 2)

    def draw_dropout(self, rows):
        """Kept, so that what the policy decided can be computed once more."""
        return torch.empty(rows, self.HIDDEN).bernoulli_(1 - self.DROPOUT).div_(1 - self.DROPOUT)

    def forward(self, states, dropout):
        return torch.softmax(self.affine2(self.affine1(states).mul_(dropout).relu_()), dim=1)


class Episode:
    """What one observer saw and was told, as the training step needs it."""

    def __init__(self):
        self.states, self.dropouts, self.actions, self.rewards = [], [], [], []

    def append(self, other):
        for mine, theirs in zip(vars(self).values(), vars(other).values()):
            mine += theirs


class Observer:
    """Plays episodes in an environment of its own, asking the agent what to do."""

    def __init__(self, seed):
        self.id = rpc.get_worker_info().id
        self.environment = CartPole(seed)

    def run_episode(self, agent):
        state, done = self.environment.reset(), False
        while not done:
            action = agent.rpc_sync().select_action(self.id, state)
            state, reward, done = self.environment.step(action)
            agent.rpc_sync().report_reward(self.id, reward)


class Agent:
    """Chooses the actions of all observers and trains its policy after every episode."""

    def __init__(self, world_size, gamma, seed):
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.gamma = gamma
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.eps = torch.finfo(torch.float32).eps
        self.running_reward = 0.0
        self.steps = 0
        self.episodes = {}
        self.self_rref = rpc.RRef(self)
        self.observers = []
        for rank in range(1, world_size):
            info = rpc.get_worker_info(f"obs{rank}")
            self.observers.append(rpc.remote(info, Observer, args=(seed + rank - 1,)))
            self.episodes[info.id] = Episode()

    @torch.inference_mode()
    def select_action(self, observer, state):
        """Without a graph: finish_episode() computes all steps at once, with the same gradient."""
        self.steps += 1
        dropout = self.policy.draw_dropout(1)
        left, right = self.policy(torch.tensor([state]), dropout).tolist()[0]
        action = int(self.random.random() * (left + right) >= left)
        episode = self.episodes[observer]
        episode.states.append(state)
        episode.dropouts.append(dropout)
        episode.actions.append(action)
        return action

    def report_reward(self, observer, reward):
        self.episodes[observer].rewards.append(reward)

    def run_episode(self):
        """One episode on every observer, then a training step."""
        episodes = [
            observer.rpc_async(timeout=EPISODE_TIMEOUT).run_episode(self.self_rref)
            for observer in self.observers
        ]
        torch.futures.wait_all(episodes)
        return self.finish_episode()

    def finish_episode(self):
        played = Episode()  # by all observers in a row, as the tutorial does it
        for episode in self.episodes.values():
            played.append(episode)
        smallest = min(sum(episode.rewards) for episode in self.episodes.values())
        self.running_reward = 0.05 * smallest + 0.95 * self.running_reward
        self.episodes = {observer: Episode() for observer in self.episodes}

        returns, total = [], 0.0
        for reward in reversed(played.rewards):
            total = reward + self.gamma * total
            returns.append(total)
        weights = torch.tensor(returns[::-1])
        weights = (weights - weights.mean()) / (weights.std() + self.eps)
        probabilities = self.policy(torch.tensor(played.states), torch.cat(played.dropouts))
        chosen = torch.tensor(played.actions).unsqueeze(1)
        loss = (-probabilities.gather(1, chosen).squeeze(1).log() * weights).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return smallest


def play(agent, steps):
    """Episodes until there were so many steps; returns how many there were."""
    before = agent.steps
    while agent.steps - before < steps:
        agent.run_episode()
    return agent.steps - before


def run_worker(rank, world_size, port, args):
    signal.alarm(args.timeout)  # bounds every wait of this process, those in C++ too
    torch.set_num_threads(args.threads)
    only_tcp = {"_transports": ["uv"], "_channels": ["basic"]} if args.tcp else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **only_tcp)
    name = f"obs{rank}" if rank else "agent"
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        agent = Agent(world_size, args.gamma, args.seed)
        play(agent, args.warmup)
        start = time.perf_counter()
        steps = play(agent, args.steps)
        seconds = time.perf_counter() - start
    rpc.shutdown(timeout=SHUTDOWN_TIMEOUT)
    if rank == 0:
        print(f"steps per second: {steps / seconds:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="steps to measure, at least")
    parser.add_argument("--warmup", type=int, default=500, help="steps before them, at least")
    parser.add_argument("--gamma", type=float, default=0.99, help="value of future rewards")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch's operators")
    parser.add_argument("--tcp", action="store_true", help="no shared memory, only TCP")
    parser.add_argument("--timeout", type=int, default=600, help="seconds until it gives up")
    args = parser.parse_args()
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOG_minloglevel", "2")
    signal.alarm(args.timeout + 30)  # the workers have their own
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.spawn(run_worker, args=(2, port, args), nprocs=2)


if __name__ == "__main__":
    main()
