"""An explanation as text: a head with the totals, then rewrites, kernels, boundaries and host steps as tables.

    plain(parts(explanation, width=80), width=80)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from opfuse.report.render import common_prefix, count, names_in, plural, ratio, seconds, shorten, size, table, title

if TYPE_CHECKING:
    from opfuse.report.explain import Explanation

LONG = 40  # characters of a fact that a sentence can bear


def parts(explanation: Explanation, width: int) -> list[RenderableType]:
    """What to print, top to bottom, for a terminal of `width` columns."""
    out: list[RenderableType] = [head(explanation)]
    if explanation.rewrites:
        out += _rewrites(explanation)
    if explanation.not_rewritten:
        out += _not_rewritten(explanation, width)
    out += _kernels(explanation, width)
    if explanation.joints:
        out += _joints(explanation)
    if explanation.boundaries:
        out += _boundaries(explanation)
    if explanation.host_steps:
        out += _host_steps(explanation)
    return out


def head(e: Explanation) -> Text:
    """The totals: kernels, bytes, memory and time."""
    where = ", ".join(p for p in (e.target, plural(e.threads, "thread")) if p)
    text = Text()
    text.append(e.model, style="bold")
    text.append(f"  ({where})\n", style="dim")
    rows = [
        ("kernels", f"{len(e.kernels)} from {plural(e.operators, 'operator')}, {_host_count(e)}"),
        ("bytes moved", _before_after(e.bytes_moved)),
        ("peak memory", _before_after(e.peak_memory)),
        ("predicted", f"{seconds(e.predicted_s)} a call"),
    ]
    measured = [k.measured_s for k in e.kernels if k.measured_s is not None]
    if measured:
        rows.append(("measured", f"{seconds(sum(measured))} a call"))
    for k, (label, value) in enumerate(rows):
        text.append(f"  {label:<12} {value}" + ("\n" if k + 1 < len(rows) else ""))
    return text


def _host_count(e: Explanation) -> str:
    return "all native" if not e.host_steps else plural(len(e.host_steps), "host step")


def _before_after(numbers: Mapping[str, int]) -> str:
    if not {"fused", "unfused"} <= set(numbers):
        return "-"
    fused, unfused = numbers["fused"], numbers["unfused"]
    compared = f"{ratio(fused, unfused)} more" if fused > unfused else f"{ratio(unfused, fused)} less"
    if size(fused) == size(unfused):
        compared = "no change"
    return f"{size(fused)} instead of {size(unfused)} unfused ({compared})"


def _rewrites(e: Explanation) -> list[RenderableType]:
    total = sum(n for _, n in e.rewrites)
    rows = [(rule, str(times)) for rule, times in e.rewrites]
    heading = title(f"Rewrites: {total}, by {plural(len(e.rewrites), 'rule')}")
    return [Text(), heading, table(("rule", "times"), rows, right=("times",))]


def _not_rewritten(e: Explanation, width: int) -> list[RenderableType]:
    """Rules that a user would expect here, and what stood in the way. Equal reasons share a row."""
    prefix = common_prefix(n for k in e.kernels for n in k.nodes)
    rows: dict[tuple[str, str], list[str]] = {}
    for d in e.not_rewritten:
        why = f"undone: {d.reason}" if d.outcome == "undone" else d.reason
        rows.setdefault((d.rule, why), []).extend(n.removeprefix(prefix) for n in d.nodes[:1])
    cells = [(rule, why, names_in(nodes, max(12, width // 4))) for (rule, why), nodes in rows.items()]
    heading = title(f"Near misses: {plural(len(e.not_rewritten), 'rewrite')} that did not happen")
    return [Text(), heading, table(("rule", "what stood in the way", "at"), cells, wrap=("what stood in the way",))]


def _kernels(e: Explanation, width: int) -> list[RenderableType]:
    """The node names take what the numbers leave; narrow terminals do without the operation counts."""
    prefix = common_prefix(n for k in e.kernels for n in k.nodes)
    providers = {k.provider for k in e.kernels}
    wanted = {"#", "id", "kernel", "predicted", "bytes"}
    wanted |= {"provider"} if len(providers) > 1 else set()
    wanted |= {"measured"} if any(k.measured_s is not None for k in e.kernels) else set()
    wanted |= {"flops"} if width >= 100 else set()
    columns = [c for c in ("#", "id", "kernel", "provider", "predicted", "measured", "bytes", "flops") if c in wanted]
    cells = [
        {"#": str(n), "id": k.id, "kernel": shorten(k.name, 28 if width >= 100 else 16), "provider": k.provider,
         "predicted": seconds(k.predicted_s), "measured": seconds(k.measured_s), "bytes": size(k.bytes),
         "flops": count(k.flops)}
        for n, k in enumerate(e.kernels)
    ]  # fmt: skip
    room = width - sum(2 + max(len(c), *(len(row[c]) for row in cells), 0) for c in columns)
    rows = [[*(row[c] for c in columns), names_in([n.removeprefix(prefix) for n in k.nodes], max(12, room))]
            for row, k in zip(cells, e.kernels, strict=True)]  # fmt: skip
    heading = "Kernels" if len(providers) > 1 else f"Kernels, all of provider {next(iter(providers), '-')}"
    numbers = ("#", "predicted", "measured", "bytes", "flops")
    out: list[RenderableType] = [Text(), title(heading), table([*columns, "nodes"], rows, right=numbers)]
    return [*out, Text(f"Node names start with {prefix}", style="dim")] if prefix else out


def _joints(e: Explanation) -> list[RenderableType]:
    """Concatenations whose parts are written where they lie, with the bytes not copied; or which part needs a copy."""
    prefix = common_prefix(n for k in e.kernels for n in k.nodes)
    done = sum(d.outcome == "taken" for d in e.joints)
    rows = [
        (d.id, d.nodes[0].removeprefix(prefix) if d.nodes else "-",
         size(int(d.facts.get("bytes_not_copied", 0))) if d.outcome == "taken" else "-",
         "" if d.outcome == "taken" else d.reason)
        for d in e.joints
    ]  # fmt: skip
    heading = title(f"Joined in place: {done} of {plural(len(e.joints), 'concatenation')}")
    columns = ("id", "node", "not copied", "what needs a copy")
    shown = [row if done < len(e.joints) else row[:3] for row in rows]
    made = table(columns if done < len(e.joints) else columns[:3], shown, right=("not copied",), wrap=columns[3:])
    return [Text(), heading, made]


def _boundaries(e: Explanation) -> list[RenderableType]:
    """Pairs with the same reason and the same numbers share a row."""
    number = _numbers(e)
    rows: dict[tuple[str, str], list[str]] = {}
    for b in e.boundaries:
        pair = f"{number[b.between[0]]}|{number[b.between[1]]}"
        rows.setdefault((b.code, _sentence(b.reason, b.facts)), []).append(pair)
    heading = title(f"Boundaries: why {plural(len(e.boundaries), 'pair')} of neighbours stay apart")
    cells = [(code, why, " ".join(pairs)) for (code, why), pairs in rows.items()]
    out: list[RenderableType] = [Text(), heading, table(("code", "why", "between"), cells, wrap=("why", "between"))]
    codes = Counter(b.code for b in e.boundaries).most_common()
    return [*out, Text(", ".join(f"{code}: {n}" for code, n in codes), style="dim")] if len(codes) > 1 else out


def _host_steps(e: Explanation) -> list[RenderableType]:
    number = _numbers(e)
    rows = [(number[h.kernel], h.code, _sentence(h.reason, h.facts)) for h in e.host_steps]
    return [Text(), title("Host steps, run in Python"), table(("kernel", "code", "why"), rows, wrap=("why",))]


def _numbers(e: Explanation) -> dict[str, str]:
    """Kernel id -> its number in the table of kernels."""
    return {k.id: str(n) for n, k in enumerate(e.kernels)}


def _sentence(reason: str, facts: Mapping[str, Any]) -> str:
    """The reason with its numbers behind it; not those that the sentence says, and nothing long (JSON has it)."""
    texts = {k: _fact(k, v) for k, v in facts.items() if isinstance(v, (int, float, str, bool))}
    names = {k: k.removesuffix("_s").removesuffix("_bytes").replace("_", " ") for k in texts}
    shown = [f"{names[k]} {text}" for k, text in texts.items() if text not in reason and len(text) <= LONG]
    return f"{reason} ({', '.join(shown)})" if shown else reason


def _fact(name: str, value: Any) -> str:
    if isinstance(value, (bool, str)):
        return str(value)
    if name.endswith("_s") or name == "seconds":
        return seconds(float(value))
    if name.endswith("bytes"):
        return size(int(value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
