# SPDX-License-Identifier: BSD-3-Clause
"""Draws the figures of bench/run as SVG: calls/s against clients and against the time of a function, all_reduce
against members, and time and bandwidth against the size of a message. Run by itself: plots.py BENCH.JSON DIRECTORY."""

import json
import math
import os
import re
import sys

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 180, 40, 52
COLORS = ["#1b6ca8", "#c8553d", "#3a7d44", "#7b4fa3", "#8a6d1d", "#444444", "#2a9d8f", "#b5179e"]


class Axis:
    """Values to places between `low` and `high`. Ticks are (value, text)."""

    def __init__(self, ticks, low, high, logarithmic):
        self.ticks = ticks
        self.scale = math.log if logarithmic else (lambda value: value)
        values = [self.scale(value) for value, _ in ticks]
        self.first, self.span = min(values), (max(values) - min(values)) or 1
        self.low, self.high = low, high

    def place(self, value):
        return self.low + (self.scale(value) - self.first) / self.span * (self.high - self.low)


def short(value):
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"


def linear_ticks(highest):
    step = 10 ** math.floor(math.log10(highest))
    for divided in (step / 5, step / 2, step, 2 * step):
        if highest / divided <= 6:
            step = divided
            break
    return [(i * step, short(i * step)) for i in range(math.ceil(highest / step) + 1)]


def decade_ticks(values):
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [(10.0**power, short(10.0**power)) for power in range(first, last + 1)]


def text(x, y, content, anchor="middle", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{content}</text>'


def draw(title, x_title, y_title, x_axis, y_axis, series, dashed=()):
    """`series` is {name: [(x, y), ...]}; those in `dashed` are what Weft is compared with."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 22, title, "start", 'font-size="14"')]
    for value, name in y_axis.ticks:
        y = y_axis.place(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, name, "end"))
    for value, name in x_axis.ticks:
        parts.append(text(x_axis.place(value), bottom + 18, name))
    parts.append(f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="black"/>')
    parts.append(text((LEFT + right) / 2, HEIGHT - 12, x_title))
    parts.append(text(16, (TOP + bottom) / 2, y_title, "middle", f'transform="rotate(-90 16 {(TOP + bottom) / 2})"'))
    for index, (name, points) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        line = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in sorted(points))
        dashes = ' stroke-dasharray="5 4"' if name in dashed else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>')
        for x, y in points:
            parts.append(f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="3" fill="{color}"/>')
        y = TOP + 8 + 20 * index
        parts.append(f'<line x1="{right + 12}" y1="{y}" x2="{right + 36}" y2="{y}" stroke="{color}" stroke-width="2"{dashes}/>')
        parts.append(text(right + 42, y + 4, name, "start"))
    return "\n".join(parts + ["</svg>", ""])


def x_axis_of(values, texts=None):
    values = sorted(values)
    return Axis([(value, texts[value] if texts else f"{value:g}") for value in values], LEFT, WIDTH - RIGHT, True)


def y_axis_of(ticks, logarithmic):
    return Axis(ticks, HEIGHT - BOTTOM, TOP, logarithmic)


def points_of(records, row, pattern):
    """(match, anchor, weft) of the measured records of a row whose title has the pattern."""
    for record in records:
        match = record["row"] == row and re.search(pattern, record.get("what", ""))
        if match and "not_measured" not in record and record["weft_value"] and record["anchor_value"]:
            yield match, record["anchor_value"], record["weft_value"]


def against_clients(records):
    series = {}
    for match, raw, weft in points_of(records, 28, r"sync nop, (\d+) clients x (\d+) threads"):
        clients, threads = int(match[1]), int(match[2])
        per = "1 thread" if threads == 1 else f"{threads} threads"
        series.setdefault(f"Weft, {per}", []).append((clients, weft))
        series.setdefault(f"raw, {per}", []).append((clients, raw))
    if not series:
        return None
    highest = max(y for points in series.values() for _, y in points)
    return draw("One worker, sync nop", "client processes", "calls/s", x_axis_of({x for p in series.values() for x, _ in p}),
                y_axis_of(linear_ticks(highest), False), series, [name for name in series if name.startswith("raw")])


def against_function_time(records):
    series = {"Weft": [], "raw": []}
    for match, raw, weft in points_of(records, 29, r"function of (\d+) us"):
        series["Weft"].append((int(match[1]), weft))
        series["raw"].append((int(match[1]), raw))
    if not series["Weft"]:
        return None
    rates = [y for points in series.values() for _, y in points]
    return draw("One worker, functions that compute, all clients with 4 threads", "microseconds", "calls/s",
                x_axis_of({x for x, _ in series["Weft"]}), y_axis_of(decade_ticks(rates), True), series, ["raw"])


def against_members(records):
    series = {}
    for match, gloo, weft in points_of(records, 32, r"all_reduce of (.*), (\d+) members"):
        series.setdefault(match[1], []).append((int(match[2]), gloo / weft))
    if not series:
        return None
    members = {x for points in series.values() for x, _ in points}
    series["as fast as Gloo"] = [(min(members), 1), (max(members), 1)]
    ratios = [y for points in series.values() for _, y in points]
    return draw("all_reduce on one host", "members", "times faster than Gloo", x_axis_of(members),
                y_axis_of(decade_ticks(ratios), True), series, ["as fast as Gloo"])


SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def by_size(records):
    """{name: [(bytes, microseconds there and back), ...]} of row 35, Weft first, and the sizes' names."""
    series, names = {"Weft, same host": [], "Weft over TCP": []}, {}
    for record in records:
        match = record["row"] == 35 and re.match(r"(\d+) (B|KiB|MiB) there and back, (.*)", record.get("what", ""))
        if not match or "not_measured" in record or not record["weft_value"]:
            continue
        size = int(match[1]) * SIZES[match[2]]
        names[size] = f"{match[1]} {match[2]}"
        weft = series["Weft, same host" if match[3] == "same host" else "Weft over TCP"]
        if size not in dict(weft):
            weft.append((size, record["weft_value"]))
        anchor = record["anchor"].replace(" through shared memory", ", same host")
        series.setdefault(anchor, []).append((size, record["anchor_value"]))
    return {name: points for name, points in series.items() if points}, names


def times_against_size(records):
    series, names = by_size(records)
    if not series:
        return None
    times = [y for points in series.values() for _, y in points]
    return draw("A tensor there and back", "size", "microseconds", x_axis_of(names, names),
                y_axis_of(decade_ticks(times), True), series, [name for name in series if name.startswith("raw")])


def bandwidth_against_size(records):
    series, names = by_size(records)
    if not series:
        return None
    # Bytes per microsecond are MB/s; those that go there come back, too.
    series = {name: [(size, 2 * size / us) for size, us in points] for name, points in series.items()}
    rates = [y for points in series.values() for _, y in points]
    return draw("A tensor there and back", "size", "MB/s, both ways together", x_axis_of(names, names),
                y_axis_of(decade_ticks(rates), True), series, [name for name in series if name.startswith("raw")])


def write_plots(records, directory):
    """Writes those for which there are figures; returns their paths."""
    written = []
    for name, make in (("clients", against_clients), ("function_time", against_function_time), ("all_reduce", against_members),
                       ("message_time", times_against_size), ("message_bandwidth", bandwidth_against_size)):
        picture = make(records)
        if picture is None:
            continue
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, name + ".svg")
        with open(path, "w") as file:
            file.write(picture)
        written.append(path)
    return written


if __name__ == "__main__":
    with open(sys.argv[1]) as bench:
        print("\n".join(write_plots(json.load(bench)["rows"], sys.argv[2])))
