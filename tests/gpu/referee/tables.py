"""What the referee prints of results, and what of it is a failure."""

import collections

import sets

MIB = sets.MIB
# The driver takes memory for the code of kernels 2 MiB at a time, and one shape needs kernels that
# another does not.
CODE_OF_KERNELS = 2 * MIB
CLOSE = 2 * MIB
# Beyond it, verdicts were asked for of another device than the rows say. cuDNN's release blurs the
# mode of CNNs.
MAX_REST_DIFFERENCE_MIB = 64
MIN_FITS_PERCENT = 90
MAX_NOT_KNOWN_PERCENT = 5


def percent(part, of):
    return 100 * part / of if of else 0.0


def mib(size):
    return f"{size / MIB:.0f}" if size >= 10 * MIB else f"{size / MIB:.1f}" if size >= MIB / 10 else f"{size} B" if size else "0"


def quantile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0


def median(values):
    return quantile(values, 0.5)


class Figure:
    """A real figure beside its interval, in bytes; what nvidia-smi says beside LibTorch is taken off."""

    def __init__(self, one, row, figure, interval):
        self.real = row.real[figure] - one.rest_mib * MIB
        self.low, self.high = interval
        slack = CODE_OF_KERNELS if one.way == "dry_run" else row.rounding
        self.above = max(0, self.real - self.high) if self.real > self.high + slack else 0
        self.below = max(0, self.low - self.real) if self.real < self.low - slack else 0
        self.is_close = self.low - CLOSE <= self.real <= self.high + CLOSE
        self.exact = row.exact

    @property
    def width(self):
        return self.high - self.low

    def where(self):
        if self.above:
            return f"{mib(self.above)} above"
        return f"{mib(self.below)} below" if self.below else "inside"


def figures(one, rows, done):
    """Of the rows that ran on the real device and here."""
    return [
        Figure(one, row, figure, done[row.key][figure])
        for row in rows
        if row.ran and "failed" not in done.get(row.key, {"failed": ""})
        for figure in row.real
    ]


def measured_rest(one, rows, done):
    """The mode of what nvidia-smi said beyond LibTorch's memory, MiB, over the rows that are not judged; None: not run."""
    first = [row for row in rows if row.calibrates]
    if not first or any(row.key not in done for row in first):
        return None
    differences = collections.Counter(
        (figure.real + one.rest_mib * MIB - figure.low) // MIB for figure in figures(one, first, done)
    )
    return differences.most_common(1)[0][0]


def figures_heading():
    return (
        "| set | judged of | figures | inside | above (most) | below (most) | within 2 MiB | width: median, 95 %, widest |"
        " nvidia-smi's constant |\n|---|---|---|---|---|---|---|---|---|"
    )


def worst(amounts):
    amounts = [amount for amount in amounts if amount]
    return f"{len(amounts)} ({mib(max(amounts))})" if amounts else "0"


def print_figures(one, rows, judged, done):
    """Returns failures."""
    found = figures(one, judged, done)
    rest = measured_rest(one, rows, done)
    constant = f"{one.rest_mib}" if one.rest_mib else ""
    if rest is not None:
        constant += f", mode of the first {sets.CALIBRATING_ROWS}: {rest}"
    inside = sum(not figure.above and not figure.below for figure in found)
    close = sum(figure.is_close for figure in found)
    widths = [figure.width for figure in found]
    cells = [
        one.title,
        f"{len(judged)} of {len(rows)}",
        f"{len(found)}",
        f"{inside} ({percent(inside, len(found)):.0f} %)",
        worst(figure.above for figure in found),
        worst(figure.below for figure in found),
        f"{close} ({percent(close, len(found)):.0f} %)",
        f"{mib(median(widths))}, {mib(quantile(widths, 0.95))}, {mib(max(widths, default=0))}",
        constant,
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    failures = []
    above = sum(figure.above > 0 and figure.exact for figure in found)
    if above and one.never_above:
        failures.append(f"{one.title}: real figures above their interval: {above}")
    if found and percent(close, len(found)) < one.close_percent:
        failures.append(f"{one.title}: fewer than {one.close_percent} % within 2 MiB")
    if rest is not None and abs(rest - one.rest_mib) > MAX_REST_DIFFERENCE_MIB:
        failures.append(f"{one.title}: verdicts were asked for with {one.rest_mib} MiB and not {rest}")
    return failures


def verdicts_heading():
    return "\n| set | really | rows | fits | does not fit | not known | the program failed |\n|---|---|---|---|---|---|---|"


def print_verdicts(one, judged, done):
    """Returns failures."""
    if one.way != "dry_run":
        return []
    failures = []
    for ran, really in ((True, "ran"), (False, "out of memory")):
        results = [done[row.key] for row in judged if row.ran == ran and row.key in done]
        if not results:
            continue
        counts = collections.Counter(result.get("verdict", "failed") for result in results)
        kinds = ("fits", "does not fit", "not known", "failed")
        print(f"| {one.title} | {really} | {len(results)} | {' | '.join(str(counts[kind]) for kind in kinds)} |", flush=True)
        if not ran and counts["fits"]:
            failures.append(f"{one.title}: said to fit, and ran out of memory: {counts['fits']}")
        if ran and percent(counts["fits"], len(results)) < MIN_FITS_PERCENT:
            failures.append(f"{one.title}: fewer than {MIN_FITS_PERCENT} % of what ran is said to fit")
        if ran and percent(counts["not known"], len(results)) > MAX_NOT_KNOWN_PERCENT:
            failures.append(f"{one.title}: more than {MAX_NOT_KNOWN_PERCENT} % of what ran is not known")
    return failures


def print_rows(one, judged, done):
    print(f"\n{one.title}, MiB\n\n| row | | real | low | high | | verdict |\n|---|---|---|---|---|---|---|")
    for row in judged:
        result = done.get(row.key, {"failed": ""})
        if "failed" in result:
            continue
        for figure in row.real:
            found = Figure(one, row, figure, result[figure])
            where = found.where() if row.ran else "ran out"
            print(
                f"| {row.number} | {row.name} | {mib(found.real)} | {mib(found.low)} | {mib(found.high)} | {where}"
                f" | {result.get('sentence', '')} |"
            )


def print_not_compared(sets_of_rows, done):
    reasons = collections.Counter()
    for rows in sets_of_rows:
        for row in rows:
            if row.why_not:
                reasons[f"{row.set}, {row.name.split()[0]}: {row.why_not}" if row.set == "liger" else f"{row.set}: {row.why_not}"] += 1
            elif "failed" in done.get(row.key, {}):
                reasons[f"{row.key} {row.name}: the program failed here: {done[row.key]['failed']}"] += 1
    if reasons:
        print("\nNot compared:")
    for reason, count in reasons.items():
        print(f"- {reason} ({count} {'row' if count == 1 else 'rows'})")
