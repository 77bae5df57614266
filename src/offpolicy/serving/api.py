"""What a server can be told when it starts and asked while it runs, and the OpenAPI description of that."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from offpolicy.errors import ParameterError

Id: TypeAlias = str | int | bool
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]


class ServeOptions(BaseModel):
    """Everything a server can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    store: str = "events.db"
    mode: Literal["explore", "greedy", "shadow"] = "explore"
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.0
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    salt: str | None = None
    token: Annotated[str, Field(min_length=8)] | None = None
    horizon: NonNegativeFloat = 3600.0
    rule: Literal["first", "last", "sum", "max"] = "first"
    retention_days: PositiveFloat | None = None
    reload_seconds: PositiveFloat = 2.0
    rate: NonNegativeFloat = 0.0
    timeout: PositiveFloat = 10.0
    max_body: PositiveInt = 1_000_000
    max_batch: PositiveInt = 256
    max_candidates: PositiveInt = 10_000
    max_waiting: PositiveInt = 10_000
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    workers: PositiveInt = 1
    proxy: str | None = None

    @classmethod
    def checked(cls, given: dict[str, Any]) -> "ServeOptions":
        """The options of a command; the first wrong one is a `ParameterError`."""
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            name = "".join(map(str, first["loc"])).replace("_", "-")
            raise ParameterError(f"--{name}: {first['msg']}.") from None


class Body(BaseModel):
    """Exact types and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DecideIn(Body):
    """A request for a decision."""

    request_id: Name = Field(description="Names the request; the same id always gets the same recorded decision.")
    context: dict[str, Any] = Field(default={}, description="Values by the names of the log's context columns.")
    candidates: list[Id] | None = Field(default=None, description="The actions on offer; null: all of the policy's.")
    k: Annotated[int, Field(ge=1, le=1000)] = Field(default=1, description="How many different actions to show.")
    baseline: Id | None = Field(default=None, description="In mode shadow: what is shown.")
    baseline_probability: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = Field(
        default=None, description="In mode shadow: the probability with which the baseline was chosen, if known."
    )
    override: Id | None = Field(default=None, description="What is shown whatever the policy says.")
    deferred: bool = Field(default=False, description="Whether the decision counts only once it is activated.")


class RewardIn(Body):
    """A reward that followed a decision."""

    request_id: Name
    reward: FiniteFloat
    event_id: Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")] = Field(
        default="", description="Tells rewards of one request apart; a repetition of the same one is ignored."
    )


class ActivateIn(Body):
    """A deferred decision that has been shown."""

    request_id: Name


class DecideOut(BaseModel):
    """A decision, durable when it is answered."""

    request_id: str
    action: Id | None
    actions: list[Id]
    probability: float | None
    probabilities: list[float]
    policy: str
    mode: str
    source: str
    explored: bool
    notes: str | None
    repeated: bool


class Accepted(BaseModel):
    """How many were recorded, and how many belong to decisions that are not kept."""

    accepted: int
    not_kept: int


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


POSTS: dict[str, tuple[type[BaseModel], type[BaseModel], str]] = {
    "/decide": (DecideIn, DecideOut, "Decide one request, or a list of them"),
    "/reward": (RewardIn, Accepted, "Record one reward, or a list of them"),
    "/activate": (ActivateIn, Accepted, "Say that deferred decisions have been shown"),
}
GETS = {
    "/policy": "Which policy decides, and how",
    "/status": "The figures of the page: traffic, exploration, value so far",
    "/metrics": "Counters for Prometheus",
    "/healthz": "Whether the process lives",
    "/readyz": "Whether decisions can be made durable now",
}
PROBLEMS = {
    "400": "Not JSON",
    "401": "No valid token",
    "408": "The body came too slowly",
    "413": "The body is too large",
    "422": "A field is missing or wrong",
    "429": "Too many requests",
    "503": "Try again later: the store does not answer or too much waits",
}


def openapi(most: int, token: bool) -> dict[str, Any]:
    """The interface as OpenAPI 3.1."""
    models = {model for pair in POSTS.values() for model in pair[:2]} | {Problem}
    schemas = {
        model.__name__: model.model_json_schema(ref_template="#/components/schemas/{model}")
        for model in sorted(models, key=lambda model: model.__name__)
    }
    problems = {code: {"description": text, "content": _content(_ref(Problem))} for code, text in PROBLEMS.items()}
    paths: dict[str, Any] = {}
    for path, (asked, told, summary) in POSTS.items():
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": _content(_one_or_many(asked, most))},
                "responses": {"200": {"description": "Done", "content": _content(_one_or_many(told, most))}} | problems,
            }
        }
    for path, summary in GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "Done"}}}}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "offpolicy serve", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _one_or_many(model: type[BaseModel], most: int) -> dict[str, Any]:
    return {"oneOf": [_ref(model), {"type": "array", "items": _ref(model), "minItems": 1, "maxItems": most}]}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
