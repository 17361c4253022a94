"""Runs that are written instead of trained, for what launches trainings."""

from elastic_tf.app import runs
from elastic_tf.app.commands.commandline import parse
from elastic_tf.app.commands.settings import Train


class Launches:
    """Stands in for `compare.launched`; `made` writes what a training would."""

    def __init__(self, made) -> None:
        self.trained: list[Train] = []  # of the runs that were launched
        self._made = made

    def __call__(self, arguments, log) -> None:
        settings = parse(Train, "", arguments)
        self.trained.append(settings)
        self._made(settings, runs.create(settings.out, settings))
