"""A server that lost the end of its log and wrote other rows: `heal` gives its tuples; impossible requests fail."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from jobs.backfill import backfill
from schemas.errors import ConfigurationError
from tests.jobs import asked
from tests.jobs.deployment import Deployment
from tests.live import Tarantool

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

CREATE = """
local format = {{'id', 'unsigned'}, {'state', 'string'}, {'n', 'integer'}}
for _, name in pairs({'orders', 'disk'}) do
    local engine = name == 'disk' and 'vinyl' or 'memtx'
    box.schema.space.create(name, {format = format, engine = engine}):create_index('pk')
    for i = 1, 50 do box.space[name]:insert{i, 'old', 0} end
end
"""
LOST = """
for _, name in pairs({'orders', 'disk'}) do
    local space = box.space[name]
    for i = 1, 10 do space:delete(i) end
    for i = 11, 20 do space:replace{i, 'lost', -1} end
    for i = 60, 70 do space:insert{i, 'lost', -1} end
    for i = 21, 25 do space:update(i, {{'+', 3, 100}}) end
end
"""
INSTEAD = """
for _, name in pairs({'orders', 'disk'}) do
    local space = box.space[name]
    for i = 5, 15 do space:update(i, {{'=', 2, 'right'}}) end
    for i = 65, 75 do space:insert{i, 'right', 1} end
    for i = 24, 30 do space:update(i, {{'+', 3, 1}}) end
    for i = 40, 45 do space:delete(i) end
end
"""
LATER = """
for _, name in pairs({'orders', 'disk'}) do
    local space = box.space[name]
    for i = 1, 30 do space:upsert({i, 'later', 9}, {{'+', 3, 7}}) end
    for i = 70, 80 do space:replace{i, 'later', 2} end
    for i = 46, 48 do space:delete(i) end
    space:insert{100, 'gone', 0}
    space:delete(100)
end
"""
SPACES = ("orders", "disk")


def held(deployment: Deployment) -> dict[str, list[Any]]:
    return {space: deployment.fields(space) for space in SPACES}


def own(server: Tarantool) -> dict[str, list[Any]]:
    return {space: list(server.eval("return box.space[...]:select()", space)) for space in SPACES}


def job(deployment: Deployment, *options: str) -> int:
    return backfill(deployment.config(), asked.options(*options))


@pytest.mark.usefixtures("spark")
def test_the_tables_end_with_the_tuples_of_a_server_with_another_tail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, saved = tmp_path / "a1", tmp_path / "saved"
    deployment = Deployment(tmp_path, {"a1": home})
    with Tarantool(home) as server:
        server.eval(CREATE)
    shutil.copytree(home, saved)
    with Tarantool(home) as server:
        server.eval(LOST)
        wrong = own(server)
    deployment.run()
    assert held(deployment) == wrong
    # Power is lost, and what comes back is the disc as it was.
    shutil.rmtree(home)
    shutil.copytree(saved, home)
    server = Tarantool(home, cfg={"checkpoint_count": 10})
    with server:
        server.eval(INSTEAD)
        assert job(deployment) == 0
        assert [(row["kind"], row["state"]) for row in deployment.rows("_gaps")] == [("divergence", "open")]
        assert job(deployment, "--heal", "a1") == 1
        assert "changed since the snapshot" in capsys.readouterr().out
        server.eval("box.snapshot()")
        server.eval(LATER)
        with pytest.raises(ConfigurationError, match="a9"):
            job(deployment, "--heal", "a9")
        assert job(deployment) == 0
        right = own(server)
    assert job(deployment, "--heal", "a1") == 0
    # The lost tail was longer than what came instead until the snapshot: two rows behind it differ too.
    assert "STILL OPEN" in capsys.readouterr().out
    assert held(deployment) != right
    with server:
        server.eval("box.snapshot()")
    assert job(deployment, "--heal", "a1") == 0
    assert "STILL OPEN" not in capsys.readouterr().out
    assert held(deployment) == right
    assert sorted(row["state"] for row in deployment.rows("_gaps")) == ["healed", "healed", "open", "open"]
    assert job(deployment, "--heal", "a1") == 0, "once more"
    assert held(deployment) == right
    with server:
        server.eval("box.space.orders:create_index('n', {parts = {3, 'integer'}, unique = false})")
    deployment.forget_checkpoint()  # the file that the stream was in went with the disc
    deployment.run()
    assert job(deployment, "--heal", "a1") == 1
    assert "take a new one" in capsys.readouterr().out
    assert held(deployment) == right
