"""Run recipes: every finished job is a line of results.jsonl, so that a killed run can be resumed."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpolicy.artifacts import library_versions
from offpolicy.atomic import lock, write_atomic
from offpolicy.engine import Done, Job, WorkerPool
from offpolicy.errors import DivergedError, OffPolicyError
from offpolicy.json_writer import jsonable
from offpolicy.paper.json_lines import Row, append_rows, as_lines, read_rows
from offpolicy.paper.output import RESULTS
from offpolicy.paper.plan import STAGES, Key, Plan
from offpolicy.paper.studies import Study
from offpolicy.progress import progress

TIMINGS = "timings.jsonl"
SEARCHES = "searches"


@dataclass
class ResultsLog:
    """The results file of a plan: which jobs are done, and which come next."""

    plan: Plan
    folder: Path
    rows: dict[Key, Row] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=library_versions)

    @classmethod
    def open(cls, plan: Plan, folder: Path) -> "ResultsLog":
        """The results so far; those of another recipe or budget are refused."""
        log = cls(plan, folder)
        for row in read_rows(folder / RESULTS):
            plan.check_row(row, folder / RESULTS)
            log.rows[Key.of(row)] = row
        return log

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Every line of every part."""
        return [(part, line) for part in self.plan.recipe.parts for line in self.plan.lines(part)]

    def open_keys(self, part: str, line: str) -> list[Key]:
        """The missing keys of the first unfinished stage of a line; none if all are done."""
        for keys in self.plan.stages(part, line, self.rows):
            missing = [key for key in keys if key not in self.rows]
            if missing:
                return missing
        return []

    def jobs(self, keys: Sequence[Key], place: int) -> list[Job]:
        """The jobs of these keys."""
        return [self._job(key, place) for key in keys]

    def _job(self, key: Key, place: int) -> Job:
        plan = self.plan
        settings = plan.settings(key, self.rows)
        call = (plan.study, plan.arguments(key.part), key, settings, plan.trials, self.search(key))
        return Job(
            perform,
            call,
            group=(place, key.stage, key.seed, key.part),  # studies may share what they read among parts
            rank=STAGES.index(key.stage),
            cost=self.cost(key),
            name=" ".join(filter(None, (plan.recipe.name, key.part, key.line, key.stage, str(key.seed)))),
            tag=(place, key, settings),
        )

    def record(self, key: Key, settings: Mapping[str, Any], done: Done) -> list[Key]:
        """Store a result; returns the keys that can be run because of it."""
        row: Row = {"recipe": self.plan.recipe.name, **_key_fields(key), "label": self.plan.labels(key.part)[key.line]}
        if key.stage != "tune":
            row["settings"] = dict(settings)
        row |= {"found": done.result, "config": self.plan.config(key.part), "versions": self.versions}
        append_rows(self.folder / RESULTS, [row])
        self.search(key).unlink(missing_ok=True)
        append_rows(self.folder / TIMINGS, [_key_fields(key) | {"seconds": round(done.seconds, 3)}])
        self.rows[key] = row
        following = self.open_keys(key.part, key.line)
        return following if following and following[0].stage != key.stage else []

    def close(self) -> None:
        """Sort the rows, so that the file does not depend on the order in which jobs finished."""
        write_atomic(self.folder / RESULTS, as_lines(self.rows[key] for key in sorted(self.rows)))
        shutil.rmtree(self.folder / SEARCHES, ignore_errors=True)

    def search(self, key: Key) -> Path:
        """Where the trials of a line are kept until its tuning is done."""
        return self.folder / SEARCHES / f"{list(self.plan.recipe.parts).index(key.part)}-{key.line}.db"

    def cost(self, key: Key) -> int:
        """How long a job takes, in units of one run."""
        return self.plan.trials if key.stage == "tune" else 1

    def remaining(self, part: str, line: str) -> int:
        """The remaining cost of a line, in the same units, as if every validation were needed."""
        left = self.open_keys(part, line)
        after = {"tune": self.plan.validations**2 + self.plan.seeds, "validate": self.plan.seeds, "measure": 0}
        return sum(map(self.cost, left)) + after[left[0].stage] if left else 0


def run(plans: Mapping[Path, Plan], workers: int = 2, show: bool | None = None) -> None:
    """Run the jobs of the plans that are not yet in the results files of their folders."""
    for folder in plans:
        folder.mkdir(parents=True, exist_ok=True)
    with alone(list(plans)), WorkerPool(workers) as pool:
        logs = [ResultsLog.open(plan, folder) for folder, plan in plans.items()]
        waiting = [
            job
            for place, log in enumerate(logs)
            for part, line in log.lines
            for job in log.jobs(log.open_keys(part, line), place)
        ]
        steps = sum(log.remaining(part, line) for log in logs for part, line in log.lines)
        with progress("Reproducing", steps, show=show) as advance:
            for done in pool.work(waiting):
                place, key, settings = done.job.tag
                log = logs[place]
                waiting += log.jobs(log.record(key, settings, done), place)
                for _ in range(log.cost(key)):
                    advance(done.job.name)
        for log in logs:
            log.close()


def perform(
    study: type[Any], arguments: Mapping[str, Any], key: Key, settings: Mapping[str, Any], trials: int, storage: Path
) -> Any:
    """One job, in a worker process; a training that diverges is a result of its own, without a metric."""
    made: Study = study(**arguments)
    if key.stage == "tune":
        return jsonable(made.tune(key.line, trials, key.seed, storage), key.line)
    try:
        if key.stage == "validate":
            return jsonable(made.validate(key.line, settings, key.seed), key.line)
        return jsonable(made.measure(key.line, settings, key.seed), key.line)
    except DivergedError as error:
        return None if key.stage == "validate" else [{"diverged": str(error)}]


def _key_fields(key: Key) -> Row:
    found = key._asdict()
    if key.stage != "validate":
        del found["candidate"]
    return found


@contextmanager
def alone(folders: Sequence[Path]) -> Iterator[None]:
    """Hold the folders: a second run into one of them is refused; a killed one holds nothing.

    Where the system has no locks nothing is refused, and the user must not start two.
    """
    with ExitStack() as held:
        for folder in folders:
            try:
                held.enter_context(lock(folder, wait=False))
            except BlockingIOError:
                raise OffPolicyError(
                    f"Another run is writing to {folder}. Wait for it or choose another --out."
                ) from None
        yield
