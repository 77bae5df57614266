"""The tables of docs/peers.md, from the committed runs of `peers.py`."""

from collections.abc import Iterable, Sequence

import numpy as np

from peers import NAMES, Run, answered, best_line, by_peer, coverage, rmse

LONGEST = 200
REFUSED = 0.5
"""Share of answered logs below which a setting counts as refused."""


def overall(runs: Sequence[Run]) -> str:
    """Everybody by their best line: coverage, error, width, time, memory."""
    peers, judged = by_peer(runs), by_peer(answered(runs))
    own = peers["ours"]
    head = "| | line | coverage, all logs | where we answer | RMSE | median width | seconds | peak MB |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for peer, name in NAMES.items():
        mine, line = peers[peer], best_line(peers[peer])
        cells = [name, line, f"{coverage(mine, line):.2f}", f"{coverage(judged[peer], line):.2f}"]
        cells += [f"{rmse(mine, line):.4f}", f"{width(mine, line):.3f}"]
        cells += [f"{median(run['seconds'] for run in mine):.1f}", f"{median(run['peak_mb'] for run in mine):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    share = sum(run["answer"] == "answerable" for run in own) / len(own)
    settings = len({run["setting"] for run in runs})
    lines.append(f"\n{len(own)} logs of {settings} settings; we answer {share:.0%} of them, the others answer all.")
    return "\n".join(lines) + "\n"


def by_setting(runs: Sequence[Run]) -> str:
    """Per setting, everybody's best line over all settings: how many of its intervals hold the truth, and its error."""
    peers = by_peer(runs)
    best = {peer: best_line(peers[peer]) for peer in NAMES}
    lines = ["| setting | logs | we answer | " + " | ".join(NAMES.values()) + " |"]
    lines.append("|" + "---|" * (len(NAMES) + 3))
    for setting in sorted({run["setting"] for run in runs}):
        mine = by_peer(run for run in runs if run["setting"] == setting)
        own = mine["ours"]
        yes = sum(run["answer"] == "answerable" for run in own)
        cells = [own[0]["name"] + ("" if yes >= REFUSED * len(own) else " **refused**"), str(len(own)), f"{yes}"]
        for peer, line in best.items():
            covered = round(coverage(mine[peer], line) * len(mine[peer]))
            cells.append(f"{covered} of {len(mine[peer])} ({rmse(mine[peer], line):.3f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def every_line(runs: Sequence[Run]) -> str:
    """All lines of everybody."""
    lines = ["| | line | coverage | RMSE | median width |", "|---|---|---|---|---|"]
    for peer, name in NAMES.items():
        mine = by_peer(runs)[peer]
        for line in dict.fromkeys(one for run in mine for one in run.get("lines", {})):
            cells = [name, line, f"{coverage(mine, line):.2f}", f"{rmse(mine, line):.4f}", f"{width(mine, line):.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def odd(said: Sequence[Run]) -> str:
    """What everybody says of logs with one thing wrong."""
    logs = list(dict.fromkeys(one["log"] for one in said))
    lines = [f"| | {' | '.join(logs)} |", "|" + "---|" * (len(logs) + 1)]
    for peer, name in NAMES.items():
        cells = [next((one["said"] for one in said if (one["peer"], one["log"]) == (peer, log)), "–") for log in logs]
        lines.append(f"| {name} | " + " | ".join(_cell(one) for one in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(said: str) -> str:
    """A sentence or two of what was said, as a cell."""
    text = " ".join(said.replace("|", "\\|").split())
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " …"


def width(runs: Sequence[Run], line: str) -> float:
    """Median width of a line's intervals."""
    ends = [run.get("lines", {}).get(line, (None, None))[:2] for run in runs]
    return median(high - low for low, high in ends if low is not None and high is not None)


def median(values: Iterable[float]) -> float:
    """The middle of some numbers."""
    return float(np.nanmedian(list(values)))
