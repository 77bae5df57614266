"""A results file with every section, in the shape a run writes, from made-up but coherent numbers."""

import math
from typing import Any

HOSTILE = "<script>alert(1)</script>"


def policy(name: str, value: float, answer: str = "answerable", flips_at: float = 1.3) -> dict[str, Any]:
    gammas = [1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0]
    names = ("ips", "snips", "uips", "dm", "dr")
    passed = answer == "answerable"
    advice = {
        "answerable": "Rely on the estimate and its interval.",
        "answerable on part": "Evaluate on the 62% of contexts that logging supports; explore in the others.",
        "run an experiment": "Run an experiment: let about 5% of the traffic follow the policy and record the "
        "probabilities; 2500 such contexts give an effective sample size of about 310.",
    }[answer]
    return {
        "name": name,
        "value": value,
        "interval": {
            "low": value - 0.062,
            "high": value + 0.05,
            "level": 0.95,
            "sampling": 0.038,
            "propensity": 0.018,
            "vacuous": False,
            "note": "",
        },
        "lam": 134.8,
        "estimates": [estimate(n, value + 0.01 * i - 0.02) for i, n in enumerate(names)],
        "left_out": {"switch": "needs the policy over all actions"},
        "preflight": {
            "checks": [
                check(
                    "effective sample size",
                    640.8,
                    passed,
                    "clusters of equal weight that would be as informative; 50 are needed",
                ),
                check("largest weight share", 0.023, True, "share of all weight that one cluster carries"),
                check("mean weight", 0.983, True, "1 where the estimated propensities are right"),
                check("contexts shown one action", None, True, "share of repeated contexts with one action"),
            ],
            "verdict": {
                "answer": answer,
                "reasons": [] if passed else ["effective sample size is 12 clusters (50 are needed)"],
                "advice": advice,
            },
            "balance": [["age", 0.0, 0.023], ["segment=<b>gold</b>", 0.02, -0.14], ["x[2]", 0.0, 0.012]],
        },
        "sensitivity": {
            "flips_at": flips_at,
            "gammas": gammas,
            "low": [value / g for g in gammas],
            "high": [1 - (1 - value) / g for g in gammas],
        },
        "detectable_effect": 0.0785,
        "propensity_intervals": {"worst_case": {"low": value - 0.15, "high": value + 0.15, "note": ""}},
    }


def estimate(name: str, value: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "standard_error": 0.02,
        "intervals": {"normal": {"low": value - 0.04, "high": value + 0.04, "level": 0.95, "note": ""}},
        "hyper": {"lam": 134.8, "gamma": 2.0} if name == "uips" else {},
        "mean_weight": 0.98,
        "note": "",
    }


def check(name: str, value: float | None, passed: bool, meaning: str) -> dict[str, Any]:
    return {"name": name, "value": value, "passed": passed, "meaning": meaning}


def comparison(candidate: str, difference: float, chance: float, reference: str = "logging") -> dict[str, Any]:
    return {
        "candidate": candidate,
        "reference": reference,
        "difference": difference,
        "low": difference - 0.022,
        "high": difference + 0.022,
        "probability_of_improvement": chance,
        "p_value": 0.002,
        "adjusted_p_value": 0.004,
        "relative": difference / 0.3132,
    }


def segment(column: str, name: str, place: int, chosen: str) -> dict[str, Any]:
    difference = 0.02 * (place - 1) + 0.03 * (chosen == "uips")
    return {
        "column": column,
        "segment": name,
        "policy": chosen,
        "rows": 80_000 - 9_000 * place,
        "value": 0.31 + difference,
        "low": 0.28 + difference,
        "high": 0.34 + difference,
        "logging": 0.31,
        "difference": difference,
        "difference_low": difference - 0.028,
        "difference_high": difference + 0.028,
        "adjusted_p_value": None if place == 2 else 0.03,
        "refused": place == 2,
    }


def outcome(
    reward: str, chosen: str, difference: float, finding: str, half: float = 0.03, guardrail: bool = False
) -> dict[str, Any]:
    return {
        "reward": reward,
        "guardrail": guardrail,
        "policy": chosen,
        "value": 0.31 + difference,
        "low": 0.31 + difference - half,
        "high": 0.31 + difference + half,
        "logging": 0.31,
        "difference": difference,
        "difference_low": difference - half / 2,
        "difference_high": difference + half / 2,
        "relative": difference / 0.31,
        "limit": 0.0062 if guardrail else None,
        "limit_text": "2 %" if guardrail else "",
        "lower_is_better": guardrail,
        "finding": finding,
        "refused": False,
    }


def evaluation() -> dict[str, Any]:
    shares = [0.002, 0.01, 0.05, 0.16, 0.29, 0.27, 0.15, 0.06]
    return {
        "level": 0.95,
        "best": "uips",
        "logging": {
            "model": "two_tower",
            "value": 0.3132,
            "interval": {"low": 0.295, "high": 0.3314, "level": 0.95, "note": ""},
            "quality": {
                "log_likelihood": -1.789,
                "uniform_log_likelihood": -2.079,
                "popularity_log_likelihood": -2.013,
                "calibration_error": 0.046,
                "mean_weight": 1.021,
                "mean_weight_error": 0.012,
                "rows": 2500,
                "bins": [
                    {
                        "low": -4 + i / 2,
                        "predicted": share,
                        "observed": 0.0 if i == 0 else share * (1 + 0.08 * math.sin(3 * i)),
                        "pairs": 2500 * share / math.exp(-3.75 + i / 2),
                    }
                    for i, share in enumerate(shares)
                ],
            },
        },
        "policies": {
            "popularity": policy("popularity", 0.335, flips_at=1.05),
            "uips": policy("uips", 0.4473),
            "greedy": policy("greedy", 0.41, "run an experiment", flips_at=math.inf),
        },
        "comparisons": [
            comparison("popularity", 0.0218, 0.93),
            comparison("uips", 0.1341, 1.0),
            comparison("greedy", 0.0968, 0.97),
            comparison("uips", 0.1123, 0.99, "popularity"),
        ],
        "segments": [
            segment("country", name, place, chosen)
            for chosen in ("uips", "popularity")
            for place, name in enumerate(("Österreich", "Frankreich", "=cmd|' /C calc'!A0"))
        ]
        + [segment("week", f"2026-W{40 + week}", week, "uips") for week in range(4)],
        "outcomes": [
            outcome("click", "uips", 0.1341, "better"),
            outcome("click", "popularity", 0.0218, "unclear"),
            outcome("revenue per visit", "uips", 1.2, "unclear", 4.0),
            outcome("revenue per visit", "popularity", -2.9, "worse", 4.0),
            outcome("returns", "uips", -0.004, "kept", 0.02, True),
            outcome("returns", "popularity", 0.01, "unclear", 0.02, True),
        ],
        "decisions": [
            {
                "policy": "uips",
                "holds": True,
                "sentence": "uips: better on click; no clear difference on revenue per visit; not worse on returns "
                "beyond 2 %.",
            },
            {
                "policy": "popularity",
                "holds": False,
                "sentence": "popularity: worse on revenue per visit; may be worse on returns beyond 2 %.",
            },
        ],
        "reward": "click",
        "reward_range": [0.0, 1.0],
        "log": {},
    }


def weights(spread: float) -> dict[str, list[float]]:
    edges = [-3 + i / 4 for i in range(25)]
    before = [round(900 * math.exp(-(((e + 0.1) / spread) ** 2))) for e in edges[:-1]]
    after = [round(1100 * math.exp(-(((e + 0.15) / (0.7 * spread)) ** 2))) for e in edges[:-1]]
    return {"edges": edges, "before": list(map(float, before)), "after": list(map(float, after))}


def results() -> dict[str, Any]:
    frequency = [
        {
            "log_frequency": 0.5 + i / 2,
            "logging_prob": 0.004 * math.exp(i / 3.3),
            "uncertainty": 0.9 * math.exp(-i / 4),
            "rows": int(40 * math.exp(i / 3)),
            "actions": 120 - 8 * i,
        }
        for i in range(13)
    ]
    models = [
        ("uniform", -2.079, 0.21, 1.31, 0.372),
        ("popularity", -2.013, 0.12, 1.16, 0.401),
        ("linear", -1.81, 0.05, 1.02, 0.441),
        ("two_tower", -1.789, 0.046, 0.99, 0.447),
    ]
    risky = [("sku-90125", 3), (HOSTILE, 5), ("sku-2112", 9), (17, 14), ("Grün & Söhne “Nr. 5”", 31)]
    return {
        "format": "offpolicy-results",
        "version": 2,
        "kind": "learn",
        "run": {
            "command": "offpolicy learn impressions.parquet --context user --context hour --action item "
            "--reward click --method ce --method uips --out runs/home-page",
            "config": {"method": ["ce", "uips"], "epochs": 20, "learner": {"rate": 0.003, "note": "</pre><b>x</b>"}},
            "seed": 7,
            "versions": {"offpolicy": "0.1.0", "python": "3.11.9", "torch": "2.5.1", "numpy": "2.1.3"},
            "started": "2025-03-04T09:30:00+00:00",
            "seconds": 131.4,
        },
        "log": {
            "source": "impressions.parquet",
            "rows": 250_000,
            "contexts": 81_240,
            "rows_per_context_median": 2.0,
            "actions": 2_000,
            "actions_never_logged": 31,
            "reward_mean": 0.3132,
            "reward_range": [0.0, 1.0],
            "reward_binary": True,
            "propensities_recorded": False,
            "clusters": None,
            "timestamps_recorded": True,
            "columns": {"user": "categorical", "hour": "number", "item": "action", "click": "reward"},
            "context_features": {"user": "categorical", "hour": "number"},
            "action_features": {},
        },
        "evaluation": evaluation(),
        "weights": {"uips": weights(1.0), "popularity": weights(0.5), "greedy": weights(1.4)},
        "frequency": frequency,
        "propensity_models": [
            {
                "model": model,
                "log_likelihood": fit,
                "calibration_error": error,
                "mean_weight": mean,
                "value": value,
                "low": value - 0.05,
                "high": value + 0.05,
            }
            for model, fit, error, mean, value in models
        ],
        "learning": {
            method: [
                {"epoch": e, "loss": 0.3 + gain / (e + 1), "held_out_value": 0.45 - gain / (e + 2), "best": e == 9}
                for e in range(20)
            ]
            for method, gain in (("ce", 0.25), ("uips", 0.18))
        },
        "risky_actions": [
            {
                "action": action,
                "count": count,
                "logging_prob": 0.0004 * count,
                "uncertainty": 1.1 / math.sqrt(count),
                "weight_share": 0.06 / (i + 1),
            }
            for i, (action, count) in enumerate(risky)
        ],
    }
