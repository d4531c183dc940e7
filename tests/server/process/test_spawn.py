"""Processes beside the server's."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

if __name__ == "__main__":
    import lengthwise

    sys.argv = ["lengthwise", "--version"]
    with suppress(SystemExit):
        lengthwise.main()
    from server.worker_process import end, spawn

    process, connection = spawn(Connection.send, "hello")
    print(connection.recv())
    end(process)
"""


def test_its_modules_never_come_from_the_working_directory(tmp_path: Path) -> None:
    """The program itself, started by its script, has no working directory on its path; its processes had."""
    (tmp_path / "here" / "multiprocessing").mkdir(parents=True)
    (tmp_path / "here" / "multiprocessing" / "__init__.py").write_text("raise SystemExit('not the one that was meant')")
    (script := tmp_path / "program.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], cwd=tmp_path / "here", capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["hello"], "")
