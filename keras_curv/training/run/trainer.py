"""From a recipe to a trained, exported and certified model: `keras_curv train` in one call."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv import data
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.certificates.crc.two_stage import TwoStageCertificate
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.data.examples import Examples
from keras_curv.data.pipeline import without_tuning
from keras_curv.errors import InputError, require_positive
from keras_curv.files import copy_folder, part_path, write_text, writing
from keras_curv.network.activations import SMOOTH
from keras_curv.reading.served_model import read
from keras_curv.reports import wording
from keras_curv.runs.certify_examples import certify_examples
from keras_curv.runs.options import DEFAULT_RADII
from keras_curv.saved_model.files import GRAPH
from keras_curv.threats.properties.property import ARGMAX, Property
from keras_curv.threats.threat import Threat
from keras_curv.training.history import History
from keras_curv.training.run.callbacks import CertifiedAccuracy, has_tensorboard
from keras_curv.training.run.checkpoints import Checkpoints, writing_by_tensorflow
from keras_curv.training.run.recipe import Recipe
from keras_curv.training.run.recipe_options import maps_of
from keras_curv.training.run.run_folder import forget_from, prepare, require_columns
from keras_curv.training.run.warm_start import start_from
from keras_curv.training.trainable import augmentation

_Arrays = tuple[np.ndarray, np.ndarray]  # x, y
_LINEAR_BOUNDS = {2: 1000, 3: 100}  # examples, by maps: they take their time


def train(
    recipe: Recipe,
    output: str,
    *,
    resume: bool = False,
    data_dir: str | None = None,
    command: str | None = None,
    radii: Sequence[float] = DEFAULT_RADII,
    certify_every: int = 0,
    limit: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Trains by a recipe, exports the base as a SavedModel, certifies it, and writes its card.

    `output` becomes a SavedModel directory, with beside it `CARD.md`, `recipe.json`, under a threat
    `threat.json`, `history.csv` (an epoch a line), `certified.json` (the summary) and, if
    TensorBoard is installed, `logs`.
    There is a checkpoint after every epoch until the model is there; order, shifts and
    checkpoints are such that a resumed run ends with the weights of an uninterrupted one.

    Args:
        recipe: what to train, and how.
        output: directory; must not hold anything yet, unless `resume`.
        resume: go on where an interrupted run of the same recipe stopped.
        data_dir: of tfds.
        command: for the card.
        radii: at which accuracy is certified, for the card and every so many epochs.
        certify_every: epochs between certifications of 500 held-out examples; 0: none.
        limit: certify only the first so many examples of what is evaluated.
        progress: show bars.

    Returns:
        The summary of the certification; see `Tally.summary`.

    Raises:
        InputError: what cannot be used; before anything is written where that can be known.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/digits"
        >>> recipe = Recipe(width=16, epochs=1, jit=False)
        >>> summary = train(recipe, folder)  # doctest: +ELLIPSIS
        6/6 - ...
        >>> summary["examples"], pathlib.Path(folder, "CARD.md").is_file()
        (360, True)
    """
    radii = [require_positive(radius, "a radius to report") for radius in radii]
    if certify_every and not recipe.held_out:
        raise InputError("certifying while training needs held_out examples to certify")
    examples = data.load(recipe.dataset, "train", data_dir=data_dir)
    evaluated = data.load(recipe.dataset, "test", data_dir=data_dir)
    x, y = examples.arrays()
    held = None
    if recipe.held_out:
        x, y, evaluated = split_examples(x, y, recipe, examples.name)
        held = evaluated.arrays()
    threat = recipe.attacker()  # whatever becomes of its file meanwhile
    if threat.confined:  # certification would refuse it, in the end
        for some in (x, (held or evaluated.arrays())[0]):
            threat.require_inside(some.reshape(len(some), -1), 0)
    keras.utils.set_random_seed(recipe.seed)
    base = recipe.build(x.shape[1:], int(y.max()) + 1)
    if recipe.start_from:
        start_from(base, recipe.start_from)
    read(base)  # what would be too large to certify in the end is refused now
    model = recipe.model(base, recipe.steps(len(x)))
    directory = prepare(pathlib.Path(output), recipe, resume)
    checkpoints = directory / "checkpoints"
    if checkpoints.exists() or not (directory / "saved_model.pb").exists():
        with writing_by_tensorflow(directory, tf.errors.ResourceExhaustedError):
            callbacks = _callbacks(recipe, directory, held, radii, certify_every)
            saving = Checkpoints(model, checkpoints)
            first = saving.restore()
            forget_from(directory / "history.csv", first)
            try:
                fitted = model.fit(
                    training_batches(x, y, recipe, first),
                    initial_epoch=first,
                    epochs=recipe.epochs,
                    steps_per_epoch=recipe.steps(len(x)),
                    validation_data=held and validation_batches(held),
                    callbacks=[*callbacks, saving],
                    verbose=1 if progress else 2,
                    shuffle=False,
                )
            except tf.errors.InvalidArgumentError as error:  # an assertion on what is trained on
                reason = " ".join(error.message.split())[:200]
                raise InputError(f"a batch cannot be trained on: {reason}") from error
        _require_finite(fitted, saving)
        with writing_by_tensorflow(directory):
            export_base(base, directory)
    remove_checkpoints(checkpoints)
    method, most = _proof(recipe)
    count = evaluated.count
    evaluated = evaluated.limited(min(limit or count, most or count, count))
    summary = certify_examples(
        str(directory),
        evaluated,
        method=method,
        radii=radii,
        threat=threat,
        property=recipe.claim(),
        summary=str(directory / "certified.json"),
        progress=progress,
    )
    part = "All" if evaluated.count == count else "The first examples"
    write_text(
        directory / "CARD.md", card_text(recipe, directory.name, threat, part, summary, command)
    )
    return summary


def _require_finite(fitted: keras.callbacks.History, saving: Checkpoints) -> None:
    """Refuses a training that ended where the loss or a weight is NaN or infinite."""
    losses = fitted.history.get("loss", [])
    if losses and not (np.isfinite(losses[-1]) and saving.finite()):
        raise InputError(
            f"the training diverged in epoch {fitted.epoch[-1] + 1} (loss {losses[-1]:.6g}); no "
            f"model is written, and {saving.folder} holds what was good before. It would diverge "
            "again: begin anew, elsewhere, with lower rates"
        )


def _proof(recipe: Recipe) -> tuple[str, int | None]:
    """Returns the method that certifies the result, and on how many examples; None: all."""
    if recipe.trunk:
        return TwoStageCertificate.name, None
    if recipe.activation in SMOOTH and recipe.loss not in ("crown_ibp", "coap"):
        return CurvatureCertificate.name, None
    return LinearBoundCertificate.name, _LINEAR_BOUNDS.get(maps_of(recipe), _LINEAR_BOUNDS[3])


def split_examples(
    x: np.ndarray, y: np.ndarray, recipe: Recipe, name: str
) -> tuple[np.ndarray, np.ndarray, Examples]:
    """Returns training arrays, and the held-out part as examples; a permutation of the seed 0."""
    order = np.random.default_rng(0).permutation(len(x))
    count = round(recipe.held_out * len(x))
    if not 0 < count < len(x):
        raise InputError(f"held_out leaves {count} of {len(x)} examples; use another fraction")
    out, kept = order[:count], order[count:]
    held = Examples.from_arrays(f"{name}, held-out part", x[out], y[out], reshapable=True)
    return x[kept], y[kept], held


def training_batches(
    x: np.ndarray, y: np.ndarray, recipe: Recipe, first_epoch: int
) -> tf.data.Dataset:
    """Returns shuffled batches from an epoch on; a function of recipe and epoch alone."""
    images, labels = tf.constant(x), tf.constant(y, tf.int32)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(x), dtype=tf.int64), seed=tf.stack([recipe.seed, number])
        )
        rows = tf.data.Dataset.from_tensor_slices(order).batch(recipe.batch_size)
        return tf.data.Dataset.zip(rows, tf.data.Dataset.counter(), rows.map(lambda _: number))

    def batch(rows: tf.Tensor, step: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = tf.gather(images, rows)
        seed = tf.stack([number, step]) + recipe.seed * 1_000_003
        if recipe.mirror:
            chosen = augmentation.mirrored(chosen, recipe.mirror, seed + 4)
        if recipe.shift:
            chosen = augmentation.shifted(chosen, recipe.shift, seed)
        if recipe.distortion:
            chosen = augmentation.distorted(chosen, recipe.distortion, seed + 2)
        return chosen, tf.gather(labels, rows)

    epochs = tf.data.Dataset.range(first_epoch, recipe.epochs)
    return without_tuning(epochs.flat_map(epoch).map(batch, num_parallel_calls=1).prefetch(2))


def validation_batches(held: _Arrays) -> tf.data.Dataset:
    """Returns held-out examples in batches."""
    return without_tuning(tf.data.Dataset.from_tensor_slices(held).batch(1000))


def _callbacks(
    recipe: Recipe,
    directory: pathlib.Path,
    held: _Arrays | None,
    radii: Sequence[float],
    certify_every: int,
) -> list[keras.callbacks.Callback]:
    """Returns those that the recipe and the options ask for, the history last."""
    logs = str(directory / "logs") if has_tensorboard() else None
    callbacks = [
        keras.callbacks.LearningRateScheduler(recipe.rate),
        keras.callbacks.TerminateOnNaN(),
    ]
    certified: list[str] = []
    if certify_every and held:
        x, y = held
        method, most = _proof(recipe)
        options: dict[str, Any] = {"every": certify_every, "log_dir": logs, "method": method}
        callback = CertifiedAccuracy(x, y, radii, sample=min(500, most or 500), **options)
        callbacks.append(callback)
        certified = callback.names
    require_columns(directory / "history.csv", certified)
    if logs:
        callbacks.append(keras.callbacks.TensorBoard(logs, write_graph=False))
    return [*callbacks, History(directory / "history.csv")]


def export_base(base: keras.Model, directory: pathlib.Path) -> None:
    """Writes the base as a SavedModel with each weight once; Keras' `export` stores all twice."""
    module = tf.Module()
    module.weights = [variable.value for variable in base.variables]
    (taken,) = base.inputs
    spec = tf.TensorSpec((None, *taken.shape[1:]), taken.dtype, name=taken.name)
    serve = tf.function(lambda x: base(x, training=False), input_signature=[spec], autograph=False)
    module.serve = serve
    with tempfile.TemporaryDirectory() as ours:  # TensorFlow follows links
        tf.saved_model.save(module, ours, signatures={"serving_default": serve})
        copy_folder(ours, directory, last=GRAPH)


def remove_checkpoints(checkpoints: pathlib.Path) -> None:
    """Renames them first, all at once, then removes: no run could go on with half of them."""
    gone = part_path(checkpoints)
    with writing(gone):
        if checkpoints.exists():
            shutil.rmtree(gone, ignore_errors=True)
            checkpoints.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _measure(threat: Threat, claim: Property) -> str:
    """Returns in words what a radius on the card is one of, and of what."""
    words = ("l2" if threat.plain else threat.text) + " on pixels in [0, 1]"
    return words if claim == ARGMAX else f"{words}; {claim.text}"


def card_text(
    recipe: Recipe,
    name: str,
    threat: Threat,
    part: str,
    summary: dict[str, Any],
    command: str | None,
) -> str:
    """Returns the model card: how the model was made, and what it is worth."""
    rows = "\n".join(
        f"| {radius} | {wording.percent(fraction)} |"
        for radius, fraction in summary["certified_accuracy"].items()
    )
    trained = f"\n    {command}\n" if command else "\n    " + json.dumps(dataclasses.asdict(recipe))
    return f"""# {name}

{recipe.dataset}, {recipe.architecture}; {recipe.training};
{recipe.epochs} epochs, seed {recipe.seed}.

{part} of {summary["dataset"]} ({summary["examples"]:,} examples), guarantee level
`{summary["guarantee"]}`, all rivals, {_measure(threat, recipe.claim())}:

| radius | certified accuracy |
| ---: | ---: |
| 0 (clean) | {wording.percent(summary["clean_accuracy"])} |
{rows}

Mean radius over the correct ones {wording.number(summary["mean_radius"])}, by the method
`{summary["method"]}` alone. Trained by
{trained}"""
