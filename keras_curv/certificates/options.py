"""What is proved of a model, and how: the options of everything that certifies.

Flags are made of these options, so nothing here loads TensorFlow before an option is checked.
"""

from __future__ import annotations

import builtins
import dataclasses
from typing import TYPE_CHECKING

from keras_curv.errors import InputError, require_fraction, require_one_of

if TYPE_CHECKING:
    from keras_curv.threats.properties.property import Property
    from keras_curv.threats.threat import Threat


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """Options of a proof: the model's output, the claim and the method.

    Attributes:
        method: method of proof. auto takes the largest radius of all that apply: crc, crc_local,
            coupled, crown, lipschitz, two_stage, each of which can be named alone; quadratic,
            interval, coap and smoothing are there to compare with.
        guarantee: arithmetic that the proof is about. real: real arithmetic on the stored weights;
            float32: also the float32 arithmetic of a server.
        tolerance: fraction by which a further method must be able to enlarge a radius for the
            method auto to try it; 0 tries all of them. A search for a ball may also leave that
            fraction of the radius, within 0.1 to 0.3 %. No radius becomes wrong by it, only
            smaller.
        property: what must not change within a radius. argmax: the predicted class; top_3: that the
            label is among the 3 largest logits; harmful:3,5: that no such class gets above the
            label, harmful:TABLE.json by label; threshold:0.7: the side of it on which the output
            is; interval:0.1: the output, by more than that; linear:y0>y1+0.5: that conditions on
            outputs hold, linear:FILE.txt one in each line.
        threat: what the attacker may do, a `Threat` or its arguments; radii are in its units, and
            nothing is claimed of inputs that it leaves out. Default: any change.
        signature: name of the signature that is certified; of logged requests, for those that name
            none.
        output_name: name of the output with the logits, of a signature with several; default:
            logits, or the only one.
        cut: name of a layer, or of a tensor or node of a SavedModel, behind which the model is
            certified, as if it began there: examples are then what flows there, and radii are in
            its units. Of a live Keras model examples are those that the model takes.

    Raises:
        InputError: an option out of range.

    Example:
        >>> ProofOptions(property="top_3").claim["holds"]
        'the label stays among the 3 largest logits'
    """

    method: str = "auto"
    guarantee: str = "real"
    tolerance: float = 0.01
    property: Property | str = "argmax"
    threat: Threat = None  # type: ignore[assignment]  # set to that of any change
    signature: str = "serving_default"
    output_name: str | None = None
    cut: str | None = None

    def __post_init__(self) -> None:
        from keras_curv.certificates.auto import METHODS
        from keras_curv.certificates.certificate import GUARANTEES
        from keras_curv.threats.properties.property import Property
        from keras_curv.threats.threat import Threat

        if self.method == "smoothing":
            raise InputError(
                "smoothing certifies another classifier: certify(model, x, method='smoothing', "
                "deviation=s), certify_examples(smoothing=Smoothing(s)), or the command's --method "
                "smoothing"
            )
        require_one_of(self.method, (*METHODS, "smoothing"), "method")
        require_one_of(self.guarantee, GUARANTEES, "guarantee")
        require_fraction(self.tolerance, "tolerance")
        object.__setattr__(self, "property", Property.of(self.property))
        threat = Threat() if self.threat is None else Threat.of(self.threat)
        object.__setattr__(self, "threat", threat)

    @builtins.property
    def qualified(self) -> bool:
        """Whether the claim is another one than of the prediction under any change."""
        return str(self.property) != "argmax" or not self.threat.plain

    @builtins.property
    def searched(self) -> bool:
        """Whether adversarial points can be searched: of the prediction, in the input's units."""
        return str(self.property) == "argmax" and self.threat.searchable

    @builtins.property
    def claim(self) -> dict[str, str | None]:
        """The claim in words: which changes, what holds, norm and units of the radii."""
        from keras_curv.threats.properties.property import Property

        return {
            "changes": self.threat.text
            + (f", of what flows behind {self.cut}" if self.cut else ""),
            "holds": Property.of(self.property).text,
            "units": self.threat.units,
            "norm": self.threat.norm,
        }
