"""Random cases, and the features that they are made of.

| feature | what it looks for |
|---|---|
| executions | plans that change where the last execution of an epoch has fewer steps |
| kept, elastic, weights | kept activations of weights that have changed since |
| elastic | batches that are drawn ahead and then trained in another order |
| head, head_alone, no_bias | a head that is not the ridge regression that it is said to be |
| head with views | rows that the head was not solved on |
| counts, saving | step counts of tensors, lost or wrong |
| broken, again, rate | what one `fit` leaves to the next |
| keep, eager, weighted, evaluating, threads | ways that must not differ |
"""

from collections.abc import Callable
from typing import Any

from fuzzing import kinds
from fuzzing.case import At, Case
from hypothesis import assume
from hypothesis import strategies as st

MOST_STEPS = 14  # of a story: beyond, rounding grows
ONE_HEAD = [name for name in kinds.FUNCTIONAL if name != "shared"]  # those that can be solved

Fields = dict[str, Any]


class Draw:
    """Draws fields of a case, by the `draw` of a composite strategy."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def happens(self, share: float) -> bool:
        return self.one(*range(10)) >= 10 * (1.0 - share)

    def base(self) -> Fields:
        """A training with plans that change."""
        optimizer = self.one(*kinds.OPTIMIZERS)
        fields: Fields = {
            "model": self.one(*kinds.MODELS),
            "loss": self.one("mse", "sparse", "categorical"),
            "bias": self.happens(0.7),
            "l2": self.one(0.0, 0.0, 0.01),
            "optimizer": optimizer,
            "rate": 0.02 if optimizer in ("rmsprop", "momentum") else 0.05,
            "path": self.one("arrays", "dataset", "generator", "samples", "samples", "samples0"),
            "samples": self.one(8, 10, 12),
            "epochs": self.one(2, 3),
            "seed": self.one(*range(1000)),
        }
        if self.happens(0.4):
            fields["options"] = (self.one(*kinds.OPTIONS),)
        if self.happens(0.4):
            fields["story"] = (f"plan {self.plan()}", "fit")
        fields["events"] = self.events("plan", self.one(0, 1, 2))
        return fields

    def plan(self) -> str:
        some = f"some {self.one(*range(9))}"
        return self.one("all", "last 1", "last 2", "last 2", "last 4", some)

    def place(self, epochs: int = 3, steps: int = 3) -> tuple[int, int]:
        return self.one(*range(epochs)), self.one(*range(-1, steps))

    def events(self, verb: str, count: int) -> tuple[At, ...]:
        what = {"plan": self.plan, "scale": lambda: self.one(*range(9))}.get(verb, lambda: "")
        drawn = [At(*self.place(), f"{verb} {what()}".strip()) for _ in range(count)]
        return tuple(sorted(drawn))


def _executions(draw: Draw, fields: Fields) -> None:
    fields.update(steps_per_execution=draw.one(2, 2, 3), samples=12)
    fields["events"] += (*draw.events("plan", 1), At(0, 2, f"plan {draw.plan()}"))


def _kept(draw: Draw, fields: Fields) -> None:
    """Narrow, wide, narrow again."""
    narrow, wide = f"last {draw.one(1, 2, 3, 4)}", draw.one("all", "last 5", "last 6")
    fields.update(path="samples", epochs=draw.one(3, 4), samples=8)
    fields["story"] = (f"plan {narrow}", "fit") if draw.happens(0.7) else ("fit",)
    events = [At(1, draw.one(-1, 0), f"plan {wide}"), At(2, draw.one(-1, 1), f"plan {narrow}")]
    if draw.happens(0.3):
        events.append(At(2, 1, "cache"))
    fields["events"] = tuple(events)


def _weights(draw: Draw, fields: Fields) -> None:
    fields["events"] += draw.events(draw.one("set", "load", "scale"), draw.one(1, 2))


def _elastic(draw: Draw, fields: Fields) -> None:
    fields["rhos"] = draw.one((0.4, 1.0, 1.0, 0.4), (1.0, 0.4), (0.4, 0.7, 0.4), (0.5,))
    fields.update(epochs=draw.one(3, 4), samples=draw.one(8, 10))
    fields["importance"] = draw.one("depth", "depth", "magnitude", "loss")
    fields["events"] = fields["events"][:1]


def _resume(draw: Draw, fields: Fields) -> None:
    _elastic(draw, fields)
    fields.update(backup=draw.one(0, 1, 2), kill=(draw.one(0, 1, 2), draw.one(0, 1)))
    fields.update(events=(), story=("fit",))
    if draw.happens(0.3):
        fields.update(solve=True, model=draw.one(*ONE_HEAD), path=draw.one("samples", "samples0"))


def _head(draw: Draw, fields: Fields) -> None:
    fields.update(solve=True, model=draw.one(*ONE_HEAD), path=draw.one("samples", "samples0"))
    fields["story"] = (f"plan {draw.plan()}", "fit")


def _head_alone(draw: Draw, fields: Fields) -> None:
    fields.update(model=draw.one(*ONE_HEAD), story=("solve", "fit"))
    if draw.happens(0.4):  # a head that was trained before
        fields.update(story=("fit", "solve", "fit"), epochs=2, samples=8)
        fields.update(optimizer=draw.one(*kinds.NEW))


def _views(draw: Draw, fields: Fields) -> None:
    fields.update(views=draw.one(2, 3), epochs=4, samples=8)
    fields.update(path=draw.one("samples", "samples", "samples0"), model=draw.one(*ONE_HEAD))


def _counts(draw: Draw, fields: Fields) -> None:
    """A step count of each tensor: those that join late."""
    fields["optimizer"] = draw.one(*kinds.COUNTED)
    fields["events"] += draw.events("plan", 2)


def _saving(draw: Draw, fields: Fields) -> None:
    how = draw.one("keras", "keras", "weights", "checkpoint")
    if draw.happens(0.5):
        fields["optimizer"] = draw.one(*kinds.COUNTED)
    fields.update(epochs=draw.one(1, 2), samples=8, events=fields["events"][:1])
    narrow, wide = f"plan last {draw.one(1, 2, 3)}", f"plan {draw.plan()}"
    fields["story"] = (narrow, "fit", f"save {how}", wide, "fit")


def _broken(draw: Draw, fields: Fields) -> None:
    fields.update(epochs=2, samples=8, story=(*fields.get("story", ("fit",)), "fit"))
    fields["events"] += (At(*draw.place(2, 2), draw.one("raise", "raise", "stop")),)


def _again(draw: Draw, fields: Fields) -> None:
    fields.update(epochs=2, samples=8)
    between = draw.one((), ("compile",), (f"plan {draw.plan()}",))
    fields["story"] = (*fields.get("story", ("fit",)), *between, "fit")
    events = draw.events("plan", 1)
    fields["events"] += tuple(at._replace(fit=1) for at in events)


def _replaced(draw: Draw, fields: Fields) -> None:
    """A plan that no step is made under."""
    place = draw.place(2, 2)
    fields["events"] += tuple(At(*place, f"plan {draw.plan()}") for _ in range(2))


def _set(**given: tuple[Any, ...]) -> Callable[[Draw, Fields], None]:
    """A feature that gives some fields one of some values."""

    def feature(draw: Draw, fields: Fields) -> None:
        fields.update({name: draw.one(*values) for name, values in given.items()})

    return feature


FEATURES: dict[str, Callable[[Draw, Fields], None]] = {
    "executions": _executions,
    "kept": _kept,
    "weights": _weights,
    "elastic": _elastic,
    "resume": _resume,
    "head": _head,
    "head_alone": _head_alone,
    "views": _views,
    "no_bias": _set(bias=(False,)),
    "counts": _counts,
    "saving": _saving,
    "broken": _broken,
    "again": _again,
    "replaced": _replaced,
    "rate": lambda draw, fields: fields.update(
        events=(*fields["events"], At(*draw.place(), "lr 0.5"))
    ),
    "keep": _set(keep=(0.0, 0.5)),
    "eager": _set(eager=(True,)),
    "weighted": _set(weights=("sample", "class")),
    "evaluating": lambda draw, fields: fields.update(
        validation=draw.happens(0.5), events=fields["events"] + draw.events("evaluate", 2)
    ),
    "threads": _set(threads=(True,)),
}


@st.composite
def cases(draw: st.DrawFn, only: str | None = None) -> Case:
    """Cases with one to three features, `only` among them."""
    source = Draw(draw)
    fields, few = source.base(), {"min_size": 1, "max_size": 3, "unique": True}
    chosen = draw(st.lists(st.sampled_from([*FEATURES]), **few))
    if only is not None:
        chosen = [name for name in chosen if name != only][:1] + [only]
    for name in chosen:
        FEATURES[name](source, fields)
    case = Case(**fields)
    assume(is_supported(case))
    return case


def is_supported(case: Case) -> bool:
    """Whether the library promises this, and the reference can do it too."""
    verbs = [at.do.partition(" ")[0] for at in case.events]
    saves = [item.partition(" ")[2] for item in case.story if item.startswith("save")]
    fits, solves = case.story.count("fit"), case.solve or "solve" in case.story
    own, ends = set(case.options) - {"schedule"}, {"raise", "stop"} & set(verbs)
    several = case.steps_per_execution > 1
    is_busy = several or case.eager or case.keep is not None
    refused = [
        not 0 < fits * case.epochs * case.steps <= MOST_STEPS,
        own and (case.optimizer not in kinds.NEW or {"clipnorm", "global_clipnorm"} <= own),
        case.optimizer == "adamw" and "decay" in own,
        "lr" in verbs and "schedule" in case.options,
        case.path == "generator" and case.model == "text",  # of which Keras knows no length
        case.views > 1 and (not case.on_samples or case.model in ("text", "shared")),
        case.weights == "class" and (case.model == "shared" or case.loss == "mse" or solves),
        several and (case.eager or case.backup is not None),
        case.backup is not None and (not case.rhos or ends),
        case.kill is not None
        and (case.backup is None or case.story != ("fit",) or not set(verbs) <= {"evaluate"}),
        saves and (is_busy or "lr" in verbs or case.threads),
        "keras" in saves and case.model == "subclassed",
        solves and case.model not in ONE_HEAD,
        case.solve and not case.on_samples,
        case.threads and "solve" in case.story,
    ]
    return not any(refused)
