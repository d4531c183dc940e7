"""What commands print."""

import pytest

from server.cli import main as cli
from tests.server.cli.commands.runner import Told


@pytest.fixture
def told(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs the module's `run`, else any command; returns what it prints, or its errors, beside which it prints nothing,
    where its code is not 0."""
    run = getattr(request.module, "run", lambda *words: cli.main([*map(str, words)]))

    def tell(*words: object, code: int = 0) -> str:
        assert run(*words) == code
        out, err = capsys.readouterr()
        assert not (code and out)
        return err if code else out

    return tell
