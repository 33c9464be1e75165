"""The architecture, held by tests: who may import whom, how long things may grow, and what no module may do.

Everything is read from the source by `ast`, so that imports inside functions and under TYPE_CHECKING count too. An
exception to a rule is an entry in a table here, with its reason; a table entry that is no longer needed fails as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; a module may import from its own layer and the layers before it. `tile` stands in two layers: its data
# (program, schedule, questions on axes) is what a claim holds, so `fuse` stands on it; lowering turns regions into it.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ground", ("opfuse.decision", "opfuse.options", "opfuse.target", "opfuse.errors")),
    ("ir", ("opfuse.ir",)),
    ("frontends", ("opfuse.frontends",)),
    ("rewrite", ("opfuse.rewrite",)),
    ("tile data", ("opfuse.tile.program", "opfuse.tile.schedule", "opfuse.tile.axes")),
    ("fuse", ("opfuse.fuse",)),
    ("tile", ("opfuse.tile",)),
    ("codegen", ("opfuse.codegen",)),
    ("providers", ("opfuse.providers",)),
    ("plan", ("opfuse.plan",)),
    ("runtime", ("opfuse.runtime",)),
    ("tune", ("opfuse.tune",)),
    ("report", ("opfuse.report",)),
    ("integrations", ("opfuse.integrations",)),
    ("pipeline", ("opfuse.pipeline",)),
    ("surface", ("opfuse.cli", "opfuse.onnx_backend", "opfuse.__main__", "opfuse")),
)

# (importer, imported) -> why it may, though the layers say no.
UPWARD_EXCEPTIONS: dict[tuple[str, str], str] = {}
# (importer, imported) -> why this edge does not count when cycles are looked for.
CYCLE_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("opfuse.ir.graph", "opfuse.ir.ops"): "a graph asks the table for output types; its rows see graphs",
    ("opfuse.ir.ops.count", "opfuse.ir.ops"): "an expansion's operators are counted by the table again",
}
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}  # "module:function"
ENVIRONMENT_READERS: dict[str, str] = {"opfuse.cli": "the command line is where the environment may be read"}
GLOBAL_STATE: dict[str, str] = {}  # "module:function"
WORK_AT_IMPORT: dict[str, str] = {"opfuse.__main__": "it is the program"}
MODULES_AT_IMPORT = 700  # NumPy, onnx and ours: about 450 with NumPy 2.3 and onnx 1.23; a framework adds a thousand
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base", "manager"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    is_package: bool

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    def functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


def package_modules() -> dict[str, Module]:
    found = {}
    for path in sorted((ROOT / "opfuse").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, is_package)
    return found


MODULES = package_modules()


def imported_modules(module: Module, node: ast.AST) -> Iterator[str]:
    """Modules of this package that one import statement names, as deep as they exist."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield known(alias.name)
    elif isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if node.level:
            package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            kept = package[: len(package) - node.level + 1]
            source = ".".join([*kept, *([source] if source else [])])
        for alias in node.names:
            deeper = f"{source}.{alias.name}"
            yield deeper if deeper in MODULES else known(source)


def known(name: str) -> str:
    """The longest prefix of a dotted name that is a module of this package; empty for foreign names."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@cache
def imports(module: Module, *, type_checking: bool = True) -> set[str]:
    """Modules of the package that a module imports anywhere; without those for type checkers where told so."""
    skipped: set[ast.AST] = set()
    if not type_checking:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped |= {inner for statement in node.body for inner in ast.walk(statement)}
    names = {n for node in ast.walk(module.tree) if node not in skipped for n in imported_modules(module, node)}
    return names - {"", module.name}


def layer(name: str) -> int:
    """The layer with the longest matching prefix; the packages of `tile` etc. themselves are empty and lie lowest."""
    best, depth = -1, -1
    for k, (_, prefixes) in enumerate(LAYERS):
        for prefix in prefixes:
            matches = name == prefix or (prefix != "opfuse" and name.startswith(prefix + "."))
            if matches and len(prefix) > depth:
                best, depth = k, len(prefix)
    assert best >= 0, f"{name} stands in no layer of DESIGN's layout: add it to LAYERS or move it"
    return best


def layer_name(name: str) -> str:
    return LAYERS[layer(name)][0]


def report(title: str, rows: list[str]) -> str:
    return "\n  ".join([title, *sorted(rows)])


# ---- who imports whom ------------------------------------------------------------------------------------------------
def test_every_module_stands_in_a_layer() -> None:
    assert len(MODULES) > 10
    for name in MODULES:
        layer(name)


def test_imports_go_upward_only() -> None:
    wrong, used = [], set()
    for module in MODULES.values():
        for name in imports(module):
            if layer(name) > layer(module.name):
                if (module.name, name) in UPWARD_EXCEPTIONS:
                    used.add((module.name, name))
                else:
                    wrong.append(f"{module.name} ({layer_name(module.name)}) -> {name} ({layer_name(name)})")
    assert not wrong, report("imports against the layout:", wrong)
    assert used == set(UPWARD_EXCEPTIONS), "an exception is no longer needed"


def test_the_pipeline_alone_sees_the_providers() -> None:
    """`pipeline` passes the providers in; nobody else knows which there are."""
    wrong = [
        f"{module.name} -> {name}"
        for module in MODULES.values()
        for name in imports(module)
        if name.startswith("opfuse.providers.")
        and not module.name.startswith(("opfuse.providers", "opfuse.pipeline", "opfuse.report"))
    ]
    assert not wrong, report("providers seen from outside the pipeline:", wrong)


def test_no_import_cycles() -> None:
    edges = {m.name: imports(m, type_checking=False) for m in MODULES.values()}
    edges = {a: {b for b in others if (a, b) not in CYCLE_EXCEPTIONS} for a, others in edges.items()}
    assert_acyclic(edges)
    unneeded = [f"{a} -> {b}" for a, b in CYCLE_EXCEPTIONS if b not in imports(MODULES[a], type_checking=False)]
    assert not unneeded, report("an exception is no longer needed:", unneeded)


def assert_acyclic(edges: dict[str, set[str]]) -> None:
    state = dict.fromkeys(edges, 0)

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert state[name] != 1, f"import cycle: {' -> '.join((*path[path.index(name):], name))}"
        if state[name] == 0:
            state[name] = 1
            for other in sorted(edges[name]):
                visit(other, (*path, name))
            state[name] = 2

    for name in edges:
        visit(name, ())


def test_the_cycle_search_finds_a_cycle() -> None:
    assert_acyclic({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    try:
        assert_acyclic({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    except AssertionError as error:
        assert "b -> c -> b" in str(error)
    else:
        raise AssertionError("a cycle was not seen")


# ---- never a bare no -------------------------------------------------------------------------------------------------
JUDGING_MODULES = ("opfuse.rewrite", "opfuse.fuse", "opfuse.providers", "opfuse.tile", "opfuse.codegen")
JUDGING_NAMES = ("match", "claim", "legal", "when", "accept", "support", "applies", "allow", "refuse", "admit")


def own_returns(function: Function) -> Iterator[ast.Return]:
    """Return statements of a function, not those of functions inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (*Function.__args__, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return):
            yield node
        stack.extend(ast.iter_child_nodes(node))


def is_bare_no(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and (value.value is None or value.value is False))


def test_a_refusal_is_never_a_bare_no() -> None:
    """What may return a Refusal returns no None or False in its place (in `Refusal | None`, None is a yes)."""
    wrong = []
    for module in MODULES.values():
        for function in module.functions():
            result = ast.unparse(function.returns) if function.returns is not None else ""
            if "Refusal" not in result or "None" in result:
                continue
            bare = [r for r in own_returns(function) if is_bare_no(r.value)]
            wrong += [f"{module.name}:{r.lineno} in {function.name}" for r in bare]
    assert not wrong, report("a bare no where a Refusal is promised:", wrong)


def test_judges_can_give_a_reason() -> None:
    """What matches, claims or judges legality has a result type with room for the reason of a no."""
    wrong = []
    for module in MODULES.values():
        if not module.name.startswith(JUDGING_MODULES):
            continue
        for function in module.functions():
            result = ast.unparse(function.returns) if function.returns is not None else ""
            judges = function.name.strip("_").split("_")[0] in JUDGING_NAMES
            if judges and (result == "bool" or (result.endswith("| None") and "Refusal" not in result)):
                wrong.append(f"{module.name}:{function.lineno} {function.name} -> {result}")
    assert not wrong, report("judges that can say no without a reason:", wrong)


# ---- size, names, docstrings -----------------------------------------------------------------------------------------
def test_files_stay_readable() -> None:
    lengths = {n: m.source.count("\n") for n, m in MODULES.items()}
    long = {n for n, lines in lengths.items() if lines > MAX_FILE_LINES}
    assert long <= set(LONG_FILES), report("files too long:", [f"{n}: {lengths[n]}" for n in long - set(LONG_FILES)])
    assert set(LONG_FILES) <= long, "an exception is no longer needed"


def test_functions_stay_readable() -> None:
    lengths = {
        f"{n}:{f.name}": (f.end_lineno or f.lineno) - f.lineno + 1 for n, m in MODULES.items() for f in m.functions()
    }
    long = {n for n, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    rows = [f"{n}: {lengths[n]}" for n in long - set(LONG_FUNCTIONS)]
    assert long <= set(LONG_FUNCTIONS), report("functions too long:", rows)
    assert set(LONG_FUNCTIONS) <= long, "an exception is no longer needed"


def test_names_say_something() -> None:
    wrong = [n for n in MODULES if FORBIDDEN_NAMES & set(n.split("."))]
    assert not wrong, report("module names that say nothing:", wrong)


def test_every_module_opens_with_a_docstring() -> None:
    wrong = [n for n, m in MODULES.items() if not (ast.get_docstring(m.tree) or "").strip()]
    assert not wrong, report("modules without a docstring:", wrong)


# ---- what must be installed ------------------------------------------------------------------------------------------
DISTRIBUTIONS = {"google": "protobuf"}  # top-level module -> its distribution, where the names differ
OPTIONAL_IMPORTS = {"opfuse.codegen.triton": {"torch", "triton"}}  # package -> what an extra brings


def test_third_party_imports_are_the_declared_dependencies() -> None:
    """The base install holds what the package imports: nothing is missing, and nothing is installed for nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[<>=!~ \[]", requirement)[0].lower() for requirement in project["dependencies"]}
    imported: dict[str, str] = {}
    for module in MODULES.values():
        optional = {n for package, names in OPTIONAL_IMPORTS.items() if module.name.startswith(package) for n in names}
        for name in foreign_imports(module) - optional:
            imported[DISTRIBUTIONS.get(name, name).lower()] = module.name
    missing = [f"{name}, by {imported[name]}" for name in imported.keys() - declared]
    assert not missing, report("imported and not declared:", missing)
    assert not declared - imported.keys(), f"declared and not imported: {sorted(declared - imported.keys())}"


def foreign_imports(module: Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"opfuse"}


# ---- no hidden inputs, no work at import -----------------------------------------------------------------------------
def test_the_environment_is_read_by_the_command_line_only() -> None:
    wrong = []
    for module in MODULES.values():
        names = {n.attr for n in ast.walk(module.tree) if isinstance(n, ast.Attribute)}
        names |= {a.name for n in ast.walk(module.tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        if names & {"environ", "environb", "getenv", "putenv"} and module.name not in ENVIRONMENT_READERS:
            wrong.append(module.name)
    assert not wrong, report("modules that read the environment:", wrong)


def test_no_global_statement() -> None:
    wrong, used = [], set()
    for module in MODULES.values():
        for function in module.functions():
            if any(isinstance(n, ast.Global) for n in ast.walk(function)):
                key = f"{module.name}:{function.name}"
                if key in GLOBAL_STATE:
                    used.add(key)
                else:
                    wrong.append(key)
    assert not wrong, report("functions that write module state:", wrong)
    assert used == set(GLOBAL_STATE), "an exception is no longer needed"


def test_modules_do_no_work_when_imported() -> None:
    """At module level: imports, definitions, assignments, type-checking blocks. No loops, calls, files or attempts."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, *Function.__args__, ast.ClassDef)
    wrong = []
    for module in MODULES.values():
        for node in module.tree.body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
            guarded = "TYPE_CHECKING" in test or "__name__" in test
            if not (isinstance(node, allowed) or docstring or guarded) and module.name not in WORK_AT_IMPORT:
                wrong.append(f"{module.name}:{node.lineno} {ast.unparse(node).splitlines()[0][:80]}")
    assert not wrong, report("work at import:", wrong)


def test_importing_the_package_brings_no_framework() -> None:
    code = "import opfuse, sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    out = done.stdout.split()
    assert "opfuse" in out
    heavy = {"torch", "triton", "onnxruntime", "openvino", "magika", "pytest", "matplotlib", "scipy"} & set(out)
    assert not heavy, f"`import opfuse` imports {sorted(heavy)}"
    assert len(out) < MODULES_AT_IMPORT, f"`import opfuse` imports {len(out)} modules"
