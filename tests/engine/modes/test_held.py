"""Changes that several holders share: made once, and taken back by the last."""

from __future__ import annotations

import contextlib
import types

import pytest

from elastic_tf.engine.modes.held import held, is_held
from elastic_tf.stack import attributes


def change(owner, **others):
    return lambda stack: stack.enter_context(attributes(owner, **others))


def test_a_change_stays_until_the_last_holder_leaves():
    owner = types.SimpleNamespace(kept=1)
    first, second = (held("key", change(owner, kept=2, new=3)) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_held("key") and vars(owner) == {"kept": 2, "new": 3}
    second.__exit__(None, None, None)
    assert not is_held("key") and vars(owner) == {"kept": 1}


def test_other_changes_of_the_same_attribute_are_taken_back_in_turn():
    owner = types.SimpleNamespace(kept=1)
    for _ in range(2):
        with held("one", change(owner, kept=2)):
            with held("two", change(owner, kept=3)):
                assert owner.kept == 3
            assert owner.kept == 2
        assert owner.kept == 1


def test_half_a_change_is_taken_back_after_an_error():
    owner = types.SimpleNamespace(kept=1)

    def broken(stack: contextlib.ExitStack) -> None:
        stack.enter_context(attributes(owner, kept=2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), held("key", broken):
        pass
    assert not is_held("key") and owner.kept == 1
