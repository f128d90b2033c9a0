#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes optimizer_reference.txt beside itself: what PyTorch's optimizers and schedulers compute.

Everything but the result is made of small integers and powers of two, so that C++ can start from
the same bits. Results are hexadecimal floats."""

import pathlib
import warnings

import torch

SHAPES = [(3, 4), (5,)]
STEPS = 50
PRINTED = (1, 10, 50)
EPOCHS = 20


def start(i):
    return (3 * i % 11 - 5) / 8


def gradient(i, step):
    # By the element: constant, turning slowly, turning often, turning with nearly every step.
    pace = (0, 1, 2, 11)[i % 4]
    return ((5 * i + pace * step) % 23 - 9) / 16


def filled(dtype, value):
    """Tensors of SHAPES whose elements, counted through all of them, are value(i)."""
    i = 0
    tensors = []
    for shape in SHAPES:
        count = torch.Size(shape).numel()
        tensors.append(torch.tensor([value(i + k) for k in range(count)], dtype=dtype).view(shape))
        i += count
    return tensors


def hexadecimal(values):
    return " ".join(float(v).hex() for v in values)


def option_words(options):
    words = []
    for name, value in options.items():
        for each in value if isinstance(value, tuple) else (value,):
            words += [name, repr(float(each))]
    return " ".join(words)


def optimizer_case(kind, dtype, **options):
    lines = [f"optimizer {kind.__name__} {str(dtype).removeprefix('torch.')} {option_words(options)}"]
    params = [p.requires_grad_() for p in filled(dtype, start)]
    optimizer = kind(params, foreach=False, **options)
    for step in range(1, STEPS + 1):
        for param, grad in zip(params, filled(dtype, lambda i: gradient(i, step))):
            param.grad = grad
        optimizer.step()
        if step in PRINTED:
            values = torch.cat([p.detach().flatten() for p in params]).tolist()
            lines.append(f"after {step} {hexadecimal(values)}")
    return lines


def schedule_case(kind, lrs, **options):
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in lrs]
    scheduler = kind(torch.optim.SGD(groups, lr=1.0), **options)
    closed, stepped = [], []
    for _ in range(EPOCHS + 1):
        closed.append(scheduler._get_closed_form_lr())
        stepped.append(scheduler.get_last_lr())
        scheduler.step()
    lines = [f"schedule {kind.__name__} {option_words(options)}"]
    for i, lr in enumerate(lrs):
        lines.append(f"base {lr!r}")
        lines.append(f"closed {hexadecimal(each[i] for each in closed)}")
        lines.append(f"stepped {hexadecimal(each[i] for each in stepped)}")
    return lines


def main():
    warnings.simplefilter("ignore")  # the optimizers under the schedules take no steps
    f32, f64 = torch.float32, torch.float64
    optim, schedule = torch.optim, torch.optim.lr_scheduler
    cases = [
        optimizer_case(optim.Adadelta, f64, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0),
        optimizer_case(optim.Adadelta, f64, lr=0.25, rho=0.95, eps=1e-4, weight_decay=0.0),
        optimizer_case(optim.Adadelta, f64, lr=2.0, rho=0.5, eps=1e-6, weight_decay=0.125),
        optimizer_case(optim.Adadelta, f32, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.01),
        optimizer_case(optim.Adamax, f64, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
        optimizer_case(optim.Adamax, f64, lr=0.1, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.0),
        optimizer_case(optim.Adamax, f64, lr=0.03, betas=(0.0, 0.9), eps=1e-8, weight_decay=0.25),
        optimizer_case(optim.Adamax, f32, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
        optimizer_case(optim.Rprop, f64, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0)),
        optimizer_case(optim.Rprop, f64, lr=0.1, etas=(0.3, 1.5), step_sizes=(0.01, 0.7)),
        optimizer_case(optim.Rprop, f64, lr=1e-3, etas=(0.9, 1.01), step_sizes=(0.0, 1.0)),
        optimizer_case(optim.Rprop, f32, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0)),
        schedule_case(schedule.CosineAnnealingLR, (0.1, 3e-3), T_max=20, eta_min=0.0),
        schedule_case(schedule.CosineAnnealingLR, (0.1, 0.7), T_max=27, eta_min=1e-3),
        schedule_case(schedule.LinearLR, (0.1, 3e-3), total_iters=5, start_factor=1 / 3),
        schedule_case(schedule.LinearLR, (0.1, 0.7), total_iters=20, start_factor=0.01),
    ]
    lines = [f"# Made by make_optimizer_reference.py with PyTorch {torch.__version__}."]
    lines += [line for case in cases for line in case]
    path = pathlib.Path(__file__).with_name("optimizer_reference.txt")
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
