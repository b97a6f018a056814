"""predict(): whether a step fits on a GPU that is not here."""

import ctypes
import json
import sys
from typing import Any, Callable, Dict, Optional

from . import _library


class Prediction:
    """What a step takes on a GPU: ``str()`` is the sentence, ``to_dict()`` all of it (docs/formats.md)."""

    def __init__(self, sentence: str, as_json: str) -> None:
        self._sentence, self._json = sentence, as_json

    @property
    def verdict(self) -> str:
        """fits, does not fit, not known or failed."""
        return str(self.to_dict()["verdict"])

    def to_json(self) -> str:
        return self._json

    def to_dict(self) -> Dict[str, Any]:
        return dict(json.loads(self._json))

    def __str__(self) -> str:
        return self._sentence

    def __repr__(self) -> str:
        return f"Prediction({self._sentence!r})"


def predict(
    step: Callable[[], Any],
    gpu: str = "",
    *,
    capacity_bytes: Optional[int] = None,
    least_runs: int = 2,
    most_runs: int = 10,
    timeout_s: int = 600,
) -> Prediction:
    """Returns what ``step()`` takes on ``gpu`` (l4, h100:40GiB) on top of what is alive now.

    For programs under ``memledger run --virtual-gpu=…``. Starts the program anew, some times, and runs the step there
    once it has come to this call: so it has to come here the same way each time. This process does not run the step.
    """
    if not callable(step):
        raise TypeError(f"memledger: the step is a {type(step).__name__}, and cannot be called")
    caller = sys._getframe(1)
    failure = None

    def run() -> Optional[int]:
        nonlocal failure
        try:
            step()
            return None
        except BaseException as error:  # to C++, which reports it
            text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").replace(b"\0", b"")
            failure = ctypes.create_string_buffer(text)
            return ctypes.addressof(failure)

    options = _library.PredictOptions(
        _library.encode(gpu, "a GPU"),
        -1 if capacity_bytes is None else _library.integer(capacity_bytes, "capacity_bytes", bits=64, least=0),
        _library.integer(least_runs, "least_runs"),
        _library.integer(most_runs, "most_runs"),
        _library.integer(timeout_s, "timeout_s"),
    )
    # Standard output that waits in Python's buffer would come twice.
    if sys.stdout is not None:
        sys.stdout.flush()
    return Prediction(
        *_library.ask_two(
            "predict",
            _library.Step(run),
            ctypes.byref(options),
            _library.encode(caller.f_code.co_filename),
            _library.encode(caller.f_code.co_name),
            caller.f_lineno,
        )
    )
