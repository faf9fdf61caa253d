"""An older copy of a directory that nobody else holds anything of gives no offset a second time (G2, R22)."""

from __future__ import annotations

import pytest

from hotstore.host.data_dir import DataDir, Process
from tests.support.brokers.broker_kit import Place, play


@pytest.mark.parametrize("settings", [(), ("thermocline.flush=os",)], ids=["sync", "os"])
def test_a_volume_that_is_put_back_gives_no_offset_again(settings: tuple[str, ...]) -> None:
    """Found by reading: with one replica the copy's reservation still vouched for its logs, so offsets that consumers
    had seen showed other records. What is lost is a declared gap, as where a disk is lost; also where the first start
    from the copy is killed at once."""

    async def scenario() -> None:
        place = Place(*settings)
        life = await place.start()
        await life.create("log", remote_storage_enable="false")
        await life.produce("log", b"a", b"b")
        await life.crash()
        place.kill()
        yesterday = place.disk.kill()
        life = await place.start()
        assert (await life.produce("log", b"c", b"d")).error_code == 0
        await life.crash()
        place.disk = yesterday
        for value in (b"e", b"f"):
            life = await place.start()
            assert (await life.produce("log", value)).error_code == 0
            found = dict(await life.read_all("log"))
            assert found[0] == b"a" and found[1] == b"b", "what the copy holds is served"
            assert not found.keys() & {2, 3} and min(found.keys() - {0, 1}) >= 4
            await life.crash()
            place.kill()

    play(scenario())


def test_a_hundred_starts_that_came_to_nothing_make_no_older_copy_of_a_directory() -> None:
    """A supervisor's loop while the bucket was away: each start is noted before it may serve, and the last that did
    serve was forgotten for them. The directory was taken for an older copy: a loss was told that never was."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log", remote_storage_enable="false")
        await life.produce("log", b"a", b"b")
        await life.crash()
        place.kill()
        for number in range(150):
            directory = DataDir.open(place.disk, "/data/a")
            assert directory.processes is not None
            directory.note_processes((*directory.processes, Process(f"tried-{number}", flushes=True)))
            assert len(directory.processes) < 160
            directory.close()
        life = await place.start()
        assert (await life.produce("log", b"c")).error_code == 0
        assert await life.read_all("log") == [(0, b"a"), (1, b"b"), (2, b"c")]
        await life.crash()

    play(scenario())
