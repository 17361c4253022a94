"""Random trainings against a tape and an optimizer for each tensor; and those that once failed."""

import pytest
from fuzzing.case import At, Case, check
from fuzzing.draw import FEATURES, cases
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

ONCE_FAILED = {
    "a plan set in a partial execution": Case(
        steps_per_execution=2, epochs=4, events=(At(0, 2, "plan last 2"),)
    ),
    "narrow, wide, narrow": Case(
        path="samples",
        samples=8,
        epochs=4,
        story=("plan last 2", "fit"),
        events=(At(1, -1, "plan all"), At(2, -1, "plan last 2")),
    ),
    "activations of other weights": Case(
        path="samples",
        samples=16,
        story=("plan last 4", "fit"),
        events=(
            *(At(0, 0, "plan all"), At(0, 0, "cache"), At(0, 1, "plan last 4"), At(0, 1, "cache")),
            *(At(0, 2, "plan all"), At(0, 3, "plan last 4"), At(1, 1, "plan last 2")),
        ),
    ),
    "weights that are set": Case(
        path="samples", story=("plan last 2", "fit"), events=(At(1, -1, "set"), At(1, 1, "scale 0"))
    ),
    "counts in a .keras file": Case(
        optimizer="adam", epochs=1, story=("plan last 2", "fit", "save keras", "plan all", "fit")
    ),
    "a head that was solved before a kill": Case(
        path="samples0", solve=True, rhos=(0.4,), backup=0, kill=(1, 0)
    ),
    "two threads": Case(threads=True),
}
ALWAYS = {
    "order and views": Case(
        path="samples", views=2, epochs=4, samples=8, story=("plan last 4", "fit")
    ),
    "class weights": Case(path="samples", weights="class", loss="sparse"),
    "frozen normalisations": Case(model="conv", story=("plan last 2", "fit")),
    "a layer used twice": Case(model="shared", story=("plan last 5", "fit")),
    "a class of its own": Case(model="subclassed", story=("plan last 1", "fit")),
}


FEW = settings(deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE_FAILED | ALWAYS)
def test_what_once_failed_and_what_all_else_needs_trains_as_the_reference(name):
    check((ONCE_FAILED | ALWAYS)[name])


@pytest.mark.slow
@settings(FEW, max_examples=4)
@given(cases())
def test_a_random_training_is_that_of_the_reference(case):
    check(case)


@pytest.mark.hours
@pytest.mark.parametrize("feature", FEATURES)
@settings(FEW, derandomize=False, max_examples=20)
@given(data=st.data())
def test_random_trainings_with_a_feature_are_those_of_the_reference(feature, data):
    try:
        check(data.draw(cases(feature)))
    except (ValueError, TypeError) as error:
        assume("Received:" not in str(error))  # the library says that it does not do this
        raise
