#!/usr/bin/env python3
"""Draws the dashboard's panels from what Prometheus answered to them. This is no picture of Grafana.

    INFERSCOPE_DASHBOARD=$PWD/answers.json go test -run TestDashboard -timeout 20m ./test/e2e     # root
    python3 deploy/grafana/draw.py answers.json docs/screenshots/dashboard.png                     # matplotlib
"""
import json
import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

UNITS = {"percentunit": (100, "%"), "s": (1000, " ms"), "Bps": (1e-6, " MB/s"), "bytes": (1 / 2**20, " MiB"), "ops": (1, "/s")}


def named(target, labels):
    """The name of a series, as the panel's legend has it."""
    return re.sub(r"{{(\w+)}}", lambda m: labels.get(m[1], ""), target.get("legendFormat", ""))


def series(panel, answers):
    """Yields name, times and values of each series, in the panel's unit."""
    factor, _ = UNITS.get(panel["fieldConfig"]["defaults"].get("unit"), (1, ""))
    for target, answer in zip(panel["targets"], answers):
        for one in answer["result"]:
            points = [(float(at), factor * float(value)) for at, value in one["values"] if value != "NaN"]
            if points:
                yield named(target, one["metric"]), *zip(*points)


def number(axes, panel, lines):
    """A panel of type stat: the last values."""
    axes.axis("off")
    unit = UNITS.get(panel["fieldConfig"]["defaults"].get("unit"), (1, ""))[1]
    for i, (name, _, values) in enumerate(lines[:4]):
        x = (i + 0.5) / min(len(lines), 4)
        last = f"{values[-1]:,.0f}" if values[-1] >= 100 else f"{values[-1]:.2f}"
        axes.text(x, 0.45, last + unit, ha="center", color="#73bf69", fontsize=17)
        axes.text(x, 0.15, name, ha="center", color="#aaaaaa", fontsize=7)


def curves(axes, panel, lines, began):
    """A panel of type timeseries."""
    custom = panel["fieldConfig"]["defaults"]["custom"]
    if custom["stacking"]["mode"] == "normal":
        times = sorted({t for _, at, _ in lines for t in at})
        rows = [[dict(zip(at, values)).get(t, 0) for t in times] for _, at, values in lines]
        axes.stackplot([t - began for t in times], rows, labels=[name for name, _, _ in lines], alpha=0.7)
    else:
        for name, at, values in lines:
            axes.plot([t - began for t in at], values, label=name, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(UNITS.get(panel["fieldConfig"]["defaults"].get("unit"), (1, ""))[1].strip(), fontsize=7)
    axes.grid(alpha=0.15)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def main(answers, out):
    board = json.loads((pathlib.Path(__file__).parent / "inferscope.json").read_text())
    answers = json.loads(pathlib.Path(answers).read_text())
    began = min(float(v[0]) for each in answers.values() for a in each for r in a["result"] for v in r["values"])
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    plt.style.use("dark_background")
    figure = plt.figure(figsize=(15, rows * 0.36), facecolor="#111217")
    for panel in board["panels"]:
        at, lines = panel["gridPos"], list(series(panel, answers[panel["title"]]))
        if not lines:
            sys.exit(f"there are no answers for {panel['title']}")
        # Room for the legend at the right and the title above.
        axes = figure.add_axes(
            [
                at["x"] / 24 + 0.03,
                1 - (at["y"] + at["h"]) / (rows + 2) + 0.005,
                at["w"] / 24 - (0.125 if panel["type"] == "timeseries" else 0.04),
                (at["h"] - 2.3) / (rows + 2),
            ],
            facecolor="#181b1f",
        )
        axes.set_title(panel["title"], fontsize=9, loc="left")
        if panel["type"] == "stat":
            number(axes, panel, lines)
        else:
            curves(axes, panel, lines, began)
    figure.text(
        0.5, 0.004, "drawn by deploy/grafana/draw.py from Prometheus' answers to the panels, not by Grafana; time in s",
        ha="center", color="#aaaaaa", fontsize=8,
    )  # fmt: skip
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
