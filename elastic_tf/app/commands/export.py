"""The command `export`, and the files that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.app.commands.trained import RUN, Trained, load
from elastic_tf.arguments import count
from elastic_tf.files import directory, write_bytes, write_text

_ENDINGS = (".keras", ".h5", ".tflite", ".safetensors", "")
_KNOWN = ("keras", "tf_keras", "keras_cv")  # whose layers a file of Keras may have
_HEAD = 2  # weights of the new head, the last of all


@dataclasses.dataclass(frozen=True)
class Export:
    """What to write, and where."""

    run: Path = option(help=RUN)
    to: Path = option(help="FILE.keras, FILE.h5, FILE.tflite, FILE.safetensors, or a new folder")
    quantize: str = option(
        "none",
        help="of FILE.tflite: weights in 2 bytes, or in 1",
        choices=("none", "float16", "dynamic"),
    )
    trains: bool = option(False, help="a folder that trains in LiteRT, without TensorFlow")
    batch_size: int = option(4, help="images in a training step of that folder", check=count)


def export(arguments: Sequence[str] | None = None) -> None:
    """Write the network of a finished training for other programs.

    Example::

        python -m elastic_tf export --run runs/birds --to birds.tflite --quantize float16

    The ending of --to says what is written: .keras or .h5 for Keras, which need no elastic_tf,
    .tflite for LiteRT, .safetensors for what training changed, no ending for a SavedModel; or with
    --trains for a folder that goes on training on a small board, by LiteRT and without TensorFlow.
    It appears whole or not at all. Beside it stands a model card, FILE.md; a .tflite holds its
    classes, too, for `unzip FILE.tflite labels.txt`.
    """
    settings = parse(Export, export.__doc__, arguments)
    to, ending = settings.to, settings.to.suffix
    if ending not in _ENDINGS:
        raise ValueError(
            f"`to` must end in {', '.join(filter(None, _ENDINGS))}, or be a folder. Received: "
            f"'{to}'."
        )
    if settings.quantize != "none" and ending != ".tflite":
        raise ValueError(
            f"`quantize` is for .tflite. Received: quantize={settings.quantize} for '{to}'. "
            "Leave it out."
        )
    if settings.trains and ending:
        raise ValueError(
            f"`to` must be a folder where it trains. Received: '{to}'. Leave out '{ending}'."
        )
    if not ending and to.exists():
        raise ValueError(f"`to` must be a new folder. Received: '{to}', which is there already.")
    trained = load(settings.run)
    if ending == ".safetensors":
        _save_delta(trained, to)
    elif ending == ".tflite":
        _save_tflite(trained, to, settings.quantize)
    elif settings.trains:
        _save_training(trained, to, settings.batch_size)
    else:
        _save(trained, to)
    beside = to.with_name(f"{to.name}.md")
    write_text(beside, _card(trained, to))
    size, names = trained.settings.input_size, len(trained.class_names)
    print(
        f"Written to {to}. Images of {size} x {size} pixels, 0 to 255, give logits of {names} "
        f"classes, which {beside} names."
    )


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Discards the progress messages of TensorFlow's converter."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _save(trained: Trained, to: Path) -> None:
    """Write a file of Keras, or a SavedModel."""
    from elastic_tf import stack

    model = stack.of_keras_alone(trained.network())
    own = [one for one in model.layers if type(one).__module__.partition(".")[0] not in _KNOWN]
    if to.suffix and own:
        raise ValueError(
            f"A file of Keras must have layers of Keras alone. Received: '{own[0].name}' of the "
            f"method '{trained.settings.method}' for '{to}'. Export a folder or .tflite."
        )
    with (
        tempfile.TemporaryDirectory(dir=directory(to.parent)) as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore", UserWarning)  # .h5 is an older format
        part = Path(folder) / to.name
        if to.suffix:
            model.save(part)
        else:
            model.export(str(part))
        os.replace(part, to)


def _save_tflite(trained: Trained, to: Path, quantize: str) -> None:
    """Write a file for LiteRT; its weights are floats of 4 or 2 bytes, or integers of 1.

    labels.txt is packed behind the model, as LiteRT's metadata are.
    """
    import tensorflow as tf

    with _muted():
        converter = tf.lite.TFLiteConverter.from_keras_model(trained.network())
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        packed = io.BytesIO(converter.convert())
    with zipfile.ZipFile(packed, "a") as file:
        file.writestr("labels.txt", "".join(f"{name}\n" for name in trained.class_names))
    write_bytes(to, packed.getvalue())


def _card(trained: Trained, to: Path) -> str:
    """What there is to know of an exported network, as Markdown."""
    run, given, result = trained.run, trained.settings, trained.run.result
    size = given.input_size
    facts = {
        "network": f"{Path(given.model).name}, pre-trained weights: {Path(given.weights).name}",
        "input": f"images of {size} x {size} pixels, resized by Pillow's BILINEAR, 0 to 255",
        "output": f"logits of {len(trained.class_names)} classes, in the order below",
        "accuracy": f"{result['accuracy']:.1%} of the test images, one training, seed {given.seed}",
        "images": Path(given.data).name,
        "trained": f"by {given.method} in {result['training_seconds']:.0f} s, "
        f"{result['epochs']} epochs, on {run.config['device']['name']}, {run.config['started']}",
        "versions": ", ".join(f"{name} {one}" for name, one in run.config["versions"].items()),
    }
    rows = "".join(f"| {name} | {fact} |\n" for name, fact in facts.items())
    names = "".join(f"{k}. {name}\n" for k, name in enumerate(trained.class_names))
    return (
        f"# {to.name}\n\n| | |\n|---|---|\n{rows}\n## Classes\n\n{names}\n## Limits\n\n"
        "The accuracy is that of images like those it was trained on. Other cameras, light and "
        "places were not tried, and what is of none of the classes is taken for one of them.\n"
    )


def _save_training(trained: Trained, to: Path, batch_size: int) -> None:
    """Write a folder that trains by LiteRT as the run did, its rate by the root of the batch size.

    Source: Malladi et al., On the SDEs and scaling rules for adaptive gradient algorithms,
    NeurIPS 2022.
    """
    from elastic_tf.app.commands import harness
    from elastic_tf.app.export import litert

    settings = trained.settings
    rate = harness.learning_rate(settings) * (batch_size / settings.batch_size) ** 0.5
    model = harness.compiled(trained.network(), settings.optimizer, rate)
    with _muted():
        litert(model, to, batch_size=batch_size, class_names=trained.class_names)


def _save_delta(trained: Trained, to: Path) -> None:
    """Write what training changed in the pre-trained network, and all of its head."""
    weights, method = trained.settings.weights, trained.settings.method
    from elastic_tf import delta
    from elastic_tf.app.commands import harness
    from elastic_tf.methods import baselines

    is_adapted = baselines.get(method).adapt is not baselines.get("full").adapt
    if weights == "none" or is_adapted:
        raise ValueError(
            "A delta needs pre-trained weights of the same network. Received: a run with "
            f"weights={weights}, method={method}. Export .keras, a folder or .tflite."
        )
    base = harness.network(trained.settings, len(trained.class_names), weights)
    delta.save_delta(trained.network(), base.get_weights()[:-_HEAD], to)
