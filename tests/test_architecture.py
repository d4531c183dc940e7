"""The house rules that a program can check: which way imports run and what they cost, and that every test file tests
something."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = frozenset({"server", "engine", "scheduler", "models", "loadgen"})
TENSORS = frozenset({"torch", "transformers", "sentence_transformers"})
HEAVY = TENSORS | {"aiohttp"}
SLOW = TENSORS | {"sklearn", "scipy", "tokenizers"}
"""Libraries whose import takes a good part of a second, or more."""

ALLOWED = {
    "models": {"models"},
    "engine": {"engine", "models"},
    "scheduler": {
        *("scheduler", "models.errors", "models.files", "models.options", "models.recent"),
        *("engine.messages", "engine.sampling.params", "engine.simulated", "engine.measure.timing"),
    },
    "loadgen": {"loadgen", "scheduler", "engine", "models"},
    "loadgen/experiments": {*PACKAGES},
    "server": {"server", "scheduler", "engine", "models"},
    "server/cli": {*PACKAGES},
}
"""Folder -> our own modules that files below it may import; the longest folder that holds a file counts."""

LIGHT = (
    *("scheduler", "engine/messages.py", "engine/sampling/params.py", "engine/device.py", "engine/lifecycle.py"),
    *("engine/rows.py", "engine/kv/host_store.py", "engine/simulated", "engine/measure/timing.py"),
    *("models/errors.py", "models/files.py", "models/options.py", "models/network/quantization.py"),
    *("models/progress.py", "models/recent.py"),
)
"""Files that must run without a tensor library or a server."""

FAST_TO_IMPORT = ("scheduler", "loadgen", "server/http", "server/api", "server/observe", "server/dashboard")
"""Folders whose modules may not bring in any of SLOW, nor may what they import; loadgen's experiments aside."""

NOT_DATA = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle"})
"""Modules that run code when they read."""


def sources(where: str) -> list[Path]:
    path = ROOT / where
    return [path] if path.suffix == ".py" and path.exists() else sorted(path.rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in the file; `from a import b` counts as `a.b`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def allowed(path: Path) -> set[str]:
    name = path.relative_to(ROOT).as_posix()
    return ALLOWED[max((folder for folder in ALLOWED if name.startswith(f"{folder}/")), key=len)]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_run_one_way(package: str) -> None:
    own = [(path, name) for path in sources(package) for name in imports(path) if within(name, set(PACKAGES))]
    wrong = [f"{path.relative_to(ROOT)} imports {name}" for path, name in own if not within(name, allowed(path))]
    assert wrong == []


def test_nothing_but_the_command_line_imports_experiments() -> None:
    """They are not in the wheel."""
    inside = ROOT / "loadgen" / "experiments"
    found = {
        path.relative_to(ROOT).as_posix()
        for package in sorted(PACKAGES)
        for path in sources(package)
        if not path.is_relative_to(inside) and any(within(name, {"loadgen.experiments"}) for name in imports(path))
    }
    assert found == {"server/cli/main.py"}


@pytest.mark.parametrize("where", LIGHT)
def test_decisions_and_messages_need_no_tensors_and_no_server(where: str) -> None:
    found = [(path, name.partition(".")[0]) for path in sources(where) for name in imports(path)]
    assert [f"{path.relative_to(ROOT)} imports {name}" for path, name in found if name in HEAVY] == []


def run_python(program: str) -> set[str]:
    """The top-level modules that are imported when a program in a process of its own ends."""
    told = f"{program}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("folder", FAST_TO_IMPORT)
def test_no_module_of_these_brings_in_a_tensor_library(folder: str) -> None:
    names = [module_name(path) for path in sources(folder) if "experiments" not in path.parts]
    assert len(names) > 3
    assert run_python("\n".join(f"import {name}" for name in names)) & SLOW == set()


def test_help_brings_in_neither_a_tensor_library_nor_a_server() -> None:
    program = "from contextlib import suppress\nfrom server.cli.main import main\n"
    imported = run_python(f"{program}with suppress(SystemExit):\n    main(['--help'])")
    assert imported & {*SLOW, "aiohttp", "numpy"} == set()


def test_a_server_brings_in_no_modelling_code_of_transformers_before_it_reads_a_network() -> None:
    """Half of a start's CPU time; torch._dynamo and the losses of transformers come with it, and bring these."""
    assert run_python("import server.composition.app") & {"scipy", "sympy"} == set()


def test_a_gateway_that_serves_has_loaded_no_tensor_library() -> None:
    program = """
import asyncio
from server.config import GatewayConfig
from server.composition.gateway import open_gateway
import server.process.life

async def serve() -> None:
    async with open_gateway(GatewayConfig(backend=("http://127.0.0.1:9/v1",), no_journal=True)):
        await asyncio.sleep(0)

asyncio.run(serve())"""
    imported = run_python(program)
    assert "aiohttp" in imported and imported & SLOW == set()


def test_no_module_leads_back_to_itself() -> None:
    paths = {module_name(path): path for package in PACKAGES for path in sources(package)}
    paths["lengthwise"] = ROOT / "lengthwise.py"

    def leads_to(name: str) -> set[str]:
        found = {part for one in imports(paths[name]) for part in (one, one.rpartition(".")[0])}
        return found & paths.keys() - {name}

    TopologicalSorter({name: leads_to(name) for name in paths}).prepare()  # raises CycleError, which names the modules


def test_no_two_folders_of_the_server_import_each_other() -> None:
    def folder(module: str) -> str | None:
        return module.split(".")[1] if module.startswith("server.") and module.count(".") > 1 else None

    pairs = {(folder(module_name(path)), folder(one)) for path in sources("server") for one in imports(path)}
    own = {(a, b) for a, b in pairs if a and b and a != b}
    assert not {(a, b) for a, b in own if (b, a) in own}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_package_can_run_code_that_it_reads(package: str) -> None:
    for path in sources(package):
        calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        called = {node.id for node in calls if isinstance(node, ast.Name)}
        assert not called & {"eval", "exec", "compile", "__import__"}, path
        assert not {name.partition(".")[0] for name in imports(path)} & NOT_DATA, path


def test_every_test_file_has_tests_and_lies_in_a_package() -> None:
    for path in sources("tests"):
        assert (path.parent / "__init__.py").exists(), path
        if path.name.startswith("test_"):
            names = [
                node.name for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            assert any(name.startswith("test_") for name in names), path


def test_package_files_are_empty() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    assert len(files) >= len(PACKAGES)
    assert [path for path in files if path.read_text()] == []
