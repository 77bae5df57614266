"""Open Bandit data: a shop's items as a random policy and Thompson sampling showed them, propensities recorded."""

from pathlib import Path
from typing import Literal, TypeAlias

from offpolicy.checks import check_choice
from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.log import (
    ActionTable,
    Kind,
    LoggedData,
    RawColumns,
    Vocabulary,
    feature_table,
    read_log,
    read_table,
    typed_text,
)

LoggingPolicy: TypeAlias = Literal["random", "bts"]
Campaign: TypeAlias = Literal["all", "men", "women"]

CONTEXT = ("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3", "position")
ITEM_KINDS: dict[str, Kind] = {
    "item_feature_0": "numeric",
    "item_feature_1": "categorical",
    "item_feature_2": "categorical",
    "item_feature_3": "categorical",
}
ITEMS = {"all": 80, "men": 34, "women": 46}
SAMPLE = 10_000
ROWS = {
    ("random", "all"): 1_374_327,
    ("random", "men"): 452_949,
    ("random", "women"): 864_585,
    ("bts", "all"): 12_168_084,
    ("bts", "men"): 4_077_727,
    ("bts", "women"): 7_765_497,
}
"""Rows of the full data; the sample that is shipped with the authors' package has 10,000 of each."""


def load_obd(
    policy: LoggingPolicy = "bts",
    campaign: Campaign = "men",
    data: str | Path | None = None,
    *,
    check_counts: bool = True,
) -> LoggedData:
    """One campaign as one policy logged it; context = four hashed user features and the position, reward = click.

    Every item of `item_context.csv` is an action. Timestamps are in microseconds. The hashes of user features are the
    same under both policies, those of item features are not: take the item features of one of the two.
    """
    check_choice("policy", policy, ("random", "bts"))
    check_choice("campaign", campaign, ITEMS)
    folder = f"{policy}/{campaign}"
    wanted = (f"{folder}/{campaign}.csv", f"{folder}/item_context.csv")
    log_path, item_path = find_data("Open Bandit data", wanted, data)
    log = read_log(
        log_path,
        context=CONTEXT,
        action="item_id",
        reward="click",
        propensity="propensity_score",
        timestamp="timestamp",
        kinds=dict.fromkeys(CONTEXT, "categorical"),
        actions=_items(item_path),
    )
    if check_counts:
        full = {"rows": ROWS[policy, campaign], "items": ITEMS[campaign]}
        sample = {"rows": SAMPLE, "items": ITEMS[campaign]}
        check_known_counts(log_path, {"rows": log.n_rows, "items": log.n_actions}, sample, full)
    return log


def _items(path: Path) -> ActionTable:
    table = read_table(path, ("item_id", *ITEM_KINDS))
    ids = typed_text("item_id", table.series.pop("item_id"), "categorical", table.origin)
    return ActionTable(Vocabulary(ids), feature_table(RawColumns(table.series, ITEM_KINDS, table.origin)))
