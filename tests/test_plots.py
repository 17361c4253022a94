"""What stands where in the pictures, and colours that mean the same everywhere."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from elastic_tf import plots
from elastic_tf.plan import Plan
from elastic_tf.timing.profile import TimingProfile


def row(method: str, **values) -> dict:
    fields = {"mean": 0.7, "half_width": 0.02, "seconds": 100.0, "epochs": 1}
    return {"method": method, **fields, **values}


def labels(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_a_method_has_one_colour_in_every_kind_of_picture():
    lines = plots.lines({"full": ([1], [2]), "elastic": ([1], [2])}, x="s", y="%")
    bars = plots.bars({"a": {"ElasticTrainer, rho=0.5": 1.0, "Full Training": 2.0}}, y="s")
    points = plots.accuracy_at_budgets({"equal_epochs": [row("random"), row("elastic@0.5")]})
    found = [
        lines.axes[0].lines[1].get_color(),
        to_hex(bars.axes[0].patches[0].get_facecolor()),
        points.axes[0].containers[1].lines[0].get_color(),
    ]
    assert [colour.upper() for colour in found] == [plots.BLUE] * 3


def test_agreement_has_the_diagonal_and_equal_axes():
    points = {"a": ([0.2, 0.8], [0.3, 0.6])}
    (axes,) = plots.agreement(points, x="p", y="m", within=0.1).axes
    assert axes.get_xlim() == axes.get_ylim()
    np.testing.assert_array_equal(*axes.lines[0].get_data())
    assert labels(axes.get_legend()) == ["within 0.1", "a"]
    (axes,) = plots.agreement({"a": ([1.0, 1e4], [1.0, 9e3])}, x="p", y="m", is_log=True).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == axes.get_ylim() == pytest.approx((1 / 1.5, 1.5e4))


def test_cost_of_depth_ends_at_the_full_step():
    profile = TimingProfile.from_chain(t_dw=[1000, 2000], t_dy=[0, 1000], t_forward=4000)
    (axes,) = plots.cost_of_depth({"here": profile}).axes
    share = 100 * profile.step_time(np.array([False, True])) / profile.t_full
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [100.0, share])


def test_importance_map_shows_shares_and_leaves_harm_out():
    axes = plots.importance_map([np.array([3.0, 1.0, -1.0])]).axes[0]
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown[:2, 0], [0.75, 0.25])
    assert shown.mask[2, 0]


def test_accuracy_at_budgets_joins_the_rows_of_a_method_and_draws_their_intervals():
    rows = [row("full", mean=0.8), row("elastic@0.5", seconds=50.0), row("random@0.5", mean=0.6)]
    rows.append(row("full", mean=0.6, seconds=40.0, half_width=None))
    figure = plots.accuracy_at_budgets({"equal_epochs": rows[:3], "equal_seconds": rows})
    (legend,), (axes,) = figure.legends, figure.axes
    assert labels(legend) == ["full", "elastic@0.5", "random@0.5"]
    found = [bars.lines[0].get_xydata() for bars in axes.containers]
    for line, points in zip(found, ([(40, 60), (100, 80)], [(50, 70)], [(100, 60)])):
        np.testing.assert_allclose(line, points)
    (bars,) = axes.containers[1].lines[2]
    np.testing.assert_allclose(bars.get_segments(), [[(50, 68), (50, 72)]])


def test_lines_name_what_they_show_and_do_not_cut_the_last_marker(tmp_path):
    curves = {"one": ([61.0, 65.0], [2.0, 3.0]), "two": ([1, 10], [4.0, 5.0])}
    figure = plots.lines(curves, x="ticks", y="time (s)", title="Here")
    (axes,) = figure.axes
    assert labels(figure.legends[0]) == ["one", "two"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ticks", "time (s)")
    assert axes.get_title(loc="left") == "Here"
    low, high = axes.get_xlim()
    assert low == 0 and high - 65.0 >= 0.04 * (high - low)
    plots.save(figure, tmp_path / "deep" / "picture.png")
    for written in ((tmp_path / "deep" / "picture.png").read_bytes(), figure._repr_png_()):
        assert written.startswith(b"\x89PNG")  # in a file, and in a notebook


def test_bars_of_one_label_have_one_colour():
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
    (axes,) = plots.selection_map(masks * 15, x="rho", ticks=range(30)).axes
    said = [tick.get_text() for tick in axes.get_xticklabels()]
    assert (axes.get_xlabel(), said[0], said[-1]) == ("rho", "0", "29") and len(said) <= 12


def test_selection_map_tells_modes_apart_by_colour():
    plan = Plan.full(4).filtered(2, np.arange(4) == 0).with_channels("channels:1/2", {2: [0]})
    figure = plots.selection_map([plan, np.array([True, False, False, True])])
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown, [[2, 1], [1, 0], [3, 0], [1, 1]])
    assert labels(figure.legends[0]) == ["frozen", "exact", "filtered:2", "channels:1/2"]


def test_titles_stay_within_the_picture_and_pictures_within_a_page():
    figure = plots.selection_map([np.array([True, False])] * 3000, title="a long title " * 19)
    assert figure.get_figwidth() <= 12
    figure.draw_without_rendering()
    text = figure.axes[0]._left_title.get_window_extent()
    assert text.x1 <= figure.bbox.x1 and text.y1 <= figure.bbox.y1


def test_timing_bars_stack_both_times_of_each_tensor():
    profile = TimingProfile.from_chain(t_dw=[1000, 2000], t_dy=[500, 0], t_forward=3000)
    (axes,) = plots.timing_bars(profile).axes
    # the first t_dy is due whenever the first tensor is trained: it is that tensor's own
    assert [bar.get_width() for bar in axes.patches[:2]] == pytest.approx([1.5, 2.0])
    assert [bar.get_x() for bar in axes.patches[2:]] == pytest.approx([1.5, 2.0])
