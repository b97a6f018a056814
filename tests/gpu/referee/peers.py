"""Other estimators, from PyPI: installed into a virtual environment of the cache, and asked on the same rows.

None of them runs the program, so that each gets the network and the batch. Their estimates leave out what lies on the
device beside LibTorch's memory; they get the same constant as the virtual GPU, and the same capacity.
"""

import json
import pathlib
import subprocess
import sys

import sets
import tables

HERE = pathlib.Path(__file__).resolve().parent
# Without what they require: torch is there, and they need no more than packaging.
PACKAGES = ("torchinfo==1.8.0", "torchsummary==1.5.1", "torch-kitsune==0.7.0", "packaging")
PYTHON = "python3.11"
# Networks that estimators are asked about, and how many rows one process takes.
ASKED_SETS = ("mlp", "cnn", "transformers")
ROWS_AT_ONCE = 10


def environment(folder, packages, *options):
    """Makes a virtual environment that finds what is in the folder `packages`, and returns its Python."""
    subprocess.run([PYTHON, "-m", "venv", *(options or ["--without-pip"]), folder], check=True)
    site_packages = next(pathlib.Path(folder).glob("lib/python3*/site-packages"))
    (site_packages / "torch.pth").write_text(f"{packages}\n")
    return str(pathlib.Path(folder) / "bin" / "python")


def peers_python(tools, cache):
    packages = tools.python_packages()
    if not packages:
        return None
    folder = cache / "peers"
    python = environment(folder, packages, "--clear") if not folder.exists() else str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True)
    return python


def ask(tools, python, rows, done, add):
    """Estimates by row and peer. torch does not start without NVIDIA's libraries, so the virtual GPU stands for them."""
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[begin : begin + ROWS_AT_ONCE]
        command = [tools.memledger, "run", "-q", "--virtual-gpu=a100", "--", python, str(HERE / "peer_estimates.py")]
        questions = "".join(json.dumps({"row": row.key, "words": row.program[1:]}) + "\n" for row in some)
        ended = subprocess.run(command, input=questions, capture_output=True, text=True, check=False)
        for line in ended.stdout.splitlines():
            if line.startswith("RESULT "):
                add(json.loads(line[len("RESULT ") :]))
        missing = [row for row in some if f"peers/{row.key}" not in done]
        if missing:
            print(f"peers: nothing of {missing[0].key}: {ended.stderr.strip()[-300:]}", file=sys.stderr)


def capacity(one):
    return (40960 - one.rest_mib) * sets.MIB


def print_peer(one, peer, rows, estimates):
    """One line: how far its estimates are from the real figures, and its verdicts beside what happened."""
    pairs = [(row, estimates[row.key][peer]) for row in rows if estimates.get(row.key, {}).get(peer) is not None]
    if not pairs:
        return
    ran = [(row.real["process_peak"] - one.rest_mib * sets.MIB, bytes) for row, bytes in pairs if row.ran]
    close = sum(abs(bytes - real) <= tables.CLOSE for real, bytes in ran)
    tenth = sum(abs(bytes - real) <= real / 10 for real, bytes in ran)
    low = sum(bytes < real - tables.CODE_OF_KERNELS for real, bytes in ran)
    error = tables.median([abs(bytes - real) / real for real, bytes in ran])
    refused = [row for row, _ in pairs if not row.ran]
    called_fits = sum(bytes <= capacity(one) for row, bytes in pairs if not row.ran)
    fits = sum(bytes <= capacity(one) for row, bytes in pairs if row.ran)
    print(
        f"| {one.title} | {peer} | {len(ran)} | {close} ({tables.percent(close, len(ran)):.0f} %)"
        f" | {tables.percent(tenth, len(ran)):.0f} % | {tables.percent(low, len(ran)):.0f} % | {100 * error:.1f} %"
        f" | {fits} of {len(ran)} | {called_fits} of {len(refused)} |",
        flush=True,
    )


def compare(tools, cache, chosen, done, add):
    python = peers_python(tools, cache)
    if not python:
        print("\nNo peers: there is no Python with this build's torch")
        return
    print(
        "\n| set | who | real figures | within 2 MiB | within 10 % | too low | median error | said to fit of what ran"
        " | of what ran out |\n|---|---|---|---|---|---|---|---|---|"
    )
    for one, judged in chosen:
        if one.name not in ASKED_SETS:
            continue
        ask(tools, python, [row for row in judged if f"peers/{row.key}" not in done], done, add)
        estimates = {row.key: done.get(f"peers/{row.key}", {}).get("estimates", {}) for row in judged}
        for row in judged:
            ours = done.get(row.key, {}).get("process_peak")
            if ours:
                estimates[row.key] = dict(estimates[row.key], **{"memledger, upper end": ours[1]})
        names = sorted({peer for row in estimates.values() for peer in row})
        for peer in names:
            print_peer(one, peer, judged, estimates)
