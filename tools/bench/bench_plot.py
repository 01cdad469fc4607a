#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A picture (SVG) of what orbitkv-bench measured: rate against fragment size.

    orbitkv-bench --case fragments --json >results.json
    tools/bench/bench_plot.py results.json >fragments.svg

Without a file, or for "-", the results come from the standard input.
"""
import argparse
import json
import math
import sys

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 230, 56, 62
MIN_POWER, MAX_POWER = 9, 20  # 512 B to 1 MiB
TARGET = ((9, 0.5), (10, 0.6), (11, 0.9), (20, 0.9))  # power of two of the fragment, ratio

# name, direction, beside, figure, color, dashes
SERIES = (
    ("restore", "restore", "nothing", "ratio", "#1f6fb4", ""),
    ("publish", "publish", "nothing", "ratio", "#d1580a", ""),
    ("restore beside products", "restore", "8192", "ratio", "#1f6fb4", "7 4"),
    ("publish beside products", "publish", "8192", "ratio", "#d1580a", "7 4"),
    ("plain memcpy of the rows", "restore", "nothing", "memcpy_ratio", "#4a8f3c", ""),
    ("batched call", "restore", "nothing", "batch_ratio", "#4a8f3c", ""),
    ("batched call per layer", "restore", "nothing", "batch_layer_ratio", "#8a56ac", ""),
    ("loop of copies", "restore", "nothing", "loop_ratio", "#7a7a7a", ""),
)

HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" \
viewBox="0 0 {WIDTH} {HEIGHT}">
<style>text{{font:13px sans-serif;fill:#222}}.tick{{font-size:11px;fill:#555}}\
.grid{{stroke:#e4e4e4}}.axis{{stroke:#444;fill:none}}</style>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{LEFT}" y="28" style="font-size:16px">Scattered fragments, shuffled pages: \
how near to one contiguous copy</text>"""


def read_rows(stream):
    """The rows of the case fragments that were measured."""
    rows = json.load(stream)["results"]
    return [row for row in rows
            if row["case"] == "fragments" and "fragment_bytes" in row.get("figures", {})]


def points_of(series, rows):
    """Power of two of the fragment, and ratio."""
    _, direction, beside, figure, _, _ = series
    return [(math.log2(row["figures"]["fragment_bytes"]), row["figures"][figure]) for row in rows
            if figure in row["figures"] and row["direction"] == direction
            and row["beside"] == beside]


def size_text(power):
    """2 to the power, as 512 B or 64 KiB."""
    return f"{1 << power % 10} {('B', 'KiB', 'MiB')[power // 10]}"


class Picture:
    """Lines of an SVG whose highest ratio is top."""

    def __init__(self, top):
        self.top = top
        self.lines = [HEAD]

    def place(self, power, ratio):
        """Where a point stands."""
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (LEFT + (power - MIN_POWER) / (MAX_POWER - MIN_POWER) * width,
                HEIGHT - BOTTOM - ratio / self.top * height)

    def path(self, points):
        """The points of a polyline."""
        return " ".join("{:.1f},{:.1f}".format(*self.place(*point)) for point in points)

    def draw_axes(self):
        """Grid, ticks, names of the axes."""
        for power in range(MIN_POWER, MAX_POWER + 1):
            x, _ = self.place(power, 0)
            self.lines.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'\n<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" '
                f'text-anchor="middle">{size_text(power)}</text>')
        step = 0.5 if self.top > 3 else 0.1
        for i in range(int((self.top + 0.001) / step) + 1):
            _, y = self.place(MIN_POWER, i * step)
            self.lines.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'\n<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" '
                f'text-anchor="end">{i * step:.1f}</text>')
        self.lines.append(
            f'<path class="axis" d="M{LEFT} {TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}"/>\n'
            f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - BOTTOM + 46}" '
            'text-anchor="middle">fragment size (log scale)</text>\n'
            f'<text transform="translate(20 {(TOP + HEIGHT - BOTTOM) // 2}) rotate(-90)" '
            'text-anchor="middle">rate / rate of one contiguous copy</text>')

    def draw_target(self):
        """What is wanted of a GPU."""
        x, y = self.place(*TARGET[2])
        self.lines.append(
            f'<polyline points="{self.path(TARGET)}" fill="none" stroke="#b00020" '
            'stroke-width="1.2" stroke-dasharray="2 3"/>\n'
            f'<text class="tick" x="{x + 6:.1f}" y="{y - 6:.1f}" style="fill:#b00020">target</text>')

    def draw_series(self, series, points):
        """Its points, and the line through them."""
        _, _, _, _, color, dashes = series
        self.lines.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" '
                          f'stroke-dasharray="{dashes}" points="{self.path(points)}"/>')
        for point in points:
            x, y = self.place(*point)
            self.lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')

    def draw_legend(self, series, line):
        """A line of the legend."""
        name, _, _, _, color, dashes = series
        x, y = WIDTH - RIGHT + 14, TOP + 70 + line * 24
        self.lines.append(
            f'<line x1="{x}" x2="{x + 28}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="2" '
            f'stroke-dasharray="{dashes}"/>\n<text x="{x + 36}" y="{y + 4}">{name}</text>')


def draw(rows):
    """The whole SVG."""
    drawn = [(series, points) for series in SERIES if (points := points_of(series, rows))]
    highest = max([1.0] + [ratio for _, points in drawn for _, ratio in points])
    picture = Picture(int(highest * 10 + 1) / 10)
    picture.draw_axes()
    if any("batch_ratio" in row["figures"] and row["beside"] == "nothing" for row in rows):
        picture.draw_target()
    for series, points in reversed(drawn):
        picture.draw_series(series, points)
    for line, (series, _) in enumerate(drawn):
        picture.draw_legend(series, line)
    return "\n".join(picture.lines) + "\n</svg>\n"


def main():
    """Results in, picture out."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default="-", help="what orbitkv-bench --json wrote")
    name = parser.parse_args().results
    try:
        with sys.stdin if name == "-" else open(name, encoding="utf-8") as stream:
            rows = read_rows(stream)
    except OSError as error:
        sys.exit(f"bench_plot.py: {name}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"bench_plot.py: {name}: not what orbitkv-bench --json writes: {error!r}")
    if not rows:
        sys.exit(f"bench_plot.py: {name}: has no rows of the case fragments")
    sys.stdout.write(draw(rows))


if __name__ == "__main__":
    main()
