"""The sets of real measurements: their rows, and the program that stands for each row.

A row is run in one of two ways. `dry_run`: `memledger dry-run` gives an interval of the peak and a verdict, and the
real figure is nvidia-smi's, of the whole device. `print`: the program prints the figure itself, and is run at both ends
of `dry-run`, each in both orders of addresses.
"""

import dataclasses
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
PUBLISHED = HERE / "published"
MEASURED = HERE.parent / "measured"
MIB = 2**20

# The first rows of a set give the constant that is in nvidia-smi's figures, and are not judged.
CALIBRATING_ROWS = 100


@dataclasses.dataclass
class Row:
    set: str
    number: int  # from 1, as in the file
    name: str
    gpu: str  # without ends
    program: list  # words; {published_case}, {python} stand for paths
    real: dict  # figure: bytes
    rounding: int = 0  # the real figure is known to so many bytes
    ran: bool = True  # false: it ran out of memory
    judged: bool = True
    exact: bool = True  # no model of a library's workspaces is in it
    together: bool = False  # one process may take rows that differ in the last word
    why_not: str = ""  # why it is not run

    @property
    def calibrates(self):
        return not self.judged and not self.why_not

    @property
    def key(self):
        return f"{self.set}/{self.number}"


@dataclasses.dataclass
class Set:
    name: str
    title: str
    way: str  # dry_run, print
    rows: callable
    # What nvidia-smi said beyond LibTorch's reserved bytes: the mode over the first rows.
    rest_mib: int = 0
    # Real figures above the interval are failures.
    never_above: bool = True
    # At least so many of 100 figures lie within 2 MiB; 0: not judged.
    close_percent: int = 0
    # Numbers of the rows that a test runs each time.
    slice: tuple = ()


def table(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    names = lines[0].split("\t")
    return [dict(zip(names, line.split("\t"))) for line in lines[1:]]


# GPUMemNet's device: an A100 of 40 GB, of which nvidia-smi says 40 960 MiB. What is held besides
# LibTorch's reserved bytes is taken off beforehand: figures and verdicts rest on one constant.
def a100_of_40_gb(rest_mib):
    return f"a100:{40960 - rest_mib}MiB,context=0B"


def yes(text):
    return "1" if text == "True" else "0"


def dropout(row):
    return f"{float(row['dropout_rate']):.6f}" if row["use_dropout"] == "True" else "0"


def nvidia_smi(row):
    return {"process_peak": int(row["real_MiB"]) * MIB}


def mlp_rows(rest_mib):
    for number, row in enumerate(table(PUBLISHED / "mlp_step2.tsv"), 1):
        words = [row[key] for key in ("input", "output", "depth", "arch", "batch", "act")]
        yield Row(
            "mlp",
            number,
            " ".join(words),
            a100_of_40_gb(rest_mib),
            ["{published_case}", "mlp", *words, dropout(row), yes(row["use_bn"])],
            nvidia_smi(row),
            judged=number > CALIBRATING_ROWS,
        )


def cnn_rows(rest_mib):
    for number, row in enumerate(table(PUBLISHED / "cnn.tsv"), 1):
        keys = ("channels", "classes", "depth", "arch", "base_filters", "batch", "input_size", "act")
        words = [row[key] for key in keys]
        yield Row(
            "cnn",
            number,
            " ".join(words),
            a100_of_40_gb(rest_mib),
            ["{published_case}", "cnn", *words, dropout(row), yes(row["use_bn"]), row["params"]],
            nvidia_smi(row),
            ran=row["status"] == "SUCCESSFUL",
            judged=number > CALIBRATING_ROWS and row["real_MiB"] != "0",
            exact=False,
            why_not="the real program ended before it used the GPU (0 MiB)" if row["real_MiB"] == "0" else "",
        )


def transformer_rows(rest_mib):
    for number, row in enumerate(table(PUBLISHED / "transformers.tsv"), 1):
        keys = ("vocab", "emb", "layers", "heads", "ff", "seq", "num_classes", "samples", "batch")
        words = [row[key] for key in keys]
        yield Row(
            "transformers",
            number,
            " ".join(words),
            a100_of_40_gb(rest_mib),
            ["{python}", str(HERE / "transformer_program.py"), *words],
            nvidia_smi(row),
        )


LIGER_GPUS = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA B200": "b200",
}


# What their convolutions take is cuDNN's choice.
LIGER_CUDNN = ("multi_token_attention", "sparse_multi_token_attention")
NOT_WRITTEN = "its program is not written yet"
LIGER_NOT_RUN = {
    "embedding": "the benchmark's process held 12.9 GB that are none of the row's",
    "distill_cosine_loss": NOT_WRITTEN,
    "distill_jsd_loss": NOT_WRITTEN,
    "kto_loss": NOT_WRITTEN,
}


def liger_rows(_):
    for number, row in enumerate(table(PUBLISHED / "liger.tsv"), 1):
        why_not = LIGER_NOT_RUN.get(row["kernel"], "")
        config = dict(json.loads(row["config"]), kernel=row["kernel"], mode=row["mode"], **{row["x_name"]: float(row["x"])})
        yield Row(
            "liger",
            number,
            f"{row['kernel']} {row['mode']} {row['x_name']}={row['x']}",
            LIGER_GPUS[row["gpu"]],
            ["{python}", str(HERE / "liger_programs.py"), json.dumps(config)],
            {"peak": int(row["bytes"])},
            # MiB in float32: 24 bits.
            rounding=max(1, int(row["bytes"]) >> 23),
            judged=not why_not,
            exact=row["kernel"] not in LIGER_CUDNN,
            together=True,
            why_not=why_not,
        )


def h200_rows(_):
    for number, row in enumerate(table(MEASURED / "h200.tsv"), 1):
        yield Row(
            "h200",
            number,
            row["program"],
            "h200",
            ["{python}", str(MEASURED / "programs.py"), row["program"]],
            {key: int(row[key]) for key in ("allocated_peak", "reserved_peak")},
            # A real program of transformers keeps one small tensor more; why is not known.
            rounding=512,
            exact=row["kind"] not in ("cudnn", "values", "library"),
        )


# Shallow ones: three that ran, five that ran out of memory.
CNN_SLICE = (110, 147, 222, 120, 148, 177, 178, 194)
# Cross entropy, RMSNorm and LayerNorm, on two GPUs.
LIGER_SLICE = (1, 2, 3, *range(20, 26), 97, 98, 99)

# The constants are the modes of docs/referee.md, from the rows that are not judged.
SETS = {
    one.name: one
    for one in (
        Set("mlp", "MLPs, GPUMemNet's second set", "dry_run", mlp_rows, rest_mib=1429, close_percent=95, slice=range(101, 381, 14)),
        Set("transformers", "Transformers, GPUMemNet", "dry_run", transformer_rows, rest_mib=1429),
        Set("liger", "Liger-Kernel's baselines", "print", liger_rows, slice=LIGER_SLICE),
        Set("cnn", "CNNs, GPUMemNet", "dry_run", cnn_rows, rest_mib=1700, never_above=False, slice=CNN_SLICE),
        Set("h200", "Programs measured on an H200", "print", h200_rows),
    )
}
