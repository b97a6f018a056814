"""Where the tensor memory of a PyTorch program goes.

    import memledger  # before the model is made: what is made from here on is followed

    reporter = memledger.MemReporter(model)
    reporter.add_optimizer(optimizer).report(verbose=True)

Importing it imports torch, and begins to follow every storage: results, peaks and lifetimes stay as
they are. Under ``memledger run`` it uses the books that are already kept. The names are those of
pytorch_memlab, Pytorch-Memory-Utils, pytorch_mem_profiler and TRUMPY; docs/instead_of.md lists them.
Nothing here keeps a tensor of the program's alive. Errors are ``memledger.Error`` with one sentence.
"""

from ._library import Error, LIBRARY_PATH, built_for_torch, __version__
from .counters import Counters, counters, reset_peak, training_paused
from .courtesy import Courtesy
from .graph import SavedTensor, SavedTensors, get_tensors_saved_for_backward, memory_for_backward, saved_for_backward
from .labels import label
from .lines import LineProfiler, clear_global_line_profiler, profile, profile_every, set_target_gpu
from .magics import load_ipython_extension, unload_ipython_extension
from .predicting import Prediction, predict
from .profiler import MemoryProfiler, memory_profiler
from .reporter import MemReporter
from .size import ModelSize, modelsize
from .tracker import MemTracker

__all__ = [
    "Counters",
    "Courtesy",
    "Error",
    "LIBRARY_PATH",
    "LineProfiler",
    "MemReporter",
    "MemTracker",
    "MemoryProfiler",
    "ModelSize",
    "Prediction",
    "SavedTensor",
    "SavedTensors",
    "__version__",
    "built_for_torch",
    "clear_global_line_profiler",
    "counters",
    "get_tensors_saved_for_backward",
    "label",
    "load_ipython_extension",
    "memory_for_backward",
    "memory_profiler",
    "modelsize",
    "predict",
    "profile",
    "profile_every",
    "reset_peak",
    "saved_for_backward",
    "set_target_gpu",
    "training_paused",
    "unload_ipython_extension",
]
