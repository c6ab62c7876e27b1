"""The model that certifies a logged request, of the version and the signature that it names."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError, visible
from keras_curv.reading import served_model
from keras_curv.rows.reason import Reason
from keras_curv.saved_model import meta_graph
from keras_curv.saved_model.files import (
    ModelFiles,
    numbered_versions,
    resolve_directory,
    version_number,
)
from keras_curv.serving.prediction_log import UNNAMED, LoggedRequest
from keras_curv.serving.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Model:
    """One signature of one version, read and bounded."""

    version: str  # its number, or the name of a directory that has none
    signature: str  # its name
    certifier: Certifier  # of both


class Versions:
    """The versions of a model, each read when a request first needs it, and then kept.

    Args:
        path: a base path with numbered versions; then a request belongs to the version that
            served it, or to the newest where it names none. Or one SavedModel directory; then
            every request belongs to it, whatever version it names.
        signature: of requests that name none.
        options: further ones, of `Certifier`.

    Attributes:
        path: as given.

    Raises:
        InputError: there is no SavedModel at `path`, or one number stands for two of them.
    """

    def __init__(
        self, path: str, *, signature: str = served_model.DEFAULT_SIGNATURE, **options: Any
    ):
        self.path = str(path)
        base = pathlib.Path(path)
        try:
            newest = resolve_directory(base)
            self._only: str | None = None
            if newest == base:
                self._only = self._newest = _label(base.resolve())
                self._directories = {self._only: base}
            else:
                self._newest = _label(newest)
                numbered = numbered_versions(base)
                self._directories = {str(number): entry for number, entry in numbered.items()}
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        self._signature = signature
        self._options = options
        self._inputs: dict[str, dict[str, list[str]] | Refusal] = {}
        self._models: dict[tuple[str, str], Model | Refusal] = {}

    def find(self, request: LoggedRequest, file_version: int | None = None) -> Model:
        """Returns the model that certifies a request.

        Args:
            file_version: of a warm-up file, for requests that name none.

        Raises:
            Refusal: there is none, or the request's inputs are not this model's.
        """
        version = self._version(request, file_version)
        signature = request.signature or self._signature
        known = self._known_inputs(version)
        if signature not in known:
            raise Refusal(Reason.NO_SIGNATURE, repr(signature[:80]), version)
        asked = request.inputs
        if UNNAMED in asked and len(known[signature]) == 1:
            asked = dict.fromkeys(known[signature])
        if sorted(asked, key=str) != known[signature]:
            theirs = ", ".join(sorted(name or "one without a name" for name in asked)[:4])[:80]
            ours = ", ".join(known[signature])
            raise Refusal(Reason.WRONG_INPUTS, f"({theirs}), not ({ours})", version)
        key = version, signature
        if key not in self._models:
            self._models[key] = self._read(version, signature)
        model = self._models[key]
        if isinstance(model, Refusal):
            raise model
        return model

    def models(self) -> list[Model]:
        """Returns the models that were needed so far and can be certified."""
        return [model for model in self._models.values() if isinstance(model, Model)]

    def refused(self) -> list[Refusal]:
        """Returns the reasons why models cannot be certified."""
        everything = [*self._models.values(), *self._inputs.values()]
        return [entry for entry in everything if isinstance(entry, Refusal)]

    def _version(self, request: LoggedRequest, file_version: int | None) -> str:
        if self._only is not None:
            return self._only
        if request.version_label:
            raise Refusal(Reason.VERSION_LABEL, repr(request.version_label[:80]))
        number = file_version if request.version is None else request.version
        if number is None:
            return self._newest
        if str(number) not in self._directories:
            raise Refusal(Reason.NO_VERSION, f"version {number}", str(number))
        return str(number)

    def _known_inputs(self, version: str) -> dict[str, list[str]]:
        """Returns signature → the names of its inputs."""
        if version not in self._inputs:
            self._inputs[version] = _input_names(self._directories[version], version)
        known = self._inputs[version]
        if isinstance(known, Refusal):
            raise known
        return known

    def _read(self, version: str, signature: str) -> Model | Refusal:
        try:
            certifier = Certifier(
                str(self._directories[version]), signature=signature, **self._options
            )
        except InputError as error:
            return Refusal(Reason.MODEL_REFUSED, str(error), version)
        return Model(version, signature, certifier)


def _label(directory: pathlib.Path) -> str:
    number = version_number(directory.name)
    return visible(directory.name) if number is None else str(number)


def _input_names(directory: pathlib.Path, version: str) -> dict[str, list[str]] | Refusal:
    try:
        meta = meta_graph.parse(ModelFiles.read(directory).graph, str(directory))
    except (OSError, InputError) as error:
        return Refusal(Reason.MODEL_REFUSED, f"{directory}: {error}", version)
    return {name: sorted(definition.inputs) for name, definition in meta.signature_def.items()}
