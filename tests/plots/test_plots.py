from __future__ import annotations

import numpy as np
import pytest

from elastic_tf import plots
from elastic_tf.timing.profile import TimingProfile


def labels(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_lines_name_what_they_show():
    curves = {"one": ([1, 10], [2.0, 3.0]), "two": ([1, 10], [4.0, 5.0])}
    (axes,) = plots.lines(curves, x="ticks", y="time (s)", is_log=True).axes
    assert labels(axes) == ["one", "two"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ticks", "time (s)")
    assert axes.get_xscale() == "log"


def test_bars_of_one_label_have_one_colour_and_one_place_in_the_legend():
    figure = plots.bars({"a": {"x": 1.0, "y": 2.0}, "b": {"y": 3.0}}, y="time (s)")
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0, 3.0]
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[1] == colours[2] != colours[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "y"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b"]


def test_selection_map_shows_tensors_down_and_epochs_across():
    masks = [np.array([True, False, False]), np.array([False, False, True])]
    (axes,) = plots.selection_map(masks, names=["a", "b", "c"]).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), [[1, 0], [0, 0], [0, 1]])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b", "c"]
    assert "33%" in axes.get_title(loc="left")


def test_titles_stay_within_the_picture():
    figure = plots.selection_map([np.array([True, False])] * 3, title="a long title " * 9)
    plots.png(figure)
    text = figure.axes[0]._left_title.get_window_extent()
    assert text.x1 <= figure.bbox.x1


def test_maps_of_long_trainings_are_no_wider_than_a_page():
    figure = plots.selection_map([np.array([True, False])] * 3000)
    assert figure.get_figwidth() <= 12


def row(method, mean, half_width, seconds=1.0):
    """Of a comparison."""
    fields = {"method": method, "mean": mean, "half_width": half_width, "seconds": seconds}
    return {**fields, "epochs": 2, "accuracies": [mean]}


WIDE = [row("full", 0.8, 0.02), row("elastic@0.5", 0.7, 0.03, 0.5), row("random@0.5", 0.6, 0.7)]


def test_accuracy_at_budgets_shows_both_tables():
    few = [row("full", 0.6, None), row("elastic@0.5", 0.75, None), row("random@0.5", 0.5, None)]
    left, right = plots.accuracy_at_budgets({"equal_epochs": WIDE, "equal_seconds": few}).axes
    points = [tuple(np.ravel(bars[0].get_xydata())) for bars in left.containers]
    assert points == [(1.0, 80.0), (0.5, 70.0), (1.0, 60.0)]
    points = [tuple(np.ravel(bars[0].get_xydata())) for bars in right.containers]
    assert points == [(0, 60.0), (1, 75.0), (2, 50.0)]
    assert left.get_title(loc="left") == "2 epochs each"
    assert right.get_title(loc="left") == "at most 1 s each"


def test_a_method_may_have_only_equal_seconds():
    tables = {"equal_epochs": WIDE, "equal_seconds": [row("bn_bias", 0.7, 0.02), WIDE[0]]}
    left, right = plots.accuracy_at_budgets(tables).axes
    assert [label.get_text() for label in right.get_xticklabels()] == ["bn_bias", "full"]
    assert len(left.containers) == 3


def test_timing_bars_stack_both_times_of_each_tensor():
    profile = TimingProfile.from_chain(t_dw=[1000, 2000], t_dy=[500, 0], t_forward=3000)
    (axes,) = plots.timing_bars(profile).axes
    # the first t_dy is due whenever the first tensor is trained: it is that tensor's own
    assert [bar.get_height() for bar in axes.patches[:2]] == pytest.approx([1.5, 2.0])
    assert [bar.get_y() for bar in axes.patches[2:]] == pytest.approx([1.5, 2.0])
    assert axes.get_title(loc="left") == "full step 6.5 ms, forward pass 3.0 ms"


def test_save_writes_a_picture(tmp_path):
    path = tmp_path / "deep" / "picture.png"
    plots.save(plots.selection_map([np.array([True, False])]), path)
    assert path.read_bytes().startswith(b"\x89PNG")
