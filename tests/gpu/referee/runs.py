"""Runs rows on the virtual GPU and keeps what came out, so that a row that is done is not run again."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import threading
import time

# The ends of `memledger dry-run`.
ENDS = (
    "events=once,reads=none,context=least,workspaces=least,addresses=down",
    "events=once,reads=none,context=least,workspaces=expected,addresses=up",
    "events=late,reads=all,workspaces=upper,addresses=down",
    "events=late,reads=all,workspaces=upper,addresses=up",
)
DRY_RUN_PROGRAM_FAILED = 12


class Failed(Exception):
    pass


def run(command, timeout):
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"still ran after {timeout} s") from expired


def last_words(ended):
    lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    return lines[-1][:300] if lines else f"nothing, exit status {ended.returncode}"


def dry_run(tools, rows):
    (row,) = rows
    command = [tools.memledger, "dry-run", f"--gpu={row.gpu}", "--settings=none", "--json", "--"]
    ended = run(command + tools.words(row.program), tools.timeout)
    try:
        said = json.loads(ended.stdout)
    except json.JSONDecodeError:
        raise Failed(last_words(ended)) from None
    if ended.returncode == DRY_RUN_PROGRAM_FAILED:
        raise Failed(said["sentence"])
    peak = said["devices"][0]["process_peak"]
    result = {
        "verdict": said["verdict"],
        "sentence": said["sentence"],
        "process_peak": [peak["low"], peak["high"]],
        "cudnn_asked": said["missing_library"] is None,
    }
    return [result]


def printed(tools, rows, end):
    """What the program printed of each row."""
    command = [tools.memledger, "run", "-q", f"--virtual-gpu={rows[0].gpu},{end}", "--", *rows[0].program]
    command += [row.program[-1] for row in rows[1:]]
    ended = run(tools.words(command), tools.timeout)
    results = [json.loads(line[len("RESULT ") :]) for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if len(results) != len(rows):
        raise Failed(last_words(ended))
    return results


def print_figures(tools, rows):
    ends = [printed(tools, rows, end) for end in ENDS]
    return [interval_of(row, [end[i] for end in ends]) for i, row in enumerate(rows)]


def interval_of(row, results):
    for result in results:
        if "failed" in result:
            return result
    figures = {figure: [result[figure] for result in results] for figure in row.real}
    return {figure: [min(values), max(values)] for figure, values in figures.items()}


def expected(tools, rows):
    """One run, for rows that only give nvidia-smi's constant, on a device with room to spare."""
    (row,) = rows
    end = "events=once,reads=none,workspaces=expected,addresses=down"
    command = [tools.memledger, "run", "-q", f"--virtual-gpu=a100,{end}", "--"]
    ended = run(command + tools.words(row.program), tools.timeout)
    reserved = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("reserved_peak ")]
    if ended.returncode != 0 or not reserved:
        raise Failed(last_words(ended))
    return [{"process_peak": [int(reserved[0])] * 2}]


WAYS = {"dry_run": dry_run, "print": print_figures, "expected": expected}
MAX_TOGETHER = 12


def jobs_of(rows):
    """Rows that one process takes stand together."""
    groups = {}
    for row in rows:
        key = (row.gpu, *row.program[:-1]) if row.together else row.key
        groups.setdefault(key, []).append(row)
    return [group[i : i + MAX_TOGETHER] for group in groups.values() for i in range(0, len(group), MAX_TOGETHER)]


class Results:
    """A file of one line of JSON for each row that was run. Safe for threads."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.done = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    result = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the last line of a run that was killed
                if "failed" in result:
                    self.done.pop(result["row"], None)  # tried again
                else:
                    self.done[result["row"]] = result

    def add(self, result):
        with self.lock:
            self.done[result["row"]] = result
            with open(self.path, "a") as file:
                file.write(json.dumps(result) + "\n")


def run_job(tools, way, rows):
    began = time.monotonic()
    try:
        results = WAYS[way](tools, rows)
    except Failed as failed:
        results = [{"failed": str(failed)} for _ in rows]
    seconds = round((time.monotonic() - began) / len(rows), 1)
    return [{"row": row.key, **result, "seconds": seconds} for row, result in zip(rows, results)]


def run_rows(tools, results, way, rows, jobs, end, progress):
    """Runs what is not done yet, `jobs` at a time, in the order of `rows`. None is begun after the time `end`."""

    def run_in_time(job):
        return run_job(tools, way, job) if end is None or time.monotonic() < end else []

    missing = [row for row in rows if row.key not in results.done]
    count = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_in_time, job) for job in jobs_of(missing)]
        try:
            for future in concurrent.futures.as_completed(running):
                for result in future.result():
                    results.add(result)
                    count += 1
                    progress(count, len(missing))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def fingerprint(memledger, others):
    """Of what the figures come from: memledger's files, the programs, and where cuDNN is looked for."""
    digest = hashlib.sha256()
    root = pathlib.Path(memledger).resolve().parent.parent
    files = [pathlib.Path(memledger), *map(pathlib.Path, others)]
    for folder in ("runner", "virtual_gpu"):
        files += sorted(path for path in (root / folder).rglob("*memledger*.so") if path.is_file())
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "MEMLEDGER_VIRTUAL_GPU_CUDNN"):
        digest.update(f"{name}={os.environ.get(name)}".encode())
    return digest.hexdigest()[:12]
