"""The first deployment of docs/deploy.md on two real servers: its grant, file and commands, as they are printed."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from jobs.main import main
from sources.spool.state import read_state
from tests.live import Tarantool
from tests.live.commands import Command
from tests.live.replicaset import await_true

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
GRANT = PAGE.partition("```lua\n")[2].partition("```")[0]
FILE = PAGE.partition("```yaml\n")[2].partition("```")[0]
COMMANDS = re.findall(r"^    aggregator (\w+) (.*?)(?:  +#.*)?$", PAGE, re.MULTILINE)

SPACE = """
box.schema.space.create('accounts', {format = {{'id', 'unsigned'}, {'balance', 'number'}, {'updated', 'unsigned'}}})
box.space.accounts:create_index('pk')
"""


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[dict[str, Tarantool]]:
    """Yield the masters of two replicasets with one space, the user of the page, and a key that both have."""
    with ExitStack() as stack:
        found = {}
        for number, name in enumerate("ab", start=1):
            uuids = {"replicaset_uuid": str(UUID(int=number << 64 | 1 << 78 | 1 << 63, version=4))}
            found[name] = stack.enter_context(Tarantool(tmp_path / name, cfg=uuids))
            found[name].eval(f"{SPACE} box.session.su('admin', function() {GRANT} end)")
            found[name].eval(
                "local n = ... box.space.accounts:replace{202, n, n} box.space.accounts:replace{n, 0, 0}",
                number,
            )
        yield found


def written(folder: Path, masters: dict[str, Tarantool]) -> Path:
    """Write the file of the page, with the addresses of the servers and folders of the test."""
    text = FILE.replace("/data/", f"{folder}/")
    for name, server in masters.items():
        text = re.sub(rf'peers: \["{name}1[^\]]*\]', f'peers: ["unix/:{server.socket}"]', text)
    text = re.sub(r"^(metrics:|  status:).*\n", "", text, flags=re.MULTILINE)  # fixed ports
    file = folder / "shop.yaml"
    file.write_text(text)
    return file


def test_the_page_is_followed_from_the_grant_to_the_question(
    masters: dict[str, Tarantool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: object,  # noqa: ARG001
) -> None:
    file = written(tmp_path, masters)
    monkeypatch.setenv("REPLICATOR_PASSWORD", "secret")
    spools = [tmp_path / "spool" / name for name in masters]
    codes = []
    with ExitStack() as stack:
        for name, options in COMMANDS:
            words = shlex.split(options.replace("shop.yaml", str(file)))
            if name == "subscribe":
                stack.enter_context(Command("subscribe", file, tmp_path / "daemon.log"))
                await_true(lambda: all(spool.exists() and read_state(spool).vclock for spool in spools))
            elif str(file) in words and name != "report":
                code = main(name, [*words, *(["--once"] if name == "run" else [])])
                codes.append((name, code))
    printed = capsys.readouterr().out
    done = [("plan", 0), ("run", 0), ("status", 0), ("prove", 0), ("sql", 0), ("who", 0)]
    assert codes == [("doctor", 1), ("doctor", 0), *done], printed
    assert printed.count("spool_not_begun") == 2
    assert "last_write_wins by updated: 2 against 1" in printed
