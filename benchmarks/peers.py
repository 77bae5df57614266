"""Four other ways to evaluate a policy from the same logs, and ours: coverage, error, time, memory, refusals.

Run: python benchmarks/peers.py [--json] [--runs 3] [--settings 0,2,...] [--out docs/results/peers.jsonl]
     python benchmarks/peers.py --odd > docs/results/peers_odd.jsonl

Open Bandit Pipeline, the estimators of Vowpal Wabbit, skdr-eval and scikit-learn by hand get every log as a file and
run in environments of their own under build/peers (made on first use; Python 3.11), in a process of their own, one
thread each. What a competent user does with each of them is in `peer_lines.py`. The worlds are those of `coverage.py`,
whose truth is known; propensities are hidden from everybody. Finished runs are kept in --out and not computed again;
`claims.py` writes docs/peers.md from them. Each library is judged by its best line, chosen with hindsight.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from figures import Figure
from peer_lines import measured

ROOT = Path(__file__).parents[1]
LINES = ROOT / "benchmarks" / "peer_lines.py"
BUILD = ROOT / "build" / "peers"
RESULTS = ROOT / "docs" / "results" / "peers.jsonl"
OBP = ("numpy<2", "scipy", "pandas<2.2", "scikit-learn<1.4", "tqdm", "pyyaml", "matplotlib", "seaborn")
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "obp": (
        ("-c", str(ROOT / "constraints.txt"), "torch"),
        OBP,
        ("--no-deps", "pyieoe"),
        ("--no-deps", "--ignore-requires-python", "obp==0.5.7"),
    ),
    "others": (("skdr-eval==0.12.0", "vw-estimators==0.2.2"),),
}
"""What pip installs in each environment, call by call; obp 0.5.7 pins releases that no longer install together."""
PEERS = {"obp": "obp", "skdr": "others", "vw": "others", "by_hand": "others"}
"""The environment of each peer."""
NAMES = {
    "ours": "offpolicy",
    "obp": "Open Bandit Pipeline 0.5.7",
    "skdr": "skdr-eval 0.12.0",
    "vw": "vw-estimators 0.2.2",
    "by_hand": "scikit-learn by hand",
}
CHOSEN = (0, 2, 10, 12, 14, 15, 18, 19)
"""Settings of coverage.py: easy and hard, several in which we are wider or fail."""
LEVEL = 0.95
ODD_LINES = {"obp": "SNDR", "skdr": "SNDR, own nuisances", "vw": "Cressie-Read", "by_hand": "SNDR"}
"""The line of each that is asked about odd logs."""
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--settings", default=",".join(map(str, CHOSEN)))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--ours", nargs="+", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--odd", action="store_true", help="what everybody says of logs with one thing wrong")
    options = parser.parse_args()
    if options.odd:
        for said in odd():
            print(json.dumps(said), flush=True)
        return
    if options.ours:
        for one in ours(options.ours):
            print(json.dumps(one), flush=True)
        return
    runs = collect(options.out, [int(one) for one in options.settings.split(",")], options.runs)
    for figure in figures(runs):
        figure.show(options.json)


def python_of(environment: str) -> Path:
    """The interpreter of an environment, made where it is missing."""
    python = BUILD / environment / "bin" / "python"
    if not (BUILD / environment / "ready").exists():
        subprocess.run(["python3.11", "-m", "venv", BUILD / environment], check=True)
        for packages in ENVIRONMENTS[environment]:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (BUILD / environment / "ready").touch()
    return python


def collect(path: Path, settings: Sequence[int], seeds: int) -> list[Run]:
    """Finished runs from the file, and the missing ones computed and appended."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    have = {(run["setting"], run["seed"], run["peer"]) for run in done}
    for seed in range(seeds):
        missing = {peer: [s for s in settings if (s, seed, peer) not in have] for peer in ("ours", *PEERS)}
        if any(missing.values()):
            with path.open("a") as file:
                for run in runs_of(seed, missing):
                    file.write(json.dumps(run) + "\n")
                    file.flush()
                    done.append(run)
    return [run for run in done if run["setting"] in settings and run["seed"] < seeds]


def runs_of(seed: int, missing: dict[str, list[int]]) -> Iterator[Run]:
    """What everybody says of the logs of one seed: a process a peer, which takes one log after the other."""
    with tempfile.TemporaryDirectory() as name:
        wanted = sorted({setting for each in missing.values() for setting in each})
        facts = {setting: write_log(Path(name) / str(setting), setting, seed) for setting in wanted}
        if any(missing[peer] for peer in PEERS):
            for _ in said_by([str(python_of("others")), str(LINES), "nuisances"], Path(name), wanted):
                pass
        for peer, settings in missing.items():
            if peer == "ours":
                command = [sys.executable, __file__, "--ours"]
            else:
                command = [str(python_of(PEERS[peer])), str(LINES), peer]
            for setting, found in zip(settings, said_by(command, Path(name), settings), strict=True):
                yield {"setting": setting, "seed": seed, "peer": peer} | facts[setting] | found


def write_log(folder: Path, setting: int, seed: int) -> Run:
    """Write a log for the peers, and the world for ourselves; what every run on it has in common."""
    from coverage import EVERY, world_of
    from offpolicy.log import to_obp

    world, truths = world_of(setting, seed)
    log = world.log(seed).without_propensities()
    target = world.targets()["target"].log_probs(log.contexts).exp().numpy()[log.context_index]
    context = to_obp(log)["context"]
    time = np.arange(log.n_rows) if log.timestamp is None else (log.timestamp - log.timestamp.min()) / 1e6
    if log.timestamp is not None:
        context = np.column_stack([context, time / 86_400])
    cluster = log.context_index if log.cluster is None else log.cluster
    folder.mkdir()
    arrays = {"context": context, "action": log.action.astype(np.int64), "reward": log.reward, "target": target}
    np.savez(folder / "log.npz", **arrays, cluster=cluster, time=time)
    (folder / "world.pickle").write_bytes(pickle.dumps((log, world.targets()["target"])))
    return {"name": EVERY[setting].name, "truth": truths["target"], "rows": log.n_rows, "actions": log.n_actions}


def said_by(command: list[str], folder: Path, settings: Sequence[int]) -> Iterator[Run]:
    """The JSON lines of a child with one thread, one for each log."""
    if not settings:
        return
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    asked = [*command, *(str(folder / str(setting)) for setting in settings)]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, env=os.environ | one_thread) as child:
        assert child.stdout is not None
        yield from (json.loads(line) for line in child.stdout if line.startswith("{"))


def ours(folders: Sequence[Path]) -> Iterator[Run]:
    """`offpolicy.evaluate` with its defaults: the one line users rely on."""
    import offpolicy
    from offpolicy.threads import set_threads

    set_threads(1)
    for place, folder in enumerate(folders):
        log, target = pickle.loads((folder / "world.pickle").read_bytes())
        if not place:
            offpolicy.evaluate(log.take(np.arange(300)), {"target": target})  # imports, before the clock starts
        low, high = log.reward_range

        def job(log: Any = log, target: Any = target, low: float = low, high: float = high) -> Run:
            found = offpolicy.evaluate(log, {"target": target})["target"]
            ends = [(end - low) / (high - low) for end in (found.interval.low, found.interval.high, found.value)]
            return {"lines": {"default": ends}, "answer": found.preflight.verdict.answer}

        yield measured(job)


def odd_logs() -> dict[str, dict[str, np.ndarray]]:
    """Logs with one thing wrong, made of the first setting's."""
    from coverage import world_of
    from offpolicy.log import to_obp
    from settings import World

    world, _ = world_of(0, 0)
    assert isinstance(world, World)
    log = world.log(0).without_propensities()
    x = torch.from_numpy(to_obp(log)["context"])
    target = world.log_probs(log.contexts).exp().numpy()[log.context_index]
    plain = {"context": x.numpy(), "action": log.action.astype(np.int64), "reward": log.reward, "target": target}
    plain |= {"cluster": np.arange(log.n_rows), "time": np.arange(log.n_rows)}
    null = plain["context"].copy()
    null[5, 0] = np.nan
    best = world.logging(x.double()).argmax(1).numpy()
    chance = world.rewards_of(x.double()).numpy()[np.arange(log.n_rows), best]
    paid = (np.random.default_rng(0).random(log.n_rows) < chance).astype(float)
    kept = (plain["action"] != 0) | (np.cumsum(plain["action"] == 0) <= 4)
    return {
        "a null in the context": plain | {"context": null},
        "a deterministic logger": plain | {"action": best, "reward": paid},
        "an action shown four times": {name: values[kept] for name, values in plain.items()},
        "rewards of 0 and 7": plain | {"reward": 7 * plain["reward"]},
    }


def odd() -> Iterator[Run]:
    """What everybody says of each of them: an interval by the line that is the best elsewhere, or the error."""
    for name, arrays in odd_logs().items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "0").mkdir()
            np.savez(Path(folder) / "0" / "log.npz", **arrays)  # type: ignore[arg-type]
            yield {"log": name, "peer": "ours", "said": _ours_of(arrays)}
            made = next(iter(said_by([str(python_of("others")), str(LINES), "nuisances"], Path(folder), [0])))
            for peer, line in ODD_LINES.items():
                found = made
                if "error" not in made:
                    command = [str(python_of(PEERS[peer])), str(LINES), peer]
                    found = next(iter(said_by(command, Path(folder), [0])))
                ends = found.get("lines", {}).get(line, [])
                said = f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else found["error"]
                yield {"log": name, "peer": peer, "said": said}


def _ours_of(arrays: dict[str, np.ndarray]) -> str:
    """The verdict, or the error."""
    import offpolicy

    columns = {f"x{place}": values for place, values in enumerate(arrays["context"].T)}
    frame = pl.DataFrame(columns | {"action": arrays["action"], "reward": arrays["reward"]})
    try:
        log = offpolicy.read_log(frame, context=list(columns), action="action", reward="reward")
        chosen = arrays["target"][np.arange(len(frame)), arrays["action"]]
        found = offpolicy.evaluate(log, {"target": chosen})["target"]
    except offpolicy.OffPolicyError as error:
        return f"{type(error).__name__}: {error}"
    return f"{found.preflight.verdict.answer}: {found.interval.low:.2f} to {found.interval.high:.2f}"


def covers(run: Run, line: str) -> bool:
    """Whether a line's interval holds the truth; a run without one does not."""
    low, high, _ = run.get("lines", {}).get(line, (None, None, None))
    return low is not None and high is not None and bool(low <= run["truth"] <= high)


def best_line(runs: Sequence[Run]) -> str:
    """With hindsight: of the lines whose coverage is closest to the level (to a twentieth), the least error."""
    names: dict[str, None] = {name: None for run in runs for name in run.get("lines", {})}
    return min(names, key=lambda name: (round(20 * max(LEVEL - coverage(runs, name), 0)), rmse(runs, name)))


def coverage(runs: Sequence[Run], line: str) -> float:
    """Share of the runs whose interval holds the truth."""
    return float(np.mean([covers(run, line) for run in runs]))


def errors(runs: Sequence[Run], line: str) -> np.ndarray:
    """Estimate minus truth."""
    values = [run.get("lines", {}).get(line, (None, None, None))[2] for run in runs]
    return np.array([np.nan if v is None else v - run["truth"] for v, run in zip(values, runs, strict=True)])


def rmse(runs: Sequence[Run], line: str) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.nanmean(errors(runs, line) ** 2)))


def by_peer(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each peer, in the order of logs."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run["setting"], run["seed"])):
        found[run["peer"]].append(run)
    return found


def answered(runs: Sequence[Run]) -> list[Run]:
    """The runs on logs that we called answerable."""
    good = {(run["setting"], run["seed"]) for run in runs if run["peer"] == "ours" and run["answer"] == "answerable"}
    return [run for run in runs if (run["setting"], run["seed"]) in good]


def complete(runs: Sequence[Run]) -> list[Run]:
    """The runs on logs that everybody has finished."""
    finished: dict[tuple[int, int], int] = defaultdict(int)
    for run in runs:
        finished[run["setting"], run["seed"]] += 1
    return [run for run in runs if finished[run["setting"], run["seed"]] == len(NAMES)]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Coverage of everybody on the same logs, and time and memory relative to ours."""
    peers, judged = by_peer(runs), by_peer(answered(runs))
    logs, settings = len(peers["ours"]), len({run["setting"] for run in runs})
    share = sum(run["answer"] == "answerable" for run in peers["ours"]) / logs
    found = [Figure("peers.ours_answered", share, facts={"logs": logs, "settings": settings})]
    for peer in NAMES:
        mine, line = peers[peer], best_line(peers[peer])
        facts = {"line": line, "logs": logs, "settings": settings}
        found.append(Figure(f"peers.{peer}_coverage", coverage(mine, line), facts=facts))
        found.append(Figure(f"peers.{peer}_coverage_answered", coverage(judged[peer], line), facts=facts))
        found.append(Figure(f"peers.{peer}_rmse", rmse(mine, line), facts=facts, digits=4))
        for what, key in (("time", "seconds"), ("memory", "peak_mb")):
            pairs = [(a[key], b[key]) for a, b in zip(mine, peers["ours"], strict=True) if key in a and key in b]
            if peer != "ours" and pairs:
                ratio = float(np.median([theirs / own for theirs, own in pairs]))
                found.append(Figure(f"peers.{peer}_{what}_over_ours", ratio, facts={"logs": len(pairs)}))
    return found


if __name__ == "__main__":
    main()
