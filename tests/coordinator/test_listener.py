"""The listener at work: rows in a SQLite file, a real PostgreSQL that tells of them, and how often that makes a claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from shardrun.coordinator import clock, listener
from shardrun.coordinator.listener import listening
from shardrun.db.connect import database
from shardrun.db.listening import Ear, Listening, Told
from shardrun.errors import DatabaseUnreachable, ShardrunError
from tests.coordinator.conftest import MakeDesk
from tests.coordinator.desk import Desk
from tests.coordinator.faults import Held
from tests.proxy import Proxy
from tests.store.place import usual
from tests.waiting import eventually

OURS = "select pid from pg_stat_activity where application_name = 'shardrun desk listener'"


class Overheard:
    """A session that listens, of which the test sees what came; `refuses` says how many more are not opened."""

    def __init__(self, to: Listening) -> None:
        self._to = to
        self.refuses = 0
        self.tries = 0
        self.told: list[Told] = []
        self.answers = 0

    def problems(self, connection: Any) -> list[ShardrunError]:
        return self._to.problems(connection)

    def open(self, part: str, channels: Sequence[str]) -> Ear:
        self.tries += 1
        if self.refuses:
            self.refuses -= 1
            raise DatabaseUnreachable("PostgreSQL did not answer")
        return OverheardEar(self, self._to.open(part, channels))


class OverheardEar:
    """Passes on what a session hears."""

    def __init__(self, by: Overheard, ear: Ear) -> None:
        self._by = by
        self._ear = ear
        self.ask, self.close = ear.ask, ear.close

    @property
    def descriptor(self) -> int:
        return self._ear.descriptor

    @property
    def awaits_answer(self) -> bool:
        return self._ear.awaits_answer

    def heard(self) -> list[Told]:
        was_asked = self._ear.awaits_answer
        told = self._ear.heard()
        self._by.answers += was_asked and not self._ear.awaits_answer
        self._by.told += told
        return told


class Scene:
    """A desk that listens, and whoever notifies it."""

    def __init__(self, desk: Desk, dsn: str) -> None:
        self.desk = desk
        self.admin = psycopg.connect(dsn, autocommit=True)
        self.to = Overheard(known(dsn))
        self.answers = 0

    def until_it_listens(self) -> None:
        """Turn the loop until the server has said that it listens; the claim that follows has found nothing."""
        seen, claims = self.to.answers, self.claims
        self.desk.until(lambda: self.to.answers > seen and self.claims > claims)
        self.desk.until_idle()

    def notify(self, *groups: str, table: str = "q", times: int = 1) -> None:
        """Notify, in a transaction for each."""
        for group in groups * times:
            self.admin.execute("select pg_notify(%s, %s)", (f"shardrun:{table}", group))

    def until_heard(self, count: int) -> None:
        """Turn the loop until so many notifications have come in all, and what follows from them is done."""
        self.desk.until(lambda: len(self.to.told) >= count)
        self.desk.step()
        self.desk.until_idle()

    @property
    def claims(self) -> int:
        """Count the claims that were sent."""
        return len(self.desk.store.asked("claim"))

    def sessions(self) -> list[Any]:
        """Name the server's processes that listen for the desk."""
        return self.admin.execute(OURS).fetchall()


def known(dsn: str) -> Listening:
    """Give how a PostgreSQL is listened to."""
    to = database(dsn).listening
    assert to is not None
    return to


@pytest.fixture
def make_scene(make_desk: MakeDesk, shared_dsn: str) -> Iterator[Callable[..., Scene]]:
    """Give a function that sets a scene with a desk of these settings."""
    made: list[Scene] = []

    def make(**settings: Any) -> Scene:
        made.append(Scene(make_desk(**settings), shared_dsn))
        return made[-1]

    yield make
    for scene in made:
        eventually(lambda scene=scene: not scene.sessions())  # type: ignore[misc]
        scene.admin.close()


GROUPS = {"queue": usual(group="topic"), "columns": {"topic": "text"}, "group": "mine"}


def test_a_notification_of_the_table_wakes_and_one_of_others_does_not(make_scene: Callable[..., Scene]) -> None:
    """G2: its group, or an empty one for all, makes one claim; other groups, other case and other tables make none."""
    scene = make_scene(**GROUPS)
    with listening(scene.desk.replica, scene.to):
        scene.until_it_listens()
        before = scene.claims
        scene.notify("other", "MINE")
        scene.notify("", "mine", table="other")
        scene.until_heard(2)
        assert scene.claims == before
        for group in ("mine", ""):
            before, heard = scene.claims, len(scene.to.told)
            scene.notify(group)
            scene.until_heard(heard + 1)
            assert scene.claims == before + 1
    assert [one.group for one in scene.to.told] == ["other", "MINE", "mine", ""]


def test_a_storm_of_notifications_makes_one_claim_beside_the_one_under_way(make_scene: Callable[..., Scene]) -> None:
    """G2: however many came while a claim was under way, and however many connections are free, one follows it."""
    scene = make_scene(threads=3)
    with listening(scene.desk.replica, scene.to):
        scene.until_it_listens()
        before = scene.claims
        scene.desk.store.fail("claim", held := Held(after=True))
        scene.notify("")
        scene.desk.until(lambda: scene.desk.service.pacing.under_way)
        assert held.begun.wait(10)
        scene.notify("", "a", "b", times=100)
        scene.desk.until(lambda: len(scene.to.told) == 301)
        assert scene.claims == before + 1
        held.go()
        scene.desk.until(lambda: scene.claims == before + 2)
        scene.desk.until_idle()
        assert scene.claims == before + 2


def test_a_session_that_lives_is_asked_and_wakes_nobody(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2, C3: the questions whether it is there make no claim, and cost the loop two turns each."""
    monkeypatch.setattr(listener, "LOOK", 0.02)
    scene = make_scene()
    with listening(scene.desk.replica, scene.to):
        scene.until_it_listens()
        before, answers, turns = scene.claims, scene.to.answers, 0
        while scene.to.answers < answers + 5:
            scene.desk.events.wait(float("inf"))
            scene.desk.step()
            turns += 1
        assert scene.claims == before
        assert turns <= 12
        assert scene.to.tries == 1


def test_the_poll_interval_stays_between_claims_that_nothing_wakes(make_scene: Callable[..., Scene]) -> None:
    """G2, C3: who listens polls all the same, and no more often."""
    scene = make_scene(poll=0.1)
    with listening(scene.desk.replica, scene.to):
        scene.until_it_listens()
        before, began = scene.claims, clock.now()
        scene.desk.until(lambda: scene.claims == before + 5)
        assert clock.now() - began >= 4 * 0.1 * 0.9


def test_after_its_session_was_ended_it_listens_again_and_wakes_once(
    make_scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    """G2, C75: found at once, a line when it is gone and one when it is back, with tries further and further apart."""
    scene = make_scene()
    caplog.set_level(logging.WARNING, "shardrun")
    with listening(scene.desk.replica, scene.to):
        scene.until_it_listens()
        before, scene.to.refuses = scene.claims, 2
        ((pid,),) = scene.sessions()
        scene.admin.execute("select pg_terminate_backend(%s)", (pid,))
        scene.until_it_listens()
        assert scene.claims == before + 1
        assert scene.to.tries == 4
        assert scene.sessions() not in ([(pid,)], [])
        scene.notify("")
        scene.until_heard(1)
        assert scene.claims == before + 2
    gone, back = (record.getMessage() for record in caplog.records)
    assert gone.startswith(
        "nothing listens for NOTIFY, rows are found by the poll meanwhile: the connection to PostgreSQL"
    )
    assert back.startswith("NOTIFY is listened for again, after ")
    assert not any(listener.AGAIN.first * 4 > float(word) for word in back.split() if word[0].isdigit())


def test_a_session_that_has_gone_silent_is_found_and_replaced(
    make_scene: Callable[..., Scene], shared_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G2, C75: nothing passes and nothing breaks; the question stays unanswered, and when packets pass again, all are woken."""
    monkeypatch.setattr(listener, "LOOK", 0.3)
    scene = make_scene()
    caplog.set_level(logging.WARNING, "shardrun")
    with Proxy.of(shared_dsn) as proxy:
        scene.to = Overheard(known(proxy.dsn(shared_dsn)))
        with listening(scene.desk.replica, scene.to):
            scene.until_it_listens()
            before = scene.claims
            proxy.swallow()
            scene.notify("")
            scene.desk.until(lambda: scene.to.tries == 2)
            assert "no answer within 0.3 s" in caplog.text
            assert scene.claims == before
            proxy.flow()
            scene.until_it_listens()
            assert scene.claims == before + 1
            scene.notify("")
            scene.until_heard(1)
            assert scene.claims == before + 2


def test_a_connection_that_opens_after_the_end_is_closed(make_scene: Callable[..., Scene]) -> None:
    """H5: a stop does not wait for it, and leaves no session."""
    scene = make_scene()
    opened = Held()
    scene.to.open = lambda part, channels: opened(lambda: Overheard.open(scene.to, part, channels))  # type: ignore[method-assign]
    with listening(scene.desk.replica, scene.to):
        assert opened.begun.wait(10)
    opened.go()
    eventually(lambda: scene.to.tries == 1)
