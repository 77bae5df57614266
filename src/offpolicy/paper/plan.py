"""What a recipe asks for under a budget: which jobs, with which seeds, and how a result is recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.paper.json_lines import Row
from offpolicy.paper.recipe import Recipe, Redraw
from offpolicy.paper.studies import Study
from offpolicy.registry import Registry

STAGES = ("tune", "validate", "measure")
TUNING_SEED, FIRST_VALIDATION_SEED = 1_000, 2_000
"""Seeds used only for tuning and model selection; those of the final runs count from 0."""
VALIDATIONS, QUICK_VALIDATIONS = 3, 2
"""How many of a line's best settings are compared before the final runs, and on as many draws."""


class Key(NamedTuple):
    """Which job a row is the result of."""

    part: str
    line: str
    stage: str
    seed: int
    candidate: int = 0

    @classmethod
    def of(cls, row: Row) -> "Key":
        """The key of a recorded row."""
        return cls(row["part"], row["line"], row["stage"], row["seed"], row.get("candidate", 0))


@dataclass(frozen=True)
class Plan:
    """A recipe under a budget, with the study that does it."""

    recipe: Recipe
    study: type[Any]
    seeds: int
    trials: int
    validations: int = VALIDATIONS
    redraw: Redraw = "all"
    data: str | None = None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        studies: Registry[type[Study]],
        *,
        quick: bool = False,
        seeds: int | None = None,
        trials: int | None = None,
        redraw: Redraw | None = None,
        data: str | None = None,
    ) -> "Plan":
        """The budget as given, or else as the recipe says."""
        if recipe.study not in studies:
            raise ParameterError(f"The recipe {recipe.name} names no known study. {studies.unknown(recipe.study)}")
        budget = recipe.quick if quick else {}
        plan = cls(
            recipe,
            studies[recipe.study],
            seeds or budget.get("seeds", recipe.seeds),
            trials or budget.get("trials", recipe.trials),
            QUICK_VALIDATIONS if quick else VALIDATIONS,
            redraw or recipe.redraw,
            data,
        )
        for part in recipe.parts:
            plan._check(part)
        return plan

    def _check(self, part: str) -> None:
        """Whether the study takes these arguments and knows these lines."""
        assert is_dataclass(self.study)
        known = [one.name for one in fields(self.study)]
        unknown = next((name for name in self.arguments(part) if name not in known), None)
        if unknown is not None:
            raise ParameterError(
                f"The recipe {self.recipe.name} gives the study {self.recipe.study} the argument {unknown!r}, which "
                f"it does not take. Its arguments are: {', '.join(known)}."
            )
        labels = self.labels(part)
        missing = next((line for line in self.recipe.lines if line not in labels), None)
        if missing is not None:
            raise ParameterError(
                f"The recipe {self.recipe.name} lists the line {missing!r}, which the study {self.recipe.study} does "
                f"not know. Its lines are: {', '.join(labels)}."
            )

    def arguments(self, part: str) -> dict[str, Any]:
        """What the study of a part is made with."""
        return {"data": self.data, "redraw": self.redraw, **self.recipe.arguments, **self.recipe.parts[part]}

    def labels(self, part: str) -> Mapping[str, str]:
        """What tables print for each line."""
        study: Study = self.study(**self.arguments(part))
        return study.labels()

    def lines(self, part: str) -> Sequence[str]:
        """The lines of a part."""
        return self.recipe.lines or tuple(self.labels(part))

    def config(self, part: str) -> dict[str, Any]:
        """What a row's numbers depend on besides its key; the location of the data is not recorded."""
        arguments = {name: value for name, value in self.arguments(part).items() if name not in ("data", "redraw")}
        return {
            "study": self.recipe.study,
            "arguments": arguments,
            "trials": self.trials,
            "validations": self.validations,
            "redraw": self.redraw,
        }

    def stages(self, part: str, line: str, rows: Mapping[Key, Row]) -> Iterator[list[Key]]:
        """The keys of each stage of a line in turn; later ones follow from what is recorded of the earlier ones."""
        tuning = Key(part, line, "tune", TUNING_SEED)
        yield [tuning]
        count = len(rows[tuning]["found"][: self.validations])
        if count > 1:
            seeds = range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + self.validations)
            yield [Key(part, line, "validate", seed, i) for seed in seeds for i in range(count)]
        yield [Key(part, line, "measure", seed) for seed in range(self.seeds)]

    def settings(self, key: Key, rows: Mapping[Key, Row]) -> dict[str, Any]:
        """The settings a job runs with."""
        if key.stage == "tune":
            return {}
        candidates = rows[Key(key.part, key.line, "tune", TUNING_SEED)]["found"][: self.validations]
        if not candidates:
            return {}
        place = key.candidate if key.stage == "validate" else self._chosen(key, len(candidates), rows)
        return dict(candidates[place]["settings"])

    def _chosen(self, key: Key, count: int, rows: Mapping[Key, Row]) -> int:
        """The candidate with the best mean over the validation draws; of equals the better tuned one."""
        if count == 1:
            return 0
        seeds = range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + self.validations)

        def mean(candidate: int) -> float:
            found = [rows[Key(key.part, key.line, "validate", seed, candidate)]["found"] for seed in seeds]
            return float("-inf") if None in found else sum(found) / len(found)

        return max(range(count), key=mean)

    def check_row(self, row: Row, path: Any) -> None:
        """Refuse a row of another recipe or budget."""
        other = "Choose another --out, or give the budget it was run with."
        if row.get("recipe") != self.recipe.name:
            raise OffPolicyError(
                f"{path} holds results of the recipe {row.get('recipe')!r}, not {self.recipe.name!r}. {other}"
            )
        if row["part"] not in self.recipe.parts:
            raise OffPolicyError(
                f"{path} holds results of the part {row['part']!r}, which {self.recipe.name} does not have. {other}"
            )
        for name, value in self.config(row["part"]).items():
            if row["config"].get(name) != value:
                raise OffPolicyError(
                    f"{path} holds results made with {name} = {row['config'].get(name)!r}, not {value!r}. {other}"
                )
